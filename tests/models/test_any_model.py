"""Models of no library: attention through torch's functions, checked with dense formulas."""

from __future__ import annotations

import pytest
import torch
from hand_written import DIM, HEADS, WIDTH, Layer, Model, made
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from gattn import Cut, Scale, capturing, edited
from gattn.errors import CaptureError, EditError


def kernel(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def written(q, k, v):
    scores = (q @ k.transpose(-2, -1)) / DIM**0.5
    return F.dropout(scores.softmax(-1), 0.1, training=False) @ v


def einsums(q, k, v):
    attention = torch.einsum("bhid,bhjd->bhij", q, k).div(DIM**0.5).softmax(dim=-1)
    return torch.einsum("bhij,bhjd->bhid", attention, v)


def keys_first(q, k, v):
    attention = ((k @ q.transpose(-2, -1)) / DIM**0.5).softmax(-2)
    return (v.mT @ attention).mT


def heads_last(q, k, v):
    attention = F.softmax(torch.einsum("bhid,bhjd->bijh", q, k) / DIM**0.5, 2)
    return torch.einsum("bijh,bhjd->bhid", attention, v)


def heads_in_batch(q, k, v):
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    attention = torch.baddbmm(q.new_zeros(1, 1, 1), q, k.mT, beta=0, alpha=DIM**-0.5).softmax(-1)
    return torch.bmm(attention.view(-1, HEADS, *attention.shape[1:]).flatten(0, 1), v).unflatten(
        0, (-1, HEADS)
    )


def softmin(q, k, v):
    return F.softmin(-(q @ k.mT) / DIM**0.5, -1) @ v


def sums(q, k, v):
    attention = F.softmax(q @ k.mT / DIM**0.5, -1)
    return (attention[..., None] * v[:, :, None]).sum(-2)


def sums_of_values_first(q, k, v):
    attention = ((k @ q.mT) / DIM**0.5).softmax(2)
    return torch.sum(v.unsqueeze(3).mul(attention.unsqueeze(-1)), dim=(2,), keepdim=True)[:, :, 0]


WAYS = [kernel, written, einsums, keys_first, heads_last, sums, sums_of_values_first]


@pytest.mark.parametrize("way", [*WAYS, softmin])
def test_attention_is_the_formulas_and_the_output_stays(way):
    model, x = made(way)
    with torch.no_grad():
        plain = model(x)
        with capturing(model) as run:
            watched = model(x)
        found, _ = model.dense(x)
    assert torch.equal(plain, watched)
    for row, trace in enumerate(run.traces):
        assert list(trace.stacks) == ["blocks"]
        for (layer, head), graph in trace.only_stack.items():
            wanted = found[layer][row, head].numpy()
            assert graph.to_dense() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_a_cut_edge_gives_the_output_without_it(way):
    model, x = made(way)

    def without(attention, layer):
        if layer == 1:
            attention = attention.clone()
            attention[:, 2, 4, 0] = 0
            attention[:, 2] /= attention[:, 2].sum(-1, keepdim=True)
        return attention

    with torch.no_grad(), edited(model, Cut(layer=1, head=2, query=4, key=0)):
        cut = model(x)
    torch.testing.assert_close(cut, model.dense(x, without)[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_gradients_flow_through_an_edit(way):
    model, x = made(way)

    def halved(attention, layer):
        factor = torch.ones_like(attention)
        factor[:, 1] = 0.5
        return attention * factor if layer == 0 else attention

    x.requires_grad_()
    with edited(model, Scale(0.5, layer=0, head=1)):
        model(x).square().sum().backward()
    found, x.grad = x.grad, None
    model.dense(x, halved)[1].square().sum().backward()
    torch.testing.assert_close(found, x.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("is_batch_first", [True, False])
@pytest.mark.parametrize("needs_weights", [True, False])
def test_torchs_multihead_attention(is_batch_first, needs_weights):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 4, batch_first=is_batch_first).double().eval()
    query, key = torch.randn(2, 5, 16).double(), torch.randn(2, 7, 16).double()
    if not is_batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    with torch.no_grad():
        _, weights = module(query, key, key, average_attn_weights=False)
        with capturing(module) as run:
            module(query, key, key, need_weights=needs_weights)
        with edited(module, Cut(layer=0, head=1, query=2, key=3)):
            _, cut = module(query, key, key, average_attn_weights=False)
    assert len(run.traces) == 2
    for trace, wanted in zip(run.traces, weights, strict=True):
        for (_, head), graph in trace.only_stack.items():
            assert graph.graph.is_bipartite
            assert graph.to_dense() == pytest.approx(wanted[head].numpy(), rel=1e-12)
    assert torch.equal(cut[:, 1, 2, 3], torch.zeros(2))
    assert torch.equal(cut[:, 0], weights[:, 0])


def test_an_encoder_and_a_decoder_of_torch():
    torch.manual_seed(0)
    model = nn.Transformer(32, 4, 2, 2, 64, batch_first=True).eval()
    source, target = torch.randn(1, 7, 32), torch.randn(1, 5, 32)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    with torch.no_grad(), capturing(model) as run:
        model(source, target, tgt_mask=mask)
    stacks = run.trace.stacks
    assert list(stacks) == [
        "encoder.layers.self_attn",
        "decoder.layers.self_attn",
        "decoder.layers.multihead_attn",
    ]
    assert stacks["decoder.layers.multihead_attn"][1, 3].graph.is_bipartite
    assert stacks["decoder.layers.self_attn"][0, 0].graph.num_edges == 15


class Checkpointed(Model):
    def __init__(self, way, is_reentrant):
        super().__init__(way)
        self.is_reentrant = is_reentrant

    def forward(self, x):
        for block in self.blocks:
            x = x + torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.is_reentrant)
        return x


@pytest.mark.parametrize("is_reentrant", [False, True])
@pytest.mark.parametrize("way", [kernel, written])
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_capture_leaves_checkpoints_as_they_are(way, is_reentrant, is_inside):
    torch.manual_seed(0)
    model = Checkpointed(way, is_reentrant).double().eval()
    x = torch.randn(2, 6, WIDTH, dtype=torch.float64, requires_grad=True)
    (wanted,) = torch.autograd.grad(model.dense(x)[1].square().sum(), x)
    with capturing(model) as run:
        loss = model(x).square().sum()
        if is_inside:
            loss.backward()
    if not is_inside:
        loss.backward()
    assert len(run.traces[0].only_stack) == 2 * HEADS
    torch.testing.assert_close(x.grad, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_edits_that_a_checkpoint_would_compute_without_them_are_refused(is_reentrant):
    torch.manual_seed(0)
    model, x = Checkpointed(written, is_reentrant), torch.randn(1, 6, WIDTH, requires_grad=True)
    says = "call backward.. inside the context"
    with pytest.raises(EditError, match=says), edited(model, Cut(layer=1, key=0)):
        model(x)


@pytest.mark.parametrize("is_reentrant", [False, True])
@pytest.mark.parametrize("is_inside", [False, True])
def test_gradients_of_edits_in_a_checkpoint_are_taken_inside_the_context(is_reentrant, is_inside):
    torch.manual_seed(0)
    model = Checkpointed(written, is_reentrant).double().eval()
    x = torch.randn(1, 6, WIDTH, dtype=torch.float64, requires_grad=True)
    cut = Cut(layer=1, head=0, key=2)
    plain = Model(written).double().eval()
    plain.load_state_dict(model.state_dict())
    with edited(plain, cut):
        (wanted,) = torch.autograd.grad(plain(x).square().sum(), x)
    with edited(model, cut):
        output = model(x)
        if is_inside:
            output.square().sum().backward()
    if is_inside:
        torch.testing.assert_close(x.grad, wanted, rtol=1e-9, atol=1e-11)
        return
    with pytest.raises(EditError, match=r"call backward.. inside the context"):
        output.square().sum().backward()
    assert x.grad is None


def test_checkpointed_layers_keep_their_edits_in_the_backward_pass():
    model, x = made(kernel)
    forward = model.blocks[1].forward
    x.requires_grad_()
    cut = Cut(layer=1, head=0, key=2)
    with edited(model, cut):
        model(x).square().sum().backward()
    found, x.grad = x.grad, None
    model.blocks[1].forward = lambda x: torch.utils.checkpoint.checkpoint(
        forward, x, use_reentrant=False
    )
    with edited(model, cut):
        model(x).square().sum().backward()
    torch.testing.assert_close(x.grad, found, rtol=1e-12, atol=1e-12)


def with_bias(q, k, v):
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s - 0.3 * h * (i - j).abs())


def in_blocks(q, k, v):
    def is_earlier(b, h, i, j):
        return (i >= j) & ((j != 2 * b + 1) | (i == j))

    count = q.shape[2]
    mask = create_block_mask(is_earlier, len(q), None, count, count, device="cpu")
    return flex_attention(q, k, v, block_mask=mask)


@pytest.mark.parametrize("way", [with_bias, in_blocks])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention(way):
    model, x = made(way, layers=1)
    model, x = model.float(), x.float()
    q, k, _ = model.blocks[0].parts(x)
    scores, n = q @ k.mT / DIM**0.5, torch.arange(6)
    if way is with_bias:
        distance = (n[:, None] - n).abs()
        scores = scores - 0.3 * torch.arange(HEADS)[:, None, None] * distance
    else:
        batch = torch.arange(2)[:, None, None, None]
        apart = (n == 2 * batch + 1) & (n[:, None] != n)
        scores = scores.masked_fill((n[:, None] < n) | apart, -torch.inf)
    wanted = scores.softmax(-1).nan_to_num()
    with torch.no_grad():
        plain = model(x)
        with capturing(model) as run:
            assert torch.equal(model(x), plain)
        with capturing(model) as cut, edited(model, Cut(layer=0, key=3)):
            assert not torch.equal(model(x), plain)
    for row, trace in enumerate(run.traces):
        for (_, head), graph in trace.only_stack.items():
            close = pytest.approx(wanted[row, head].detach().numpy(), abs=1e-6)
            assert graph.to_dense() == close
    assert cut.traces[0][0, 1].to_dense()[:, 3].max() == 0


@pytest.mark.parametrize("way", WAYS)
def test_contributions(way):
    model, x = made(way, layers=1)
    layer = model.blocks[0]
    with torch.no_grad(), capturing(model, contributions=True) as run:
        model(x)
    with torch.no_grad():
        attention, value = model.dense(x)[0][0], layer.parts(x)[2]
        parts = layer.out.weight.unflatten(1, (HEADS, DIM))
        lengths = torch.einsum("chd,bhjd->bhjc", parts, value).norm(dim=-1)
    for row, trace in enumerate(run.traces):
        for (_, head), graph in trace.only_stack.items():
            wanted = attention[row, head] * lengths[row, head]
            assert graph.contribution == pytest.approx(wanted.numpy().ravel(), rel=1e-9)


@pytest.mark.parametrize("needs_weights", [True, False])
def test_contributions_of_torchs_multihead_attention(needs_weights):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 4, batch_first=True).double().eval()
    x = torch.randn(1, 5, 16).double()
    with torch.no_grad(), capturing(module, contributions=True) as run:
        output, _ = module(x, x, x, need_weights=needs_weights)
    value = F.linear(x[0], module.in_proj_weight[32:], module.in_proj_bias[32:])
    total = torch.zeros(5, 16).double()
    for (_, head), graph in run.trace.only_stack.items():
        some = slice(4 * head, 4 * head + 4)
        sent = value[:, some] @ module.out_proj.weight[:, some].T
        attention = torch.as_tensor(graph.to_dense())
        total += attention @ sent
        wanted = attention * sent.norm(dim=-1)
        assert graph.contribution == pytest.approx(wanted.detach().numpy().ravel(), rel=1e-9)
    torch.testing.assert_close(total + module.out_proj.bias, output[0])


def test_tokens_are_named_by_the_caller_and_put_on_a_grid():
    model, x = made(kernel)
    words = ["the", "dog", "saw", "the", "old", "cat"]
    with torch.no_grad(), capturing(model, tokens=words, grid=(2, 3)) as run:
        model(x[:1])
    head = run.trace[1, 2]
    assert head.labels() == words
    assert (head.geometry.rows, head.geometry.columns) == (2, 3)
    with torch.no_grad(), capturing(model, tokens=words[1:]) as run:
        model(x[:1])
    with pytest.raises(CaptureError, match="gives 5 texts, but the stack 'blocks' has 6 tokens"):
        _ = run.trace
    with torch.no_grad(), capturing(model, tokens={"layers": words}) as run:
        model(x[:1])
    with pytest.raises(CaptureError, match=r"the stack 'layers'; the stacks are \['blocks'\]"):
        _ = run.trace
    with pytest.raises(CaptureError, match="one text per token"), capturing(model, tokens="the"):
        pass


def test_ids_are_named_by_a_tokenizer_only(tokenizer):
    text = "the dog saw the cat"
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    model = nn.Sequential(nn.Embedding(len(tokenizer), WIDTH), Model(kernel)).eval()
    with torch.no_grad(), capturing(model, tokenizer) as named, capturing(model) as plain:
        model(ids)
    count = ids.shape[1]
    assert "dog" in named.trace[0, 0].labels()
    assert plain.trace[0, 0].labels() == [str(n) for n in range(count)]


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in "qkv")

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (HEADS, DIM)).transpose(1, 2) for part in self.parts)
        return F.scaled_dot_product_attention(q, k, v)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_read_sequence_by_sequence():
    torch.manual_seed(0)
    model, texts = Nested().eval(), [torch.randn(n, WIDTH) for n in (3, 5)]
    with torch.no_grad():
        x = torch.nested.nested_tensor(texts, layout=torch.jagged)
        plain = model(x)
        with capturing(model) as run:
            watched = model(x)
        with edited(model, Cut(head=1, query=2, key=0)):
            cut = model(x)
        for n, text in enumerate(texts):
            assert torch.equal(plain.unbind()[n], watched.unbind()[n])
            with capturing(model) as alone, edited(model, Cut(head=1, query=2, key=0)):
                wanted = model(text[None])[0]
            torch.testing.assert_close(cut.unbind()[n], wanted, rtol=1e-5, atol=1e-6)
            assert len(alone.trace[0, 0].labels()) == len(text)
            with capturing(model) as alone:
                model(text[None])
            for place, graph in run.traces[n].only_stack.items():
                close = pytest.approx(alone.trace[place].to_dense(), abs=1e-6)
                assert graph.to_dense() == close


class TalkingHeads(Layer):
    """Heads are mixed after the softmax, as in CaiT."""

    def __init__(self):
        super().__init__(None)
        self.mix = nn.Linear(HEADS, HEADS)

    def forward(self, x):
        q, k, v = self.parts(x)
        attention = (q @ k.mT / DIM**0.5).softmax(-1)
        mixed = self.mix(attention.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.out((mixed @ v).transpose(1, 2).flatten(2))


class Differential(Layer):
    """Each head reads with the difference of two softmaxes, as in the Differential Transformer."""

    def __init__(self):
        super().__init__(None)
        self.less = nn.Parameter(torch.tensor(0.4))

    def forward(self, x):
        q, k, v = self.parts(x)
        pairs = (q @ k.mT / DIM**0.5).softmax(-1).view(len(x), HEADS // 2, 2, *[x.shape[1]] * 2)
        mixed = pairs[:, :, 0] - self.less * pairs[:, :, 1]
        v = v.transpose(1, 2).reshape(*x.shape[:2], HEADS // 2, -1).transpose(1, 2)
        return self.out(F.rms_norm(mixed @ v, v.shape[-1:]).transpose(1, 2).flatten(2))


class Gated(Layer):
    """Attention is a mixture of two softmaxes, as in ConViT."""

    def __init__(self):
        super().__init__(None)
        self.place = nn.Parameter(torch.randn(HEADS, 6, 6))

    def forward(self, x):
        q, k, v = self.parts(x)
        content = (q @ k.mT / DIM**0.5).softmax(-1)
        place = self.place.expand(len(x), -1, -1, -1).softmax(-1)
        mixed = 0.7 * content + 0.3 * place
        return self.out(((mixed / mixed.sum(-1, keepdim=True)) @ v).transpose(1, 2).flatten(2))


@pytest.mark.filterwarnings("ignore:.* mixes the attention of")
@pytest.mark.parametrize("kind", [TalkingHeads, Differential, Gated])
def test_attention_that_is_changed_before_its_values_is_shown_and_edited_as_the_softmax(kind):
    torch.manual_seed(0)
    model = nn.Sequential(kind(), kind()).double().eval()
    x = torch.randn(1, 6, WIDTH, dtype=torch.float64)
    found = []

    def softmax(scores, dim):
        found.append(torch.exp(scores) / torch.exp(scores).sum(dim, keepdim=True))
        if len(found) == 1 and edits:
            found[0][0, 1, 3, 2] = 0
            found[0][0, 1] /= found[0][0, 1].sum(-1, keepdim=True)
        return found[-1]

    edits = False
    with torch.no_grad():
        plain = model(x)
        with capturing(model) as run:
            assert torch.equal(model(x), plain)
        with edited(
            model, Cut(layer=0, head=1, query=3, key=2, stack=next(iter(run.trace.stacks)))
        ):
            cut = model(x)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.Tensor, "softmax", softmax)
            model(x)
            wanted, edits = list(found), True
            found.clear()
            torch.testing.assert_close(cut, model(x), rtol=1e-10, atol=1e-12)
    are_second = [name.endswith(" softmax 2") for name in run.trace.stacks]
    assert are_second == ([False, True] if kind is Gated else [False])
    per_layer = len(run.trace.stacks)
    for n, stack in enumerate(run.trace.stacks.values()):
        for (layer, head), graph in stack.items():
            close = pytest.approx(wanted[layer * per_layer + n][0, head].numpy(), rel=1e-9)
            assert graph.to_dense() == close
    with pytest.raises(CaptureError, match="contributions"), capturing(model, contributions=True):
        model(x)


class Changed(Layer):
    def __init__(self, change):
        super().__init__(None)
        self.change = change

    def forward(self, x):
        q, k, v = self.parts(x)
        attention = self.change((q @ k.mT / DIM**0.5).softmax(-1))
        return self.out((attention @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda a: a**2, "pow"),
        (lambda a: torch.zeros_like(a).scatter(-1, a.argmax(-1, True), 1.0), "zeros_like"),
        (lambda a: (a > 0.2) + a - a.detach(), "add"),
        (lambda a: a * torch.linspace(0, 1, 6), "mul"),
        (lambda a: F.layer_norm(a, (6,)), "layer_norm"),
        (lambda a: a.masked_fill(a < 0.1, 0), "masked_fill"),
        (lambda a: a.cumsum(-1), "cumsum"),
        (lambda a: torch.div(torch.tensor(0.01), a + a), "div"),
    ],
)
def test_attention_that_becomes_something_else_is_refused(change, name):
    torch.manual_seed(0)
    model, x = Changed(change).eval(), torch.randn(1, 6, WIDTH)
    with pytest.raises(CaptureError, match="changed by"), capturing(model), torch.no_grad():
        model(x)


@pytest.mark.parametrize(
    ("kind", "layers", "says"),
    [
        (TalkingHeads, 1, r"^0 \(TalkingHeads\) mixes the attention of its heads before it meets "),
        (Differential, 1, r"^0 \(Differential\) mixes the attention of its heads before it meets "),
        (
            TalkingHeads,
            2,
            r"values, and so does 1 more module: what is shown and edited are the softmaxes",
        ),
        (Gated, 3, r"several softmaxes before it meets the values, and so do 2 more modules:"),
    ],
)
def test_mixed_softmaxes_are_told_once(kind, layers, says):
    model = nn.Sequential(*(kind() for _ in range(layers))).eval()
    with pytest.warns(UserWarning, match=says) as told, capturing(model):
        model(torch.randn(1, 6, WIDTH))
    assert len(told) == 1


def test_slices_of_which_one_meets_values_alone_are_not_mixed():
    torch.manual_seed(0)
    model, x = nn.Sequential(PartlyMixed()).eval(), torch.randn(1, 6, WIDTH)
    with pytest.raises(CaptureError, match="changed by"), capturing(model), torch.no_grad():
        model(x)


class PartlyMixed(Layer):
    def __init__(self):
        super().__init__(None)

    def forward(self, x):
        q, k, v = self.parts(x)
        attention = (q @ k.mT / DIM**0.5).softmax(-1)
        first = attention[:, :2] @ v[:, :2]
        mixed = (attention[:, 2:3] - 0.5 * attention[:, 3:]) @ v[:, 2:]
        return self.out(torch.cat((first, mixed), 1).transpose(1, 2).flatten(2))


@torch.no_grad()
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda a: a.mul_(0.9), "multiplies its attention with other numbers"),
        (lambda a: a * torch.linspace(0, 1, HEADS)[:, None, None], "multiplies its attention"),
        (lambda a: a * (torch.arange(6) < 4)[:, None], "multiplies its attention"),
        (lambda a: torch.einsum("bhij,gh->bgij", a, nn.Parameter(torch.eye(HEADS))), "mixes the"),
        (lambda a: torch.einsum("bhij,hg->bgij", a, MIX), "mixes the"),
        (lambda a: torch.einsum("gh,bhij->bgij", MIX.T, a), "mixes the"),
        (lambda a: torch.tensordot(a, MIX, ([1], [0])).permute(0, 3, 1, 2), "mixes the"),
        (lambda a: (MIX.T @ a.flatten(2)).view_as(a), "mixes the"),
        (lambda a: (a.permute(0, 2, 3, 1) @ MIX).permute(0, 3, 1, 2), "mixes the"),
    ],
)
def test_scaled_attention_is_told_from_a_mixture(change, says):
    torch.manual_seed(0)
    model, x = Changed(change).eval(), torch.randn(1, 6, WIDTH)
    with pytest.raises(UserWarning, match=says), capturing(model):
        model(x)


MIX = torch.randn(HEADS, HEADS, generator=torch.Generator().manual_seed(0))
"""Weights by which heads are mixed, a tensor that is no parameter."""


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.* mixes the attention of")
@pytest.mark.parametrize(
    "mixed",
    [
        lambda a: torch.einsum("bhij,hg->bgij", a, MIX.to(a)),
        lambda a: torch.tensordot(a, MIX.to(a), ([1], [0])).permute(0, 3, 1, 2),
        lambda a: (MIX.T.to(a) @ a.flatten(2)).view_as(a),
    ],
)
def test_heads_that_a_tensor_mixes_are_shown_and_edited_before(mixed):
    torch.manual_seed(0)
    model, x = Changed(mixed).double().eval(), torch.randn(2, 6, WIDTH, dtype=torch.double)
    q, k, v = model.parts(x)
    scores = q @ k.mT / DIM**0.5
    with capturing(model) as run:
        model(x)
    for element, trace in enumerate(run.traces):
        for head in range(HEADS):
            found = torch.as_tensor(trace[0, head].to_dense())
            torch.testing.assert_close(found, scores.softmax(-1)[element, head])
    scores[:, 1, 2, 3] = -torch.inf
    wanted = torch.einsum("bhij,hg->bgij", scores.softmax(-1), MIX.double()) @ v
    with edited(model, Cut(layer=0, head=1, query=2, key=3)):
        found = model(x)
    wanted = model.out(wanted.transpose(1, 2).flatten(2))
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)


@torch.no_grad()
@pytest.mark.parametrize(
    "change",
    [
        lambda a: a * torch.linspace(0, 1, 6),
        lambda a: torch.einsum("bhij,hgj->bgij", a, MIX[..., None] * torch.linspace(0, 1, 6)),
        lambda a: (a.flatten(2) * torch.linspace(0, 1, 36)).view_as(a),
        lambda a: (a.flatten(2) @ torch.eye(36).roll(1, 0)).view_as(a),
    ],
)
def test_what_weighs_keys_differently_is_no_mixture_of_heads(change):
    model, x = Changed(change).eval(), torch.randn(1, 6, WIDTH)
    with pytest.raises(CaptureError, match="is changed by"), capturing(model):
        model(x)


class Twice(Layer):
    """Attention is read by another function, before or after it meets the values."""

    def __init__(self, way):
        super().__init__(None)
        self.way = way

    def forward(self, x):
        q, k, v = self.parts(x)
        attention = (q @ k.mT / DIM**0.5).softmax(-1)
        if self.way == "before":
            gate = -(attention * attention.log()).sum()
            return self.out((attention @ v).transpose(1, 2).flatten(2)) * gate
        if self.way == "set":
            attention[:, :, 1] = 0
        if self.way == "in place":
            attention[:, :, 1].mul_(0.5)
        other = attention.clone() if self.way == "copy" else attention
        y = self.out((attention @ v).transpose(1, 2).flatten(2))
        return y + (other @ v.flip(2)).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("way", ["before", "copy"])
def test_edits_that_would_not_reach_all_uses_of_attention_are_refused(way):
    model, x = Twice(way).eval(), torch.randn(1, 6, WIDTH)
    with capturing(model) as run:
        model(x)
    assert len(run.trace.stacks) == 1
    with pytest.raises(EditError, match="reads its attention"), edited(model, Cut(layer=0, key=1)):
        model(x)


def test_attention_that_is_used_twice_is_edited_twice():
    torch.manual_seed(0)
    model = Twice("same").double().eval()
    x = torch.randn(1, 6, WIDTH, dtype=torch.float64, requires_grad=True)
    with torch.no_grad(), edited(model, Cut(layer=0, key=1)):
        found = model(x)
    with edited(model, Cut(layer=0, key=1)):
        with_gradient = model(x)
    q, k, v = model.parts(x)
    keep = torch.arange(6) != 1
    attention = (q @ k.mT / DIM**0.5)[..., keep].softmax(-1)
    wanted = model.out((attention @ v[:, :, keep]).transpose(1, 2).flatten(2))
    wanted = wanted + (attention @ v.flip(2)[:, :, keep]).transpose(1, 2).flatten(2)
    torch.testing.assert_close(found, wanted.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(with_gradient, wanted, rtol=1e-10, atol=1e-12)
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (with_gradient, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("way", ["set", "in place"])
def test_attention_that_is_changed_in_place_is_refused(way):
    model, x = Twice(way).eval(), torch.randn(1, 6, WIDTH)
    with pytest.raises(CaptureError, match="changed by"), torch.no_grad(), capturing(model):
        model(x)


class MaskedAfterwards(nn.Module):
    """Masks scores by a large number, and again by zeros after the softmax, as DeBERTa does."""

    def __init__(self, takes, way):
        super().__init__()
        self.qkv, self.takes, self.way = nn.Linear(16, 48), takes, way

    def forward(self, x, mask):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        before = mask if not self.takes else torch.zeros_like(mask)
        scores = (q @ k.mT / 2).masked_fill(before, torch.finfo(x.dtype).min)
        attention = scores.softmax(-1)
        self.attention = self.way(attention, mask)
        return (self.attention @ v).transpose(1, 2).flatten(2)


MASKING = {
    "masked_fill": lambda attention, mask: attention.masked_fill(mask, 0),
    "masked_fill_": lambda attention, mask: attention.masked_fill_(mask, 0),
    "where": lambda attention, mask: torch.where(mask, 0.0, attention),
    "mul": lambda attention, mask: attention * ~mask,
}


@pytest.mark.parametrize("way", MASKING)
def test_zeros_where_a_mask_left_no_attention_are_read(way):
    torch.manual_seed(0)
    model = MaskedAfterwards(False, MASKING[way]).double().eval()
    x, mask = torch.randn(2, 6, 16).double(), torch.zeros(2, 1, 6, 6, dtype=torch.bool)
    mask[1, :, :, 4:] = mask[1, :, 4:] = True  # The last queries read nothing at all.
    with torch.no_grad():
        plain = model(x, mask)
        wanted = model.attention.clone()
        with capturing(model) as run:
            assert torch.equal(model(x, mask), plain)
        with edited(model, Scale(0.5, layer=0, head=2)):
            scaled = model(x, mask)
    for row, trace in enumerate(run.traces):
        for (_, head), graph in trace.only_stack.items():
            size = (6, 4)[row]  # What nobody reads is padding.
            own = wanted[row, head, :size, :size].numpy()
            assert graph.to_dense() == pytest.approx(own, rel=1e-12)
    halves = plain.unflatten(-1, (4, 4)).clone()
    halves[:, :, 2] *= 0.5  # The last queries' outputs are zero.
    torch.testing.assert_close(scaled, halves.flatten(2), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("way", MASKING)
def test_zeros_that_take_attention_away_are_refused(way):
    model = MaskedAfterwards(True, MASKING[way]).eval()
    mask = torch.zeros(2, 1, 6, 6, dtype=torch.bool)
    mask[1, :, 1, 4:] = True
    with (
        torch.no_grad(),
        pytest.raises(CaptureError, match=f"changed by {way}"),
        capturing(model),
    ):
        model(torch.randn(2, 6, 16), mask)


@torch.no_grad()
def test_layers_with_two_numbers_of_heads_are_two_stacks() -> None:
    layers = [nn.TransformerEncoderLayer(16, heads, 16, batch_first=True) for heads in (4, 8) * 3]
    model = nn.Sequential(*layers).eval()
    with capturing(model) as run:
        model(torch.randn(1, 5, 16))
    stacks = run.trace.stacks
    assert {name: len(list(stack.layers)) for name, stack in stacks.items()} == {
        "self_attn": 3,
        "self_attn 2": 3,
    }


@torch.no_grad()
def test_tokens_may_be_numbers() -> None:
    model = nn.TransformerEncoderLayer(16, 4, 16, batch_first=True).eval()
    for names in (range(10, 15), list(range(10, 15))):
        with capturing(model, tokens=names) as run:
            model(torch.randn(1, 5, 16))
        assert list(run.trace.tokens) == ["10", "11", "12", "13", "14"]
