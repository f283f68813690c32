"""What each dimension of an attention call is, proved by NaN; the true maps are the oracle."""

from __future__ import annotations

import pytest
import torch
from attending_models import (
    HEADS,
    WIDTH,
    Attention,
    Causal,
    Channels,
    Crossing,
    FoldedHeads,
    Grid,
    Image,
    OneHead,
    OverTime,
    Pooled,
    Residual,
    Stack,
    Text,
    TokensFirst,
    Windows,
)
from torch import nn
from torch.nn import functional as F  # noqa: N812

from gattn import capturing
from gattn.errors import CaptureError
from gattn.models.doors.proof import proving
from gattn.models.doors.proof.plans import plan_of

BATCH, TOKENS = 3, 5


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def counts(monkeypatch):
    """How many runs of parts of a model each proof took."""
    made = []

    class Counted(proving.Reruns):
        def __init__(self, *given):
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(proving, "Reruns", Counted)
    return lambda: [one.count for one in made]


def proved(model, *inputs):
    """The layouts of all calls of a model, in order, and the plan."""
    plan = plan_of(model.eval(), model, inputs, {})
    assert not plan.refused, plan.refused
    assert not plan.reasons, plan.reasons
    return [plan.layouts[place][0][1] for place in plan.sites], plan


def check_plain(layout, batch=BATCH, tokens=TOKENS):
    known = layout.tokens
    assert known.sequences == tuple(range(batch))
    assert (known.queries, known.keys, known.is_cross) == (None, None, False)
    assert (known.num_queries, known.num_keys) == (tokens, tokens)


@pytest.mark.parametrize("batch", [1, BATCH])
@pytest.mark.parametrize("kernel", [True, False])
def test_plain_self_attention_takes_few_runs(kernel, batch, counts):
    (layout,), _ = proved(Attention(kernel), torch.randn(batch, TOKENS, WIDTH))
    check_plain(layout, batch)
    assert (layout.split, layout.heads) == ((), (1,))
    assert counts() == [4 if batch == 1 else 6]  # comb(4, 2) = 6 and comb(6, 3) = 20 words.


def test_each_size_is_proved():
    class Flipping(Attention):
        def forward(self, x):
            return super().forward(x.flip(1) if x.shape[1] > 8 else x)

    model = Flipping().eval()
    for tokens in (6, 12):
        plan = plan_of(model, model, (torch.randn(1, tokens, WIDTH),), {})
        found = plan.layout("", 0, (1, HEADS)).tokens.queries
        order = torch.arange(tokens)
        assert found is None if tokens < 8 else torch.equal(found[0], order.flip(0))


def test_windows_are_proved_for_each_size():
    model = Windows(2, 1).eval()
    for height in (4, 6):
        plan = plan_of(model, model, (torch.randn(1, height, 4, WIDTH),), {})
        layout = plan.layout("attn", 0, (height, HEADS))
        assert torch.equal(layout.tokens.queries, model.positions(height, 4))


def test_causal_scores_that_a_mask_replaces():
    (layout,), _ = proved(Causal(kernel=False), torch.randn(BATCH, TOKENS, WIDTH))
    check_plain(layout)


@pytest.mark.parametrize("batch", [1, BATCH])
@pytest.mark.parametrize("heads_first", [True, False])
def test_heads_folded_into_the_batch(heads_first, batch):
    model, x = FoldedHeads(heads_first), torch.randn(batch, TOKENS, WIDTH)
    (layout,), _ = proved(model, x)
    check_plain(layout, batch)
    # Numbers that say which element and head they belong to.
    true = torch.arange(batch)[:, None] * 10 + torch.arange(HEADS)
    folded = (true.T if heads_first else true).reshape(-1, 1, 1).expand(-1, TOKENS, TOKENS)
    assert torch.equal(layout.fold(folded, folded.shape[:1])[..., 0, 0], true)
    assert torch.equal(
        layout.unfold(layout.fold(folded, folded.shape[:1]), (batch * HEADS,)), folded
    )


def test_one_head_without_a_dimension():
    (layout,), _ = proved(OneHead(), torch.randn(BATCH, TOKENS, WIDTH))
    check_plain(layout)
    assert layout.heads == ()


def test_tokens_come_before_the_batch():
    (layout,), _ = proved(TokensFirst(), torch.randn(TOKENS, BATCH, WIDTH))
    check_plain(layout)


@pytest.mark.parametrize("is_batch_first", [True, False])
def test_torchs_encoder_of_as_many_sequences_as_tokens(is_batch_first):
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=is_batch_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    layouts, _ = proved(model, torch.randn(4, 4, WIDTH))
    assert len(layouts) == 2
    for layout in layouts:
        check_plain(layout, 4, 4)


def test_the_batch_of_token_ids():
    (layout,), _ = proved(Text(), torch.randint(0, 20, (BATCH, TOKENS)))
    check_plain(layout)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("shift", [0, 1])
def test_windows_are_mapped_to_patches(shift, kernel, batch):
    model = Windows(2, shift, kernel)
    (layout,), _ = proved(Residual(model), torch.randn(batch, 4, 6, WIDTH))
    known, true = layout.tokens, model.positions(4, 6)
    assert known.grid == (4, 6)
    assert known.sequences == tuple(n for n in range(batch) for _ in true)
    for found in (known.queries, known.keys):
        assert torch.equal(found, true.repeat(batch, 1))
    assert torch.equal(true.flatten().sort().values, torch.arange(24))


def test_shifts_are_proved_by_themselves_and_alike_blocks_once(counts):
    x = torch.randn(1, 4, 4, WIDTH)
    parts = Windows(2), Windows(2, 1), Windows(2), Windows(2, 1)
    layouts, _ = proved(Stack(*parts), x)
    for part, layout in zip(parts, layouts, strict=True):
        assert torch.equal(layout.tokens.queries, part.positions(4, 4))
    proved(Stack(Windows(2), Windows(2, 1)), x)
    first, other = counts()
    assert first == other


class Folding(Stack):
    """Layers that attend within windows of four, which the model makes before the first of them."""

    def forward(self, x):
        windows = super().forward(x.reshape(-1, 4, WIDTH))
        return windows.reshape(x.shape)


@pytest.mark.parametrize("batch", [1, 2])
def test_runs_do_not_grow_with_the_depth(batch, counts):
    for depth in (3, 8):
        model = Folding(*(Residual(Attention()) for _ in range(depth)))
        layouts, _ = proved(model, torch.randn(batch, 12, WIDTH))
        for layout in layouts:
            known = layout.tokens
            assert known.sequences == (0, 0, 0, 1, 1, 1)[: 3 * batch]
            assert torch.equal(known.queries, torch.arange(12).reshape(3, 4).repeat(batch, 1))
            assert torch.equal(known.keys, known.queries)
            assert (known.num_queries, known.num_keys) == (12, 12)
    few, many = counts()
    assert few == many


def test_the_padding_of_windows_is_no_token():
    model = Windows(2, 1)
    (layout,), _ = proved(Residual(model), torch.randn(2, 3, 4, WIDTH))
    known, true = layout.tokens, model.positions(3, 4).repeat(2, 1)
    is_token = true >= 0
    for found in (known.queries, known.keys):
        assert torch.equal(found[is_token], true[is_token])
        assert found[~is_token].reshape(2, -1).tolist() == [[12, 13, 14, 15]] * 2
    assert (known.num_queries, known.num_keys) == (16, 16)


def test_grid_attention():
    model = Grid(2)
    (layout,), _ = proved(model, torch.randn(2, 4, 6, WIDTH))
    assert torch.equal(layout.tokens.queries, model.positions(4, 6).repeat(2, 1))
    assert layout.tokens.sequences == (0,) * 6 + (1,) * 6


@pytest.mark.parametrize("batch", [1, 2])
def test_later_blocks_count_tokens_as_the_first_does(batch):
    """What attention mixes does not hide which token the residual stream is."""
    places, frames = 3, 4
    layouts, _ = proved(
        Stack(OverTime(frames), Attention(), OverTime(frames)), torch.randn(batch, 12, WIDTH)
    )
    over_time = torch.arange(12).reshape(frames, places).T.repeat(batch, 1)
    for layout in (layouts[0], layouts[2]):
        assert torch.equal(layout.tokens.queries, over_time)
        assert layout.tokens.sequences == tuple(n for n in range(batch) for _ in range(places))


@pytest.mark.parametrize("kernel", [True, False])
def test_pooled_keys_are_tokens_of_their_own(kernel):
    (layout,), _ = proved(Pooled(kernel), torch.randn(2, 16, WIDTH))
    known = layout.tokens
    assert known.is_cross
    assert known.sequences == (0, 1)
    assert (known.num_queries, known.num_keys) == (16, 4)


def test_cross_attention():
    context, x = torch.randn(BATCH, 7, WIDTH), torch.randn(BATCH, TOKENS, WIDTH)
    (layout,), _ = proved(Crossing(), context, x)
    known = layout.tokens
    assert known.is_cross
    assert (known.num_queries, known.num_keys, known.sequences) == (TOKENS, 7, (0, 1, 2))


def test_learned_queries():
    (layout,), _ = proved(Crossing(learned=4), torch.randn(BATCH, 7, WIDTH))
    known = layout.tokens
    assert known.is_cross
    assert (known.num_queries, known.num_keys, known.sequences) == (4, 7, (0, 1, 2))


def test_statistics_over_all_tokens_do_not_hide_them():
    (layout,), _ = proved(Image(), torch.randn(2, WIDTH, 3, 4))
    check_plain(layout, 2, 12)


class OneSequence(Attention):
    def forward(self, x):
        q, k, v = self.qkv(x[0]).chunk(3, -1)
        return (q @ k.mT).softmax(-1) @ v


def test_scores_without_a_batch():
    (layout,), _ = proved(OneSequence(), torch.randn(1, TOKENS, WIDTH))
    check_plain(layout, 1)


def test_channels_are_refused():
    model = Channels().eval()
    x = torch.randn(BATCH, TOKENS, WIDTH)
    with pytest.raises(CaptureError, match="channels"), capturing(model):
        model(x)
    assert proved(Attention(), x)


class Hidden(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q):
        with torch._C.DisableTorchFunction():
            return F.scaled_dot_product_attention(q, q, q)


class Hiding(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Attention(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return Hidden.apply(self.second(self.first(x))[:, None])[:, 0]


def test_attention_that_no_door_sees_is_named():
    model = Residual(Attention(), Hiding()).eval()
    with (
        pytest.raises(CaptureError, match=r"blocks\.1 \(Hiding\).* cannot be seen"),
        capturing(model),
    ):
        model(torch.randn(BATCH, TOKENS, WIDTH))


def attend(x):
    return torch.nn.functional.scaled_dot_product_attention(x, x, x)


class Scripting(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = torch.jit.script(attend)

    def __deepcopy__(self, memory):
        return Scripting()

    def forward(self, x):
        return self.attend(x)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_scripted_functions_are_named():
    model = Residual(Attention(), Scripting()).eval()
    named = r"blocks\.1 \(Scripting\).* cannot be seen"
    with pytest.raises(CaptureError, match=named), capturing(model):
        model(torch.randn(BATCH, TOKENS, WIDTH))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention()
        self.register_buffer("calls", torch.zeros(()))
        self.seen = []

    def forward(self, x):
        self.calls += 1
        self.seen.append(float(self.calls))
        return self.attn(x) + torch.rand(())


def test_the_model_and_random_numbers_stay_as_they_were():
    model = Counting().eval()
    x = torch.randn(BATCH, TOKENS, WIDTH)
    before = torch.random.get_rng_state()
    plan_of(model, model, (x,), {})
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (float(model.calls), model.seen) == (0, [])
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_a_model_that_refuses_to_be_copied_is_proved_from_its_attributes():
    class Uncopied(Attention):
        def __deepcopy__(self, memory):
            raise TypeError("no copies")

    (layout,), _ = proved(Uncopied(), torch.randn(BATCH, TOKENS, WIDTH))
    check_plain(layout)


class Small(nn.Module):
    """A model that embeds ids and attends by itself."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = (
            part(x).unflatten(-1, (2, 8)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        return ((q @ k.mT / 8**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_a_model_that_embeds_ids_and_attends_by_itself():
    torch.manual_seed(0)
    model, ids = Small().eval(), torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    with torch.no_grad(), capturing(model) as run:
        model(ids)
    x = model.embed(ids)
    q, k = (part(x).unflatten(-1, (2, 8)).transpose(1, 2) for part in (model.query, model.key))
    wanted = torch.softmax(q @ k.mT / 8**0.5, -1).detach()
    assert len(run.traces) == 2
    for row, trace in enumerate(run.traces):
        for (_, head), graph in trace.only_stack.items():
            assert not graph.graph.is_bipartite
            assert graph.to_dense() == pytest.approx(wanted[row, head].numpy(), abs=1e-6)
