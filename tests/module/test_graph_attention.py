"""`GraphAttention` against torch's and torch-geometric's own modules."""

import copy
import io

import pytest
import torch
from torch import nn
from torch_geometric import EdgeIndex
from torch_geometric.explain import AttentionExplainer, Explainer, GNNExplainer
from torch_geometric.nn import GATv2Conv, Sequential, TransformerConv

from gattn.engines.message_passing import EdgeAttention
from gattn.errors import ContractError, ShapeError
from gattn.graph.token_graph import TokenGraph
from gattn.keep import TopK
from gattn.module import GraphAttention
from gattn.normalizers import Entmax15, Softmax
from gattn.weights import ALiBi, Cosine, EdgeBias, ScaledDotProduct, SquaredDistance

# Edges in no particular order, one of them twice; query 4 has none.
SHUFFLED = torch.tensor([[2, 0, 4, 0, 3, 2, 1, 2], [3, 1, 0, 1, 3, 1, 0, 2]])
ONCE = torch.tensor([[2, 0, 4, 3, 2, 1, 2], [3, 1, 0, 3, 1, 0, 2]])


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def build(channels, heads=1, kind=GraphAttention, **options):
    """A layer as in transformers: as many channels go out as come in."""
    options = {"project_output": True} | options
    layer = kind(channels, channels // heads, heads, **options).double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def attention_by_hand(layer, x, index):
    """The attention of each edge and head, in the order of `index`, by plain loops."""
    heads, size = layer.heads, layer.out_channels
    query = layer.project_query(x).reshape(len(x), heads, size)
    key = layer.project_key(x).reshape(len(x), heads, size)
    pairs = index.T.tolist()
    powers = torch.stack([(query[i] * key[j]).sum(-1).div(size**0.5).exp() for j, i in pairs])
    totals = torch.zeros(len(x), heads, dtype=x.dtype)
    for (_, i), power in zip(pairs, powers, strict=True):
        totals[i] += power.detach()
    return powers / totals[index[1]]


# torch.nn.MultiheadAttention


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("add_zero_attn", [True, False])
@pytest.mark.parametrize("sizes", [{}, {"kdim": 6, "vdim": 5}, {"kdim": 6}, {"vdim": 5}], ids=str)
def test_it_is_torchs_module(randn, sizes, add_zero_attn, bias, batch_first):
    torchs = nn.MultiheadAttention(
        8, 2, bias=bias, add_zero_attn=add_zero_attn, batch_first=batch_first, **sizes
    ).double()
    if bias:
        nn.init.normal_(torchs.in_proj_bias)
        nn.init.normal_(torchs.out_proj.bias)
    layer = GraphAttention.from_torch(torchs)
    x, key = randn(3, 4, 8), randn(3, 7, sizes.get("kdim", 8))
    value = randn(3, 7, sizes.get("vdim", 8))
    turned = [t if batch_first else t.transpose(0, 1) for t in (x, key, value)]
    expected, _ = torchs(*turned, need_weights=False)
    expected = expected if batch_first else expected.transpose(0, 1)
    close(layer((key, x, value), TokenGraph.bipartite(4, 7)), expected)
    close(layer((key[1], x[1], value[1]), TokenGraph.bipartite(4, 7)), expected[1])


@pytest.mark.parametrize("add_zero_attn", [True, False])
def test_its_mask_and_its_attention_are_torchs(randn, add_zero_attn):
    torchs = nn.MultiheadAttention(8, 2, add_zero_attn=add_zero_attn, batch_first=True).double()
    layer, x = GraphAttention.from_torch(torchs), randn(2, 5, 8)
    mask = TokenGraph.window(5, 2).mask()
    expected, weights = torchs(x, x, x, attn_mask=~mask, average_attn_weights=False)
    graph = TokenGraph.from_mask(mask)
    close(layer(x, graph), expected)
    heads = layer.graphs(x, graph)
    found = torch.stack([torch.from_numpy(head.to_dense()) for head in heads])
    close(found.unflatten(0, (2, 2)), weights[..., :5].detach())


def test_cutting_padding_is_torchs_key_padding_mask(randn):
    torchs = nn.MultiheadAttention(8, 2, batch_first=True).double()
    layer, x = GraphAttention.from_torch(torchs), randn(1, 5, 8)
    padding = torch.tensor([[False, False, False, True, True]])
    expected, _ = torchs(x, x, x, key_padding_mask=padding)
    graph = TokenGraph.from_mask(~padding.expand(5, 5))
    close(layer(x, graph), expected)
    close(layer(x[:, :3], TokenGraph.complete(3)), expected[:, :3])


@pytest.mark.parametrize("graph", [TokenGraph.causal(5), TokenGraph.window(5, 5)])
def test_its_gradients_are_torchs(randn, graph):
    torchs = nn.MultiheadAttention(8, 2, batch_first=True).double()
    layer = GraphAttention.from_torch(torchs)
    x, y = randn(2, 5, 8).requires_grad_(), randn(2, 5, 8)
    expected, _ = torchs(x, x, x, attn_mask=~graph.mask(), need_weights=False)
    theirs = torch.autograd.grad(
        (expected * y).sum(), [x, torchs.in_proj_weight, torchs.in_proj_bias, *parts(torchs)]
    )
    projections = (layer.project_query, layer.project_key, layer.project_value)
    ours = torch.autograd.grad(
        (layer(x, graph) * y).sum(),
        [
            x,
            *(p.weight for p in projections),
            *(p.bias for p in projections),
            layer.project_output.weight,
            layer.project_output.bias,
        ],
    )
    joined = [ours[0], torch.cat(ours[1:4]), torch.cat(ours[4:7]), *ours[7:]]
    for one, other in zip(joined, theirs, strict=True):
        close(one, other)


def parts(torchs):
    return torchs.out_proj.weight, torchs.out_proj.bias


def test_from_torch_copies_and_keeps_mode_dtype_and_dropout():
    torchs = nn.MultiheadAttention(8, 2, dropout=0.25).double().eval()
    layer = GraphAttention.from_torch(torchs)
    assert layer.dropout == 0.25
    assert not layer.training
    assert layer.project_query.weight.dtype == torch.float64
    before = layer.project_query.weight.clone()
    nn.init.zeros_(torchs.in_proj_weight)
    assert torch.equal(layer.project_query.weight, before)
    assert layer.project_query.weight.requires_grad


def test_a_batch_is_always_first(randn):
    torchs = nn.MultiheadAttention(8, 2, batch_first=False).double()
    layer, x, graph = GraphAttention.from_torch(torchs), randn(4, 4, 8), TokenGraph.complete(4)
    found = layer(x, graph)
    close(torchs(*[x.transpose(0, 1)] * 3)[0].transpose(0, 1), found)
    close(torchs(x[0], x[0], x[0])[0], found[0])
    assert not torch.allclose(torchs(x, x, x)[0], found)


def test_from_torch_refuses_a_key_without_a_token():
    with pytest.raises(ShapeError, match="add_bias_kv"):
        GraphAttention.from_torch(nn.MultiheadAttention(8, 2, add_bias_kv=True))


# torch-geometric's layers


@pytest.mark.parametrize("index", [SHUFFLED, ONCE], ids=["doubled", "once"])
@pytest.mark.parametrize("heads", [1, 2])
def test_it_is_transformer_conv(randn, heads, index):
    theirs = TransformerConv(8, 8 // heads, heads=heads, root_weight=False).double()
    layer = GraphAttention(8, 8 // heads, heads).double()
    pairs = (
        (layer.project_query, theirs.lin_query),
        (layer.project_key, theirs.lin_key),
        (layer.project_value, theirs.lin_value),
    )
    with torch.no_grad():
        for ours, other in pairs:
            ours.load_state_dict(other.state_dict())
    x = randn(5, 8)
    close(layer(x, index), theirs(x, index))


def test_it_is_gatv2_conv(randn):
    theirs = GATv2Conv(8, 4, heads=2, add_self_loops=False).double()
    nn.init.normal_(theirs.bias)
    vector = theirs.att[0]

    def score(query, key, pairs):
        return (vector * nn.functional.leaky_relu(query + key, 0.2)).sum(-1)

    layer = GraphAttention(8, 4, heads=2, weight=score, project_output=True).double()
    with torch.no_grad():
        layer.project_query.load_state_dict(theirs.lin_r.state_dict())
        layer.project_key.load_state_dict(theirs.lin_l.state_dict())
        layer.project_value.load_state_dict(theirs.lin_l.state_dict())
        layer.project_output.weight.copy_(torch.eye(8))
        layer.project_output.bias.copy_(theirs.bias)
    x = randn(5, 8)
    close(layer(x, SHUFFLED), theirs(x, SHUFFLED))
    close(layer(x, TokenGraph.from_edge_index(ONCE, 5)), theirs(x, ONCE))


# Plain edge lists


def test_an_edge_index_keeps_order_and_duplicates_and_a_token_graph_merges(randn):
    layer, x = build(8, 2), randn(5, 8)
    value = layer.project_value(x).reshape(5, 2, 4)
    for index in (SHUFFLED, ONCE):
        attention = attention_by_hand(layer, x, index)
        summed = torch.zeros(5, 2, 4, dtype=torch.float64)
        for edge, (j, i) in enumerate(index.T.tolist()):
            summed[i] = summed[i] + attention[edge, :, None] * value[j]
        close(layer(x, index), layer.project_output(summed.flatten(1)))
    merged = layer(x, TokenGraph.from_edge_index(SHUFFLED, 5))
    close(merged, layer(x, ONCE))
    assert not torch.allclose(merged[1], layer(x, SHUFFLED)[1])


def test_edge_features_follow_the_callers_edge_order(randn):
    layer = build(8, 2, weight=ScaledDotProduct() + EdgeBias(2, 3))
    x, features = randn(5, 8), randn(ONCE.shape[1], 3)
    order = torch.tensor([3, 0, 6, 5, 1, 2, 4])
    expected = layer(x, ONCE, features)
    close(layer(x, ONCE[:, order], features[order]), expected)
    graph = TokenGraph.from_edge_index(ONCE, 5)
    close(layer(x, graph.sorted(), graph.arrange(ONCE, features)), expected)
    assert not torch.allclose(layer(x, ONCE, features[order]), expected)


def test_edge_index_subclasses_are_edge_lists(randn):
    layer, x = build(8, 2), randn(5, 8)
    close(layer(x, EdgeIndex(SHUFFLED, sparse_size=(5, 5))), layer(x, SHUFFLED))


def test_cross_attention_over_an_edge_index(randn):
    x, key, value = randn(3, 8), randn(4, 6), randn(4, 5)
    index = torch.tensor([[3, 0, 1], [0, 2, 2]])
    layer = GraphAttention((6, 8), 4, 2, project_output=True).double()
    graph = TokenGraph.from_edge_index(index, num_queries=3, num_keys=4)
    with pytest.raises(ShapeError, match=r"6 channels, got \(4, 5\)"):
        layer((key, x, value), index)
    found = layer((key, x), index)
    close(found, layer((key, x), graph))
    close(found[1], layer.project_output.bias)


# Explainers and hooks


@pytest.mark.parametrize("reduce", ["max", "mean"])
@pytest.mark.parametrize("index", [SHUFFLED, ONCE], ids=["doubled", "once"])
def test_attention_explainer_puts_attention_on_the_callers_edges(randn, index, reduce):
    layer, x = build(8, 2), randn(5, 8)
    explainer = Explainer(
        layer,
        AttentionExplainer(reduce=reduce),
        explanation_type="model",
        edge_mask_type="object",
        model_config={"mode": "regression", "task_level": "node", "return_type": "raw"},
    )
    found = explainer(x, index).edge_mask
    by_hand = attention_by_hand(layer, x, index)
    expected = by_hand.max(-1).values if reduce == "max" else by_hand.mean(-1)
    close(found, expected.detach())


class Used(GraphAttention):
    """A layer that is in use before a subclass of it is."""


class Derived(Used):
    """A subclass of a layer that is in use."""


@pytest.mark.parametrize("kind", [GraphAttention, Derived])
def test_gnn_explainer_learns_a_mask(randn, kind):
    EdgeAttention(), GraphAttention(8, 8), Used(8, 8)
    layer, x = kind(8, 4, heads=2), randn(5, 8).float()
    explainer = Explainer(
        layer,
        GNNExplainer(epochs=15),
        explanation_type="model",
        edge_mask_type="object",
        model_config={"mode": "regression", "task_level": "node", "return_type": "raw"},
    )
    mask = explainer(x, SHUFFLED, index=1).edge_mask
    # Query 1 reads the keys 0 (twice) and 2: nothing else can matter to it.
    assert mask.shape == (8,)
    matters = SHUFFLED[1] == 1
    assert bool((mask[matters] > 0).all())
    assert bool((mask[~matters] == 0).all())
    assert not layer.explain


@pytest.mark.parametrize("graph", [TokenGraph.complete(5), TokenGraph.causal(5), SHUFFLED])
@pytest.mark.parametrize("step", ["propagate", "message", "aggregate"])
def test_hooks_fire_and_change_nothing(randn, graph, step):
    layer, x = build(8, 2), randn(5, 8)
    plain = layer(x, graph)
    seen = []
    before = getattr(layer, f"register_{step}_forward_pre_hook")(
        lambda module, arguments: seen.append("before")
    )
    after = getattr(layer, f"register_{step}_forward_hook")(
        lambda module, arguments, result: seen.append("after")
    )
    close(layer(x, graph), plain)
    assert seen == ["before", "after"]
    after.remove()
    close(layer(x, graph), plain)
    before.remove()
    assert torch.equal(layer(x, graph), plain)
    assert seen == ["before", "after", "before"]


def test_a_hook_can_change_the_messages(randn):
    layer, x = build(8, 2), randn(5, 8)
    layer.register_message_forward_hook(lambda module, arguments, result: 0 * result)
    close(layer(x, TokenGraph.complete(5)), layer.project_output.bias.expand(5, 8))


class Muted(GraphAttention):
    """A subclass that changes the messages."""

    def message(self, value_j, alpha):
        return 0 * super().message(value_j, alpha)


@pytest.mark.parametrize("shape", [(5, 8), (2, 5, 8)])
@pytest.mark.parametrize("graph", [TokenGraph.complete(5), TokenGraph.window(5, 2), SHUFFLED])
def test_a_subclass_can_change_the_messages(randn, graph, shape):
    layer = build(8, 2, Muted)
    nn.init.normal_(layer.project_output.bias)
    close(layer(randn(*shape), graph), layer.project_output.bias.expand(shape))


def test_a_batch_with_a_hook_is_refused(randn):
    layer, x = build(8, 2), randn(2, 5, 8)
    layer.register_message_forward_hook(lambda module, arguments, result: result)
    with pytest.raises(ShapeError, match=r"one graph at a time.*\(2, 5, 8\)"):
        layer(x, TokenGraph.complete(5))


def test_a_batch_under_an_explainer_is_refused(randn):
    layer, x = build(8, 2), randn(2, 5, 8)
    layer.explain = True
    with pytest.raises(ShapeError, match="one graph at a time"):
        layer(x, TokenGraph.complete(5))


def test_it_stands_in_torch_geometrics_sequential(randn):
    first, second = build(8, 2), build(8, 4, normalizer=Entmax15())
    model = Sequential(
        "x, edge_index", [(first, "x, edge_index -> x"), nn.ReLU(), (second, "x, edge_index -> x")]
    )
    x = randn(5, 8)
    close(model(x, SHUFFLED), second(torch.relu(first(x, SHUFFLED)), SHUFFLED))
    assert isinstance(first, EdgeAttention)


# A module like others


@pytest.mark.parametrize("graph", [TokenGraph.causal(5), TokenGraph.window(5, 2), ONCE])
def test_a_batch_is_each_element_alone(randn, graph):
    layer, x = build(8, 2, weight=ScaledDotProduct() + ALiBi(2)), randn(3, 5, 8)
    whole = layer(x, graph)
    assert whole.shape == (3, 5, 8)
    for element in range(3):
        close(whole[element], layer(x[element], graph))


def test_the_state_goes_there_and_back(randn):
    def new():
        return build(8, 2, weight=Cosine(2) + ALiBi(2), normalizer=Softmax(sink=torch.zeros(2)))

    one, other, x = new(), new(), randn(5, 8)
    graph = TokenGraph.causal(5)
    assert not torch.allclose(one(x, graph), other(x, graph))
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert torch.equal(one(x, graph), other(x, graph))


def test_a_copy_is_equal_and_apart(randn):
    layer, x = build(8, 2, weight=SquaredDistance(nn.Parameter(torch.ones(2)))), randn(5, 8)
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(x, SHUFFLED), layer(x, SHUFFLED))
    with torch.no_grad():
        twin.weight.c.mul_(3.0)
    assert not torch.allclose(twin(x, SHUFFLED), layer(x, SHUFFLED))
    nn.init.zeros_(twin.project_output.weight)
    assert bool((layer.project_output.weight != 0).any())


@pytest.mark.parametrize("graph", [TokenGraph.causal(6), TokenGraph.window(6, 6)])
def test_training_lowers_the_loss_and_moves_every_parameter(randn, graph):
    normalizer = Softmax(sink=nn.Parameter(torch.zeros(2)))
    layer = build(8, 2, weight=Cosine(2) + ALiBi(2), normalizer=normalizer)
    x, wanted = randn(4, 6, 8), randn(4, 6, 8)
    before = copy.deepcopy(dict(layer.named_parameters()))
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = (layer(x, graph) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]
    for name, parameter in layer.named_parameters():
        if name != "project_key.bias":
            assert not torch.equal(parameter, before[name]), name


def test_dropout_is_for_training_alone(randn):
    layer, x = build(8, 2, dropout=0.5), randn(5, 8)
    graph = TokenGraph.causal(5)
    assert torch.equal(layer(x, graph), layer(x, graph))
    layer.train()
    assert not torch.equal(layer(x, graph), layer(x, graph))


def test_graphs_are_the_attention_of_forward(randn):
    layer, x = build(8, 2, weight=ScaledDotProduct() + ALiBi(2)), randn(5, 8)
    graph = TokenGraph.causal(5)
    attention = torch.stack([torch.from_numpy(h.to_dense()) for h in layer.graphs(x, graph)])
    value = layer.project_value(x).reshape(5, 2, 4).transpose(0, 1)
    mixed = (attention @ value).transpose(0, 1).flatten(1)
    close(layer(x, graph), layer.project_output(mixed))
    kept = layer.graphs(x, graph, keep=TopK(1), tokens=list("abcde"))
    assert [head.graph.num_edges for head in kept] == [5, 5]
    assert kept[0].tokens == tuple("abcde")


def test_its_repr_is_torch_geometrics_and_says_what_it_computes():
    assert repr(GraphAttention((8, 6), 4, heads=2)) == "GraphAttention((8, 6), 4, heads=2)"
    assert repr(GraphAttention(8, 4)) == repr(TransformerConv(8, 4)).replace(
        "TransformerConv", "GraphAttention"
    )
    layer = GraphAttention(
        8, 4, heads=2, weight=ScaledDotProduct() + ALiBi(2), normalizer=Entmax15()
    )
    expected = "GraphAttention(8, 4, heads=2, weight=ScaledDotProduct() + ALiBi(2), "
    assert repr(layer) == expected + "normalizer=Entmax15())"


# Refusals


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("in_channels", (0, 4, 2)),
        ("in_channels", (-2, 4, 2)),
        ("in_channels", ("8", 4, 2)),
        ("in_channels", ((8, 0), 4, 2)),
        ("in_channels", ((8,), 4, 2)),
        ("in_channels", ((8, 8, 8, 8), 4, 2)),
        ("out_channels", (8, 0, 2)),
        ("out_channels", (8, -1, 2)),
        ("out_channels", (8, 4.0, 2)),
        ("heads", (8, 4, 0)),
        ("heads", (8, 4, None)),
        ("heads", (8, 4, True)),
    ],
)
def test_sizes_are_whole_numbers(name, sizes):
    with pytest.raises(ShapeError, match=name):
        GraphAttention(*sizes)


@pytest.mark.parametrize(
    "normalizer", ["softmax", Softmax, torch.softmax], ids=["name", "class", "function"]
)
def test_something_else_than_a_normalizer_is_refused(normalizer):
    with pytest.raises(ContractError, match="normalizer must be a Normalizer such as"):
        GraphAttention(16, 4, 4, normalizer=normalizer)


@pytest.mark.parametrize("dropout", [-0.1, 1.1])
def test_dropout_is_a_share(dropout):
    with pytest.raises(ShapeError, match=f"dropout.*{dropout}"):
        GraphAttention(8, 4, dropout=dropout)


def test_features_of_another_size_are_named(randn):
    layer = build(8, 2)
    with pytest.raises(ShapeError, match=r"8 channels, got \(5, 7\)"):
        layer(randn(5, 7), TokenGraph.causal(5))
    with pytest.raises(ShapeError, match=r"\(5,\)"):
        layer(randn(5), TokenGraph.causal(5))
    with pytest.raises(ShapeError, match=r"\(2, 5, 8\).*\(4, 8\)"):
        layer((randn(2, 5, 8), randn(4, 8)), TokenGraph.causal(5))
    with pytest.raises(ShapeError, match=r"targets.*Tensor, NoneType"):
        layer((randn(5, 8), None), SHUFFLED)


@pytest.mark.parametrize(
    "graph",
    [None, [[0], [1]], "causal"],
    ids=["None", "list", "str"],
)
def test_something_else_than_a_graph_is_named(randn, graph):
    layer = build(8, 2)
    with pytest.raises(ShapeError, match=f"edge_index.*not.*{type(graph).__name__}"):
        layer(randn(5, 8), graph)


def test_edges_to_tokens_that_are_not_there_are_named(randn):
    layer = build(8, 2)
    with pytest.raises(ShapeError, match=r"0 \.\. 4"):
        layer(randn(5, 8), torch.tensor([[0, 5], [1, 1]]))
    with pytest.raises(ShapeError, match=r"0 \.\. 4"):
        layer(randn(5, 8), torch.tensor([[0, 1], [1, -1]]))
