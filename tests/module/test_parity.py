"""With the same weights, `GraphAttention` is torch-geometric's own attention layers."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch_geometric import EdgeIndex
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv
from torch_geometric.utils import to_torch_coo_tensor, to_torch_csc_tensor, to_torch_csr_tensor

from gattn.module import GraphAttention
from gattn.weights import GAT

SPARSE = pytest.mark.filterwarnings("ignore:Sparse (invariant checks|CSR|CSC):UserWarning")
EXACT = {"atol": 1e-12, "rtol": 1e-12}


def close(found, expected):
    torch.testing.assert_close(found, expected, **EXACT)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def drawn(seed, sources=7, targets=7, edges=20):
    """Edges in random order, some doubled; of one set of nodes, with self-loops and lone nodes."""
    generator = torch.Generator().manual_seed(seed)

    def ends(size):
        return torch.randint(size - 1, (edges,), generator=generator)  # the last has no edges

    index = torch.stack([ends(sources), ends(targets)])
    index = torch.cat([index, index[:, :3], torch.tensor([[1, 2], [1, 2]])], dim=1)
    return index[:, torch.randperm(index.shape[1], generator=generator)]


def test_the_drawn_graphs_have_what_is_hard():
    for n in range(3):
        index = drawn(n)
        assert index.unique(dim=1).shape[1] < index.shape[1]
        assert bool((index[0] == index[1]).any())
        assert len(index[1].unique()) < 7
        assert bool((index[1].diff() < 0).any())


def of_transformer_conv(theirs, **options):
    sizes = theirs.in_channels, theirs.out_channels, theirs.heads, theirs.concat
    layer = GraphAttention(
        *sizes, edge_dim=theirs.edge_dim, residual=theirs.root_weight, **options
    ).double()
    pairs = {
        "query": theirs.lin_query,
        "key": theirs.lin_key,
        "value": theirs.lin_value,
        "edge": theirs.lin_edge,
        "residual": theirs.lin_skip if theirs.root_weight else None,
    }
    with torch.no_grad():
        for name, own in pairs.items():
            if own is not None:
                getattr(layer, f"project_{name}").load_state_dict(own.state_dict())
    return layer.eval()


def same_with_gradients(layer, theirs, x, index, edge_attr):
    """Compare output, attention, and gradients of whatever the layers share."""
    given = [side for side in (*x, edge_attr) if side is not None]
    ours = layer(x if len(x) > 1 else x[0], index, edge_attr, return_attention_weights=True)
    other = theirs(x if len(x) > 1 else x[0], index, edge_attr, return_attention_weights=True)
    close(ours[0], other[0])
    assert torch.equal(ours[1][0], other[1][0])
    close(ours[1][1], other[1][1])
    close(layer(x if len(x) > 1 else x[0], index, edge_attr), other[0])
    mixed = torch.linspace(-1, 1, ours[0].numel(), dtype=torch.float64).view_as(ours[0])
    weighed = torch.linspace(1, 2, ours[1][1].numel(), dtype=torch.float64).view_as(ours[1][1])
    found, expected = (
        torch.autograd.grad((out.square() * mixed).sum() + (alpha.square() * weighed).sum(), given)
        for out, (_, alpha) in (ours, other)
    )
    for one, another in zip(found, expected, strict=True):
        close(one, another)


@pytest.mark.parametrize("edge_dim", [None, 3])
@pytest.mark.parametrize("is_bipartite", [False, True])
@pytest.mark.parametrize(
    ("heads", "concat", "root_weight", "bias"),
    [(1, True, True, True), (2, True, False, True), (3, False, True, True), (2, True, True, False)],
)
def test_it_is_transformer_conv(randn, heads, concat, root_weight, bias, is_bipartite, edge_dim):
    sizes = (6, 8) if is_bipartite else 8
    theirs = TransformerConv(
        sizes, 4, heads, concat, edge_dim=edge_dim, root_weight=root_weight, bias=bias
    ).double()
    layer = of_transformer_conv(theirs, bias=bias)
    for n in range(2):
        index = drawn(n, 5 if is_bipartite else 7)
        x = (randn(5, 6).requires_grad_(),) if is_bipartite else ()
        x += (randn(7, 8).requires_grad_(),)
        edge_attr = randn(index.shape[1], 3).requires_grad_() if edge_dim else None
        same_with_gradients(layer, theirs, x, index, edge_attr)


class ScoreOfGATv2(nn.Module):
    """The score of a GATv2Conv whose nodes are projected already."""

    def __init__(self, theirs):
        super().__init__()
        self.theirs = theirs

    def forward(self, query, key, pairs):
        both = query + key
        if pairs.features is not None:
            edge = self.theirs.lin_edge(pairs.features)
            both = both + edge.unflatten(-1, both.shape[-2:])
        return (nn.functional.leaky_relu(both, 0.2) * self.theirs.att[0]).sum(-1)


def of_gatv2_conv(theirs, **options):
    sizes = theirs.in_channels, theirs.out_channels, theirs.heads, theirs.concat
    loops = {"add_self_loops": theirs.add_self_loops, "fill_value": theirs.fill_value}
    weight = ScoreOfGATv2(theirs)
    layer = GraphAttention(*sizes, weight=weight, residual=True, **loops, **options).double()
    with torch.no_grad():
        layer.project_query.load_state_dict(theirs.lin_r.state_dict())
        layer.project_key.load_state_dict(theirs.lin_l.state_dict())
        layer.project_value.load_state_dict(theirs.lin_l.state_dict())
        layer.project_residual.weight.copy_(
            torch.zeros(()) if theirs.res is None else theirs.res.weight
        )
        layer.project_residual.bias.copy_(nn.init.normal_(theirs.bias))
    return layer.eval()


@pytest.mark.parametrize("edge_dim", [None, 3])
@pytest.mark.parametrize("is_bipartite", [False, True])
@pytest.mark.parametrize(
    ("heads", "concat", "residual", "loops"),
    [
        (2, True, False, {"add_self_loops": False}),
        (2, False, True, {}),
        (1, True, False, {"fill_value": 0.5}),
        (2, True, False, {"fill_value": torch.tensor([1.0, -2.0, 0.5])}),
        (2, True, False, {"fill_value": "max"}),
        (2, True, True, {"fill_value": "mul"}),
    ],
)
def test_it_is_gatv2_conv(randn, heads, concat, residual, loops, is_bipartite, edge_dim):
    sizes = (6, 8) if is_bipartite else 8
    theirs = GATv2Conv(
        sizes, 4, heads, concat, edge_dim=edge_dim, residual=residual, **loops
    ).double()
    layer = of_gatv2_conv(theirs)
    # With more targets than sources, theirs cannot reduce the features of in-edges.
    index = drawn(0, 9 if is_bipartite else 7)
    x = (randn(9, 6).requires_grad_(),) if is_bipartite else ()
    x += (randn(7, 8).requires_grad_(),)
    edge_attr = randn(index.shape[1], 3).requires_grad_() if edge_dim else None
    same_with_gradients(layer, theirs, x, index, edge_attr)


@pytest.mark.parametrize("loops", [True, False])
def test_gattns_own_score_of_gat_is_gat_conv(randn, loops):
    theirs = GATConv(8, 4, heads=2, add_self_loops=loops).double()
    layer = GraphAttention(8, 4, 2, weight=GAT(2, 4), add_self_loops=loops, bias=False).double()
    with torch.no_grad():
        for projection in (layer.project_query, layer.project_key, layer.project_value):
            projection.weight.copy_(theirs.lin.weight)
        layer.weight.query_vector.copy_(theirs.att_dst[0])
        layer.weight.key_vector.copy_(theirs.att_src[0])
    same_with_gradients(layer, theirs, (randn(7, 8).requires_grad_(),), drawn(0), None)


@pytest.mark.parametrize("loops", [True, False])
def test_features_of_one_number_may_come_as_a_row(randn, loops):
    theirs = GATv2Conv(8, 4, edge_dim=1, add_self_loops=loops).double()
    layer, index, x = of_gatv2_conv(theirs), drawn(0), randn(7, 8)
    numbers = randn(index.shape[1])
    close(layer(x, index, numbers), theirs(x, index, numbers))
    plain = TransformerConv(8, 4, edge_dim=1).double()
    close(of_transformer_conv(plain)(x, index, numbers), plain(x, index, numbers[:, None]))


# Other forms of edges


@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("sorted_by", [None, "col"])
def test_an_edge_index_that_knows_its_order(randn, sorted_by, loops):
    theirs = GATv2Conv(8, 4, heads=2, add_self_loops=loops).double()
    layer, x, index = of_gatv2_conv(theirs), randn(7, 8), drawn(0)
    if sorted_by:
        index = index[:, index[1].argsort()]
    given = EdgeIndex(index, sparse_size=(7, 7), sort_order=sorted_by)
    found, (edges, alpha) = layer(x, given, return_attention_weights=True)
    expected, (their_edges, their_alpha) = theirs(x, given, return_attention_weights=True)
    close(found, expected)
    close(alpha, their_alpha)
    assert torch.equal(edges, their_edges)
    assert type(edges) is type(their_edges)


@SPARSE
@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("to_sparse", [to_torch_coo_tensor, to_torch_csr_tensor])
def test_a_sparse_adjacency(randn, to_sparse, loops):
    theirs = GATv2Conv(8, 4, heads=2, add_self_loops=loops).double()
    layer, x = of_gatv2_conv(theirs), randn(7, 8)
    index = drawn(0).unique(dim=1)
    adjacency = to_sparse(index.flip(0), size=(7, 7))  # a row per target, as in data.adj_t
    found, (edges, alpha) = layer(x, adjacency, return_attention_weights=True)
    expected, (their_edges, their_alpha) = theirs(x, adjacency, return_attention_weights=True)
    close(found, expected)
    close(found, layer(x, index))
    close(alpha, their_alpha)
    assert edges.layout == their_edges.layout
    assert edges.shape == their_edges.shape == (7, 7, 2)
    for one, other in zip(entries(edges), entries(their_edges), strict=True):
        close(one, other)


def entries(adjacency):
    if adjacency.layout == torch.sparse_coo:
        return adjacency.indices(), adjacency.values()
    return adjacency.crow_indices(), adjacency.col_indices(), adjacency.values()


@SPARSE
def test_a_sparse_adjacency_by_columns_with_features(randn):
    theirs = TransformerConv(8, 4, heads=2, edge_dim=3).double()
    layer, x = of_transformer_conv(theirs), randn(7, 8)
    index = drawn(0).unique(dim=1)
    features = randn(index.shape[1], 3)
    adjacency = to_torch_csc_tensor(index.flip(0), features, size=(7, 7))
    close(layer(x, adjacency), theirs(x, index, features))


@SPARSE
def test_a_sparse_adjacency_by_columns_with_self_loops(randn):
    layer, x = GraphAttention(8, 4, add_self_loops=True).double(), randn(7, 8)
    index = drawn(0).unique(dim=1)
    close(layer(x, to_torch_csc_tensor(index.flip(0), size=(7, 7))), layer(x, index))


def test_means_of_features_for_more_targets_than_sources(randn):
    layer = GraphAttention((6, 8), 4, edge_dim=3, add_self_loops=True).double()
    x, index = (randn(2, 6), randn(4, 8)), torch.tensor([[0, 1, 0, 1, 1], [3, 0, 0, 1, 0]])
    features = randn(5, 3)
    found, (edges, alpha) = layer(x, index, features, return_attention_weights=True)
    assert edges.tolist() == [[0, 1, 1, 0, 1], [3, 0, 0, 0, 1]]
    means = torch.stack([features[[1, 4]].mean(0), torch.zeros(3)])
    kept = torch.cat([features[[0, 1, 4]], means])
    plain = GraphAttention((6, 8), 4, edge_dim=3).double()
    plain.load_state_dict(layer.state_dict())
    expected, (_, weights) = plain(x, edges, kept, return_attention_weights=True)
    close(found, expected)
    close(alpha, weights)


def test_small_whole_numbers_are_an_edge_index(randn):
    layer, x, index = GraphAttention(8, 4, 2).double(), randn(7, 8), drawn(0)
    close(layer(x, index.int()), layer(x, index))


# Symmetries


@pytest.mark.parametrize("edge_dim", [None, 3])
def test_renamed_nodes_and_reordered_edges_change_nothing_else(randn, edge_dim):
    layer = GraphAttention(8, 4, 2, edge_dim=edge_dim, residual=True, add_self_loops=True).double()
    x, index = randn(7, 8), drawn(0)
    features = randn(index.shape[1], 3) if edge_dim else None
    out, (edges, alpha) = layer(x, index, features, return_attention_weights=True)
    new = torch.randperm(7)  # of each node: its new number
    renamed = torch.empty_like(x)
    renamed[new] = x
    found, (new_edges, new_alpha) = layer(
        renamed, new[index], features, return_attention_weights=True
    )
    close(found[new], out)
    count = (index[0] != index[1]).sum()  # then come self-loops, node by node
    assert torch.equal(new_edges[:, :count], new[edges[:, :count]])
    close(new_alpha[:count], alpha[:count])
    close(new_alpha[count:][new], alpha[count:])
    order = torch.randperm(index.shape[1])
    mixed = features[order] if edge_dim else None
    close(layer(x, index[:, order], mixed), out)


def test_the_attention_of_each_target_sums_to_one(randn):
    layer, index = GraphAttention(8, 4, 2).double(), drawn(1)
    _, (edges, alpha) = layer(randn(7, 8), index, return_attention_weights=True)
    sums = torch.zeros(7, 2, dtype=torch.float64).index_add(0, edges[1], alpha)
    has_edges = torch.bincount(index[1], minlength=7) > 0
    close(sums, has_edges[:, None].expand(7, 2).double())


# Gradients


@pytest.mark.parametrize("engine", [None, "message_passing"])
@pytest.mark.parametrize("options", [{"add_self_loops": True}, {"concat": False}], ids=str)
def test_gradients(randn, engine, options):
    layer = GraphAttention(4, 2, 2, edge_dim=3, residual=True, engine=engine, **options).double()
    index = drawn(0, 5, 5, 6)
    x, features = randn(5, 4).requires_grad_(), randn(index.shape[1], 3).requires_grad_()

    def run(x, features, *_):
        out, (_, alpha) = layer(x, index, features, return_attention_weights=True)
        return layer(x, index, features), out, alpha

    assert torch.autograd.gradcheck(run, (x, features, *layer.parameters()), fast_mode=True)
    assert torch.autograd.gradgradcheck(
        lambda x, features: layer(x, index, features), (x, features), fast_mode=True
    )


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32])
def test_the_precision_of_the_features_is_kept(randn, kind):
    layer = GraphAttention(8, 4, 2, edge_dim=3, residual=True).to(kind)
    exact = GraphAttention(8, 4, 2, edge_dim=3, residual=True).double()
    exact.load_state_dict(layer.state_dict())
    x, index = randn(7, 8, dtype=kind), drawn(0)
    features = randn(index.shape[1], 3, dtype=kind)
    out, (_, alpha) = layer(x, index, features, return_attention_weights=True)
    assert {out.dtype, alpha.dtype} == {kind}
    wanted, (_, weights) = exact(
        x.double(), index, features.double(), return_attention_weights=True
    )
    spread = 16 * torch.finfo(kind).eps
    torch.testing.assert_close(out.double(), wanted, atol=spread * 4, rtol=spread)
    torch.testing.assert_close(alpha.double(), weights, atol=spread, rtol=spread)


def test_layers_can_be_stacked(randn):
    convs = [TransformerConv(8, 4, 2, edge_dim=3).double() for _ in range(3)]
    layers = [of_transformer_conv(conv) for conv in convs]
    x, index = randn(7, 8), drawn(0)
    features = randn(index.shape[1], 3)
    found, expected = [x], [x]
    for layer, conv in zip(layers, convs, strict=True):
        found.append(layer(found[-1], index, features).relu())
        expected.append(conv(expected[-1], index, features).relu())
    close(found[-1], expected[-1])
    assert all(not torch.equal(one, other) for one, other in pairwise(found))
