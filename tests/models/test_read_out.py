"""The token in whose last stream a model reads its answer is proved, or has to be named."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import gattn
from gattn.errors import CaptureError, SelectionError

_POSITIONS = {"first": 0, "third": 2, "last": 6}


class Reader(nn.Module):
    """Layers, and an answer that is read from some of the tokens after the last."""

    def __init__(self, read, is_causal=False, masks=None):
        super().__init__()
        layers = [nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(2)]
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(16, 5)
        self.read, self.is_causal, self.masks = read, is_causal, masks

    def forward(self, x):
        mask = torch.full((7, 7), -torch.inf).triu(1) if self.is_causal else None
        for layer, one in zip(self.layers, self.masks or (mask, mask), strict=True):
            x = layer(x, one, is_causal=self.is_causal)
        return self.read(self.head(x))


_READ = {
    "first": lambda x: x[:, 0],
    "third": lambda x: x[:, 2],
    "last": lambda x: x[:, -1],
    "mean": lambda x: x.mean(1),
    "two": lambda x: (x[:, 0] + x[:, 1]) / 2,
    "largest": lambda x: x.amax(1),
    "last, and the mean of those above 0": lambda x: x[:, -1] + torch.where(x > 0, x, 0).mean(1),
    "each": lambda x: x,
    "none": lambda x: torch.zeros(1, 5),
}


def found_by(model, answer=lambda out: out, **options):
    torch.manual_seed(0)
    x = torch.randn(1, 7, 16)
    return gattn.analysis.routes(lambda: answer(model(x)), model, progress=False, **options)


def built(read, **options):
    torch.manual_seed(0)
    return Reader(_READ[read], **options).eval()


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("read", _READ)
def test_routes_lead_to_the_token_that_the_answer_is_read_from(read, is_causal):
    model = built(read, is_causal=is_causal)
    wanted = 6 if read == "each" and is_causal else _POSITIONS.get(read)
    if wanted is None:
        with pytest.raises(
            SelectionError, match=r"from one token of 'layers.self_attn' alone.*posi"
        ):
            found_by(model)
        assert found_by(model, position=3).graph["position"] == 3
    else:
        assert found_by(model).graph["position"] == wanted


def test_what_a_function_returns_is_the_answer():
    model = built("each")
    assert found_by(model, lambda out: out[0, 4]).graph["position"] == 4
    assert found_by(model, lambda out: out[0, 0, 1].item()).graph["position"] == 0
    assert found_by(model, lambda out: {"answer": [out[:, 5]]}).graph["position"] == 5
    assert found_by(built("third"), lambda out: None).graph["position"] == 2


def test_a_classifier_of_texts_is_read_where_it_reads():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "vocab_size": 30}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    bert = transformers.BertConfig(**sizes, **layers)
    gpt = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=30, pad_token_id=0)
    for kind, config, position in (
        (transformers.BertForSequenceClassification, bert, 0),
        (transformers.GPT2ForSequenceClassification, gpt, 5),
        (transformers.GPT2LMHeadModel, gpt, 5),
        (transformers.BertForMaskedLM, bert, None),
        (transformers.BertForTokenClassification, bert, None),
        (transformers.BertModel, bert, None),
    ):
        given = [4, 7, 9, 4, 8, 3], kind(config).eval()
        if position is not None:
            found = gattn.analysis.routes(*given, progress=False)
            assert found.graph["position"] == position, kind
        else:
            with pytest.raises(SelectionError, match="Pass position="):
                gattn.analysis.routes(*given, progress=False)


def test_pictures_name_the_token_that_routes_lead_to():
    def title(position, **names):
        found = found_by(built("mean"), position=position, **names)
        return found.draw().get_title(loc="left") or found.draw().get_title()

    patches = ["class", *(f"{row},{column}" for row in range(2) for column in range(3))]
    words = ["a", "dog", "sat", "on", "the", "old", "mat"]
    assert "routes to patch 1,0" in title(4, tokens=patches)
    assert "routes to “class”" in title(0, tokens=patches)
    assert "routes to position 1 “dog”" in title(1, tokens=words)
    assert "routes to position 3" in title(3)
    influence = gattn.analysis.oversquashing(torch.ones(1, 1, 7, 7) / 7, tokens=patches)
    assert "output at position 6 “1,2”" in influence.attrs["notes"][0]


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "BertForTokenClassification"])
def test_an_answer_for_each_token_needs_a_position(kind):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "vocab_size": 30}
    config = transformers.BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=2)
    model, ids = getattr(transformers, kind)(config).eval(), [4, 7, 9, 4]
    options = {"metric": "probability", "target": 1, "progress": False}
    given = [gattn.Cut(layer=0)], model
    for run in (ids, lambda: model(torch.tensor([ids]))):
        with pytest.raises(
            SelectionError, match=rf"{kind} gives logits for each .*: pass position="
        ):
            gattn.effect(run, *given, **options)
        found = gattn.effect(run, *given, position=1, **options)
        with torch.no_grad():
            wanted = model(torch.tensor([ids])).logits[0, 1].softmax(-1)[1]
        assert float(found["plain"][0]) == pytest.approx(float(wanted), rel=1e-5)
    assert len(gattn.effect(ids, *given, metric=lambda rows: rows.sum(), progress=False)) == 1


def test_the_nodes_of_a_graph_have_no_last_one():
    layers = pytest.importorskip("torch_geometric.nn")
    data = pytest.importorskip("torch_geometric.data")
    torch.manual_seed(0)
    layer, x, edges = layers.GATConv(8, 3).eval(), torch.randn(4, 8), torch.tensor([[0, 1], [1, 2]])
    cut = [gattn.Cut(layer=0, query=2, key=1)]
    with pytest.raises(SelectionError, match=r"4 rows of logits, and the nodes of a graph have no"):
        gattn.effect(lambda: layer(x, edges), cut, layer, progress=False)
    tables = [
        gattn.effect(lambda: layer(x, edges)[2], cut, layer, progress=False),
        gattn.effect(lambda: layer(x, edges), cut, layer, position=2, progress=False),
    ]
    assert tables[0]["effect"][0] == tables[1]["effect"][0] > 0
    with pytest.raises(
        CaptureError, match=r"lambda: model\(data.x, data.edge_index\), not the Data"
    ):
        gattn.effect(data.Data(x=x, edge_index=edges), cut, layer)


def near(distance):
    places = torch.arange(7)
    return (places[:, None] - places).abs() <= distance


CAUSAL = torch.ones(7, 7, dtype=torch.bool).tril()
PREFIX = CAUSAL | (torch.arange(7) < 4)
TEXTS = torch.block_diag(torch.ones(3, 3), torch.ones(4, 4)).bool()
PADDED = (torch.arange(7) < 6).expand(7, 7)


@pytest.mark.parametrize(
    ("allowed", "is_last"),
    [
        ((CAUSAL, CAUSAL), True),
        ((PREFIX, PREFIX), True),
        ((near(9), near(9)), False),
        ((near(1), near(1)), False),
        ((near(1), near(9)), False),
        ((CAUSAL, near(1)), False),
        ((PADDED, PADDED), False),
        ((TEXTS, TEXTS), False),
    ],
)
@pytest.mark.parametrize("is_output", [False, True])
def test_where_tokens_read_the_last_one_it_comes_after_none(allowed, is_last, is_output):
    torch.manual_seed(0)
    x, cut = torch.randn(1, 7, 16), [gattn.Cut(layer=0)]
    masks = [torch.zeros(7, 7).masked_fill(~one, -torch.inf) for one in allowed]
    model = built("each", masks=masks)

    def rows():
        return SimpleNamespace(logits=model(x)) if is_output else model(x)[0]

    if not is_last:
        with pytest.raises(SelectionError, match="7 rows of logits, and tokens read later ones"):
            gattn.effect(rows, cut, model, progress=False)
    found = gattn.effect(rows, cut, model, position=None if is_last else 6, progress=False)
    one = gattn.effect(lambda: model(x)[0, 6], cut, model, progress=False)
    assert found["effect"][0] == one["effect"][0] > 0


def test_a_run_that_holds_an_index_of_edges_is_a_run():
    class Run:
        edge_index = torch.tensor([[0, 1], [1, 2]])

        def __call__(self):
            return model(x)[0, 6]

    torch.manual_seed(0)
    x, model = torch.randn(1, 7, 16), built("each")
    assert gattn.effect(Run(), [gattn.Cut(layer=0)], model, progress=False)["effect"][0] > 0


def test_the_last_row_of_a_decoder_is_one_though_its_encoder_reads_ahead():
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=30, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2
    )
    model, ids = transformers.T5ForConditionalGeneration(config).eval(), torch.tensor([[4, 7, 9]])
    given = {"input_ids": ids, "decoder_input_ids": ids}
    cut = [gattn.Cut(layer=0, stack="encoder")]
    rows = gattn.effect(lambda: model(**given).logits[0], cut, model, progress=False)
    last = gattn.effect(lambda: model(**given).logits[0, -1], cut, model, progress=False)
    assert rows["effect"][0] == last["effect"][0] > 0
