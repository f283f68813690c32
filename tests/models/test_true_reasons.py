"""What is refused says why, and keys of no query are not taken for padding where scores rank."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError, EditError
from gattn.models.doors.proof.probing.alike import state_of

WIDTH = 8


class Largest(nn.Module):
    """Attends to the two largest scores of each query."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.seen = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ x.mT
        least = scores.topk(2, -1).values[..., -1:]
        self.seen = scores.masked_fill(scores < least, -torch.inf).softmax(-1)
        return self.seen @ x


@torch.no_grad()
def test_keys_of_no_query_are_no_padding_where_scores_rank() -> None:
    torch.manual_seed(0)
    model = Largest().eval()
    kept_by_none = 0
    for seed in range(12):
        x = torch.randn(1, 5, WIDTH, generator=torch.Generator().manual_seed(seed))
        with capturing(model) as run:
            model(x)
        kept_by_none += not bool((model.seen > 0).any(1).all())
        found = torch.tensor(run.trace[0, 0].to_dense())
        torch.testing.assert_close(found, model.seen[0], atol=1e-6, rtol=0)
    assert 0 < kept_by_none < 12


class Rescaled(Largest):
    """Changes its scores after it ranked them, so that they are not those that it ranked."""

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ x.mT
        least = scores.topk(2, -1).values[..., -1:]
        scores = scores.masked_fill(scores < least, -torch.inf) / 2
        self.seen = scores.softmax(-1)
        return self.seen @ x


@torch.no_grad()
def test_keys_of_no_query_are_refused_where_other_scores_were_ranked() -> None:
    torch.manual_seed(0)
    model, refused = Rescaled().eval(), 0
    for seed in range(12):
        x = torch.randn(1, 5, WIDTH, generator=torch.Generator().manual_seed(seed))
        model(x)
        if not bool((model.seen > 0).any(1).all()):
            refused += 1
            refuses = pytest.raises(CaptureError, match="keeps some scores alone")
            with refuses, capturing(model):
                model(x)
    assert refused


class Hypergraph(nn.Module):
    """Edges attend to their nodes, and nodes to their edges; there is no batch."""

    def __init__(self) -> None:
        super().__init__()
        self.of_node, self.of_pair = nn.Linear(WIDTH, 1), nn.Linear(2 * WIDTH, 1)

    def forward(self, x: Tensor, incidence: Tensor) -> Tensor:
        nodes, edges = incidence.shape
        scores = self.of_node(x).T.expand(edges, -1)
        y = scores.masked_fill(incidence.T == 0, -1e9).softmax(-1) @ x
        pairs = torch.cat([x[:, None].expand(-1, edges, -1), y.expand(nodes, -1, -1)], -1)
        scores = self.of_pair(pairs)[..., 0]
        return scores.masked_fill(incidence == 0, -1e9).softmax(-1) @ y


@torch.no_grad()
def test_a_hypergraph_is_not_said_to_mix_a_batch() -> None:
    incidence = torch.ones(6, 3)
    incidence[4:, 2] = 0
    model = Hypergraph().eval()
    with pytest.raises(CaptureError, match="the edges of a hypergraph"), capturing(model):
        model(torch.randn(6, WIDTH), incidence)


def test_another_message_of_a_librarys_class_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    pyg = pytest.importorskip("torch_geometric.nn")
    model = nn.Sequential(pyg.GATConv(4, 4))
    before = state_of(model)
    assert state_of(model) == before
    monkeypatch.setattr(pyg.GATConv, "message", lambda self, x_j, alpha: 2 * alpha[..., None] * x_j)
    assert state_of(model) != before


def test_a_context_says_that_nothing_was_called_in_it() -> None:
    model = nn.MultiheadAttention(8, 2).eval()
    with pytest.raises(CaptureError, match="was not called"), capturing(model):
        pass
    with pytest.raises(EditError, match="was not called"), edited(model, Cut(layer=0)):
        pass


class Heads(nn.Module):
    """Attends with several heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.seen = torch.empty(0)

    def weighed(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).transpose(-4, -2).unbind(-3)
        self.seen = (q @ k.mT).softmax(-1)
        return (self.seen @ v).transpose(-3, -2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.weighed(x).flatten(-2))


class Routed(Heads):
    """Keeps the outputs of one head for each token, which a router chooses."""

    def __init__(self, is_first: bool) -> None:
        super().__init__()
        self.router, self.is_first = nn.Linear(WIDTH, 2), is_first

    def routed(self, x: Tensor) -> Tensor:
        weights, heads = self.router(x).softmax(-1).topk(1, -1)
        return torch.zeros(*x.shape[:-1], 2, dtype=x.dtype).scatter(-1, heads, weights)

    def forward(self, x: Tensor) -> Tensor:
        gates = self.routed(x) if self.is_first else None
        found = self.weighed(x)
        gates = self.routed(x) if gates is None else gates
        return self.out((found * gates[..., None]).flatten(-2))


def _check_shown(model: nn.Module, heads: Heads, x: Tensor) -> None:
    with capturing(model) as run:
        model(x)
    assert len(run.traces) == len(x)
    for row, trace in enumerate(run.traces):
        for (_, head), graph in trace.only_stack.items():
            found = torch.tensor(graph.to_dense())
            torch.testing.assert_close(found, heads.seen[row, head], atol=1e-12, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("is_first", [False, True])
def test_a_router_of_heads_moves_no_tokens(is_first: bool) -> None:
    model = Routed(is_first).double().eval()
    _check_shown(model, model, torch.randn(2, 5, WIDTH).double())


class Chosen(Heads):
    """Attends to tokens in an order that values decide, through memory that is written to."""

    def forward(self, x: Tensor) -> Tensor:
        order = x[..., :1].argsort(1).expand_as(x)
        both = x.new_zeros(2, *x.shape)
        both[0].copy_(x.gather(1, order))
        return super().forward(both.unbind(0)[0])


@torch.no_grad()
def test_an_order_that_values_decide_is_followed_through_views() -> None:
    model, x = Chosen().double().eval(), torch.randn(2, 5, WIDTH).double()
    with capturing(model) as run:
        model(x)
    for row, trace in enumerate(run.traces):
        place = x[row, :, 0].argsort().argsort()
        for (_, head), graph in trace.only_stack.items():
            found = torch.tensor(graph.to_dense())
            wanted = model.seen[row, head][place][:, place]
            torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


class Streams(nn.Module):
    """Mixes two streams of each token with weights of its own, as hyper-connections do."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.attends = nn.Linear(WIDTH, 2), Heads()

    def forward(self, x: Tensor) -> Tensor:
        streams = x[:, :, None].expand(-1, -1, 2, -1)
        streams = self.mix(streams).tanh().mT.softmax(-1) @ streams
        streams = streams + self.attends(streams[:, :, 0])[:, :, None] * streams
        return (self.mix(streams).mT.softmax(-1) @ streams).sum(2)


@torch.no_grad()
def test_streams_of_a_token_are_mixed_without_a_warning() -> None:
    model = Streams().double().eval()
    _check_shown(model, model.attends, torch.randn(2, 5, WIDTH).double())


class Mixing(nn.Module):
    """Mixes streams of each token, by a softmax or by other numbers."""

    def __init__(self, *, is_softmax: bool) -> None:
        super().__init__()
        self.mix, self.is_softmax = nn.Linear(WIDTH, 2), is_softmax

    def forward(self, streams: Tensor) -> Tensor:
        streams = nn.functional.layer_norm(streams, (WIDTH,))
        weights = self.mix(streams).tanh().mT
        return (weights.softmax(-1) if self.is_softmax else weights) @ streams


class Connected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Mixing(is_softmax=True), Mixing(is_softmax=False)
        self.attends = Heads()

    def forward(self, x: Tensor) -> Tensor:
        streams = self.first(x[:, :, None].expand(-1, -1, 2, -1))
        streams = streams + self.attends(streams[:, :, 0])[:, :, None] * streams
        return self.last(streams).sum(2)


@torch.no_grad()
def test_modules_like_those_that_mix_streams_are_not_said_to_attend() -> None:
    model = Connected().double().eval()
    _check_shown(model, model.attends, torch.randn(2, 5, WIDTH).double())


class Jointly(Heads):
    """Weighs by a softmax over all pairs of tokens at once."""

    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.mT).flatten(1).softmax(-1).view(len(x), x.shape[1], -1) @ x


class Pairs(Heads):
    """Attends from pair to pair in each row of a matrix of pairs, with a bias by other rows."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).transpose(-4, -2).unbind(-3)
        scores = q @ k.mT + self.out(x)[: x.shape[1], :, :2].permute(2, 0, 1)
        return (scores.softmax(-1) @ v).transpose(-3, -2).flatten(-2)


class Corners(Heads):
    """Attends in windows of 2 x 2 of a padded image; one has a single token."""

    def forward(self, x: Tensor) -> Tensor:
        def windows(y: Tensor) -> Tensor:
            y = nn.functional.pad(y, (0, 0, 0, 1, 0, 1))
            y = y.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).transpose(2, 3)
            return y.flatten(3, 4).flatten(0, 2)

        q, k, v = self.qkv(windows(x)).unflatten(-1, (3, 2, -1)).transpose(-4, -2).unbind(-3)
        hidden = windows(torch.ones_like(x[..., :1]))[:, None, None, :, 0] == 0
        return (q @ k.mT).masked_fill(hidden, -torch.inf).softmax(-1) @ v


class Pointer(Heads):
    def forward(self, x: Tensor) -> Tensor:
        return (self.out(x) @ x.mT).softmax(-1)


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "sizes", "reason"),
    [
        (Pairs, (5, 4), "inputs have no batch"),
        (Corners, (2, 3, 5), "hold one token and padding"),
        (Pointer, (2, 5), "the answer of a pointer network"),
        (Jointly, (2, 5), "a softmax over all pairs of tokens at once"),
    ],
)
def test_reasons_name_what_may_be_so(
    kind: type[Heads], sizes: tuple[int, ...], reason: str
) -> None:
    model = kind().double().eval()
    with pytest.raises(CaptureError, match=reason), capturing(model):
        model(torch.randn(*sizes, WIDTH).double())


class Experts(Heads):
    """Two of three heads attend for each token, which a router chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.weight = nn.Parameter(torch.randn(3, WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        weights, heads = self.router(x).softmax(-1).topk(2, -1)
        q = torch.einsum("bnd,bnhde->bhne", x, self.weight[heads])
        self.seen = (q @ self.out(x)[:, None].mT).softmax(-1)
        return torch.einsum("bhne,bnh->bne", self.seen @ x[:, None], weights)


class Apart(Routed):
    """Makes queries, keys and values one by one."""

    def __init__(self) -> None:
        super().__init__(is_first=True)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def weighed(self, x: Tensor) -> Tensor:
        q, k, v = (
            made(x).unflatten(-1, (2, -1)).transpose(-3, -2) for made in (self.q, self.k, self.v)
        )
        self.seen = (q @ k.mT).softmax(-1)
        return (self.seen @ v).transpose(-3, -2)


class Blocks(nn.Module):
    def __init__(self, kind: type[Heads]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(kind() for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block, norm in zip(self.blocks, self.norms, strict=True):
            x = x + block(norm(x))
        return x


@torch.no_grad()
def test_tokens_that_a_router_weighed_are_no_attention_of_its() -> None:
    model, x = Blocks(Apart).double().eval(), torch.randn(2, 5, WIDTH).double()
    with capturing(model) as run:
        model(x)
    for row, trace in enumerate(run.traces):
        assert len(trace.only_stack.layers) == 2
        for (layer, head), graph in trace.only_stack.items():
            wanted = model.blocks[layer].seen[row, head]
            torch.testing.assert_close(torch.tensor(graph.to_dense()), wanted, atol=1e-12, rtol=0)


@torch.no_grad()
def test_a_router_whose_weights_go_on_is_named_as_one() -> None:
    model = Blocks(Experts).double().eval()
    with pytest.raises(CaptureError, match="it is a router's softmax"), capturing(model):
        model(torch.randn(2, 5, WIDTH).double())


class Lazy(Largest):
    """Has a parameter whose size its first call tells."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.LazyLinear(WIDTH)


@torch.no_grad()
def test_a_lazy_model_is_to_be_called_first() -> None:
    model, x = Lazy().eval(), torch.randn(1, 5, WIDTH)
    says = r"query\.weight has no size before its first call: call"
    with pytest.raises(CaptureError, match=says), capturing(model):
        model(x)
    with capturing(model) as run:
        model(x)
    torch.testing.assert_close(torch.tensor(run.trace[0, 0].to_dense()), model.seen[0])


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:torch.*quantiz.* deprecated")
def test_a_model_that_torch_quantizes_is_refused_as_such() -> None:
    model = torch.ao.quantization.quantize_dynamic(Largest().eval(), {nn.Linear})
    says = r"query \(Linear\) is quantized by torch"
    with pytest.raises(CaptureError, match=says), capturing(model):
        model(torch.randn(1, 5, WIDTH))


@torch.no_grad()
@pytest.mark.parametrize("shape", [(0, 5, WIDTH), (2, 0, WIDTH)])
def test_empty_inputs_are_named(shape: tuple[int, ...]) -> None:
    class Plain(Largest):
        def forward(self, x: Tensor) -> Tensor:
            return (self.query(x) @ x.mT).softmax(-1) @ x

    model = Plain().eval()
    says = "In an empty batch, a text without tokens"
    with pytest.raises(CaptureError, match=says), capturing(model):
        model(torch.randn(shape))
