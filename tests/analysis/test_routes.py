"""Information flow routes against plain algebra in double precision and the paper's numbers."""

import copy
import gc
import json
import warnings

import networkx as nx
import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from small_models import IDS, SMALL, SMALL_GPT2, built

import gattn
from gattn.analysis import route_importances, routes
from gattn.analysis.vectors.importances import FLOOR, _nearness, importances, kept, proximity
from gattn.analysis.vectors.route_graphs import Routes
from gattn.errors import CaptureError, SelectionError
from gattn.models.decompose.decomposing import decompose

SHARES = st.floats(0.01, 1)
TEXT = "The river tall green lamp river tall green lamp river tall green"


@pytest.fixture(scope="module")
def models():
    return {
        "Llama": built("Llama", "ForCausalLM", **SMALL, num_key_value_heads=2),
        "GPT2": built("GPT2", "LMHeadModel", **SMALL_GPT2),
        "Bert": built("Bert", "ForMaskedLM", **SMALL),
        "GPTNeoX": built("GPTNeoX", "ForCausalLM", **SMALL, use_parallel_residual=True),
    }


def watched(model, modules):
    """Run a model; give what each module took and gave, without the batch, and the attention."""
    seen = {}

    def see(name):
        def hook(module, args, kwargs, result):
            given = args[0] if args else kwargs["hidden_states"]
            seen[name] = given[0], (result[0] if isinstance(result, tuple) else result)[0]

        return hook

    handles = [
        model.get_submodule(name).register_forward_hook(see(name), with_kwargs=True)
        for name in modules
    ]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        result = model(torch.tensor([IDS]), output_attentions=True)
    model.set_attn_implementation("sdpa")
    for handle in handles:
        handle.remove()
    return seen, [layer[0] for layer in result.attentions]


def parts_of(model, kind, n):
    """Give the parts of a layer's sums: edges (heads, queries, keys, dim) first."""
    names = {
        "Llama": (
            "model.layers.N",
            "self_attn.v_proj",
            "self_attn.o_proj",
            "post_attention_layernorm",
        ),
        "GPT2": ("transformer.h.N", "attn.c_attn", "attn.c_proj", "ln_2"),
        "Bert": (
            "bert.encoder.layer.N",
            "attention.self.value",
            "attention.output.dense",
            "attention.output.LayerNorm",
        ),
        "GPTNeoX": (
            "gpt_neox.layers.N",
            "attention.query_key_value",
            "attention.dense",
            "post_attention_layernorm",
        ),
    }[kind]
    layer, value, output, norm = (name.replace(".N", f".{n}") for name in names)
    value, output, norm = (f"{layer}.{name}" for name in (value, output, norm))
    seen, attention = watched(model, [layer, value, output, norm])
    values, (residual, end) = seen[value][1], seen[layer]
    if kind == "GPT2":
        values = values[:, 48:]
    if kind == "GPTNeoX":
        values = values.view(len(IDS), 4, 18)[..., 12:].flatten(1)
    values = values.view(len(IDS), -1, 6).transpose(0, 1)
    values = values.repeat_interleave(4 // len(values), 0)
    weight = model.get_submodule(output).weight.detach()
    weight = weight if kind == "GPT2" else weight.T
    moved = torch.einsum("hjv,hvd->hjd", values, weight.view(4, 6, 24))
    edges = attention[n][..., None] * moved[:, None]
    if kind == "GPTNeoX":
        bias = model.get_submodule(output).bias.detach()
        mlp = end - residual - edges.sum((0, 2)) - bias
        return edges, residual, end, mlp, end
    whole = seen[norm][0]
    if kind == "Bert":
        module, before, whole = model.get_submodule(norm), *seen[norm]
        size = (before.var(-1, correction=0, keepdim=True) + module.eps).sqrt()

        def through(x, size):
            return (x - x.mean(-1, keepdim=True)) / size * module.weight.detach()

        edges, residual = through(edges, size[:, None]), through(residual, size)
    return edges, residual, whole, end - whole, end


def near(part, whole, norm):
    sizes = [np.linalg.norm(x, norm, axis=-1) for x in np.broadcast_arrays(whole, whole - part)]
    return np.maximum(sizes[0] - sizes[1], 1e-5)


def by_hand(model, kind, n, norm):
    """Give the shares of the edges, the residual and the MLP in each sum of a layer."""
    edges, residual, whole, mlp, end = (np.asarray(x) for x in parts_of(model, kind, n))
    is_causal = kind != "Bert"
    one = near(edges, whole[:, None], norm)
    if is_causal:
        one = one * np.tri(len(IDS))
    other = [near(residual, whole, norm)]
    other += [near(mlp, end, norm)] if kind == "GPTNeoX" else []
    total = one.sum((0, 2)) + sum(other)
    found = [one / total[:, None], *(x / total for x in other)]
    if kind == "GPTNeoX":
        return found
    two = near(mlp, end, norm), near(whole, end, norm)
    return [*found, two[0] / sum(two)]


@pytest.mark.parametrize("kind", ["Llama", "GPT2", "Bert", "GPTNeoX"])
@pytest.mark.parametrize("norm", [1, 2])
def test_importances_are_those_of_plain_algebra(models, kind, norm):
    model = models[kind]
    found = decompose(IDS, model, read=lambda sublayer: sublayer, progress=False).results
    for n, sublayer in enumerate(found):
        attention, residual, mlp = by_hand(model, kind, n, norm)
        assert attention.max() > 0.01
        for some in importances(sublayer, torch.tensor([1, 4]), norm):
            rows, keys = some.rows, some.attention.shape[2]
            np.testing.assert_allclose(some.attention, attention[:, rows, :keys], atol=2e-6)
            assert not attention[:, rows, keys:].any()
            np.testing.assert_allclose(some.residual, residual[rows], atol=2e-6)
            if kind == "GPTNeoX":
                np.testing.assert_allclose(some.mlp, mlp[rows], atol=2e-6)
    whole = route_importances(IDS, model, norm=norm, by_head=True, progress=False)
    assert whole.dims == ("layer", "head", "query", "key")
    np.testing.assert_allclose(whole[2], by_hand(model, kind, 2, norm)[0], atol=2e-6)
    summed = route_importances(IDS, model, norm=norm, layers=[1], progress=False)
    np.testing.assert_allclose(summed[0], whole[1].sum("head"), atol=1e-12)


def test_the_papers_code_gives_these_numbers():
    before, after = torch.tensor([2.0, 1.0]), torch.tensor([2.0, 2.0])
    parts = torch.tensor([[1.0, 1.0], [-1.0, 0.0]])
    sizes = proximity(torch.stack([*parts, before]), after, 2)
    np.testing.assert_allclose(sizes / sizes.sum(), [0.43613, 0, 0.56387], atol=5e-6)
    assert sizes[1] == FLOOR
    shares = torch.tensor([[0.05, 0.05], [0.15, 0.05], [0.8, 0.9]])
    expected = [[0, 0], [0.157894, 0], [0.842105, 1]]
    np.testing.assert_allclose(kept(shares, 0.1), expected, atol=1e-6)
    np.testing.assert_allclose(kept(torch.full((4, 1), 0.25), 0.3), np.full((4, 1), 0.25))
    one = proximity(torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([1.0, 1.0]), 1)
    np.testing.assert_allclose(one / one.sum(), [1, 0], atol=1e-5)


@given(
    hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=SHARES),
    st.floats(0, 0.9),
)
def test_what_is_kept_sums_to_one_and_is_above_the_threshold(numbers, threshold):
    shares = numbers / numbers.sum(0)
    found = kept(torch.from_numpy(shares), threshold).numpy()
    np.testing.assert_allclose(found.sum(0), 1)
    for before, after in zip(shares.T, found.T, strict=True):
        left = before > threshold
        if left.any():
            np.testing.assert_allclose(after, np.where(left, before, 0) / before[left].sum())
        else:
            assert after[before.argmax()] > 0
            assert not after[before < before.max()].any()


@given(hnp.arrays(np.float64, (3, 4), elements=st.floats(-5, 5)), st.sampled_from([1, 2]))
def test_a_part_is_no_nearer_than_it_is_long(parts, norm):
    whole = torch.from_numpy(parts.sum(0))
    near = proximity(torch.from_numpy(parts), whole, norm)
    sizes = np.linalg.norm(parts, norm, axis=1)
    assert (near.numpy() <= np.maximum(sizes, FLOOR) + 1e-9).all()
    assert proximity(whole, whole, norm) == max(float(torch.linalg.vector_norm(whole, norm)), FLOOR)


def dropped(shares, threshold):
    """Threshold and renormalize a dict of shares."""
    left = {name: share for name, share in shares.items() if share > threshold}
    if not left:
        left = {max(shares, key=shares.get): 1.0}
    return {name: share / sum(left.values()) for name, share in left.items()}


def naive(model, kind, target, threshold):
    """Build the routes from the top with dicts: edge -> (importance, weight)."""
    edges, reached = {}, {target}
    for n in (2, 1, 0):
        attention, residual, mlp = by_hand(model, kind, n, 1)
        sources = set()
        middles = set()
        for i in reached:
            end = (n + 1, i, "residual")
            if kind == "GPTNeoX":
                middles.add(i)
                continue
            shares = dropped({"mlp": mlp[i], "residual": 1 - mlp[i]}, threshold)
            middles.add(i)
            if "residual" in shares:
                edges[(n, i, "middle"), end] = (shares["residual"],) * 2
            if "mlp" in shares:
                edges[(n, i, "middle"), (n, i, "mlp")] = shares["mlp"], 1.0
                edges[(n, i, "mlp"), end] = (shares["mlp"],) * 2
        for i in middles:
            shares = {
                (h, j): attention[h, i, j] for h in range(4) for j in range(6) if attention[h, i, j]
            } | {"residual": residual[i]}
            end = (n, i, "middle")
            if kind == "GPTNeoX":
                shares["mlp"] = mlp[i]
                end = (n + 1, i, "residual")
            shares = dropped(shares, threshold)
            for name in ("residual", "mlp"):
                share = shares.pop(name, 0)
                if share:
                    sources.add(i)
                if share and name == "residual":
                    edges[(n, i, "residual"), end] = share, share
                elif share:
                    edges[(n, i, "residual"), (n, i, "mlp")] = share, 1.0
                    edges[(n, i, "mlp"), end] = share, share
            whole = sum(shares.values())
            if shares:
                edges[(n, i, "attention"), end] = whole, whole
            for j in {j for _, j in shares}:
                share = sum(x for (_, k), x in shares.items() if k == j)
                edges[(n, j, "residual"), (n, i, "attention")] = share, share / whole
                sources.add(j)
        reached = sources
    return edges


@pytest.mark.parametrize("kind", ["Llama", "GPT2", "Bert", "GPTNeoX"])
@pytest.mark.parametrize("threshold", [0, 0.02, 0.2])
def test_the_graph_is_what_walking_back_finds(models, kind, threshold):
    found = routes(IDS, models[kind], position=4, threshold=threshold, progress=False)
    expected = naive(models[kind], kind, 4, threshold)
    assert set(found.edges) == set(expected)
    for edge, (importance, weight) in expected.items():
        facts = found.edges[edge]
        assert facts["importance"] == pytest.approx(importance, abs=1e-6)
        assert facts["weight"] == pytest.approx(weight, abs=1e-6)
    assert found.end == (3, 4, "residual")
    assert found.graph["position"] == 4
    assert nx.is_directed_acyclic_graph(found)


@pytest.fixture(scope="module")
def river():
    return routes(TEXT, progress=False)


def test_strengths_are_products_of_weights_and_sum_to_one(river):
    inputs = [node for node in river if not river.in_degree(node)]
    assert {(layer, kind) for layer, _, kind in inputs} == {(0, "residual")}
    assert sum(river.nodes[node]["strength"] for node in inputs) == pytest.approx(1)
    for node in set(river) - set(inputs):
        weights = [weight for *_, weight in river.in_edges(node, data="weight")]
        assert sum(weights) == pytest.approx(1)
    every = [path for node in inputs for path in nx.all_simple_paths(river, node, river.end)]
    strength = {
        tuple(p): np.prod([river.edges[e]["weight"] for e in nx.utils.pairwise(p)]) for p in every
    }
    ranked = river.paths(10_000, mlp=True)
    assert dict(zip(ranked.nodes, ranked.strength, strict=True)) == pytest.approx(strength)
    assert ranked.strength.is_monotonic_decreasing
    few = river.paths(7, mlp=True)
    np.testing.assert_allclose(few.strength, sorted(strength.values())[::-1][:7])
    for node in river:
        over = sum(s for path, s in strength.items() if node in path)
        before = sum(
            np.prod([river.edges[e]["weight"] for e in nx.utils.pairwise(path)])
            for start in inputs
            for path in nx.all_simple_paths(river, start, node)
        )
        assert over == pytest.approx(river.nodes[node]["strength"] * (before or 1))


def test_ways_around_mlps_add_up(river):
    merged = {}
    for nodes, strength in river.paths(10_000, mlp=True)[["nodes", "strength"]].to_numpy():
        name = tuple(node for node in nodes if node[2] != "mlp")
        merged[name] = merged.get(name, 0) + strength
    found = river.paths(10_000)
    assert dict(zip(found.nodes, found.strength, strict=True)) == pytest.approx(merged)


def test_a_table_lists_the_edges_by_head(river):
    found = river.attention_edges()
    assert found.strength.is_monotonic_decreasing
    top = found.iloc[0]
    facts = river.edges[(top.layer, top.key, "residual"), (top.layer, top["query"], "attention")]
    assert facts[f"head_{top['head']}"] == top.importance
    for *_, facts in river.edges(data=True):
        heads = [share for name, share in facts.items() if name.startswith("head_")]
        if facts["kind"] in ("attention", "self"):
            assert sum(heads) == pytest.approx(facts["importance"])
            assert facts[f"head_{facts['head']}"] == max(heads)
        else:
            assert not heads


def test_an_induction_text_is_read_by_the_induction_heads(river):
    assert river.graph["predicted"] == " lamp"
    edges = river.attention_edges().set_index(["layer", "head", "query", "key"])
    assert {(2, 0, 12, 5), (2, 1, 12, 5), (1, 1, 5, 4)} <= set(edges.index)
    model, tokenizer = gattn.load_model()
    with gattn.edited(model, gattn.Cut(layer=2, head=[0, 1])):
        cut = routes(TEXT, model, tokenizer, progress=False)
    assert not {(2, 0), (2, 1)} & set(
        map(tuple, cut.attention_edges()[["layer", "head"]].to_numpy())
    )
    assert cut.graph["predicted"] != "lamp"


def test_residual_and_self_edges_are_apart(river):
    kinds = {facts["kind"] for *_, facts in river.edges(data=True)}
    assert kinds == {"residual", "attention", "self", "mlp", "output"}
    for source, target, facts in river.edges(data=True):
        if facts["kind"] == "self":
            assert source[1] == target[1]
            assert target[2] == "attention"
        if facts["kind"] == "residual":
            assert source[1] == target[1]
            assert target[2] in ("middle", "residual")
        if facts["kind"] == "attention":
            assert source[1] != target[1]


@pytest.mark.parametrize("write", ["gml", "graphml", "gexf", "edgelist", "json"])
def test_networkx_writes_it(river, write, tmp_path):
    path = tmp_path / f"routes.{write}"
    if write == "json":
        path.write_text(json.dumps(nx.node_link_data(river)))
        read = nx.node_link_graph(json.loads(path.read_text()))
        assert nx.utils.graphs_equal(nx.DiGraph(river), read)
        return
    graph = nx.relabel_nodes(nx.DiGraph(river), str) if write == "gml" else river
    getattr(nx, f"write_{write}")(graph, path)
    if write == "graphml":
        read = nx.read_graphml(path)
        assert read.number_of_edges() == river.number_of_edges()
        weights = sorted(weight for *_, weight in read.edges(data="weight"))
        np.testing.assert_allclose(weights, sorted(w for *_, w in river.edges(data="weight")))
    plain = (int, float, str)
    for facts in [
        *(d for _, d in river.nodes(data=True)),
        *(d for *_, d in river.edges(data=True)),
    ]:
        assert all(type(value) in plain for value in facts.values())


def test_nothing_but_the_stream_is_a_path_too(models):
    found = routes(IDS, models["Llama"], position=0, threshold=0.99, progress=False)
    assert len(found.paths()) == 1
    assert isinstance(found, Routes)
    assert found.nodes[found.end]["token"] == "5"
    assert "predicted" in found.graph
    assert found.subgraph(list(found)).paths().strength[0] == 1


def test_autocast_does_not_round_importances(models):
    model = copy.deepcopy(models["Llama"]).float()
    with torch.autocast("cpu"):
        found = routes(IDS, model, threshold=0, progress=False)
        sublayers = decompose(IDS, model, read=lambda sublayer: sublayer, progress=False).results
    (expected,) = importances(sublayers[-1], torch.tensor([5]), 1)
    for key in range(6):
        facts = found.edges[(2, key, "residual"), (2, 5, "attention")]
        for head in range(4):
            exact = float(expected.attention[head, 0, key])
            assert facts[f"head_{head}"] == pytest.approx(exact, rel=1e-6)


def test_what_cannot_be_is_refused(models):
    model = models["Llama"]
    with pytest.raises(
        SelectionError, match=r"position must be a token.s position, here 0 \.\. 5 .* not 6"
    ):
        routes(IDS, model, position=6)
    with pytest.raises(SelectionError, match=r"No position 'lamp'; the 6 tokens are"):
        routes(IDS, model, position="lamp")
    for threshold in (-0.1, 1, "high"):
        with pytest.raises(SelectionError, match="threshold"):
            routes(IDS, model, threshold=threshold)
    for norm in (0, 3, True, "l1"):
        with pytest.raises(SelectionError, match="norm"):
            routes(IDS, model, norm=norm)
    with pytest.raises(SelectionError, match="k must be a whole number ≥ 1"):
        routes(IDS, model).paths(0)
    with pytest.raises(CaptureError):
        routes("", model)


def test_the_tokens_of_an_encoder_predict_nothing():
    sizes = {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4}
    model = built("T5", "ForConditionalGeneration", vocab_size=60, **sizes)
    inputs = {"input_ids": torch.tensor([IDS]), "decoder_input_ids": torch.tensor([IDS])}
    with pytest.raises(SelectionError, match="stack"):
        routes(inputs, model, progress=False)
    try:
        found = routes(inputs, model, stack="encoder", position=-1, progress=False)
    except CaptureError:
        pytest.skip("the layers of T5 are not taken apart")
    assert found.graph["predicted"] == ""
    assert found.end == (2, 5, "residual")


@pytest.mark.parametrize("suffix", ["json", "graphml"])
def test_routes_come_back_from_files(river, suffix, tmp_path):
    routes_of_control = river.copy()
    routes_of_control.nodes[river.end]["token"] = "\0\x1b\r"
    gattn.save(routes_of_control, tmp_path / f"routes.{suffix}")
    read = gattn.load(tmp_path / f"routes.{suffix}")
    assert type(read) is Routes
    assert nx.utils.graphs_equal(read, routes_of_control)
    assert read.computed_from == river.computed_from
    assert read.notes == river.notes
    assert read.paths(5).equals(routes_of_control.paths(5))
    assert read.attention_edges().equals(routes_of_control.attention_edges())
    gattn.save(nx.DiGraph(river), tmp_path / f"plain.{suffix}")
    assert type(gattn.load(tmp_path / f"plain.{suffix}")) is nx.DiGraph


def test_read_routes_rank_edges(river, tmp_path):
    gattn.save(river, tmp_path / "routes.json")
    read = gattn.load(tmp_path / "routes.json")
    options = {"steps": 2, "random": 0, "progress": False}
    found, expected = (
        gattn.analysis.deletion_curve(ranking, TEXT, **options) for ranking in (read, river)
    )
    np.testing.assert_array_equal(found.to_numpy(), expected.to_numpy())


def test_a_subgraph_has_the_paths_that_lie_in_it(river):
    every = river.paths(10_000)
    gone = every.nodes[0][1]
    part = river.subgraph(set(river) - {gone})
    left = [gone not in nodes for nodes in every.nodes]
    found = part.copy().paths(10_000)
    assert 0 < len(found) < len(every)
    assert dict(zip(found.nodes, found.strength, strict=True)) == pytest.approx(
        dict(zip(every.nodes[left], every.strength[left], strict=True))
    )
    mlp = next(node for node in river if node[2] == "mlp" and node[0] == 0)
    assert len(river.subgraph(set(river) - set(river.pred[mlp])).paths(3)) == 3
    assert list(river.subgraph([river.end]).paths().columns) == list(every.columns)
    assert river.subgraph([]).attention_edges().empty


def test_what_is_no_longer_a_graph_of_routes_is_refused(river):
    with pytest.raises(SelectionError, match="reversed"):
        river.reverse().paths(2)
    with pytest.raises(SelectionError, match="reversed"):
        river.reverse().attention_edges()
    with pytest.raises(SelectionError, match="keep this node"):
        river.subgraph([node for node in river if node != river.end]).paths()
    with pytest.raises(SelectionError, match=r"nodes \(layer, position, kind\)"):
        nx.relabel_nodes(river, str).paths()
    with pytest.raises(SelectionError, match="Edges of routes"):
        nx.transitive_closure(river).attention_edges()
    with pytest.raises(SelectionError, match="layers"):
        Routes().paths()


def test_numbers_of_numpy_are_numbers(models):
    found = routes(IDS, models["Llama"], position=np.int64(4), threshold=np.float32(0.125))
    plain = routes(IDS, models["Llama"], position=4, threshold=0.125)
    assert nx.utils.graphs_equal(found, plain)
    assert type(found.graph["threshold"]) is float
    assert found.paths(np.int64(3)).equals(plain.paths(3))
    for options in ({"position": True}, {"threshold": False}, {"threshold": float("nan")}):
        with pytest.raises(SelectionError):
            routes(IDS, models["Llama"], **options)
    for count in (True, 2.5, "3"):
        with pytest.raises(SelectionError, match="k must be a whole number ≥ 1"):
            found.paths(count)


def test_sinks_that_learn_leave_no_graph_of_gradients():
    model = transformers.GptOssForCausalLM(
        transformers.GptOssConfig(
            vocab_size=60,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            num_local_experts=2,
            num_experts_per_tok=1,
            layer_types=["sliding_attention", "full_attention"],
            sliding_window=4,
        )
    ).eval()
    assert all(parameter.requires_grad for parameter in model.parameters())
    before = with_gradients()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = routes(IDS, model, threshold=0, progress=False)
    assert any(facts["kind"] == "attention" for *_, facts in found.edges(data=True))
    assert with_gradients() <= before


def with_gradients():
    """The tensors that are a part of a graph of gradients; other tests may have left some."""
    gc.collect()
    some = (x for x in gc.get_objects() if type(x) is torch.Tensor)
    return {id(x) for x in some if x.grad_fn is not None}


def test_single_precision_gives_what_double_does():
    torch.manual_seed(0)
    whole, vectors, factors = torch.randn(6, 400), torch.randn(9, 400), torch.rand(6, 9)
    found = _nearness(whole, factors, vectors, 1)
    parts = factors.double()[..., None] * vectors.double()
    expected = whole.double().abs().sum(-1)[:, None] - (whole.double()[:, None] - parts).abs().sum(
        -1
    )
    np.testing.assert_allclose(found, expected, atol=2e-4)
