"""Paths and suffixes; files appear whole or not at all; exports for other tools."""

import csv
import math
import os
import re
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from saved import CROSS, TOKENS, small_trace, whole_head

from gattn.errors import FileError
from gattn.files import load, save

ALL = [".gattn", ".json", ".graphml", ".gexf", ".dot", ".gv", ".csv"]
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
SHOWN = [CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", token) for token in TOKENS]


def test_unknown_suffixes_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    for act in (lambda path: save(whole_head(), path), load):
        with pytest.raises(FileError, match=r"\.gattn, \.json, \.graphml"):
            act(tmp_path / "head.pkl")


def test_suffixes_may_be_capitals_and_paths_strings(tmp_path: Path) -> None:
    save(whole_head(), str(tmp_path / "head.GATTN"))
    assert load(str(tmp_path / "head.GATTN")).tokens == TOKENS


@pytest.mark.parametrize("suffix", [".gexf", ".dot", ".csv"])
def test_exports_cannot_be_loaded(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"is an export for other tools.*gattn loads \.gattn"):
        load(tmp_path / f"head{suffix}")


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    (tmp_path / "folder.gattn").mkdir()
    with pytest.raises(FileError, match="it is a folder"):
        load(tmp_path / "folder.gattn")
    with pytest.raises(FileError, match="is a folder"):
        save(whole_head(), tmp_path / "folder.gattn")
    with pytest.raises(FileError, match="there is none in"):
        load(tmp_path / "absent.json")
    with pytest.raises(FileError, match="does not exist"):
        save(whole_head(), tmp_path / "absent" / "head.json")


def test_only_heads_and_traces_fit_a_gattn_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"save a networkx\.DiGraph as \.json or \.graphml"):
        save(nx.DiGraph(), tmp_path / "g.gattn")


@pytest.mark.parametrize("suffix", ALL)
@pytest.mark.parametrize("existing", [True, False])
def test_a_failure_leaves_nothing_behind(
    suffix: str, existing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"head{suffix}"
    if existing:
        path.write_text("before")

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    for name in ("replace", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(FileError, match=r"cannot be written: the disk is full\. Make room"):
                save(whole_head(), path)
        assert list(tmp_path.iterdir()) == ([path] if existing else [])
        assert not existing or path.read_text() == "before"


@pytest.mark.parametrize("suffix", ALL)
def test_saving_replaces_and_leaves_one_file(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"head{suffix}"
    path.write_text("before")
    save(whole_head(), path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() != b"before"
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.skipif(os.name != "posix", reason="links are POSIX's")
@pytest.mark.parametrize("suffix", [".gattn", ".json", ".graphml"])
def test_a_link_to_nothing_and_a_nul_in_a_name_are_told(suffix: str, tmp_path: Path) -> None:
    link = tmp_path / f"link{suffix}"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileError, match=r"it is a link to .*nowhere, which does not exist"):
        load(link)
    for act in (load, lambda path: save(whole_head(), path)):
        with pytest.raises(FileError, match=r"a\\x00b.* it contains a NUL"):
            act(tmp_path / f"a\0b{suffix}")


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    save(whole_head(), tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert load(tmp_path / "real.json").tokens == TOKENS


def test_gexf_is_read_by_networkx(tmp_path: Path) -> None:
    save(whole_head(), tmp_path / "head.gexf")
    graph = nx.read_gexf(tmp_path / "head.gexf", node_type=int)
    dense = nx.to_numpy_array(graph, nodelist=range(len(TOKENS)), dtype=np.float32).T
    np.testing.assert_array_equal(dense, whole_head().to_dense())
    for i, token in enumerate(SHOWN):
        assert (graph.nodes[i]["label"], graph.nodes[i]["token"]) == (token, token)
    assert graph.edges[0, 0]["score"] == -math.inf
    assert graph.edges[6, 6]["contribution"] == 9.0
    save(small_trace()["decoder"].unroll(), tmp_path / "unrolled.gexf")
    assert "(0, 1)" in nx.read_gexf(tmp_path / "unrolled.gexf")


def test_csv_is_read_by_pandas(tmp_path: Path) -> None:
    save(whole_head(), tmp_path / "head.csv")
    table = pd.read_csv(tmp_path / "head.csv", keep_default_na=False)
    for name, values in whole_head().edge_values.items():
        np.testing.assert_array_equal(table[name].astype(np.float32), values)
    assert table["key_token"].tolist() == [SHOWN[j] for j in whole_head().key]
    save(nx.DiGraph([((0, 1), (1, 1), {"weight": 0.5})]), tmp_path / "graph.csv")
    rows = list(csv.reader((tmp_path / "graph.csv").read_text().splitlines()))
    assert rows == [["source", "target", "weight"], ["(0, 1)", "(1, 1)", "0.5"]]


STRING = r'"((?:[^"\\]|\\.)*)"'
PAIR = rf"{STRING}={STRING}"
LIST = rf"(?: \[({PAIR}(?:, {PAIR})*)\])?"
LINE = re.compile(rf"  (?:{PAIR}|{STRING}(?: -> {STRING})?{LIST});", re.DOTALL)


def test_dot_keeps_to_its_grammar(tmp_path: Path) -> None:
    save(whole_head(), tmp_path / "head.dot")
    text = (tmp_path / "head.dot").read_text(encoding="utf-8")
    first, *lines, last = text.splitlines()
    assert (first, last) == ("digraph {", "}")
    assert all(LINE.fullmatch(line) for line in lines)
    assert not CONTROL.search(text.replace("\n", ""))
    labels = re.findall(rf'"label"={STRING}', text)
    assert [re.sub(r"\\(.)", r"\1", label) for label in labels] == [*SHOWN, "<sink>"]
    assert text.count(" -> ") == whole_head().graph.num_edges + len(TOKENS)
    assert (
        text.count('"contribution"=') == text.count('"value_norm"=') == whole_head().graph.num_edges
    )
    assert '"key_value_head"="1"' in text
    for name in ("layer", "model"):
        assert f'"{name}"' not in text
        assert f'"attention_{name}"' in text


def test_cross_attention_and_trees_of_graphs_export_to_dot(tmp_path: Path) -> None:
    save(CROSS, tmp_path / "cross.gv")
    assert "\"('key', 0)\" -> \"('query', 1)\"" in (tmp_path / "cross.gv").read_text()


def test_a_trace_is_saved_whole_or_head_by_head(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"trace\[1, 3\].save\('trace.csv'\)"):
        save(small_trace(), tmp_path / "trace.csv")
    assert list(tmp_path.iterdir()) == []


def test_paths_that_name_no_file_are_told():
    for call in (load, lambda path: save(whole_head(), path)):
        with pytest.raises(FileError, match=r"a str or a pathlib\.Path"):
            call(b"a.gattn")
    with pytest.raises(FileError) as told:
        load("a\0.gattn")
    assert "\0" not in str(told.value)
