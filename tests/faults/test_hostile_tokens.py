"""More than 132 hostile tokens through eight formats, read by readers that are not gattn's."""

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import duckdb
import networkx as nx
import numpy as np
import pytest
from file_samples import same

from gattn.files import load, save
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.surveys.store.parts import part_path, read_rows, write_part
from gattn.surveys.store.text_rows import tables_of, text_row

CONTROLS = [chr(n) for n in (*range(32), 127, *range(128, 160, 8))]
INVISIBLE = (0xAD, 0x61C, 0x180E, *range(0x200B, 0x2010), *range(0x2028, 0x202F), 0x2060)
ISOLATING = (0x2066, 0x2067, 0x2069, 0xFEFF, 0xFFFD, 0xFFFE, 0xFFFF, 0xFDD0, 0x1FFFF, 0xE0041)
UNICODE = [
    *map(chr, (*INVISIBLE, *ISOLATING)),
    *("e\u0301", "\u00e9", "\u1e9b\u0323", "\ufb01", "\u212b", "\uac00", "\u1100\u1161"),
    *("\u0130", "\u0131", "\u01c5", "\u0e33", "\ue000", "Z" + "\u0335" * 50),
    *("\U0001f468\u200d\U0001f469", "\U0001f1e9\U0001f1ea", "\u0645\u0631\u062d"),
    *("\ud800", "\udfff", "\udc80", "\ude00\ud83d", "a\ud800b"),
]
MARKUP = [
    *("<", ">", "&", "<b>", "&amp;", "&#0;", "&#x1b;", "&nbsp;", "]]>", "<![CDATA[", "<!--", "-->"),
    *("<?xml?>", "<!DOCTYPE a>", "</script>", "<script>alert(1)</script>", '"><img src=x>', "'"),
    *('"', "\\", "\\u0041", "\\n", "\\\\", "`", "${x}", "$\\frac{a}{b}$", "$", "%s", "{0}", "%n"),
    *(
        "\\N",
        "\\l",
        '\\"',
        "<<b>bold</b>>",
        "-> b",
        "a;b",
        "a,b",
        "a\tb",
        "a\r\nb",
        "#",
        "//",
        "/*",
    ),
]
TABLES = [
    *(
        "=1+1",
        "+1",
        "-1",
        "@SUM(A1)",
        "=HYPERLINK(1)",
        "\t=1",
        "\r=1",
        "NaN",
        "nan",
        "NULL",
        "null",
    ),
    *("None", "True", "1e5", "0x1", "007", "", " ", "  ", "a" * 10_000),
]
TOKENS = [*CONTROLS, *UNICODE, *MARKUP, *TABLES]
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
SHOWN = [CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", token) for token in TOKENS]
"""How exports show them."""


@pytest.fixture(scope="module")
def head():
    size = len(TOKENS)
    attention = np.eye(size, dtype=np.float32)
    return AttentionGraph.from_dense(attention, tokens=TOKENS, layer=0, head=0)


def test_there_are_as_many_as_is_said():
    assert len(set(TOKENS)) == len(TOKENS) >= 132


@pytest.mark.parametrize("suffix", [".gattn", ".json", ".graphml"])
def test_they_come_back(suffix, head, tmp_path):
    save(head, tmp_path / f"head{suffix}")
    assert same(head, load(tmp_path / f"head{suffix}"))


@pytest.mark.parametrize("suffix", [".gattn", ".json", ".graphml"])
def test_they_come_back_one_by_one_as_names_of_everything(suffix, tmp_path):
    for token in TOKENS:
        one = AttentionGraph.from_dense(
            np.ones((1, 1)), tokens=[token], model=token, normalizer=token
        )
        save(one, tmp_path / f"head{suffix}")
        assert same(one, load(tmp_path / f"head{suffix}")), repr(token)


def test_json_is_read_by_the_standard_library(head, tmp_path):
    save(head, tmp_path / "head.json")
    nodes = json.loads((tmp_path / "head.json").read_bytes())["nodes"]
    found = [node["token"] for node in nodes]
    assert [one if isinstance(one, str) else one["$text"] for one in found] == [
        re.sub(r"[\\\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", code, token)
        if re.search("[\ud800-\udfff]", token)
        else token
        for token in TOKENS
    ]


def code(found):
    return f"\\u{ord(found[0]):04x}"


@pytest.mark.parametrize("suffix", [".graphml", ".gexf"])
def test_xml_is_read_by_the_standard_library(suffix, head, tmp_path):
    save(head, tmp_path / f"head{suffix}")
    root = ET.parse(tmp_path / f"head{suffix}").getroot()
    if suffix == ".gexf":
        found = [node.get("label") for node in root.iter() if node.tag.endswith("}node")]
        assert found == SHOWN
        return
    keys = {key.get("id"): key.get("attr.name") for key in root.iter() if key.tag.endswith("}key")}
    data = [part for part in root.iter() if part.tag.endswith("}data")]
    found = [part.text or "" for part in data if keys[part.get("key")] == "token"]
    restored = [re.sub(r"\\u([0-9a-f]{4})", lambda c: chr(int(c[1], 16)), text) for text in found]
    assert restored == TOKENS


def test_gexf_is_read_by_networkx(head, tmp_path):
    save(head, tmp_path / "head.gexf")
    graph = nx.read_gexf(tmp_path / "head.gexf", node_type=int)
    assert [graph.nodes[n]["token"] for n in range(len(TOKENS))] == SHOWN


def test_csv_is_read_by_the_standard_library_and_duckdb(head, tmp_path):
    path = tmp_path / "head.csv"
    save(head, path)
    rows = list(csv.DictReader(io.StringIO(path.read_bytes().decode())))
    assert [row["key_token"] for row in rows] == SHOWN
    assert [row["query_token"] for row in rows] == SHOWN
    query = f"select key_token from read_csv('{path}', all_varchar=true, header=true) order by all"
    found = [row[0] or "" for row in duckdb.sql(query).fetchall()]
    assert sorted(found) == sorted(SHOWN)


def test_dot_is_read_by_its_grammar(head, tmp_path):
    save(head, tmp_path / "head.dot")
    text = (tmp_path / "head.dot").read_text(encoding="utf-8")
    string = r'"((?:[^"\\]|\\.)*)"'
    labels = re.findall(rf'"label"={string}', text, re.DOTALL)
    assert [re.sub(r"\\(.)", r"\1", label) for label in labels] == SHOWN
    outside = re.sub(string, "", text, flags=re.DOTALL)
    assert re.fullmatch(r"[\w\s{}\[\]=,;>-]*", outside)


def test_surveys_keep_them(head, tmp_path):
    """But lone surrogates, which Parquet cannot hold: such a text is refused before."""
    from gattn.surveys.store.rebuilding import trace_of

    kept = [token for token in TOKENS if not re.search("[\ud800-\udfff]", token)]
    one = AttentionGraph.from_dense(
        np.eye(len(kept), dtype=np.float32), tokens=kept, layer=0, head=0
    )
    trace = AttentionTrace({"decoder": Stack("decoder", {(0, 0): one})}, "toy", text="".join(kept))
    write_part(tmp_path, 0, tables_of(text_row(0, trace, {})))
    path = part_path(tmp_path, "tokens", 0)
    rows = duckdb.sql(f"select token from read_parquet('{path}') order by position").fetchall()
    assert [row[0] for row in rows] == kept
    tables = {
        name: read_rows(part_path(tmp_path, name, 0))
        for name in ("texts", "edges", "queries", "heads", "tokens")
    }
    again = trace_of(tables, "toy")
    assert again.text == trace.text
    assert again[0, 0].tokens == tuple(kept)


class Reader(HTMLParser):
    """Collects tags, and the texts of scripts that are data."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.tags, self.data, self.inside = [], [], None

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.inside = tag

    def handle_data(self, data):
        if self.inside == "script":
            self.data.append(data)

    def handle_endtag(self, tag):
        self.inside = None


def page_tags(tokens):
    head = AttentionGraph.from_dense(np.eye(len(tokens)), tokens=tokens, layer=0, head=0)
    reader = Reader()
    reader.feed(head.to_html())
    reader.close()
    return reader


def test_a_page_has_no_tag_that_a_token_brought():
    hostile, plain = page_tags(TOKENS), page_tags(["a"] * len(TOKENS))
    assert hostile.tags == plain.tags
    assert len(hostile.data) == len(plain.data)
