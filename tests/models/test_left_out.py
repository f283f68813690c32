"""Attention over channels is left out beside attention between tokens, and is named."""

from __future__ import annotations

import warnings

import pytest
import torch
from attending_models import HEADS, WIDTH, Attention, Channels, Residual
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError, GattnError

TOKENS = 5


def attended(attn, x, query=None, key=None):
    """Attention of a module by the formula, perhaps without an edge, and its output."""
    q, k, v = attn.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if query is not None:
        scores[:, :, query, key] = -torch.inf
    attention = scores.softmax(-1)
    return attention, attn.out((attention @ v).transpose(1, 2).flatten(2))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Residual(Channels(), Attention(), Channels(), Attention(kernel=False)).eval()


@pytest.mark.parametrize("batch", [1, 2])
def test_layers_are_counted_among_what_is_shown(model, batch):
    x = torch.randn(batch, TOKENS, WIDTH)
    with torch.no_grad():
        told = pytest.warns(
            UserWarning, match=r"^blocks\.0 \(Channels\) attends .*, and so does 1 more"
        )
        with told as found, capturing(model) as run:
            output = model(x)
        assert len(found) == 1
        assert torch.equal(output, model(x))
        for n, (norm, block) in enumerate(zip(model.norms, model.blocks, strict=True)):
            if n % 2:
                attention, y = attended(block, norm(x))
                for trace, wanted in zip(run.traces, attention, strict=True):
                    for head in range(HEADS):
                        seen = torch.as_tensor(trace[n // 2, head].to_dense())
                        torch.testing.assert_close(seen, wanted[head], check_dtype=False)
            x = x + (y if n % 2 else block(norm(x)))
    assert all(len(trace) == 2 * HEADS for trace in run.traces)


@pytest.mark.filterwarnings("ignore:blocks.0 .Channels. attends over channels")
def test_edits_reach_what_is_shown(model):
    x = torch.randn(2, TOKENS, WIDTH)
    with torch.no_grad():
        with edited(model, Cut(layer=1, query=3, key=2)):
            output = model(x)
        for n, (norm, block) in enumerate(zip(model.norms, model.blocks, strict=True)):
            x = x + (attended(block, norm(x), 3, 2)[1] if n == 3 else block(norm(x)))
    torch.testing.assert_close(output, x)
    with torch.no_grad(), pytest.raises(GattnError, match="2"), edited(model, Cut(layer=2)):
        model(x)


def test_channels_alone_are_refused():
    model = Residual(Channels(), Channels()).eval()
    with pytest.raises(CaptureError, match="channels"), capturing(model):
        model(torch.randn(2, TOKENS, WIDTH))


class Convolved(nn.Module):
    """Attention between pixels after a convolution, by which the middle one reaches all."""

    def __init__(self):
        super().__init__()
        self.near = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        near = self.near(x.mT.unflatten(2, (3, 3))).flatten(2).mT
        q, k, v = self.qkv(near).chunk(3, -1)
        return (q @ k.mT).softmax(-1) @ v


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 2])
def test_what_is_proved_neither_way_is_left_out_beside_what_is_proved(batch):
    torch.manual_seed(0)
    model, x = Residual(Attention(), Convolved()).eval(), torch.randn(batch, 9, WIDTH)
    told = pytest.warns(UserWarning, match=r"^blocks\.1 \(Convolved\) sums .* not proved: its")
    with told as found, capturing(model) as run:
        model(x)
    assert len(found) == 1
    check_first_layer(model, model.norms[0](x), run.traces)


def check_first_layer(model, x, traces):
    """Compare the only layer that is shown with the formula."""
    wanted, _ = attended(model.blocks[0], x)
    for trace, own in zip(traces, wanted, strict=True):
        assert len(trace) == HEADS
        for head in range(HEADS):
            seen = torch.as_tensor(trace[0, head].to_dense())
            torch.testing.assert_close(seen, own[head], check_dtype=False)


def test_what_is_proved_neither_way_is_refused_alone():
    model = Residual(Convolved()).eval()
    with pytest.raises(CaptureError, match=r"blocks\.0 cannot be read"), capturing(model):
        model(torch.randn(2, 9, WIDTH))


class Triangles(nn.Module):
    """Attention between the pairs of tokens that begin alike, as between residues of a protein."""

    def __init__(self):
        super().__init__()
        self.qkv, self.bias = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x):
        pairs = x[:, :, None] * x[:, None]
        q, k, v = self.qkv(pairs).chunk(3, -1)
        scores = torch.einsum("bijc,bikc->bijk", q, k) + self.bias(pairs)[:, None, :, :, 0]
        return torch.einsum("bijk,bikc->bijc", scores.softmax(-1), v).mean(2)


class SoftExperts(nn.Module):
    """Experts read weighted sums of tokens, and tokens weighted sums of what experts give."""

    def __init__(self):
        super().__init__()
        self.slots = nn.Linear(WIDTH, 3, bias=False)

    def forward(self, x):
        scores = self.slots(x)
        return scores.softmax(2) @ (scores.softmax(1).mT @ x).relu()


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", [Triangles, SoftExperts])
def test_a_part_that_cannot_be_read_leaves_the_others(kind, batch):
    torch.manual_seed(0)
    model, x = Residual(Attention(), kind()).eval(), torch.randn(batch, TOKENS, WIDTH)
    told = pytest.warns(UserWarning, match=r"^blocks\.1 \(\w+\) sums .* not proved: ")
    with told, capturing(model) as run:
        model(x)
    wanted, _ = attended(model.blocks[0], model.norms[0](x))
    for trace, one in zip(run.traces, wanted, strict=True):
        stack = next(iter(trace.stacks.values()))
        assert len(stack) == HEADS
        for head in range(HEADS):
            seen = torch.as_tensor(stack[0, head].to_dense())
            torch.testing.assert_close(seen, one[head], check_dtype=False)


class PositionsAndChannels(nn.Module):
    """Attention between pixels and between the channels of the same image, as in DANet."""

    def __init__(self, split):
        super().__init__()
        self.q, self.k, self.v = (nn.Conv2d(WIDTH, WIDTH, 1) for _ in range(3))
        self.channels = ChannelsOfImage() if split else None

    def forward(self, x):
        q, k, v = (layer(x).flatten(2) for layer in (self.q, self.k, self.v))
        self.seen = (q.mT @ k).softmax(-1).detach()
        channels = _channels(x) if self.channels is None else self.channels(x)
        return (v @ (q.mT @ k).softmax(-1).mT).view_as(x) + channels


def _channels(x, *, turned=False):
    z = x.flatten(2)
    scores = z @ z.mT
    if turned:
        scores = scores.max(-1, keepdim=True)[0].expand_as(scores) - scores
    return (scores.softmax(-1) @ z).view_as(x)


class ChannelsOfImage(nn.Module):
    turned = False

    def forward(self, x):
        return _channels(x, turned=self.turned)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("split", "turned"), [(True, False), (False, False), (True, True)])
def test_channels_of_images_are_no_tokens(split, turned, batch):
    model = PositionsAndChannels(split).eval()
    if turned:
        model.channels.turned = True
    x = torch.randn(batch, WIDTH, 3, 4)
    told = pytest.warns(UserWarning, match=r"\) attends over channels")
    with torch.no_grad(), told, capturing(model) as run:
        model(x)
    for trace, wanted in zip(run.traces, model.seen, strict=True):
        (stack,) = trace.stacks
        assert trace[stack][0, 0].to_dense() == pytest.approx(wanted.numpy(), abs=1e-6)


def test_models_without_channels_do_not_warn():
    model = Residual(Attention(), Attention()).eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        with capturing(model) as run:
            model(torch.randn(1, TOKENS, WIDTH))
    assert len(run.trace) == 2 * HEADS


class Clusters(nn.Module):
    """Attends, then sums tokens up by cluster, each with its share of a cluster (NetVLAD)."""

    def __init__(self):
        super().__init__()
        self.attention, self.scores = Attention(), nn.Linear(WIDTH, 3)
        self.centres = nn.Parameter(torch.randn(3, WIDTH))

    def forward(self, x):
        x = x + self.attention(x)
        share = self.scores(x).softmax(-1)
        return share.mT @ x - share.sum(1)[..., None] * self.centres


@pytest.mark.parametrize("batch", [1, 2])
def test_what_sums_over_other_than_its_softmax_is_named_beside_attention(batch):
    torch.manual_seed(0)
    model, x = Clusters().eval(), torch.randn(batch, TOKENS, WIDTH)
    told = pytest.warns(UserWarning, match=r"^The model itself \(Clusters\) does not show")
    with torch.no_grad(), told, capturing(model) as run:
        model(x)
    with torch.no_grad():
        expected, _ = attended(model.attention, x)
    for element, trace in enumerate(run.traces):
        (stack,) = trace.stacks.values()
        for head in range(HEADS):
            dense = torch.as_tensor(stack[0, head].to_dense())
            torch.testing.assert_close(dense, expected[element, head])


def attends(x):
    return (x @ x.mT / WIDTH**0.5).softmax(-1) @ x


class Twice(nn.Module):
    """Attends to what it attended to, perhaps each time in a module of its own."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second, self.out = first, second, nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.second(self.out(self.first(x)))


class Own(nn.Module):
    def forward(self, x):
        return attends(x)


@torch.no_grad()
def test_attention_to_what_attention_gave_is_shown_in_a_module_of_its_own():
    torch.manual_seed(0)
    x, together = torch.randn(2, TOKENS, WIDTH).double(), Twice(None, None).double()
    together.first = together.second = attends  # no modules
    says = pytest.warns(UserWarning, match=r"each of its keys is \(an input of a module of its own")
    with says, capturing(together) as run:
        together(x)
    assert len(list(run.traces[0].heads())) == 1
    apart = Twice(Own(), Own()).double()
    apart.load_state_dict(together.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with capturing(apart) as run:
            apart(x)
    y = apart.out(attends(x))[0]
    wanted = (y @ y.mT / WIDTH**0.5).softmax(-1)
    graph = run.traces[0].stacks["second"][0, 0]
    assert graph.to_dense() == pytest.approx(wanted.numpy(), abs=1e-12)
