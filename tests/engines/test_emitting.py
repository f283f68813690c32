"""Edges that kernels emit are those of dense algebra, and of the engines that walk blocks."""

import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from keeping import kept_by_hand
from oracle import expected
from pairs import all_pairs
from problems import GRAPHS, HEADS, WIDE, Problem, call_of

import gattn
from gattn.attention import attention_graphs
from gattn.engines import choice
from gattn.engines.call import EdgeList, attention_call
from gattn.engines.kernels import emitting
from gattn.engines.kernels.emitting import EmittedEdges
from gattn.engines.kernels.mask_tiles import SIZE, WORD
from gattn.errors import CaptureError
from gattn.graph.token_graph import TokenGraph
from gattn.keep import All, Threshold, TopK, TopMass
from gattn.normalizers import Softmax
from gattn.weights import ALiBi, ScaledDotProduct, Softcap

if find_spec("triton") is None:
    pytest.skip("Triton is not installed: pip install 'gattn[triton]'", allow_module_level=True)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("without a GPU kernels need TRITON_INTERPRET=1", allow_module_level=True)

KEEPS = {"one": TopK(1), "three": TopK(3), "more than there are": TopK(128), "some": Threshold(0.1)}
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
WITH_PAIRS = [name for name, graph in GRAPHS.items() if graph.num_queries * graph.num_keys]


@pytest.fixture
def kernels(monkeypatch):
    """Let gattn choose kernels here; count how often they ran."""
    calls = []
    run = emitting.emit
    monkeypatch.setattr(choice, "KERNELS_ON", (DEVICE,))
    monkeypatch.setattr(
        "gattn.heads.store.emitted.emit", lambda *given: calls.append(0) or run(*given)
    )
    return calls


def on_device(problem):
    """Build the call of a problem on the device that runs kernels."""
    weight, normalizer, _ = problem.functions()
    arguments = {"weight": weight.to(DEVICE), "normalizer": normalizer.to(DEVICE)}
    tensors = {name: x.to(DEVICE) for name, x in problem.tensors().items()}
    return attention_call(**tensors, graph=problem.graph.to(DEVICE), **arguments)[0]


def hold(problem, keep):
    """Compare what is emitted with dense algebra in float64."""
    tensors, (weight, normalizer, _) = problem.tensors(), problem.functions()
    exact = [x.double() for x in tensors.values()]
    functions = weight.double(), normalizer.double()
    attention = expected(*exact, problem.graph, *functions).attention.float()
    call = on_device(problem)
    assert emitting.can_emit(call, keep) is None
    found = EmittedEdges(*(x.cpu() for x in emitting.emit(call, keep)))
    np.testing.assert_allclose(found.mass, attention.sum(-1), **CLOSE)
    compare(found, attention, problem.graph, keep)
    return found


def compare(found, attention, graph, keep):
    """Compare edges of (B, H, Q, K) row by row, those of all heads one after another."""
    mask, stop = graph.mask(), 0
    for rows, degrees in zip(attention.flatten(0, 1), found.degree.flatten(0, 1), strict=True):
        for query, row in enumerate(rows):
            near = mask[query].nonzero()[:, 0].tolist()
            kept = kept_by_hand(row.tolist(), near, keep)
            start, stop = stop, stop + int(degrees[query])
            assert found.key[start:stop].tolist() == kept
            np.testing.assert_allclose(found.attention[start:stop], row[kept], **CLOSE)
    assert stop == len(found.key) == len(found.attention)


@pytest.mark.parametrize(("name", "keep"), all_pairs(WITH_PAIRS, KEEPS))
def test_on_every_graph(name, keep):
    hold(Problem(GRAPHS[name], dtype=torch.float32, learns=False), KEEPS[keep])


@pytest.mark.parametrize(
    ("tokens", "keep"), all_pairs([1, 17, WORD + 1, SIZE + 2], ["three", "some"])
)
def test_ragged_sizes(tokens, keep):
    graph = TokenGraph.causal(tokens)
    hold(Problem(graph, batch=1, dtype=torch.float32, learns=False), KEEPS[keep])


@pytest.mark.parametrize(("name", "keep"), all_pairs(WIDE, ["three", "some"]))
def test_several_tiles(name, keep):
    options = {"batch": 1, "dtype": torch.float32, "learns": False}
    hold(Problem(WIDE[name], "relative", "sink", **options), KEEPS[keep])


@pytest.mark.parametrize("keep", ["three", "some"])
@pytest.mark.parametrize(
    ("weight", "normalizer"),
    [
        ("dot", "temperature"),
        ("ALiBi", "sink per head"),
        ("T5", "softmax"),
        ("rotary with ALiBi", "sink"),
        ("softcap", "temperature"),
        ("softcap and T5", "sink per head"),
        ("squared distance", "softmax"),
    ],
)
def test_caps_biases_and_sinks(weight, normalizer, keep):
    graph = GRAPHS["causal with an offset"]
    hold(Problem(graph, weight, normalizer, dtype=torch.float32, learns=False), KEEPS[keep])


@pytest.mark.parametrize("key_heads", [1, HEADS])
def test_grouped_queries(key_heads):
    problem = Problem(GRAPHS["prefix"], key_heads=key_heads, dtype=torch.float32, learns=False)
    hold(problem, TopK(2))


def drawn(heads, tokens, dim, dtype=torch.float32, size=1.0):
    generator = torch.Generator().manual_seed(0)
    pair = (torch.randn(heads, tokens, dim, generator=generator) for _ in range(2))
    return [(x * size).to(DEVICE, dtype) for x in pair]


def both(kernels, query, key, graph, keep, **options):
    """Compare attention graphs of kernels with those of tiles: the same edges in the same order."""
    arguments = {"graph": graph, "keep": keep, **options}
    found = attention_graphs(query, key, **arguments)
    assert kernels
    wanted = attention_graphs(query.float(), key.float(), **arguments, engine="tiles")
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one.graph.edge_index, other.graph.edge_index)
        for name in ("attention", "total_mass", "kept_mass", "sink"):
            ours, theirs = getattr(one, name), getattr(other, name)
            assert (ours is None) == (theirs is None)
            if ours is not None:
                np.testing.assert_allclose(ours, theirs, **CLOSE)
        assert np.array_equal(one.total_edges, other.total_edges)
        assert (one.head, one.kept_by) == (other.head, other.kept_by)
    return found


@pytest.mark.parametrize("dim", [1, 3, 20, 64])
def test_attention_graphs_take_kernels(kernels, dim):
    query, key = drawn(3, 70, dim)
    both(kernels, query, key, TokenGraph.window(70, 40), TopK(5), normalizer=Softmax(sink=0.3))


def test_groups_and_batches_come_in_the_order_of_engines(kernels):
    query, key = drawn(12, 20, 5)
    query, key = query.unflatten(0, (3, 4)), key.unflatten(0, (3, 4))[:, :2]
    both(kernels, query, key, TokenGraph.causal(20), Threshold(0.15))


@pytest.mark.parametrize("keep", [TopK(3), TopK(1), Threshold(0.25), Threshold(0.2500001)])
def test_ties_go_to_the_smaller_key_and_a_threshold_includes_itself(kernels, keep):
    query, key = drawn(1, 9, 4)
    (head,) = both(kernels, 0 * query, key, TokenGraph.causal(9), keep)
    in_row_of_four = head.graph.in_degree[3]
    assert in_row_of_four == {TopK(3): 3, TopK(1): 1, Threshold(0.25): 4}.get(keep, 0)


def test_ties_across_words_and_tiles(kernels):
    query, key = drawn(1, SIZE + 10, 4)
    key[:, ::50] = key[:, :1]
    both(kernels, query, key, TokenGraph.complete(SIZE + 10), TopK(4))
    both(kernels, 0 * query, key, TokenGraph.complete(SIZE + 10), TopK(70))


@pytest.mark.parametrize("step", [1, WORD, WORD + 3])
def test_the_largest_are_found_in_one_group_and_in_many(kernels, step):
    """A row is first bounded by its groups' largest scores: few have one, or one has all."""
    query, key = drawn(1, 5 * WORD, 4, size=0.1)
    key[:, 7 : 7 + 4 * step : step, 0], query[..., 0] = 3.0, 3.0
    both(kernels, query, key, TokenGraph.complete(5 * WORD), TopK(4))
    (head,) = both(kernels, query, key, TokenGraph.complete(5 * WORD), TopK(6))
    assert (head.graph.in_degree == 6).all()


@pytest.mark.parametrize("keep", [TopK(3), Threshold(0.001), Threshold(0.0)])
def test_more_edges_near_the_least_one_than_a_list_has_room_for(kernels, keep, monkeypatch):
    """Then edges are counted first, or a row's largest are held in registers."""
    ran, run = [], emitting._Passes._run
    monkeypatch.setattr(
        emitting._Passes, "_run", lambda *given, **more: ran.append(given[1]) or run(*given, **more)
    )
    query, key = drawn(2, 3 * WORD, 4, size=0.01)
    query[:, 100::2] = 0
    both(kernels, query, key, TokenGraph.causal(3 * WORD), keep)
    again = "largest" if isinstance(keep, TopK) else "collect"
    assert ran == ["sums", "collect", again]


def test_more_pairs_than_32_bits_count():
    query, key = drawn(1, 200, 4)[0], drawn(1, 11_000_000, 4)[1]
    keys = torch.arange(400).view(200, 2) * 27_000
    edges = torch.stack([keys.flatten(), torch.arange(200).repeat_interleave(2)])
    graph = TokenGraph.from_edge_index(edges, num_queries=200, num_keys=11_000_000).to(DEVICE)
    call, _ = attention_call(query[None], key[None], graph)
    found = EmittedEdges(*(x.cpu() for x in emitting.emit(call, Threshold(0.5))))
    wanted = (query[0, :, None] * key[0, keys]).sum(-1).div(2).softmax(1).cpu().max(1)
    assert torch.equal(found.key, keys.gather(1, wanted.indices[:, None])[:, 0].int())
    np.testing.assert_allclose(found.attention, wanted.values, **CLOSE)


def test_attention_that_vanishes_ranks_by_key(kernels):
    query, key = drawn(2, 30, 4, size=30.0)
    both(kernels, query, key, TokenGraph.complete(30), TopK(20))


@pytest.mark.parametrize("keep", [TopK(2), Threshold(0.1), Threshold(0.0)])
def test_rows_without_edges(kernels, keep):
    query, key = drawn(2, 12, 4)
    nothing = TokenGraph.from_edges([], 12)
    some = TokenGraph.causal(12) - TokenGraph.from_edges([(j, 7) for j in range(8)], 12)
    for graph in (nothing, some):
        for normalizer in (Softmax(), Softmax(sink=1.0)):
            both(kernels, query, key, graph.to(DEVICE), keep, normalizer=normalizer)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # of the interpreter
def test_an_edge_may_score_minus_infinity(kernels):
    query, key = drawn(1, 8, 2)
    key[0, 2], query[0, :, 0] = torch.tensor([-torch.inf, 0.0]), 1.0
    both(kernels, query, key, TokenGraph.causal(8), Threshold(0.0))
    both(kernels, query, key, TokenGraph.causal(8), TopK(5))


def test_a_threshold_that_nothing_reaches(kernels):
    query, key = drawn(2, 20, 4)
    heads = both(kernels, query, key, TokenGraph.causal(20), Threshold(0.999))
    assert [head.graph.num_edges for head in heads] == [1, 1]  # the first token attends to itself


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weight", [None, Softcap(ScaledDotProduct(), 5.0) + ALiBi(2)])
def test_half_precision_is_multiplied_and_summed_in_single(kernels, dtype, weight):
    if DEVICE == "cpu" and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter knows no bfloat16")
    query, key = drawn(2, 40, 16, dtype)
    weight = weight and weight.to(DEVICE)
    both(kernels, query, key, TokenGraph.causal(40), TopK(6), weight=weight)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_nan_is_refused(kernels, broken):
    query, key = drawn(2, 20, 4)
    key[1, 3] = broken
    for keep in (TopK(2), Threshold(0.1)):
        with pytest.raises(CaptureError, match=r"head 1 is NaN at query 3"):
            attention_graphs(query, key, TokenGraph.causal(20), keep=keep)
    assert kernels


@pytest.mark.parametrize(
    ("problem", "keep", "said"),
    [
        (Problem(GRAPHS["window"]), TopK(2), "float64"),
        (Problem(GRAPHS["window"], dtype=torch.float32), All(), "neither"),
        (Problem(GRAPHS["window"], dtype=torch.float32), TopMass(0.5), "neither"),
        (Problem(TokenGraph.causal(200), dtype=torch.float32), TopK(129), "more than 128"),
        (Problem(EdgeList(torch.tensor([[0], [1]]), 2, 2)), TopK(2), "edge_index"),
        (Problem(GRAPHS["window"], "additive", dtype=torch.float32), TopK(2), "not a dot product"),
        (Problem(GRAPHS["window"], normalizer="relu", dtype=torch.float32), TopK(2), "softmax"),
        (Problem(GRAPHS["no keys"], dtype=torch.float32), TopK(2), "no pairs"),
        (Problem(GRAPHS["window"], batch=0, dtype=torch.float32), TopK(2), "no heads"),
    ],
)
def test_they_say_why_not(problem, keep, said):
    assert said in emitting.can_emit(call_of(problem), keep)


def test_engines_walk_blocks_where_kernels_cannot_or_are_not_asked(kernels):
    query, key = drawn(2, 30, 4)
    graph = TokenGraph.window(30, 4)
    attention_graphs(query, key, graph, keep=TopK(2), scores=True)
    attention_graphs(query, key, graph, keep=TopK(2), engine="tiles")
    attention_graphs(query, key, graph, keep=TopMass(0.5))
    assert not kernels


@pytest.mark.skipif(DEVICE != "cpu", reason="the embedded model runs on a CPU")
def test_captures_take_kernels(kernels, monkeypatch):
    keep = TopK(3)
    text, (model, tokenizer) = "The river tall green lamp river tall", gattn.load_model("embedded")
    with gattn.edited(model, gattn.Cut(layer=1, head=2, query=4, key=0)):
        found = gattn.capture(text, model, tokenizer, keep=keep)
        ran = len(kernels)
        monkeypatch.setattr(choice, "KERNELS_ON", ())
        wanted = gattn.capture(text, model, tokenizer, keep=keep)
    assert len(kernels) == ran == 5  # of the 4 layers, one is in two parts
    for one, other in zip(found.heads(), wanted.heads(), strict=True):
        assert torch.equal(one.graph.edge_index, other.graph.edge_index)
        np.testing.assert_allclose(one.attention, other.attention, **CLOSE)
        np.testing.assert_allclose(one.total_mass, other.total_mass, **CLOSE)


def test_no_gradient_is_kept():
    problem = Problem(GRAPHS["window"], "relative", dtype=torch.float32)
    assert not emitting.emit(on_device(problem), TopK(2)).attention.requires_grad


_COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from gattn.engines.kernels import passes

KINDS = {"query": "*bf16", "key": "*bf16", "inside": "*fp32", "outside": "*fp32", "scale": "fp32",
         "cap": "fp32", "pointer": "*i32", "column": "*i32", "bits": "*i32", "words": "*i64",
         "top": "*fp32", "total": "*fp32", "bound": "*fp32", "floor": "*fp32", "start": "*i64",
         "count": "*i32", "wanted": "*i32", "keys": "*i32", "scores": "*fp32", "attention": "*fp32"}
FIXED = {"ROWS": 64, "WIDTH": 64, "SIZE": 128, "WORD": 64, "PRECISION": "ieee", "SLOTS": 8,
         "GROUPS": 32, "IN_PTX": True, "LOWEST": -(1 << 62)}
for name in ("sums", "collect", "largest"):
    kernel = getattr(passes, name)
    names = kernel.arg_names
    kinds = {one: "constexpr" if one in FIXED else KINDS.get(one, "i32") for one in names}
    fixed = {(n,): FIXED[one] for n, one in enumerate(names) if one in FIXED}
    for generation in (80, 90):
        source = ASTSource(fn=kernel, signature=kinds, constexprs=fixed)
        made = compile(source, target=GPUTarget("cuda", generation, 32))
        assert "mma" in made.asm["ptx"], (name, generation)
"""


@pytest.mark.slow
def test_kernels_compile_for_a_gpu_that_is_not_here(tmp_path):
    environment = {one: x for one, x in os.environ.items() if one != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    script = tmp_path / "compiling.py"
    script.write_text(_COMPILE)
    subprocess.run([sys.executable, str(script)], env=environment, check=True)
