"""Surveys whose files were damaged or are not gattn's: an error, and never other data."""

import json
import random
import shutil
import time
from contextlib import suppress

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gattn
from gattn.errors import FileError, GattnError
from gattn.surveys.run.running import survey
from gattn.surveys.store import queue
from gattn.surveys.store.checksums import Once, check_file, sign
from gattn.surveys.store.parts import part_path

TEXTS = ["The dog chased the cat.", "Dogs and cats", "", "The cat ran."]
TABLES = ("texts", "edges", "queries", "heads", "tokens", "failures")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A survey of three texts and one that fails."""
    folder = tmp_path_factory.mktemp("whole") / "survey"
    return survey(TEXTS, out=folder, analyses=[], progress=False)


@pytest.fixture
def folder(whole, tmp_path):
    shutil.copytree(whole.folder, tmp_path / "survey")
    return tmp_path / "survey"


def everything(folder, reader):
    """All that a reader says of a survey."""
    opened = gattn.open_survey(folder)
    if reader == "duckdb":
        return {name: opened.sql(f"from {name}") for name in TABLES}
    if reader == "polars":
        return {name: opened.polars(name).collect().to_pandas() for name in TABLES}
    return {
        str((text_id, name, place)): head.to_pandas()
        for text_id, trace in opened.traces()
        for name, stack in trace.stacks.items()
        for place, head in stack.items()
    }


def equal(one, other):
    return one.keys() == other.keys() and all(one[name].equals(other[name]) for name in one)


def write_signed(table, path):
    """Write a file of a survey that has its checksum."""
    pq.write_table(table, path)
    sign(path)


def flip(path, chance):
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


@pytest.mark.parametrize("reader", ["duckdb", "polars", "pyarrow"])
def test_flipped_bits_are_found_by_whatever_reads(reader, whole, folder):
    chance = random.Random(reader)
    undisturbed = everything(whole.folder, reader)
    assert equal(undisturbed, everything(folder, reader))
    for n in range(12):
        path = part_path(folder, TABLES[n % 6], 0)
        content = path.read_bytes()
        flip(path, chance)
        with suppress(FileError):
            assert equal(undisturbed, everything(folder, reader)), n
        path.write_bytes(content)


@pytest.mark.parametrize("table", TABLES)
def test_every_byte_of_a_file_counts(table, folder):
    path = part_path(folder, table, 0)
    content = path.read_bytes()
    for place in range(0, len(content), max(len(content) // 200, 1)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        mark = content.index(b"gattn.sha256=")
        if mark <= place < mark + 13:
            continue
        with pytest.raises(pa.ArrowInvalid, match="its checksum does not match"):
            check_file(path)
    path.write_bytes(content)
    check_file(path)


def test_a_text_that_waits_is_not_captured_with_a_flipped_bit(tmp_path):
    queue.fill(tmp_path, queue.Inputs(lambda: iter([("text 0", "The dog")]), "text", "a text"))
    path = tmp_path / "inputs" / "000000000.parquet"
    assert queue.read(tmp_path, 0)["text"].to_pylist() == ["The dog"]
    content = path.read_bytes()
    path.write_bytes(content.replace(b"The dog", b"The fog"))
    assert path.read_bytes() != content
    with pytest.raises(FileError, match="cannot be read"):
        queue.read(tmp_path, 0)


def test_files_of_an_earlier_gattn_and_files_written_anew_are_read(whole, folder):
    for name in TABLES:
        path = part_path(folder, name, 0)
        pq.write_table(pq.read_table(path, partitioning=None), path)
    with pytest.raises(FileError, match="its checksum is missing; if you rewrote the file"):
        everything(folder, "duckdb")
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["sha256"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert equal(everything(whole.folder, "duckdb"), everything(folder, "duckdb"))


def test_a_file_is_hashed_once_and_again_after_a_change(tmp_path, monkeypatch):
    path, once = tmp_path / "file", Once()
    path.write_text("a")
    assert [once.is_new(path), once.is_new(path)] == [True, True]  # it may yet change unseen
    later = time.time_ns() + 10**10
    monkeypatch.setattr(time, "time_ns", lambda: later)
    assert [once.is_new(path), once.is_new(path)] == [True, False]
    path.write_text("ab")
    assert [once.is_new(path), once.is_new(path)] == [True, False]
    once.forget(path)
    assert once.is_new(path)


# What is not gattn's


MANIFESTS = [
    "[]",
    "3",
    "null",
    "{}",
    '{"schema": 1}',
    '{"schema": [1]}',
    '{"schema": 1, "model": "m", "keep": "k"}',
    '{"schema": 1, "model": "m", "keep": "k", "num_texts": "4"}',
    '{"schema": 1, "model": "m", "keep": "k", "num_texts": -1}',
    '{"schema": 1, "model": ["m"], "keep": "k", "num_texts": 4}',
    "[" * 100_000,
    '{"schema":' * 50_000,
    '{"schema": 1' + "0" * 5000 + "}",
    "\x00",
]


@pytest.mark.parametrize("number", range(len(MANIFESTS)))
def test_odd_manifests_are_refused(number, folder):
    (folder / "manifest.json").write_text(MANIFESTS[number])
    with pytest.raises(FileError, match=r"manifest\.json"):
        gattn.open_survey(folder)


def test_a_manifest_with_a_flipped_bit_is_refused_or_says_the_same(folder):
    path = folder / "manifest.json"
    content, known = path.read_bytes(), gattn.open_survey(folder).manifest
    for place in range(0, len(content), 5):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with suppress(FileError):
            found = gattn.open_survey(folder).manifest
            assert {name: found[name] for name in known} == known


def others(table):
    """Files that are no table of a survey."""
    return {
        "another table": pa.table({"a": [1]}),
        "a column missing": table.drop_columns(table.column_names[-1:]),
        "no text_id": table.drop_columns(["text_id"]),
        "texts for numbers": table.set_column(
            0, "text_id", pa.array([str(n) for n in range(len(table))])
        ),
    }


ASKS = {
    "trace": lambda opened: opened.trace(0),
    "traces": lambda opened: list(opened.traces()),
    "graph": lambda opened: opened.graph(0, 0, 0),
    "sql": lambda opened: opened.sql("select * from edges, heads, tokens, queries, texts limit 1"),
    "polars": lambda opened: [opened.polars(name).collect() for name in TABLES],
    "edges": lambda opened: opened.edges(text_id=0, tokens=True),
}


@pytest.mark.parametrize("name", ["texts", "edges", "queries", "heads", "tokens"])
def test_parts_of_another_schema_are_refused(name, folder):
    path = part_path(folder, name, 0)
    table = pq.read_table(path, partitioning=None)
    for kind in others(table):
        other = others(table)[kind]
        if kind == "a column missing" and name in ("heads", "edges"):
            other = table.drop_columns(["head"])
        write_signed(other, path)
        for ask in ASKS:
            if ask == "edges" and name not in ("edges", "tokens"):
                continue
            with pytest.raises(FileError, match=rf"{path.name} is not a file of .* '{name}'"):
                ASKS[ask](gattn.open_survey(folder))


GRAPHS = [
    "",
    "[]",
    "3",
    "{}",
    "[" * 100_000,
    '{"num_queries": 10, "num_keys": 10, "query_offset": 0, "is_bipartite": false, "rule": []}',
    '{"num_queries": 7, "num_keys": 7, "query_offset": 0, "is_bipartite": false, "rule": ["No"]}',
    '{"num_queries": 7, "num_keys": 7, "rule": ["Strided", 0]}',
    '{"num_queries": 1000000000000, "num_keys": 7, "query_offset": 0, "is_bipartite": false}',
    '{"num_queries": 7, "num_keys": 1, "query_offset": 0, "is_bipartite": false}',
    '{"num_queries": 7, "num_keys": 7, "query_offset": -1, "is_bipartite": 5}',
]


@pytest.mark.parametrize("number", range(len(GRAPHS)))
def test_odd_token_graphs_are_refused(number, folder):
    path = part_path(folder, "heads", 0)
    heads = pq.read_table(path, partitioning=None)
    place = heads.column_names.index("graph")
    write_signed(heads.set_column(place, "graph", pa.array([GRAPHS[number]] * len(heads))), path)
    began = time.process_time()
    with pytest.raises(FileError, match="text 0"):
        gattn.open_survey(folder).trace(0)
    assert time.process_time() - began < 60


@pytest.mark.parametrize("column", ["query", "key"])
@pytest.mark.parametrize("value", [-1, 2**31 - 1, 50])
def test_edges_outside_of_the_text_are_refused(column, value, folder):
    path = part_path(folder, "edges", 0)
    edges = pq.read_table(path, partitioning=None)
    numbers = edges[column].to_pylist()
    numbers[3] = value
    place = edges.column_names.index(column)
    write_signed(edges.set_column(place, column, pa.array(numbers, pa.int32())), path)
    with pytest.raises(FileError, match="text 0"):
        gattn.open_survey(folder).trace(0)


def test_a_table_without_the_rows_of_a_head_is_refused(folder):
    path = part_path(folder, "queries", 0)
    write_signed(pq.read_table(path, partitioning=None)[:0], path)
    with pytest.raises(FileError, match="text 0"):
        gattn.open_survey(folder).trace(0)


@pytest.mark.parametrize(
    "rows", [lambda n: [*range(1, n), 0], lambda n: [*range(1, n)]], ids=["apart", "missing"]
)
def test_edges_of_a_head_that_lie_apart_or_are_missing_are_refused(rows, folder):
    path = part_path(folder, "edges", 0)
    edges = pq.read_table(path, partitioning=None)
    write_signed(edges.take(rows(len(edges))), path)
    with pytest.raises(FileError, match="text 0"):
        gattn.open_survey(folder).trace(0)


@pytest.mark.parametrize("names", [("a?b", "a*b", "axb"), ("[ab]", "a"), ("q'", '"')])
def test_names_of_folders_are_no_patterns(names, whole, tmp_path):
    for n, name in enumerate(names):
        shutil.copytree(whole.folder, tmp_path / name / "survey")
        path = part_path(tmp_path / name / "survey", "heads", 0)
        heads = pq.read_table(path, partitioning=None)
        write_signed(heads.append_column("n", pa.array([n] * len(heads))), path)
    for n, name in enumerate(names):
        opened = gattn.open_survey(tmp_path / name / "survey")
        assert len(opened.heads) == len(whole.heads)
        assert set(opened.heads["n"]) == {n}
        assert set(opened.polars("heads").collect()["n"]) == {n}
        pd.testing.assert_frame_equal(opened.edges(), whole.edges())
        with pytest.raises(GattnError):
            opened.sql(f"from read_parquet('{tmp_path}/*/survey/heads/*.parquet')")
