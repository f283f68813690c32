"""Layers on small graphs, forward and backward, beside torch-geometric's; and one small call.

Both sides get the same edge_index, or gattn a token graph made of it, and add self-loops. Weights
are shared where the layers compute the same numbers. GATConv does not score by dot products, so a
layer that does is compared with TransformerConv's numbers and GATConv's time.
"""

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch_geometric.datasets import KarateClub
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv
from torch_geometric.utils import add_self_loops

from benchmarks import attention
from benchmarks.row import TOLERANCE, Row, Side
from gattn import GATv2, GraphAttention, TokenGraph

CHANNELS, HEADS, DIM = 64, 4, 16
STEPS, CALLS = 10, 100
"""How many make a round: the first in a round finds the processor's caches full of other things."""

GRAPHS = {"karate": (34, 0), "500x8": (500, 8), "2700x4": (2700, 4), "2700x20": (2700, 20)}
"""Nodes, and edges per node of random graphs; Zachary's karate club has 156 edges."""

PEERS = {"dot": GATConv, "gatv2": GATv2Conv}


@dataclass
class Steps(Side):
    """Forward and backward several times, gradients of all parameters included."""

    parameters: list[nn.Parameter] = field(default_factory=list)

    def run(self) -> Tensor:
        """Take the steps; each forgets the gradients before it."""
        for _ in range(STEPS):
            self.forget_gradients()
            output = super().run()
        return output

    def forget_gradients(self) -> None:
        for leaf in (*self.leaves, *self.parameters):
            leaf.grad = None


@dataclass
class Calls(Side):
    """The same call many times."""

    def run(self) -> Tensor:
        """Make the calls."""
        with torch.no_grad():
            for _ in range(CALLS):
                output = self.forward()
        return output


def call(side: str, size: int, device: str) -> Side:
    """Scaled dot product attention of few tokens compared with torch's fused kernel."""
    one = attention.fused(side, size, device, causal=True, backward=False)
    return Calls(one.forward, common=one.common)


def edges_of(name: str) -> tuple[Tensor, int]:
    """Return an edge_index in no order, each edge once, and its number of nodes."""
    size, degree = GRAPHS[name]
    if not degree:
        return KarateClub()[0].edge_index, size
    edges = attention.random_graph(size, degree).edge_index
    generator = torch.Generator().manual_seed(0)
    return edges[:, torch.randperm(edges.shape[1], generator=generator)], size


def layer(side: str, size: int, device: str, *, name: str, score: str, listed: bool) -> Side:
    """Take steps of a layer: GATConv's or GATv2Conv's, or gattn's."""
    edge_index, _ = edges_of(name)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, CHANNELS, generator=generator).to(device).requires_grad_()
    cotangent = torch.randn(size, HEADS * DIM, generator=generator).to(device)
    torch.manual_seed(0)
    theirs = PEERS[score](CHANNELS, DIM, HEADS).to(device)
    given = edge_index.to(device)
    if side == "peer":
        peer = list(theirs.parameters())
        return Steps(lambda: theirs(x, given), (x,), cotangent, parameters=peer)
    ours = ours_like(theirs, score, add_self_loops=listed).to(device)
    graph = TokenGraph.from_edge_index(with_self_loops(edge_index, size), size).to(device)
    edges = given if listed else graph
    mine = list(ours.parameters())
    return Steps(lambda: ours(x, edges), (x,), cotangent, parameters=mine)


def ours_like(theirs: nn.Module, score: str, **options: bool) -> GraphAttention:
    """Make gattn's layer, with the weights of GATv2Conv or of a seeded TransformerConv."""
    weight = GATv2(HEADS, DIM, DIM) if score == "gatv2" else None
    ours = GraphAttention(CHANNELS, DIM, HEADS, weight=weight, **options)
    if weight is None:
        theirs, names = transformer(), ("lin_query", "lin_key", "lin_value")
    else:
        names = ("lin_r", "lin_l", "lin_l")
    with torch.no_grad():
        own = (ours.project_query, ours.project_key, ours.project_value)
        for projection, other in zip(own, names, strict=True):
            projection.load_state_dict(getattr(theirs, other).state_dict())
        if weight is not None:
            weight.query_matrix.copy_(torch.eye(DIM).expand(HEADS, -1, -1))
            weight.key_matrix.copy_(torch.eye(DIM).expand(HEADS, -1, -1))
            weight.vector.copy_(theirs.att[0])
    return ours


def transformer() -> TransformerConv:
    """Make the layer that gattn's dot products are compared with."""
    torch.manual_seed(0)
    return TransformerConv(CHANNELS, DIM, HEADS, root_weight=False)


def with_self_loops(edge_index: Tensor, size: int) -> Tensor:
    """Give each node a self-loop; the graphs' own are replaced, as layers do."""
    plain = edge_index[:, edge_index[0] != edge_index[1]]
    return add_self_loops(plain, num_nodes=size)[0]


def same_as_transformer(
    peer: Side, theirs: Tensor, gattn: Side, ours: Tensor, *, name: str
) -> dict[str, float]:
    """Compare output and gradient with TransformerConv's; the peer's are others."""
    edge_index, size = edges_of(name)
    (x,), layer = gattn.leaves, transformer().to(ours.device)
    found = layer(x, with_self_loops(edge_index, size).to(ours.device))
    (gradient,) = torch.autograd.grad(found, x, gattn.cotangent)
    for one, other in ((ours, found), (x.grad, gradient)):
        error = float((one - other).detach().abs().max() / other.detach().abs().max())
        if not error <= TOLERANCE:
            raise AssertionError(f"gattn differs from TransformerConv by {error:.1e} of its scale")
    return {}


def rows() -> list[Row]:
    """List the rows."""
    one = Row(
        "call/16/forward",
        f"{CALLS} calls of graph_attention, causal, scaled dot product, 8 heads of 64",
        "torch's scaled_dot_product_attention",
        16,
        call,
        time_bar=5.0,
    )
    return [one, *(layer_row(*which) for which in layers())]


def layers() -> list[tuple[str, str, bool]]:
    """List graph, score, and whether gattn gets the edge_index."""
    return [(name, score, listed) for score in PEERS for name in GRAPHS for listed in (True, False)]


def layer_row(name: str, score: str, listed: bool) -> Row:
    """Describe the row of one layer on one graph."""
    what, size = "dot product" if score == "dot" else "GATv2", GRAPHS[name][0]
    how = "edge_index" if listed else "TokenGraph"
    options = {"name": name, "score": score, "listed": listed}
    is_dot = {"check": partial(same_as_transformer, name=name)} if score == "dot" else {}
    return Row(
        f"small-{score}/{name}/{'edges' if listed else 'graph'}",
        f"{STEPS} steps of GraphAttention({CHANNELS}, {DIM}, heads={HEADS}), {what}, {how}",
        PEERS[score].__name__,
        size,
        partial(layer, **options),
        time_bar=1.0 if listed else 0.8,
        small=size,
        **is_dot,
    )
