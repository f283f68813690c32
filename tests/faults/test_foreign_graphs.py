"""JSON and GraphML from anywhere: read, or refused at once with a FileError."""

import json
import time

import networkx as nx
import pytest
from file_samples import same, sample_head

from gattn.errors import FileError
from gattn.files import load

HEAD = {"gattn": "AttentionGraph 1"}


def document(**changes):
    graph = {"directed": True, "multigraph": False, "graph": {}}
    return graph | {"nodes": [{"id": 0}, {"id": 1}], "edges": []} | changes


def edge(**attributes):
    return [{"source": 0, "target": 1, **attributes}]


DOCUMENTS = {
    "list as graph": document(graph=[]),
    "number as graph": document(graph=3),
    "text as graph": document(graph="DiGraph"),
    "number as nodes": document(nodes=7),
    "numbers as nodes": document(nodes=[1, 2]),
    "null as nodes": document(nodes=None),
    "text as edges": document(edges="ab"),
    "edges without ends": document(edges=[{}]),
    "object as id": document(nodes=[{"id": {"a": 1}}]),
    "object as end": document(edges=[{"source": {}, "target": 0}]),
    "mark of a number": document(graph={"gattn": 5}),
    "mark of a list": document(graph={"gattn": ["AttentionGraph 1"]}),
    "routes of nothing": document(graph={"gattn": "Routes 7"}),
    "checksum of a number": document(sha256=5),
    "checksum of a list": document(sha256=[]),
    "wrong float": document(graph={"x": {"$float": "much"}}),
    "wrong text": document(graph={"x": {"$text": 5}}),
    "wrong tuple": document(graph={"x": {"$tuple": 5}}),
    "large ids": document(graph=HEAD, nodes=[{"id": 10**30}, {"id": 0}]),
    "negative ids": document(graph=HEAD, nodes=[{"id": -(2**63) - 1}]),
    "ids without an end": document(graph=HEAD, nodes=[{"id": ["key"]}, {"id": ["query"]}]),
    "text as weight": document(graph=HEAD, edges=edge(weight="much")),
    "large weight": document(graph=HEAD, edges=edge(weight=10**400)),
    "list as weight": document(graph=HEAD, edges=edge(weight=[1])),
    "null as weight": document(graph=HEAD, edges=edge(weight=None)),
    "infinite weight": document(graph=HEAD, edges=edge(weight={"$float": "inf"})),
    "text as layer": document(graph=HEAD | {"layer": "1"}),
    "text as number of keys": document(graph=HEAD | {"num_keys": "2"}),
    "fewer keys than edges need": document(graph=HEAD | {"num_keys": 0}, edges=edge(weight=1.0)),
    "negative number of keys": document(graph=HEAD | {"num_keys": -1}),
    "list as type": document(graph=HEAD | {"dtype": []}),
    "a type of 200 MB": document(graph=HEAD | {"dtype": "S200000000"}),
    "null as model": document(graph=HEAD | {"model": None}),
    "text as total": document(graph=HEAD, nodes=[{"id": 0, "total_edges": "x", "total_mass": 1.0}]),
    "large total": document(graph=HEAD, nodes=[{"id": 0, "total_edges": 10**30}]),
    "a sink without edges": document(graph=HEAD, nodes=[{"id": 0}, {"id": -1, "virtual": True}]),
    "nothing": None,
    "a number": 5,
    "a text": "graph",
}


def bounded(path, content):
    """Load a file; give what it holds, or None where it is refused."""
    path.write_bytes(content)
    began = time.process_time()
    try:
        found = load(path)
    except FileError as error:
        said, found = str(error), None
        assert len(said) < 1500
        assert path.name in said or "id of a node" in said
    assert time.process_time() - began < 60
    return found


@pytest.mark.parametrize("name", DOCUMENTS)
def test_odd_documents_are_refused(name, tmp_path):
    path = tmp_path / "g.json"
    assert bounded(path, json.dumps(DOCUMENTS[name]).encode()) is None


def test_the_document_is_otherwise_read(tmp_path):
    path = tmp_path / "g.json"
    assert isinstance(bounded(path, json.dumps(document()).encode()), nx.DiGraph)
    large = document(nodes=[{"id": 10**30}])
    assert list(bounded(path, json.dumps(large).encode())) == [10**30]
    kept = document(graph=HEAD, edges=edge(weight=1.0))
    assert bounded(path, json.dumps(kept).encode()).graph.num_edges == 1


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"nodes":' * 50_000,
        b'{"directed":true,"edges":[],"nodes":[{"id":' + b"[" * 900 + b"]" * 900 + b"}]}",
        b'{"nodes":[{"id":' + b"9" * 5_000_000 + b"}]}",
        json.dumps(document()).encode("utf-16"),
        b"\xef\xbb\xbf" + json.dumps(document()).encode(),
        b"\xff\xfe\x00",
        b'"' + b'\\"' * 1_000_000,
    ],
    ids=[
        "lists",
        "objects",
        "deep ids",
        "long number",
        "utf-16",
        "byte order mark",
        "no text",
        "open text",
    ],
)
def test_nesting_numbers_and_encodings_are_bounded(content, tmp_path):
    found = bounded(tmp_path / "g.json", content)
    assert found is None or isinstance(found, nx.DiGraph)


def test_many_deep_ids_take_no_time(tmp_path):
    deep = "[" * 300 + "]" * 300
    nodes = ",".join(f'{{"id":[{n},{deep}]}}' for n in range(3000))
    bounded(tmp_path / "g.json", f'{{"directed":true,"edges":[],"nodes":[{nodes}]}}'.encode())


GRAPHML = """<?xml version="1.0" encoding="{encoding}"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="m" for="graph" attr.name="gattn" attr.type="string"/>
<graph edgedefault="directed"><data key="m">DiGraph 1</data>{nodes}</graph></graphml>"""


def graphml(node="'a'", encoding="utf-8"):
    return GRAPHML.format(encoding=encoding, nodes=f'<node id="{node}"/>').encode()


def test_ids_of_graphml_are_what_gattn_writes(tmp_path):
    path = tmp_path / "g.graphml"
    for written in ("'a'", "-5", "('key', (1, &quot;it's&quot;))", "()", "'\\u2028\\n'", "True"):
        assert len(bounded(path, graphml(written))) == 1
    huge = "(" + "1, " * 100_000 + ")"
    for written in (
        "-" * 1_000_000 + "1",
        "(" * 1_000_000,
        "(" * 200 + ")" * 200,
        "9" * 5_000_000,
        "0x" + "f" * 1_000_000,
        "'" + "\\" * 1_000_001 + "'",
        "'a" * 100_000,
        "1 2",
        "(,)",
        "(1,,2)",
        "(1",
        "1)",
        "1, 2",
        "'\\q'",
        "f'a'",
        "{1: 2}",
        "__import__('os')",
    ):
        assert bounded(path, graphml(written)) is None, written[:50]
    assert len(next(iter(bounded(path, graphml(huge))))) == 100_000


@pytest.mark.parametrize(
    "encoding", ["utf-7", "rot13", "hex", "idna", "utf-32", "x" * 1000, "zlib"]
)
def test_odd_encodings_are_refused(encoding, tmp_path):
    assert bounded(tmp_path / "g.graphml", graphml(encoding=encoding)) is None


@pytest.mark.parametrize(
    "content",
    [
        b"<a>" * 1_000_000,
        b"<graphml>" + b"<graph>" * 500 + b"</graph>" * 500 + b"</graphml>",
        b"<graphml " + b" ".join(b'a%d="1"' % n for n in range(50_000)) + b"/>",
        b"<!-- gattn sha256: -->",
        b" " * 1_000_000,
        GRAPHML.format(encoding="utf-8", nodes='<edge source="0" target="9"/>').encode(),
        GRAPHML.format(encoding="utf-8", nodes="<node/>").encode(),
        GRAPHML.format(
            encoding="utf-8", nodes='<node id="1"><data key="z">1</data></node>'
        ).encode(),
    ],
    ids=["open", "nested", "attributes", "comment", "blanks", "id", "no id", "no key"],
)
def test_xml_from_anywhere_is_bounded(content, tmp_path):
    bounded(tmp_path / "g.graphml", content)


@pytest.mark.parametrize("suffix", [".json", ".graphml"])
def test_every_flipped_bit_is_found_or_harmless(suffix, tmp_path):
    head = sample_head(("a", "b"))
    path = tmp_path / f"g{suffix}"
    head.save(path)
    content = path.read_bytes()
    for place in range(0, len(content), 2):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place // 2 % 8
        found = bounded(path, bytes(damaged))
        assert found is None or same(head, found), place
