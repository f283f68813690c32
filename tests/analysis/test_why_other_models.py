"""Scores of models that show only a softmax, or that no library wrote, against runs with cuts."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import gattn
from benchmarks import zoo
from gattn.errors import CaptureError

IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21]
WIDTH, HEADS = 16, 4


class LayerNorm(nn.Module):
    """NanoGPT's: a function of torch in a module."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.randn(WIDTH)) for _ in range(2))

    def forward(self, x):
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Causal(nn.Module):
    def __init__(self, is_manual):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.is_manual = is_manual

    def forward(self, x):
        q, k, v = (
            y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in self.c_attn(x).split(WIDTH, -1)
        )
        if self.is_manual:
            scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            y = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
        else:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class Torchs(nn.Module):
    """Torch's own module, whose weights are no modules that run."""

    def __init__(self, is_manual):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.is_manual = is_manual

    def forward(self, x):
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.attention(x, x, x, attn_mask=later, need_weights=self.is_manual)[0]


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = LayerNorm(), attention, LayerNorm()
        self.up, self.linear2 = nn.Linear(WIDTH, 20), nn.Linear(20, WIDTH)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.linear2(functional.gelu(self.up(self.ln_2(x))))


class Model(nn.Module):
    def __init__(self, kind, is_manual):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(60, WIDTH), nn.Embedding(10, WIDTH)
        self.layers = nn.ModuleList(Block(kind(is_manual)) for _ in range(3))

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return x


class Encoder(nn.Module):
    """Torch's encoder after an embedding."""

    def __init__(self, norm_first):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 20, dropout=0.1, norm_first=norm_first, batch_first=norm_first
        )
        self.is_first = norm_first
        self.wte = nn.Embedding(60, WIDTH)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, ids):
        return self.encoder(self.wte(ids if self.is_first else ids.T))


def built(name):
    torch.manual_seed(0)
    if name in ("bloom", "gptj", "mpt", "gpt_neo"):
        model = zoo.specimen(name).model.double()
        ids = torch.tensor([IDS]) % model.config.vocab_size
        return model, lambda: model(input_ids=ids, use_cache=False)
    model = {
        "nanogpt": lambda: Model(Causal, is_manual=False),
        "nanogpt, softmax": lambda: Model(Causal, is_manual=True),
        "multihead": lambda: Model(Torchs, is_manual=False),
        "multihead, softmax": lambda: Model(Torchs, is_manual=True),
        "encoder, norm first": lambda: Encoder(norm_first=True),
        "encoder, norm last": lambda: Encoder(norm_first=False),
    }[name]()
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model, lambda: model(torch.tensor([IDS]))


def held(model, run):
    """Hold a model's norms, and what the MLP of its first layer gives, as they are in a run."""
    runs = {}

    def note(module, given, result):
        runs[module] = given[0], result

    def norm(module, given, _):
        if module not in runs:  # A copy, by which attention is proved.
            return None
        before = runs[module][0]
        deviation = (before.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        centred = given[0] - given[0].mean(-1, keepdim=True)
        return centred / deviation * module.weight + (0 if module.bias is None else module.bias)

    norms = [x for x in model.modules() if isinstance(x, nn.LayerNorm | LayerNorm)]
    ends = ("layers.0.linear2", "h.0.mlp.dense_4h_to_h", "h.0.mlp.fc_out", "h.0.mlp.c_proj")
    ends += ("blocks.0.ffn.down_proj",)
    (mlp,) = (x for name, x in model.named_modules() if name.endswith(ends))
    hooks = [x.register_forward_hook(note) for x in (*norms, mlp)]
    with torch.no_grad():
        run()
    for one in hooks:
        one.remove()
    for one in norms:
        one.register_forward_hook(norm)
    mlp.register_forward_hook(lambda module, *_: runs[module][1] if module in runs else None)


def scores_of(run, model, tokens):
    graph = gattn.capture(run, model, scores=True)[1, 1].to_networkx()
    found = torch.full((tokens, tokens), -torch.inf, dtype=torch.double)
    for key, query, score in graph.edges(data="score"):
        found[query, key] = score
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        *("nanogpt", "nanogpt, softmax", "multihead", "multihead, softmax"),
        *("encoder, norm first", "encoder, norm last", "bloom", "gptj", "mpt", "gpt_neo"),
    ],
)
def test_a_heads_part_is_what_scores_lose_when_it_is_cut(name):
    model, run = built(name)
    found = gattn.why(run, model, layer=1, head=1)
    held(model, run)
    plain = scores_of(run, model, len(found.tokens))
    seen = ~plain.isinf()
    assert torch.equal(seen, ~found.scores.isinf())
    torch.testing.assert_close(plain, found.scores, atol=1e-6, rtol=0)
    names = [str(one) for one in found.writers]
    assert "wte" in names or "word_embeddings" in names
    assert found.error < 1e-6
    for head in range(2):
        at = names.index(f"0.{head}")
        query, key = (x.sum(0) - x[at] for x in (found.queries, found.keys))
        expected = query @ key.T + (0 if found.bias is None else found.bias)
        with gattn.edited(model, gattn.Cut(layer=0, head=head, renormalize=False)):
            scores = scores_of(run, model, len(found.tokens))
        torch.testing.assert_close(scores[seen], expected[seen], atol=1e-5, rtol=0)
        assert float((scores - plain)[seen].abs().max()) > 1e-3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["bloom", "mpt"])
def test_alibi_is_a_term_of_its_own(name):
    """It is a slope times the key's position, or that of the distance: the same up to the row."""
    model, run = built(name)
    for head in range(2):
        found = gattn.why(run, model, layer=1, head=head)
        slope = found.bias[-1, 1] - found.bias[-1, 0]
        assert slope > 1e-3
        rows = found.bias - found.bias[:, :1]
        expected = (slope * torch.arange(len(IDS))).expand_as(rows)
        seen = ~found.scores.isinf()
        torch.testing.assert_close(rows[seen], expected[seen], atol=1e-6, rtol=0)
        table = found.among([8], [3]).table()
        added = table["score"][table["query_part"] == "added"]
        assert added.item() == pytest.approx(float(found.bias[8, 3]))
        assert table["score"].sum() == pytest.approx(float(found.scores[8, 3]), abs=1e-6)


def test_one_layer_of_torch():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 20, batch_first=True, norm_first=True)
    layer, x = layer.double().eval(), torch.randn(1, 6, WIDTH).double()
    found = gattn.why(lambda: layer(x), layer, layer=0, head=1, query=5, key=2)
    attention = layer.self_attn
    q, k, _ = functional.linear(
        layer.norm1(x[0]), attention.in_proj_weight, attention.in_proj_bias
    ).split(WIDTH, -1)
    score = q[5, 4:8] @ k[2, 4:8] / 2
    assert found.table()["score"].sum() == pytest.approx(float(score.detach()), abs=1e-9)


class Bent(Causal):
    """Its scores are no products."""

    def forward(self, x):
        q, k, v = (
            y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in self.c_attn(x).split(WIDTH, -1)
        )
        y = (q @ k.transpose(-2, -1)).tanh().softmax(-1) @ v
        return self.c_proj(y.transpose(1, 2).flatten(2))


def test_scores_that_are_no_products_are_refused():
    torch.manual_seed(0)
    model = Model(Bent, is_manual=True).double().eval()
    with pytest.raises(CaptureError, match="not found to be products of queries and keys"):
        gattn.why(lambda: model(torch.tensor([IDS])), model, layer=1, head=1)


def test_inference_mode(tiny):
    model = tiny("gpt2", dtype=torch.float64)
    plain = gattn.why(IDS, model, layer=1, head=1, query=8, key=3)
    with torch.inference_mode():
        found = gattn.why(IDS, model, layer=1, head=1, query=8, key=3)
    torch.testing.assert_close(found.queries, plain.queries)

    @torch.inference_mode()
    def run():
        return model(torch.tensor([IDS]))

    with pytest.raises(CaptureError, match=r"under torch\.inference_mode"):
        gattn.why(run, model, layer=1, head=1)


def test_several_streams_are_told():
    specimen = zoo.specimen("gemma3n_text")
    inputs = {n: x[:1] if torch.is_tensor(x) else x for n, x in specimen.inputs.items()}
    with pytest.raises(CaptureError, match="which are 4 residual streams or sequences"):
        gattn.why(inputs, specimen.model, layer=0, head=0)


def test_sums_of_several_products_are_refused():
    """DeBERTa adds products of positions, which depend on the stream, too."""
    from transformers import DebertaV2Config, DebertaV2Model

    torch.manual_seed(0)
    config = DebertaV2Config(
        vocab_size=60,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        intermediate_size=20,
        relative_attention=True,
        pos_att_type=["c2p"],
        max_position_embeddings=16,
    )
    model = DebertaV2Model(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    with pytest.raises(CaptureError, match="not found to be products"):
        gattn.why(IDS, model, layer=0, head=0)
