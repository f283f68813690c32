"""Node-link JSON and GraphML: heads and directed graphs, there and back."""

import json
import math
import re
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from same import assert_same_graph, assert_same_head
from saved import HEADS, TOKENS, small_trace, whole_head

from gattn.errors import FileError
from gattn.files import load, save
from gattn.heads.head import AttentionGraph

pytestmark = pytest.mark.filterwarnings("error")
CHECKSUM = re.compile(r', "sha256": "[0-9a-f]{64}"|<!-- gattn sha256:[0-9a-f]{64} -->')
TWO_WAY = pytest.mark.parametrize("suffix", [".json", ".graphml"])


def tuple_graph() -> nx.DiGraph:
    graph: nx.DiGraph = nx.DiGraph(name="<unrolled> & \\u0041", layers=2)
    for layer in range(3):
        for position, token in enumerate(TOKENS):
            graph.add_node((layer, position), token=token, is_first=layer == 0)
    graph.add_edge((0, 1), (1, 1), weight=0.1 + 0.2, distance=math.inf, score=-math.inf)
    graph.add_edge((1, 1), (2, 0), weight=5e-324, capacity=3)
    return graph


def edit(path: Path, old: str, new: str) -> None:
    """Change a file and take its checksum off, as whoever edits it by hand does."""
    text, found = CHECKSUM.subn("", path.read_text())
    assert found == 1
    assert old in text
    path.write_text(text.replace(old, new))


@TWO_WAY
@pytest.mark.parametrize("name", HEADS)
def test_heads_come_back_whole(name: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"head{suffix}"
    HEADS[name].save(path)
    assert_same_head(HEADS[name], load(path))


@TWO_WAY
def test_unrolled_graphs_come_back_with_their_tuple_ids(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"graph{suffix}"
    graph = tuple_graph()
    save(graph, path)
    assert_same_graph(graph, load(path))


@TWO_WAY
def test_ids_of_many_kinds_stay_apart(suffix: str, tmp_path: Path) -> None:
    graph = nx.DiGraph([(1, "1"), ("1", "(1,)"), ("(1,)", (1,)), ((1,), ("key", (2, "\x00")))])
    save(graph, tmp_path / f"graph{suffix}")
    assert_same_graph(graph, load(tmp_path / f"graph{suffix}"))


texts = st.text(st.characters(), max_size=5)


@given(st.dictionaries(texts, st.tuples(texts, st.floats(allow_nan=False)), min_size=1, max_size=4))
@settings(max_examples=40)
@pytest.mark.parametrize("suffix", [".json", ".graphml"])
def test_any_text_and_float_comes_back(suffix: str, tmp_path_factory, nodes: dict) -> None:
    graph: nx.DiGraph = nx.DiGraph()
    for node, (token, value) in nodes.items():
        graph.add_edge(node, (0, node), weight=value)
        graph.add_node(node, token=token)
    path = tmp_path_factory.mktemp("text") / f"graph{suffix}"
    save(graph, path)
    assert_same_graph(graph, load(path))


@TWO_WAY
def test_numpy_numbers_become_plain_ones(suffix: str, tmp_path: Path) -> None:
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_edge(np.int64(3), 4, weight=np.float32(0.5), flag=np.bool_(True))
    save(graph, tmp_path / f"g{suffix}")
    assert load(tmp_path / f"g{suffix}").edges[3, 4] == {"weight": 0.5, "flag": True}


@TWO_WAY
def test_saving_leaves_the_graph_as_it_was(suffix: str, tmp_path: Path) -> None:
    graph = tuple_graph()
    save(graph, tmp_path / f"g{suffix}")
    assert_same_graph(graph, tuple_graph())


def test_json_is_standard_json_that_networkx_reads(tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    save(tuple_graph(), tmp_path / "g.json")
    document = json.loads((tmp_path / "g.json").read_bytes(), parse_constant=refuse)
    assert set(nx.node_link_graph(document, edges="edges").nodes) == set(tuple_graph().nodes)


def test_graphml_is_xml_that_networkx_reads(tmp_path: Path) -> None:
    save(whole_head(), tmp_path / "g.graphml")
    graph = nx.read_graphml(tmp_path / "g.graphml", node_type=int)
    dense = nx.to_numpy_array(graph, nodelist=range(len(TOKENS)), dtype=np.float32).T
    np.testing.assert_array_equal(dense, whole_head().to_dense())
    assert graph.nodes[6]["token"] == TOKENS[6]
    assert graph.nodes[2]["token"] == "\\u0000\\u001b\\u000d\\u000a\\u0009"


def test_files_of_other_tools_are_read_as_they_are(tmp_path: Path) -> None:
    graph = nx.DiGraph([("a", "\\u0041")], name="other")
    nx.write_graphml(graph, tmp_path / "g.graphml")
    assert_same_graph(graph, load(tmp_path / "g.graphml"))
    document = nx.node_link_data(graph, edges="links")
    (tmp_path / "g.json").write_text(json.dumps(document))
    assert_same_graph(graph, load(tmp_path / "g.json"))


def test_undirected_graphs_and_multigraphs_are_refused(tmp_path: Path) -> None:
    for kind in (nx.Graph, nx.MultiDiGraph):
        graph = kind([(0, 1), (0, 1)])
        with pytest.raises(FileError, match=f"a {kind.__name__} "):
            save(graph, tmp_path / "g.json")
        (tmp_path / "g.json").write_text(json.dumps(nx.node_link_data(graph, edges="edges")))
        nx.write_graphml(graph, tmp_path / "g.graphml")
        for name in ("g.json", "g.graphml"):
            with pytest.raises(FileError, match=f"holds a {kind.__name__}"):
                load(tmp_path / name)


@TWO_WAY
def test_what_a_format_cannot_hold_is_named(suffix: str, tmp_path: Path) -> None:
    for graph, message in [
        (nx.DiGraph([(0.5, 1)]), "id of a node must be an int, a str or a tuple of these, not 0.5"),
        (nx.DiGraph([(0, 1, {"a\x00": 1})]), r"attribute must be a printable str, not 'a\\x00'"),
        (nx.DiGraph([(0, 1, {"weight": {2}})]), r"not \{2\}"),
        (small_trace(), r"save one head, as in trace\[1, 3\].save"),
        ("text", "can be saved; this is of type str"),
        (pd.DataFrame({"a": [1]}), r"DataFrame: write it by its to_csv\(path\)"),
        (nx.Graph([(0, 1)]), "can be saved; a Graph is undirected"),
        (nx.MultiDiGraph([(0, 1)]), "can be saved; a MultiDiGraph may have several edges"),
    ]:
        with pytest.raises(FileError, match=message):
            save(graph, tmp_path / f"g{suffix}")
    assert list(tmp_path.iterdir()) == []


def test_names_that_a_format_keeps_for_itself_are_refused(tmp_path: Path) -> None:
    graph = nx.DiGraph([(0, 1, {"source": "text"})], id="x")
    with pytest.raises(FileError, match=r"JSON reserves the names \['source'\]"):
        save(graph, tmp_path / "g.json")
    with pytest.raises(FileError, match=r"GraphML reserves the names \['id'\]"):
        save(graph, tmp_path / "g.graphml")


BOMB = """<?xml version="1.0"?><!DOCTYPE g [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="directed">
<node id="&b;"/></graph></graphml>"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_document_types_are_refused(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "g.graphml").write_bytes(BOMB.encode(encoding))
    with pytest.raises(FileError, match="remove <!DOCTYPE>"):
        load(tmp_path / "g.graphml")


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"[]", b"[1, 2]", b'{"nodes": 3}', b"{" * 9])
def test_foreign_json_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "g.json").write_bytes(content)
    with pytest.raises(FileError, match="not node-link JSON"):
        load(tmp_path / "g.json")


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"<a/>", b"<graphml><graph></graphml>"])
def test_foreign_graphml_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "g.graphml").write_bytes(content)
    with pytest.raises(FileError, match="not GraphML, or is damaged"):
        load(tmp_path / "g.graphml")


@pytest.mark.parametrize("weighted", [True, False])
def test_an_edge_to_a_node_that_is_not_listed_is_refused(weighted: bool, tmp_path: Path) -> None:
    edge = {"source": "a", "target": 7} | ({"weight": 0.5} if weighted else {})
    document = {"directed": True, "multigraph": False, "graph": {}}
    document |= {"nodes": [{"id": "a"}, {"id": 1}], "edges": [edge]}
    (tmp_path / "g.json").write_text(json.dumps(document))
    with pytest.raises(FileError, match="from 'a' to 7 has the end 7, but the file lists no such"):
        load(tmp_path / "g.json")
    document["nodes"].append({"id": 7})
    (tmp_path / "g.json").write_text(json.dumps(document))
    assert set(load(tmp_path / "g.json").edges) == {("a", 7)}
    save(nx.DiGraph([(0, 1), (1, 2)]), tmp_path / "g.graphml")
    edit(tmp_path / "g.graphml", 'target="2"', 'target="9"')
    with pytest.raises(FileError, match="from '1' to '9' has the end '9', but the file lists no"):
        load(tmp_path / "g.graphml")


@pytest.mark.parametrize("nul", ["\0", "&#0;"])
def test_a_nul_in_graphml_is_told(nul: str, tmp_path: Path) -> None:
    save(nx.DiGraph([("here", "b")]), tmp_path / "g.graphml")
    edit(tmp_path / "g.graphml", "'here'", f"'{nul}'")
    with pytest.raises(FileError, match=r"it holds a NUL, which XML cannot; gattn writes it as"):
        load(tmp_path / "g.graphml")


@pytest.mark.parametrize("node", ["[1]", "-" * 20_000 + "1", "{1: 2}", "1.5", "None", "a b", ""])
def test_ids_that_gattn_does_not_write_are_refused(node: str, tmp_path: Path) -> None:
    path = tmp_path / "g.graphml"
    save(nx.DiGraph([(0, "here")]), path)
    edit(path, "'here'", node)
    with pytest.raises(FileError, match="id"):
        load(path)


@TWO_WAY
@pytest.mark.parametrize("weight", [math.nan, math.inf])
def test_attention_that_is_not_finite_is_refused(
    weight: float, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"head{suffix}"
    graph = whole_head().to_networkx()
    graph.edges[0, 1]["weight"] = weight
    save(graph, path)
    edit(path, "DiGraph 1", "AttentionGraph 1")
    with pytest.raises(FileError, match="query 1 to key 0"):
        load(path)


@TWO_WAY
def test_truncated_and_newer_files_are_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"g{suffix}"
    whole_head().save(path)
    edit(path, "AttentionGraph 1", "AttentionGraph 2")
    text = path.read_text()
    with pytest.raises(FileError, match=r"'AttentionGraph' of schema '2'.*a newer gattn"):
        load(path)
    path.write_text(text[: len(text) // 2])
    with pytest.raises(FileError, match="damaged"):
        load(path)


def test_a_head_that_lost_its_numbers_is_refused(tmp_path: Path) -> None:
    head = AttentionGraph.from_dense(np.ones((2, 2)))
    head.save(tmp_path / "g.json")
    edit(tmp_path / "g.json", '"weight": 1.0', '"weight": "much"')
    with pytest.raises(FileError, match="does not hold the attention graph it announces"):
        load(tmp_path / "g.json")


@TWO_WAY
def test_what_was_changed_is_found_and_what_was_laid_out_anew_is_read(
    suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"g{suffix}"
    whole_head().save(path)
    text = path.read_text()
    path.write_bytes(text.replace("\n", "\r\n").encode())
    assert_same_head(whole_head(), load(path))
    if suffix == ".json":
        path.write_text(json.dumps(json.loads(text), indent=2, sort_keys=True))
        assert_same_head(whole_head(), load(path))
    path.write_text(text.replace("cat", "dog").replace("Softmax()", "Softmin()"))
    with pytest.raises(FileError, match=r"its checksum does not match\. If you changed the file"):
        load(path)
    edit(path, "Softmin()", "Softmin()")
    assert load(path).normalizer == "Softmin()"


@TWO_WAY
def test_files_that_networkx_wrote_again_are_read(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"g{suffix}"
    whole_head().save(path)
    if suffix == ".json":
        graph = nx.node_link_graph(json.loads(path.read_text()), edges="edges")
        graph.remove_edge(0, 6)
        path.write_text(json.dumps(nx.node_link_data(graph, edges="edges")))
    else:
        graph = nx.read_graphml(path)
        graph.remove_edge("0", "6")
        nx.write_graphml(graph, path)
    assert load(path).graph.num_edges == whole_head().graph.num_edges - 1


def test_ends_of_an_unrolled_graph_are_read_as_files_named_them_once(tmp_path):
    passed = small_trace()["decoder"].unroll().rollout(query=-1)
    path = tmp_path / "passed.json"
    save(passed, path)
    document = json.loads(path.read_text())
    document.pop("sha256", document["graph"].pop("sha256", None))
    facts = document["graph"]
    for now, before in (("query", "target"), ("key", "source")):
        for name in ("depth", "position"):
            if f"{now}_{name}" in facts:
                facts[f"{before}_{name}"] = facts.pop(f"{now}_{name}")
    path.write_text(json.dumps(document))
    assert "target_depth" in path.read_text()
    assert load(path).end("query") == passed.end("query")
