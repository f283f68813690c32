"""Files with good checksums and bad content are refused when they are loaded, at once."""

import json
import time

import numpy as np
import pytest
import torch
from file_samples import added, assemble, dismantled, kept_head, same, sample_head, sample_trace

from gattn.errors import FileError, GraphError, ShapeError
from gattn.files import checking, load
from gattn.graph import rules
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph


@pytest.fixture
def path(tmp_path):
    return tmp_path / "crafted.gattn"


def refused(path, match="not have the layout of schema 1"):
    began = time.process_time()
    with pytest.raises(FileError, match=match):
        load(path)
    assert time.process_time() - began < 60


def graph_of(document):
    """The token graph, the only thing but tuples that is stored as shared."""
    return next(part["TokenGraph"] for part in document["shared"] if "TokenGraph" in part)


def with_edges(path, pointer, key, head=None):
    """Write a head whose edges are as given."""
    (head or kept_head()).save(path)
    document, arrays = dismantled(path)
    for name, values in (("pointer", pointer), ("key", key)):
        if values is not None:
            array = np.asarray(values)
            edges = graph_of(document)["rule"]["Edges"]
            edges[name] = {"$tensor": [added(arrays, array), edges[name]["$tensor"][1]]}
    assemble(path, document, arrays)


def edges_of(head):
    rule = head.graph.rule
    return rule.pointer.numpy().astype(np.int32), rule.key.numpy().astype(np.int32)


def test_the_way_to_craft_files_makes_files_that_load(path):
    with_edges(path, *edges_of(kept_head()))
    assert same(kept_head(), load(path))


@pytest.mark.parametrize("key", [2**31 - 1, 6, -1, -(2**31)])
def test_a_key_outside_is_refused(key, path):
    pointer, keys = edges_of(kept_head())
    keys[-1] = key
    with_edges(path, pointer, keys)
    refused(path, "must lie in 0 .. 5")


def changed_pointers():
    pointer = edges_of(kept_head())[0]
    falling, late, far, short = (pointer.copy() for _ in range(4))
    falling[2], falling[3] = pointer[3] + 2, pointer[2]
    late[0] = 1
    far[-1] += 1
    short[-1] -= 1
    return {"falling": falling, "late": late, "far": far, "short": short, "fewer": pointer[:-1]}


@pytest.mark.parametrize("name", changed_pointers())
def test_a_pointer_that_does_not_rise_from_0_to_the_edges_is_refused(name, path):
    with_edges(path, changed_pointers()[name], None)
    refused(path, "must rise from 0|edges of 5 queries")


def test_edges_out_of_order_or_doubled_are_refused(path):
    pointer, keys = edges_of(kept_head())
    for wrong in ((keys[2], keys[1]), (keys[1], keys[1])):
        other = keys.copy()
        other[1:3] = wrong
        with_edges(path, pointer, other)
        refused(path, "sorted by query, then key")


def test_arrays_of_other_shapes_and_types_are_refused(path):
    pointer, keys = edges_of(kept_head())
    for wrong in (keys[None], keys.astype(np.float32), keys.astype(bool)):
        with_edges(path, pointer, wrong)
        with pytest.raises(FileError):
            load(path)


CHANGES = {
    "num_keys": [0, 5, 10**9, 2**62, 10**30, -1, "6", None, True, 1.0],
    "num_queries": [0, 5, 7, 10**9, 2**62, 10**30, -1, "6", None],
    "query_offset": [1, 10**9, 2**63, -1, None],
    "is_bipartite": [2, None, "yes"],
    "rule": [
        None,
        {"Strided": {"stride": 0}},
        {"Window": {"before": 10**30, "after": 0, "dilation": 1}},
        {"Window": {"before": 1, "after": 0, "dilation": 0}},
        {"Window": {"before": 1.5, "after": 0, "dilation": 1}},
        {"Prefix": {"length": "all"}},
        {"Blocks": {"size": 0, "rule": {"Causal": {}}}},
        {"Blocks": {"size": 1, "rule": {"TokenGraph": {}}}},
        {"Combined": {"operation": "^", "left": {"Causal": {}}, "right": {"Causal": {}}}},
        {"Combined": {"operation": "|", "left": {"Causal": {}}, "right": 3}},
        {"Disjoint": {"rules": [{"Causal": {}}], "query_starts": [0], "key_starts": [0]}},
        {"Documents": {"ids": None}},
        {"Rule": {}},
    ],
}


@pytest.mark.parametrize("field", CHANGES)
@pytest.mark.parametrize("make", [sample_head, kept_head])
def test_a_lying_token_graph_is_refused(field, make, path):
    make().save(path)
    document, arrays = dismantled(path)
    for value in CHANGES[field]:
        graph_of(document)[field] = value
        assemble(path, document, arrays)
        refused(path)


HEAD_CHANGES = {
    "tokens": [3, [["a"]], {"$tuple": [1, 2, 3, 4, 5, 6]}, {"$tuple": ["a"] * 5 + [None]}],
    "words": [{"$tuple": ["a"] * 6}, {"$tuple": [0.5] * 6}],
    "layer": ["1", 1.5, True, [1]],
    "generated": [-1, 7, "1", None],
    "model": [None, 3, ["toy"]],
    "kept_by": [None, {"$tuple": []}],
    "attention": [None, [1.0], {"$shared": 0}, {"$shared": -1}, {"$shared": 10**9}],
    "graph": [None, {"$shared": 99}, {"$shared": "0"}, {"Causal": {}}],
}


@pytest.mark.parametrize("field", HEAD_CHANGES)
def test_a_lying_head_is_refused(field, path):
    sample_head().save(path)
    document, arrays = dismantled(path)
    for value in HEAD_CHANGES[field]:
        document["content"]["AttentionGraph"][field] = value
        assemble(path, document, arrays)
        refused(path)


def head_arrays():
    count = sample_head().graph.num_edges
    nan = np.full(count, np.nan, np.float32)
    return {
        "attention": [nan, nan[None], np.ones(count, np.int32), np.ones(count - 1, np.float32)],
        "score": [nan, np.ones((count, 1), np.float32)],
        "sink": [np.full(6, np.inf, np.float32), np.ones((6, 6), np.float32)],
        "total_mass": [np.full(6, np.nan, np.float32), np.ones((6, 1), np.float32)],
        "total_edges": [np.zeros(6, np.int32), np.full(6, 0.5), np.ones((6, 2), np.int32)],
    }


@pytest.mark.parametrize("field", head_arrays())
def test_lying_arrays_are_refused(field, path):
    for array in head_arrays()[field]:
        sample_head().save(path)
        document, arrays = dismantled(path)
        name = added(arrays, array)
        document["content"]["AttentionGraph"][field] = {"$array": [name, array.dtype.name]}
        assemble(path, document, arrays)
        refused(path)


@pytest.mark.parametrize(
    "kind", ["S200000000", "U99999999", "O", "V1000000", "complex128", "no", 3]
)
def test_an_array_of_a_strange_type_is_refused(kind, path):
    sample_head().save(path)
    document, arrays = dismantled(path)
    document["content"]["AttentionGraph"]["sink"]["$array"][1] = kind
    assemble(path, document, arrays)
    refused(path, "unknown type|not laid out")


def test_a_lying_trace_is_refused(path):
    sample_trace().save(path)
    changes = [
        ("model", 3),
        ("text", None),
        ("generated", "1"),
        ("stacks", 3),
        ("stacks", [["decoder", "decoder", [[0, 0, 3]]]]),
        ("stacks", [["decoder", 3, []]]),
    ]
    for name, value in changes:
        document, arrays = dismantled(path)
        document["content"][name] = value
        assemble(path.with_name("other.gattn"), document, arrays)
        refused(path.with_name("other.gattn"))
    for place in ("0", -1, 0.5, None, [0]):
        document, arrays = dismantled(path)
        document["content"]["stacks"][0][2][0][0] = place
        assemble(path.with_name("other.gattn"), document, arrays)
        refused(path.with_name("other.gattn"))


def test_nested_sharing_is_refused_before_it_doubles(path):
    both = lambda n: {"left": {"$shared": n}, "right": {"$shared": n}, "operation": "&"}  # noqa: E731
    for first, double in (
        ({"$tuple": ["a"]}, lambda n: {"$tuple": [{"$shared": n}, {"$shared": n}]}),
        ({"Causal": {}}, lambda n: {"Combined": both(n)}),
    ):
        sample_head().save(path)
        document, arrays = dismantled(path)
        start = len(document["shared"])
        document["shared"] += [first, *(double(start + n) for n in range(60))]
        graph_of(document)
        document["shared"].append({"TokenGraph": {"rule": {"$shared": start + 60}}})
        assemble(path, document, arrays)
        assert path.stat().st_size < 16_000
        refused(path, "need more than the file holds")


def test_one_array_read_a_thousand_times_is_refused(path):
    sample_head().save(path)
    document, arrays = dismantled(path)
    large = added(arrays, np.zeros(1 << 17, np.float32))
    document["shared"] += [{"$tuple": [{"$array": [large, "float32"]}] * 1000}]
    assemble(path, document, arrays)
    refused(path, "far more memory")


@pytest.mark.parametrize("nesting", ["[", '{"a":', '{"Blocks":{"size":1,"rule":'])
def test_deep_nesting_is_refused(nesting, path):
    for depth in (900, 100_000):
        assemble(
            path, None, {}, f'{{"schema":1,"checksum":"","kind":"head","shared":{nesting * depth}'
        )
        refused(path)


def test_rules_nested_too_deep_are_stored_as_their_edges(path):
    graph = TokenGraph.causal(6)
    for _ in range(checking.DEEPEST + 1):
        graph = TokenGraph(rules.Combined("&", graph.rule, rules.Window(3, 0)), 6, 6)
    dense = np.ones((6, 6), np.float32)
    AttentionGraph.from_dense(dense, graph).save(path)
    again = load(path)
    assert isinstance(again.graph.rule, rules.Edges)
    assert torch.equal(again.graph.edge_index, TokenGraph.window(6, 4).edge_index)
    document, arrays = dismantled(path)
    rule = {"Causal": {}}
    for _ in range(checking.DEEPEST + 1):
        rule = {"Combined": {"operation": "&", "left": rule, "right": {"Causal": {}}}}
    graph_of(document)["rule"] = rule
    assemble(path, document, arrays)
    refused(path, "nested more than 100 deep")


def test_a_rule_that_takes_hours_to_count_is_refused(path):
    """One query of sixteen million keys, under more rules than have a closed form."""
    sample_head(("a",)).save(path)
    document, arrays = dismantled(path)
    rule = {"Causal": {}}
    for n in range(90):
        other = {"Strided": {"stride": n + 2}}
        rule = {"Combined": {"operation": "|", "left": rule, "right": other}}
    graph_of(document).update(rule=rule, num_keys=1 << 24)
    assemble(path, document, arrays)
    refused(path, "steps in")


def test_what_is_no_rule_builds_no_token_graph():
    for wrong in (None, "causal", TokenGraph.causal(3)):
        with pytest.raises(GraphError, match="use the named constructors"):
            TokenGraph(wrong, 3, 3)
    with pytest.raises(GraphError, match="whether it is bipartite"):
        TokenGraph(rules.Causal(), 3, 3, is_bipartite=2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tokens", (1, 2)),
        ("tokens", ("a", None)),
        ("words", ("a", "b")),
        ("sink", np.ones((2, 1))),
        ("sink", [0.5, 0.5]),
        ("model", None),
        ("layer", "1"),
        ("positions", np.array([0.5, 1.5])),
    ],
)
def test_heads_are_built_of_what_they_say_they_hold(field, value):
    with pytest.raises(ShapeError, match=f"^{field} (must be|is)"):
        AttentionGraph.from_dense(np.ones((2, 2)), **{field: value})


def test_unchanged_documents_are_canonical(path):
    """The crafted checksum is the one that gattn writes."""
    sample_trace().save(path)
    before = path.read_bytes()
    document, arrays = dismantled(path)
    assemble(path, document, arrays)
    assert same(sample_trace(), load(path))
    assert json.loads(json.dumps(document)) == document
    assert len(before) <= path.stat().st_size + 1024
