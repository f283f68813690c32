"""`GraphAttention` is at home in torch-geometric: models, data, explainers, hooks."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.explain import AttentionExplainer, Explainer, GNNExplainer
from torch_geometric.nn import HeteroConv, TransformerConv, to_hetero
from torch_geometric.nn.models.basic_gnn import BasicGNN
from torch_geometric.transforms import ToSparseTensor

from gattn.errors import ContractError
from gattn.module import GraphAttention

INDEX = torch.tensor([[2, 0, 4, 0, 3, 2, 1, 2], [3, 1, 0, 1, 3, 1, 0, 2]])
EXACT = {"atol": 1e-12, "rtol": 1e-12}


def close(found, expected):
    torch.testing.assert_close(found, expected, **EXACT)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def copied(layer, theirs):
    """Give a layer the weights of a TransformerConv."""
    names = {"query": "query", "key": "key", "value": "value", "residual": "skip", "edge": "edge"}
    for name, other in names.items():
        if getattr(theirs, f"lin_{other}") is not None:
            own = getattr(layer, f"project_{name}")
            own.load_state_dict(getattr(theirs, f"lin_{other}").state_dict())
    return layer


# Sizes that the first input gives


@pytest.mark.parametrize(
    ("lazy", "sizes", "edge_dim"), [(-1, (8, 8), None), ((-1, -1), (6, 8), -1)]
)
def test_the_first_input_gives_sizes(randn, lazy, sizes, edge_dim):
    layer = GraphAttention(lazy, 4, 2, edge_dim=edge_dim, residual=True).double()
    twin = copy.deepcopy(layer)
    x = randn(5, 8) if lazy == -1 else (randn(5, sizes[0]), randn(5, sizes[1]))
    features = None if edge_dim is None else randn(8, 3)
    out = layer(x, INDEX, features)
    assert out.shape == (5, 8)
    assert layer.project_key.weight.shape == (8, sizes[0])
    assert layer.project_query.weight.shape == (8, sizes[1])
    assert layer.project_residual.weight.shape == (8, sizes[1])
    twin.load_state_dict(layer.state_dict())
    close(twin(x, INDEX, features), out)
    if edge_dim:
        assert layer.project_edge.weight.shape == (8, 3)
    layer.reset_parameters()
    assert not torch.allclose(layer(x, INDEX, features), out)
    assert bool((layer.project_key.bias == 0).all())
    assert repr(layer) == f"GraphAttention({lazy}, 4, heads=2)"


def test_a_layer_of_given_sizes_starts_as_xavier_says():
    layer = GraphAttention(64, 32, 2)
    for weight in (layer.project_query.weight, layer.project_value.weight):
        bound = (6 / 128) ** 0.5
        assert float(weight.detach().abs().max()) <= bound
        torch.testing.assert_close(float(weight.detach().std()), bound / 3**0.5, rtol=0.05, atol=0)


# Models


class Net(BasicGNN):
    """A model as torch-geometric builds it, of layers of any kind."""

    supports_edge_weight, supports_edge_attr = False, True

    def init_conv(self, in_channels, out_channels, kind=None, **options):
        return kind(in_channels, out_channels // 2, heads=2, **options)


@pytest.mark.parametrize("jk", [None, "cat"])
def test_basic_models(randn, jk):
    settings = {"num_layers": 3, "out_channels": 6, "jk": jk, "norm": "LayerNorm", "edge_dim": 3}
    theirs = Net(8, 4, kind=TransformerConv, **settings).double()
    ours = Net(8, 4, kind=GraphAttention, residual=True, **settings).double()
    for own, other in zip(ours.convs, theirs.convs, strict=True):
        copied(own, other)
    rest = {name: value for name, value in theirs.state_dict().items() if "convs" not in name}
    ours.load_state_dict(ours.state_dict() | rest)
    x, features = randn(5, 8), randn(8, 3)
    found = ours(x, INDEX, edge_attr=features)
    close(found, theirs(x, INDEX, edge_attr=features))
    ours.reset_parameters()
    assert not torch.allclose(ours(x, INDEX, edge_attr=features), found)


def hetero(randn):
    data = HeteroData()
    data["author"].x, data["paper"].x = randn(4, 6), randn(5, 8)
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 3, 3], [0, 0, 1, 4]])
    data["paper", "has", "author"].edge_index = torch.tensor([[0, 0, 1, 4], [0, 1, 3, 3]])
    data["paper", "cites", "paper"].edge_index = INDEX
    return data


def test_hetero_conv(randn):
    data = hetero(randn)
    convs = {
        kind: GraphAttention((-1, -1), 3, 2, add_self_loops=kind[0] == kind[2])
        for kind in data.edge_types
    }
    model = HeteroConv(convs, aggr="sum").double()
    found = model(data.x_dict, data.edge_index_dict)
    writes, has, cites = convs.values()
    author, paper = data["author"].x, data["paper"].x
    index = data.edge_index_dict
    papers = writes((author, paper), index["author", "writes", "paper"]) + cites(paper, INDEX)
    close(found["paper"], papers)
    close(found["author"], has((paper, author), index["paper", "has", "author"]))
    with pytest.raises(ValueError, match="add_self_loops"):
        HeteroConv({kind: GraphAttention(-1, 3, add_self_loops=True) for kind in data.edge_types})


class TwoLayers(nn.Module):
    def __init__(self, kind=GraphAttention, **options):
        super().__init__()
        self.first = kind((-1, -1), 4, 2, **options)
        self.second = kind((-1, -1), 3, 2, concat=False, **options)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


def test_to_hetero(randn):
    data = hetero(randn)
    model = to_hetero(TwoLayers(residual=True).double(), data.metadata(), aggr="sum")
    found = model(data.x_dict, data.edge_index_dict)
    x = data.x_dict
    for step in (model.first, model.second):
        sums = {}
        for source, name, target in data.edge_types:
            layer = step[f"{source}__{name}__{target}"]
            index = data[source, name, target].edge_index
            given = x[source] if source == target else (x[source], x[target])
            sums[target] = sums.get(target, 0) + layer(given, index)
        x = {name: one.relu() if step is model.first else one for name, one in sums.items()}
    close(found["paper"], x["paper"])
    close(found["author"], x["author"])


# Data


def test_graphs_of_a_batch_do_not_see_each_other(randn):
    layer = GraphAttention(8, 4, 2, edge_dim=3, add_self_loops=True).double()
    graphs = [
        Data(x=randn(5, 8), edge_index=INDEX, edge_attr=randn(8, 3)),
        Data(x=randn(3, 8), edge_index=torch.tensor([[0, 1], [1, 2]]), edge_attr=randn(2, 3)),
        Data(x=randn(1, 8), edge_index=INDEX[:, :0], edge_attr=randn(0, 3)),
    ]
    batch = Batch.from_data_list(graphs)
    found = layer(batch.x, batch.edge_index, batch.edge_attr)
    close(found, torch.cat([layer(one.x, one.edge_index, one.edge_attr) for one in graphs]))


@pytest.mark.filterwarnings("ignore:Sparse (invariant checks|CSR):UserWarning")
def test_data_with_a_sparse_adjacency(randn):
    layer, x = GraphAttention(8, 4, 2).double(), randn(5, 8)
    index = INDEX.unique(dim=1)
    data = ToSparseTensor(layout=torch.sparse_csr)(Data(x=x, edge_index=index))
    close(layer(data.x, data.adj_t), layer(x, index))


def test_a_graph_without_edges_and_one_without_nodes(randn):
    layer = GraphAttention(8, 4, 2, edge_dim=3, residual=True).double()
    nothing, x = INDEX[:, :0], randn(5, 8)
    out, (edges, alpha) = layer(x, nothing, randn(0, 3), return_attention_weights=True)
    close(out, layer.project_residual(x))
    assert edges.shape == (2, 0)
    assert alpha.shape == (0, 2)
    assert layer(x[:0], nothing, randn(0, 3)).shape == (0, 8)


def test_it_is_saved_and_loaded(randn):
    layer, x = GraphAttention(8, 4, 2, edge_dim=3).double(), randn(5, 8)
    features, file = randn(8, 3), io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    close(torch.load(file, weights_only=False)(x, INDEX, features), layer(x, INDEX, features))
    close(pickle.loads(pickle.dumps(layer))(x, INDEX, features), layer(x, INDEX, features))


# Explainers


class Model(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.first = kind(8, 4, heads=2, edge_dim=3, **options)
        self.second = kind(8, 4, heads=2, edge_dim=3, **options)

    def forward(self, x, edge_index, edge_attr):
        x = self.first(x, edge_index, edge_attr).relu()
        return self.second(x, edge_index, edge_attr)


def explained(model, algorithm, x, index, features):
    explainer = Explainer(
        model,
        algorithm,
        explanation_type="model",
        edge_mask_type="object",
        node_mask_type="attributes" if isinstance(algorithm, GNNExplainer) else None,
        model_config={"mode": "regression", "task_level": "node", "return_type": "raw"},
    )
    torch.manual_seed(7)
    return explainer(x, index, edge_attr=features)


@pytest.mark.parametrize("algorithm", [AttentionExplainer, lambda: GNNExplainer(epochs=12)])
def test_explainers_say_what_they_say_of_transformer_conv(randn, algorithm):
    theirs = Model(TransformerConv).double()
    ours = Model(GraphAttention, residual=True).double()
    copied(ours.first, theirs.first)
    copied(ours.second, theirs.second)
    x, features = randn(5, 8), randn(8, 3)
    found = explained(ours, algorithm(), x, INDEX, features)
    expected = explained(theirs, algorithm(), x, INDEX, features)
    torch.testing.assert_close(found.edge_mask, expected.edge_mask)
    assert len(found.edge_mask.unique()) > 3
    if "node_mask" in expected:
        torch.testing.assert_close(found.node_mask, expected.node_mask)


class Papers(nn.Module):
    def __init__(self, model, data):
        super().__init__()
        self.model = to_hetero(model.double(), data.metadata(), aggr="sum")
        self(data.x_dict, data.edge_index_dict)

    def forward(self, x, edge_index):
        return self.model(x, edge_index)["paper"]


@pytest.mark.parametrize("algorithm", [AttentionExplainer, lambda: GNNExplainer(epochs=4)])
def test_explainers_say_the_same_on_several_types_of_edges(randn, algorithm):
    data = hetero(randn)
    theirs = Papers(TwoLayers(TransformerConv), data)
    ours = Papers(TwoLayers(residual=True), data)
    for name, module in theirs.named_modules():
        if isinstance(module, TransformerConv):
            copied(ours.get_submodule(name), module)
    masks = []
    for model in (ours, theirs):
        explainer = Explainer(
            model,
            algorithm(),
            explanation_type="model",
            edge_mask_type="object",
            model_config={"mode": "regression", "task_level": "node", "return_type": "raw"},
        )
        torch.manual_seed(7)
        masks.append(explainer(data.x_dict, data.edge_index_dict).edge_mask_dict)
    assert masks[0].keys() == masks[1].keys() == set(data.edge_types)
    for kind, found in masks[0].items():
        torch.testing.assert_close(found, masks[1][kind])


def test_explainers_follow_self_loops_that_the_layer_adds(randn):
    layer = GraphAttention(8, 4, 2, add_self_loops=True).double()
    x, index = randn(5, 8), INDEX[:, INDEX[0] != INDEX[1]]
    _, (_, alpha) = layer(x, index, return_attention_weights=True)
    explainer = Explainer(
        layer,
        AttentionExplainer(reduce="mean"),
        explanation_type="model",
        edge_mask_type="object",
        model_config={"mode": "regression", "task_level": "node", "return_type": "raw"},
    )
    close(explainer(x, index).edge_mask, alpha.mean(1)[: index.shape[1]].detach())


class Halved(GraphAttention):
    def message(self, value_j, alpha, edge_value=None):
        return super().message(value_j, alpha, edge_value) / 2


class Unaware(GraphAttention):
    def message(self, value_j, alpha):
        return alpha[..., None] * value_j


def test_a_subclass_changes_messages_with_features_of_edges(randn):
    x, features = randn(5, 8), randn(8, 3)
    layer, plain = Halved(8, 4, 2, edge_dim=3).double(), GraphAttention(8, 4, 2, edge_dim=3)
    plain.double().load_state_dict(layer.state_dict())
    out, (_, alpha) = layer(x, INDEX, features, return_attention_weights=True)
    close(out, plain(x, INDEX, features) / 2)
    close(alpha, plain(x, INDEX, features, return_attention_weights=True)[1][1])
    with pytest.raises(ContractError, match=r"Unaware.*must take edge_value"):
        Unaware(8, 4, 2, edge_dim=3).double()(x, INDEX, features)
