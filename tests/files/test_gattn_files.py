"""The .gattn file: whole, small, checked."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from same import assert_same_head
from saved import HEADS, attention, small_trace, whole_head

import gattn
from gattn.errors import FileError
from gattn.files import load, packing
from gattn.graph import rules
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.keep import TopK


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "saved.gattn"


@pytest.mark.parametrize("name", HEADS)
def test_heads_come_back_whole(name: str, path: Path) -> None:
    HEADS[name].save(path)
    assert_same_head(HEADS[name], load(path))


def test_traces_come_back_whole(path: Path) -> None:
    trace = replace(small_trace(), text="a <b>\0\ud800")
    trace.save(path)
    again = load(path)
    assert (again.model, again.generated, again.text) == (trace.model, 2, trace.text)
    assert list(again.stacks) == list(trace.stacks)
    for name, stack in trace.stacks.items():
        assert again[name].name == stack.name
        assert list(again[name]) == list(stack)
        for place in stack:
            assert_same_head(stack[place], again[name][place])


class Triangle(rules.Rule):
    """A rule of one's own, which is no dataclass."""

    def allowed(self, query, key):
        return (key <= query) & (query - key != 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TokenGraph(Triangle(), 5, 5),
        lambda: TokenGraph.causal(5) - TokenGraph(Triangle(), 5, 5),
        lambda: TokenGraph.disjoint_union([TokenGraph(Triangle(), 3, 3), TokenGraph.causal(2)]),
    ],
)
def test_edges_under_a_rule_of_ones_own_are_saved_as_edges(make, path: Path) -> None:
    graph = make()
    query, key = torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    heads = gattn.attention_graphs(query, key, graph)
    stack = Stack("mine", {(0, n): replace(head, layer=0) for n, head in enumerate(heads)})
    AttentionTrace({"mine": stack}).save(path)
    again = load(path)
    for place, head in stack.items():
        read = again[place]
        assert isinstance(read.graph.rule, rules.Edges)
        assert read.graph.edge_index.equal(head.graph.edge_index)
        assert read.graph.mask().equal(graph.mask())
        np.testing.assert_array_equal(read.to_dense(), head.to_dense())


def test_files_of_the_first_version_are_read() -> None:
    """Written before there were contributions, key-value heads and generated tokens."""
    A = np.array([[1, 0, 0], [0.25, 0.75, 0], [0.5, 0.125, 0.375]], dtype=np.float32)
    trace = load(Path(__file__).parent / "first_version.gattn")
    head = AttentionGraph.from_dense(
        A,
        TokenGraph.causal(3),
        tokens=("the", " cat", " sat"),
        words=(0, 1, 2),
        score=np.arange(6, dtype=np.float32),
        layer=1,
        head=2,
        model="toy",
        weight_function="ScaledDotProduct()",
        normalizer="Softmax()",
        sink=np.array([0, 0.5, 0.25], dtype=np.float32),
    )
    assert (trace.model, trace.generated, list(trace["decoder"])) == ("toy", 0, [(1, 2), (1, 3)])
    assert_same_head(head, trace[1, 2])
    assert_same_head(head.keep(TopK(1)), trace[1, 3])


def test_logits_are_not_saved(path: Path) -> None:
    trace = replace(small_trace(), logits=torch.ones(7, 9))
    trace.save(path)
    assert load(path).logits is None
    small_trace().save(path.with_name("without.gattn"))
    assert path.read_bytes() == path.with_name("without.gattn").read_bytes()


@given(st.text(st.characters(), max_size=6), st.text(max_size=4))
@settings(max_examples=15)
def test_any_text_comes_back(tmp_path_factory, token: str, model: str) -> None:
    path = tmp_path_factory.mktemp("text") / "x.gattn"
    head = AttentionGraph.from_dense(np.ones((1, 1)), tokens=(token,), model=model)
    head.save(path)
    assert (load(path).tokens, load(path).model) == ((token,), model)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_come_back_bit_for_bit(dtype: type, path: Path) -> None:
    values = np.array([[1.0, -0.0], [np.finfo(dtype).max, 2**-20]], dtype)
    head = AttentionGraph.from_dense(values, TokenGraph.complete(2))
    head.save(path)
    assert load(path).to_dense().tobytes() == values.tobytes()


GRAPHS = {
    "complete": TokenGraph.complete(7),
    "causal": TokenGraph.causal(7),
    "window": TokenGraph.window(7, 2),
    "dilated": TokenGraph.dilated(7, 4, 2),
    "prefix": TokenGraph.prefix(7, 2),
    "documents": TokenGraph.documents([0, 0, 1, 1, 1, 2, 0], causal=True),
    "strided": TokenGraph.strided(7, 3),
    "longformer": TokenGraph.longformer(7, 1, [3]),
    "bigbird": TokenGraph.bigbird(7, 1, random_blocks=1),
    "nearest": TokenGraph.nearest(torch.arange(7.0)[:, None], 2),
    "disjoint": TokenGraph.disjoint_union([TokenGraph.causal(3), TokenGraph.window(4, 2)]),
    "cut": TokenGraph.causal(7) - TokenGraph.self_loops(7),
    "crossed": TokenGraph.causal(7) - TokenGraph(rules.Crossing(torch.tensor([3, 5]), None), 7, 7),
    "bipartite": TokenGraph.bipartite(7, 7),
    "step": TokenGraph(TokenGraph.causal(1).rule, 2, 7, query_offset=5),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_token_graphs_come_back_as_their_rules(name: str, path: Path) -> None:
    graph = GRAPHS[name]
    dense = np.ones((graph.num_queries, graph.num_keys))
    AttentionGraph.from_dense(dense, graph).save(path)
    again = load(path).graph
    assert repr(again) == repr(graph)
    assert torch.equal(again.mask(), graph.mask())


def test_every_rule_is_known_to_files() -> None:
    kinds = [kind for kind in vars(rules).values() if isinstance(kind, type)]
    named = {kind.__name__ for kind in kinds if issubclass(kind, rules.Rule)}
    assert named - {"Rule"} <= set(packing.CLASSES)


def test_a_causal_trace_costs_four_bytes_an_edge_and_no_indices(path: Path) -> None:
    tokens = 300
    graphs = [TokenGraph.causal(tokens) for _ in range(2)]
    heads = {
        (layer, head): AttentionGraph.from_dense(attention(layer + 2 * head, tokens), graphs[layer])
        for layer in range(2)
        for head in range(4)
    }
    AttentionTrace({"decoder": Stack("decoder", heads)}).save(path)
    assert path.stat().st_size < 1.03 * 4 * 8 * graphs[0].num_edges
    again = load(path)
    assert again[0, 0].graph is again[1, 3].graph
    assert repr(again[0, 0].graph) == "TokenGraph(Causal(), 300 x 300)"


def test_explicit_edges_cost_eight_bytes_each(path: Path) -> None:
    AttentionGraph.from_dense(attention(0, 300)).keep(TopK(100)).save(path)
    head = load(path)
    assert path.stat().st_size < 8 * head.graph.num_edges + 8_000
    assert head.graph.edge_index.dtype == torch.int64


def test_keys_in_four_bytes_are_saved_like_others(tmp_path: Path) -> None:
    head = AttentionGraph.from_dense(attention(0, 30)).keep(TopK(3))
    rule = replace(head.graph.rule, key=head.graph.rule.key.int())
    narrow = replace(head, graph=replace(head.graph, rule=rule))
    for name, one in (("wide", head), ("narrow", narrow)):
        one.save(tmp_path / f"{name}.gattn")
    wide = (tmp_path / "wide.gattn").read_bytes()
    assert (tmp_path / "narrow.gattn").read_bytes() == wide


def test_what_was_loaded_can_be_changed_and_kept(path: Path) -> None:
    whole_head().save(path)
    head = load(path)
    head.attention[:] *= 0.5
    assert head.keep(TopK(1)).graph.num_edges == len(head.tokens)


def test_every_flipped_bit_is_found(path: Path) -> None:
    replace(whole_head(), tokens=(), words=()).save(path)
    content = path.read_bytes()
    for place in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(FileError):
            load(path)


@pytest.mark.parametrize("length", [0, 1, 8, 100, -1])
def test_truncated_files_are_refused(path: Path, length: int) -> None:
    whole_head().save(path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(FileError, match=r"saved\.gattn is not a \.gattn file, or is damaged"):
        load(path)


def test_a_swapped_array_is_found(path: Path) -> None:
    """Safetensors itself would not notice."""
    whole_head().save(path)
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    arrays = load_file(path)
    name = next(name for name, array in arrays.items() if array.dtype == np.float32)
    save_file(arrays | {name: arrays[name] + 1}, path, metadata)
    with pytest.raises(FileError, match="damaged: the checksum of the array"):
        load(path)


def rewritten(path: Path, **changes) -> None:
    with safe_open(path, "np") as file:
        document = json.loads(file.metadata()["gattn"]) | changes
    save_file(load_file(path), path, {"gattn": json.dumps(document)})


def test_newer_schemas_and_changed_content_are_refused(path: Path) -> None:
    whole_head().save(path)
    rewritten(path, schema=2)
    with pytest.raises(FileError, match=r"has schema 2, but this gattn reads 1.*upgrade"):
        load(path)
    rewritten(path, schema=1, kind="trace")
    with pytest.raises(FileError, match=r"checksum .* does not match"):
        load(path)


def test_foreign_files_are_refused(path: Path) -> None:
    save_file({"weight": np.ones(3)}, path)
    with pytest.raises(FileError, match="safetensors file that gattn did not write"):
        load(path)
    path.write_bytes(b"\x80\x04\x95pickle")
    with pytest.raises(FileError, match=r"not a \.gattn file"):
        load(path)
    save_file({}, path, {"gattn": "[]"})
    with pytest.raises(FileError, match="not have the layout of schema 1"):
        load(path)
    save_file({}, path, {"gattn": "[" * 100_000})
    with pytest.raises(FileError, match="not have the layout of schema 1"):
        load(path)


def test_what_is_not_finite_is_refused(path: Path) -> None:
    head = whole_head()
    head.attention[3] = np.nan
    head.save(path)
    with pytest.raises(FileError, match="attention of query 2 to key 0 is nan"):
        load(path)
