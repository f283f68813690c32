"""gattn's own layers in live models: they report their calls, on every engine."""

import pytest
import torch
from torch import nn
from torch_geometric.nn import HeteroConv, TransformerConv

import gattn
from gattn import (
    ALiBi,
    Cut,
    Dot,
    GraphAttention,
    ModelScore,
    Scale,
    Swap,
    TokenGraph,
    capturing,
    edited,
)
from gattn.engines import watching
from gattn.errors import CaptureError

NODES = 6
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 5]])
FEATURES = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
X = torch.randn(NODES, 8, generator=torch.Generator().manual_seed(0))
TWICE = torch.cat([EDGES[:, [6]], EDGES], dim=1)
TEXTS = torch.randn(3, NODES, 8, generator=torch.Generator().manual_seed(2))


def layer(**options):
    torch.manual_seed(0)
    return GraphAttention(8, 4, heads=2, **options).eval()


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def without(edge):
    return torch.arange(EDGES.shape[1]) != edge


@pytest.mark.parametrize("engine", [None, "tiles", "edges", "message_passing"])
@pytest.mark.parametrize("graph", [TokenGraph.complete(NODES), TokenGraph.window(NODES, 2)])
def test_a_batch_of_sequences_is_read_on_every_engine(engine, graph):
    own = layer(engine=engine)
    plain = own(TEXTS, graph)
    with capturing(own, scores=True) as run:
        assert torch.equal(own(TEXTS, graph), plain)
    assert len(run.traces) == 3
    for trace, x in zip(run.traces, TEXTS, strict=True):
        for head, expected in enumerate(own.graphs(x, graph, scores=True)):
            assert trace[0, head].graph.num_edges == graph.num_edges
            assert trace[0, head].attention == pytest.approx(expected.attention, abs=1e-6)
            assert trace[0, head].score == pytest.approx(expected.score, abs=1e-5)
    with edited(own, Cut(layer=0, query=4, key=3)):
        found = own(TEXTS, graph)
    mask = graph.mask()
    mask[4, 3] = False
    assert_close(found, own(TEXTS, TokenGraph.from_mask(mask)))
    assert torch.equal(found[:, [0, 1, 2, 3, 5]], plain[:, [0, 1, 2, 3, 5]])


@pytest.mark.parametrize("options", [{}, {"edge_dim": 3}, {"project_output": True}])
def test_each_edge_of_an_edge_index_is_cut(options):
    own = layer(**options)

    def run(keep):
        features = (FEATURES[keep],) if options.get("edge_dim") else ()
        return own(X, EDGES[:, keep], *features)

    everything = torch.ones(EDGES.shape[1], dtype=torch.bool)
    plain = run(everything)
    with capturing(own) as seen:
        assert torch.equal(run(everything), plain)
    assert set(seen.trace[0, 1].to_networkx().edges) == set(map(tuple, EDGES.T.tolist()))
    for edge, (key, query) in enumerate(EDGES.T.tolist()):
        with edited(own, Cut(layer=0, query=query, key=key)):
            assert_close(run(everything), run(without(edge)))


def test_self_loops_that_a_layer_adds_are_edges():
    own = layer(add_self_loops=True, edge_dim=3, fill_value=0.5)
    with capturing(own) as run:
        _, (edges, alpha) = own(X, EDGES, FEATURES, return_attention_weights=True)
    dense = torch.zeros(NODES, NODES).index_put((edges[1], edges[0]), alpha[:, 1])
    assert_close(torch.from_numpy(run.trace[0, 1].to_dense()), dense.detach())


@pytest.mark.parametrize("edit", [Scale(0.25, layer=0, head=1, query=3, key=2)])
def test_values_of_edges_are_scaled_with_their_attention(edit):
    own = layer(edge_dim=3)
    _, (edges, alpha) = own(X, EDGES, FEATURES, return_attention_weights=True)
    with edited(own, edit):
        found = own(X, EDGES, FEATURES)
    key, query = edges
    value = own.project_value(X)[key] + own.project_edge(FEATURES)
    alpha = alpha.clone()
    alpha[(query == 3) & (key == 2), 1] *= 0.25
    messages = alpha[..., None] * value.unflatten(-1, (2, 4))
    assert_close(found, torch.zeros(NODES, 8).index_add(0, query, messages.flatten(1)))


def test_one_head_of_a_weight_function_with_parameters_per_head_is_edited():
    own = layer(weight=Dot() + ALiBi(2))
    graph = TokenGraph.complete(NODES)
    with edited(own, Cut(layer=0, head=1, query=4, key=3)):
        found = own(X, graph)
    mask = graph.mask()
    mask[4, 3] = False
    assert torch.equal(found[:, :4], own(X, graph)[:, :4])
    assert_close(found[:, 4:], own(X, TokenGraph.from_mask(mask))[:, 4:])


def test_scores_are_swapped_with_the_vectors_known():
    own = layer()
    with edited(own, Swap(layer=0, weight=Dot() + 0.5 * ModelScore())):
        found = own(X, EDGES)
    assert_close(found, layer(weight=Dot() + 0.5 * gattn.ScaledDotProduct())(X, EDGES))


def test_contributions_are_known():
    own, graph = layer(project_output=True), TokenGraph.causal(NODES)
    with capturing(own, contributions=True) as run:
        own(X, graph)
    value = own.project_value(X).unflatten(-1, (2, 4))
    weight = own.project_output.weight.unflatten(1, (2, 4))
    for head in range(2):
        key, _ = graph.edge_index
        norms = (value[:, head] @ weight[:, head].T).norm(dim=-1)[key].detach()
        expected = torch.from_numpy(run.trace[0, head].attention) * norms
        assert_close(torch.from_numpy(run.trace[0, head].contribution), expected)
    featured = layer(edge_dim=3)
    with (
        pytest.raises(CaptureError, match="features of edges"),
        capturing(featured, contributions="value"),
    ):
        featured(X, EDGES, FEATURES)


def test_sources_and_targets_are_cross_attention():
    own = layer()
    with capturing(own) as run:
        own((X, X.flip(0)), EDGES)
    (stack,) = run.trace.stacks.values()
    assert stack[0, 0].graph.is_bipartite
    with capturing(own) as run:
        own((X, X[:4]), EDGES[:, :3])
    (stack,) = run.trace.stacks.values()
    assert (stack[0, 0].graph.num_queries, stack[0, 0].graph.num_keys) == (4, NODES)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(GraphAttention(8, 4, heads=2) for _ in range(2))

    def forward(self, x, graph):
        for block in self.blocks:
            x = x + gattn.graph_attention(x[None], x[None], x[None], graph)[0] + block(x, graph)
        return x


def test_layers_and_functions_in_a_model_are_stacks():
    model, graph = Model().eval(), TokenGraph.causal(NODES)
    plain = model(X, graph)
    with capturing(model) as run:
        assert torch.equal(model(X, graph), plain)
    names = {name: stack.layers for name, stack in run.trace.stacks.items()}
    assert names == {"Model": [0], "blocks": [0, 1], "Model 2": [0]}


def test_contexts_close_in_any_order_and_leave_nothing_behind():
    own, graph = layer(), TokenGraph.causal(NODES)
    first, second = capturing(own), capturing(own)
    run = first.__enter__()
    other = second.__enter__()
    own(X, graph)
    first.__exit__(None, None, None)
    own(X, graph)
    second.__exit__(None, None, None)
    assert (len(run.traces), len(other.traces)) == (1, 2)
    assert watching.watcher() is None


def test_who_watched_before_watches_again():
    seen = []

    def watcher(module, call, run):
        seen.append(module)
        return run(call)

    own, other = layer(), layer()
    with watching.watching(watcher):
        with capturing(own):
            own(X, EDGES)
            other(X, EDGES)
        own(X, EDGES)
    assert seen == [other, own]


def test_what_cannot_be_told_is_refused():
    own, sparse = layer(), layer(normalizer=gattn.Sparsemax())
    with pytest.raises(CaptureError, match="parallel edges"), capturing(sparse):
        sparse(X, TWICE)
    with pytest.raises(CaptureError, match="parallel edges"), capturing(own):
        own(TEXTS, TWICE)
    step = TokenGraph.causal(1, num_keys=NODES, query_offset=NODES - 1)
    with pytest.raises(CaptureError, match="begin at position 5"), capturing(own):
        own((X, X[-1:]), step)


def test_gradients_go_through_edits_and_estimates():
    own, graph, x = layer(), TokenGraph.causal(NODES), X.clone().requires_grad_()
    with edited(own, Cut(layer=0, query=4, key=3)):
        (found,) = torch.autograd.grad(own(x, graph).square().sum(), x)
    mask = graph.mask()
    mask[4, 3] = False
    cut = TokenGraph.from_mask(mask)
    (expected,) = torch.autograd.grad(own(x, cut).square().sum(), x)
    assert_close(found, expected)
    effect = float((own(X, cut) - own(X, graph))[4].sum().detach())
    total = 0.0
    for head in range(2):  # heads add up
        table = gattn.estimate(lambda: own(X, graph)[4].sum(), model=own, heads=head)
        some = table[(table["query"] == 4) & (table["key"] == 3)]
        total += float(some["estimate"].sum())
    assert total == pytest.approx(effect, abs=1e-5)


@pytest.mark.parametrize("adds_to_values", [False, True])
def test_estimates_read_features_of_listed_edges(adds_to_values):
    own = layer(edge_dim=3) if adds_to_values else layer(weight=Dot() + gattn.EdgeBias(2, 3))

    def answer():
        return own(X, EDGES, FEATURES)[[3, 5]].sum()

    plain = answer()
    for row in gattn.estimate(answer, model=own).itertuples():
        with edited(own, Cut(layer=0, head=row.head, query=row.query, key=row.key)):
            effect = float((answer() - plain).detach())
        assert row.estimate == pytest.approx(effect, abs=1e-5)


@pytest.mark.parametrize("options", [{}, {"edge_dim": 3}, {"engine": "message_passing"}])
def test_parallel_edges_are_shown_as_one_and_cut_together(options):
    own = layer(normalizer=gattn.Softmax(temperature=0.5), **options)
    features = torch.cat([-FEATURES[:1], FEATURES]) if options.get("edge_dim") else None
    plain = own(X, TWICE, features)
    _, (_, alpha) = own(X, TWICE, features, return_attention_weights=True)
    with capturing(own) as run:
        assert torch.equal(own(X, TWICE, features), plain)
    for head in range(2):
        summed = torch.zeros(NODES, NODES)
        summed = summed.index_put((TWICE[1], TWICE[0]), alpha[:, head], accumulate=True)
        assert_close(torch.from_numpy(run.trace[0, head].to_dense()), summed.detach())
    for key, query in EDGES.T.tolist():
        kept = (TWICE[0] != key) | (TWICE[1] != query)
        with edited(own, Cut(layer=0, query=query, key=key)):
            found = own(X, TWICE, features)
        rest = None if features is None else features[kept]
        assert_close(found, own(X, TWICE[:, kept], rest))


def test_parallel_edges_are_what_they_are_in_torch_geometric():
    own = layer(residual=True)
    theirs = TransformerConv(8, 4, heads=2).eval()
    for name, same in (("query",) * 2, ("key",) * 2, ("value",) * 2, ("residual", "skip")):
        projection = getattr(theirs, f"lin_{same}")
        projection.load_state_dict(getattr(own, f"project_{name}").state_dict())
    edits = [
        Cut(layer=0, head=1, query=3, key=0),
        Scale(0.5, layer=0, query=3, key=0),
        gattn.Restrict(TokenGraph.causal(NODES), layer=0),
    ]
    for edit in edits:
        with edited(own, edit), edited(theirs, edit):
            with capturing(own) as run, capturing(theirs) as other:
                assert_close(own(X, TWICE), theirs(X, TWICE))
            for head, expected in zip(run.trace.heads(), other.trace.heads(), strict=True):
                assert head.to_dense() == pytest.approx(expected.to_dense(), abs=1e-6)
    tables = [
        gattn.estimate(lambda one=one: one(X, TWICE)[3].sum(), model=one) for one in (own, theirs)
    ]
    assert tables[0]["estimate"].tolist() == pytest.approx(tables[1]["estimate"].tolist(), abs=1e-5)
    assert tables[0]["estimate"].abs().max() > 0.01


@pytest.mark.parametrize("kind", [GraphAttention, TransformerConv])
def test_layers_of_several_types_of_edges_are_named_by_them(kind):
    types = [("author", "writes", "paper"), ("paper", "has", "author"), ("paper", "cites", "paper")]
    layers = HeteroConv({one: kind((8, 8), 4, heads=2) for one in types}).eval()
    x = {"author": X[:3], "paper": X}
    written = torch.tensor([[0, 2, 1], [0, 1, 5]])
    edges = dict(zip(types, (written, written.flip(0), EDGES), strict=True))
    with capturing(layers) as run:
        layers(x, edges)
    assert set(run.trace.stacks) == {" ".join(one) for one in types}
    for (source, name, target), index in edges.items():
        head = run.trace[f"{source} {name} {target}"][0, 0]
        assert head.graph.is_bipartite == (source != target)
        assert head.graph.num_edges == index.shape[1]
