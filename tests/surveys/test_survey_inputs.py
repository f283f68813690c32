"""Texts from files, tables and Python: whatever they hold, one after the other."""

import bz2
import csv
import datetime
import gzip
import io
import itertools
import json
import lzma
import math
import os
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gattn.errors import FileError
from gattn.surveys.inputs import formats as input_formats
from gattn.surveys.inputs.inputs import Inputs, InputText, read_files, read_inputs

TEXTS = ["The dog", "", "a\0b", "'; drop table heads; --", '"x"\n\r\n\ty', "😀 猫", " \u2028 "]
ROWS = [{"text": text, "n": n, "odd": math.nan} for n, text in enumerate(TEXTS)]


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}


def texts_of(inputs: Inputs) -> list[str | None]:
    found = list(inputs)
    assert [text.text_id for text in found] == list(range(len(found)))
    return [text.text for text in found]


def json_lines(rows: list) -> bytes:
    return "\n".join(json.dumps(row) for row in rows).encode()


def csv_of(rows: list[dict], delimiter: str = ",") -> bytes:
    sink = io.StringIO(newline="")
    writer = csv.DictWriter(sink, list(rows[0]), delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    return sink.getvalue().encode()


def arrow_of(rows: list[dict], new: Callable = pa.ipc.new_file) -> bytes:
    table = pa.Table.from_pylist(rows)
    sink = pa.BufferOutputStream()
    with new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue().to_pybytes()


def parquet_of(rows: list[dict]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=3)
    return sink.getvalue().to_pybytes()


KINDS: dict[str, bytes] = {
    ".jsonl": json_lines(ROWS),
    ".ndjson": json_lines(TEXTS),
    ".csv": csv_of(ROWS),
    ".tsv": csv_of(ROWS, "\t"),
    ".parquet": parquet_of(ROWS),
    ".pq": parquet_of(ROWS),
    ".arrow": arrow_of(ROWS, pa.ipc.new_stream),
    ".feather": arrow_of(ROWS),
}


@pytest.mark.parametrize("suffix", KINDS)
def test_every_kind_of_file_gives_its_texts(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"corpus{suffix}"
    path.write_bytes(KINDS[suffix])
    inputs = read_inputs(path)
    assert texts_of(inputs) == TEXTS
    assert texts_of(inputs) == TEXTS, "a second loop reads the same"


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv"])
@pytest.mark.parametrize("packing", PACKINGS)
def test_files_of_lines_may_be_compressed(suffix: str, packing: str, tmp_path: Path) -> None:
    path = tmp_path / f"corpus.v1{suffix.upper()}{packing}"
    path.write_bytes(PACKINGS[packing](KINDS[suffix]))
    assert texts_of(read_inputs(path)) == TEXTS


@pytest.mark.parametrize("packing", [".gz", ".bz2", ".xz", ".zst"])
def test_compressed_files_one_after_the_other_are_one(packing: str, tmp_path: Path) -> None:
    path = tmp_path / f"corpus.txt{packing}"
    path.write_bytes(PACKINGS[packing](b"one\ntw") + PACKINGS[packing](b"o\nthree"))
    assert texts_of(read_inputs(path)) == ["one", "two", "three"]


def test_text_files_have_a_text_a_line(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(b'\xef\xbb\xbfone\r\n\n  \n two \n"3"\x00\xe2\x80\xa8\x0bx\rtail')
    assert texts_of(read_inputs(path)) == ["one", " two ", '"3"\0\u2028\x0bx\rtail']


@given(st.lists(st.text(st.characters(codec="utf-8"))))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_csv_is_read_as_python_and_pandas_read_it(tmp_path: Path, texts: list[str]) -> None:
    path = tmp_path / "corpus.csv"
    path.write_bytes(csv_of([{"n": 0, "text": text} for text in ["first", *texts]]))
    found = texts_of(read_inputs(path))
    with path.open(encoding="utf-8", newline="") as file:
        assert found == [row["text"] for row in csv.DictReader(file)]
    assert found == ["first", *texts]
    if not any("\0" in text for text in texts):
        assert found == list(pd.read_csv(path, keep_default_na=False, lineterminator=None).text)


@given(st.lists(st.text(), min_size=1))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_json_is_read_as_python_reads_it(tmp_path: Path, texts: list[str]) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(json_lines([{"text": text} for text in texts]))
    for text, found in zip(texts, read_inputs(path), strict=True):
        # Two surrogates in a row are one character in JSON.
        expected = json.loads(json.dumps(text))
        if any("\ud800" <= character <= "\udfff" for character in expected):
            assert found.text is None
            assert "its text is not valid Unicode at character" in found.reason
        else:
            assert found == InputText(found.text_id, expected)


def test_lines_that_cannot_be_read_say_why_and_stop_nothing(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    lines = [
        b'{"text": "good", "n": 1}\r',
        b"{not json",
        b'"\xff"',
        b"",
        b'"\\ud800"',
        b"3",
        b"null",
        b'{"text": 3, "x": 4}',
        b'{"texts": "x", "y": 1}',
        b"{}",
        b"[" * 100_000,
        b"[1, 2, 3]",
        b'["a"]',
        b'{"text": "\\ud83d\\ude00"}',
        b'{"text": "x", "deep": ' + b"[" * 400 + b"]" * 400 + b"}",
        b'{"text": "x", "big": ' + b"9" * 5000 + b"}",
    ]
    path.write_bytes(b"\n".join(lines))
    found = list(read_inputs(path))
    assert found[0] == InputText(0, "good", metadata='{"n": 1}')
    assert found[10] == InputText(10, input_ids=[1, 2, 3])
    assert found[12] == InputText(12, "😀")
    reasons = {text.text_id: text.reason for text in found if text.reason}
    assert all(text.text is None and text.input_ids is None for text in found if text.reason)
    expected = {
        1: "line 2: expected one JSON object or text: Expecting property name",
        2: "line 3: expected one JSON object or text in UTF-8: 'utf-8' codec can't decode byte",
        3: "line 5: its text is not valid Unicode at character 0, '\\ud800'.",
        4: "line 6: expected a text, a row with 'text' or 'input_ids', or a sequence of ids, not "
        "int 3.",
        5: "line 7: expected a text, a row with 'text' or 'input_ids', or a sequence of ids, not "
        "NoneType None.",
        6: "line 8: expected a text, not int 3.",
        7: "line 9: it has no 'text' and no 'input_ids', only ['texts', 'y'].",
        8: "line 10: it has no 'text' and no 'input_ids', only empty columns.",
        9: "line 11: expected one JSON object or text in UTF-8: maximum recursion depth",
        11: "line 13: expected one sequence of whole token ids in the row, not ['a'].",
        14: "line 16: expected one JSON object or text in UTF-8: Exceeds the limit",
    }
    assert {n: reasons.pop(n)[: len(f"{path}, {say}")] for n, say in expected.items()} == {
        n: f"{path}, {say}" for n, say in expected.items()
    }
    assert all("its other columns cannot be written" in why for why in reasons.values())


def test_rows_of_csv_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    path = tmp_path / "corpus.csv"
    path.write_bytes(
        b'id,text\r\n1,one\r\n\r\n2\r\n3,"thr\r\nee"\r\n4,a,b\r\n5,\xff\r\n6,"x"y\r\n\xfe,7\r\n8,"open\r\n'
    )
    found = list(read_inputs(path))
    assert [text.text for text in found] == ["one", None, "thr\r\nee", None, None, None, "7", None]
    assert [text.reason for text in found if text.reason] == [
        f"{path}, line 4: expected 2 fields, as the header has, not 1.",
        f"{path}, line 7: expected 2 fields, as the header has, not 3.",
        f"{path}, line 8: its text is not valid Unicode at character 0, '\\udcff'.",
        f"{path}, line 9: this is no row of CSV: ',' expected after '\"'.",
        f"{path}, line 11: this is no row of CSV: unexpected end of data.",
    ]
    assert json.loads(found[6].metadata) == {"id": "\N{REPLACEMENT CHARACTER}"}


def test_lines_of_text_that_are_no_utf8_say_so(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"one\n\xff\ntwo")
    one, none, two = read_inputs(path)
    assert (one.text, none.text, two.text) == ("one", None, "two")
    assert none.reason.startswith(f"{path}, line 2: expected a text in UTF-8: 'utf-8' codec")


def test_values_of_tables_that_python_cannot_hold_say_so(tmp_path: Path) -> None:
    bad = pa.Array.from_buffers(
        pa.string(),
        3,
        [None, pa.array([0, 1, 2, 3], pa.int32()).buffers()[1], pa.py_buffer(b"a\xffb")],
    )
    path = tmp_path / "corpus.parquet"
    pq.write_table(pa.table({"text": bad}), path)
    a, none, b = read_inputs(path)
    assert (a.text, b.text) == ("a", "b")
    assert none.reason.startswith(f"{path}, row 2: its columns cannot be read: 'utf-8' codec")


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".txt", ".parquet"])
def test_long_texts_are_read_whole(suffix: str, tmp_path: Path) -> None:
    long = "the dog " * 640_000
    rows = [{"text": "short"}, {"text": long}, {"text": "short"}]
    contents = {
        ".jsonl": json_lines(rows),
        ".csv": csv_of(rows),
        ".txt": "\n".join(row["text"] for row in rows).encode(),
        ".parquet": parquet_of(rows),
    }
    path = tmp_path / f"corpus{suffix}"
    path.write_bytes(contents[suffix])
    assert texts_of(read_inputs(path)) == ["short", long, "short"]


def test_a_file_without_lines_is_no_file_of_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_formats, "_LONGEST_LINE", 1000)
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"a" * 999 + b"\n" + b"b" * 1001)
    read = iter(read_inputs(path))
    assert next(read).text == "a" * 999
    with pytest.raises(FileError, match=r"line 2 has more than 1,000 bytes; is this a file of the"):
        next(read)


def small_rows() -> Iterator[dict]:
    yield {"text": "one", "text_id": 7}
    yield {"text": "two", "text_id": 7}


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame(small_rows()),
        pd.DataFrame(small_rows(), index=["x", "y"]).reset_index(drop=True),
        pl.DataFrame(list(small_rows())),
        pa.Table.from_pylist(list(small_rows())),
        list(small_rows()),
        tuple(small_rows()),
    ],
    ids=lambda table: type(table).__module__.split(".")[0],
)
def test_tables_and_rows_of_python(table: object) -> None:
    one, two = read_inputs(table)
    assert (one.text_id, one.text, json.loads(one.metadata)) == (0, "one", {"text_id": 7})
    assert (two.text_id, two.text, json.loads(two.metadata)) == (1, "two", {"text_id": 7})


@pytest.mark.parametrize("series", [pd.Series(TEXTS), pl.Series(TEXTS), np.array(TEXTS[:2])])
def test_texts_without_columns(series: object) -> None:
    assert texts_of(read_inputs(series)) == TEXTS[: len(series)]


def test_another_column_may_hold_the_texts(tmp_path: Path) -> None:
    rows = [{"text": "not me", "prompt": "me"}]
    (tmp_path / "corpus.jsonl").write_bytes(json_lines(rows))
    for inputs in (
        read_inputs(rows, "prompt"),
        read_inputs(tmp_path, "prompt"),
        read_inputs(pd.DataFrame(rows), "prompt"),
    ):
        assert list(inputs) == [InputText(0, "me", metadata='{"text": "not me"}')]


@pytest.mark.parametrize(
    "ids",
    [[3, 1, 2], (3, 1, 2), np.array([3, 1, 2], np.uint8), torch.tensor([[3, 1, 2]])],
    ids=["list", "tuple", "numpy", "torch"],
)
def test_ids_are_read_from_rows_and_alone(ids: object) -> None:
    alone, row = read_inputs([ids, {"input_ids": ids, "decoder_input_ids": [], "text": "x"}])
    assert alone == InputText(0, input_ids=[3, 1, 2])
    assert row == InputText(1, input_ids=[3, 1, 2], decoder_input_ids=[], metadata='{"text": "x"}')
    assert all(type(token) is int for token in alone.input_ids)


def test_what_a_mask_says_is_padding_is_no_token() -> None:
    row = {
        "input_ids": [0, 5, 6, 0],
        "attention_mask": [0, 1, 1, 0],
        "decoder_input_ids": [7, 0],
        "decoder_attention_mask": [1, 0],
        "labels": [1],
    }
    text, wrong = read_inputs([row, row | {"attention_mask": [1]}])
    assert text == InputText(0, input_ids=[5, 6], decoder_input_ids=[7], metadata='{"labels": [1]}')
    assert wrong.reason == (
        "text 1: the attention mask of input_ids must have one entry per token, 4, not [1]."
    )


@pytest.mark.parametrize(
    "ids", [[0.5], ["a"], [[1, 2], [3]], [[1], [2]], [None], [2**63], [-1, 2**64], [True], "ids", 3]
)
def test_what_are_no_ids_say_so(ids: object) -> None:
    (text,) = read_inputs([{"input_ids": ids}])
    assert text.input_ids is None
    assert "token ids in input_ids, not " in text.reason


def test_a_row_whose_ids_are_missing_has_its_text() -> None:
    rows = [{"text": "x", "input_ids": None, "n": None}, {"text": None, "input_ids": [1]}]
    assert list(read_inputs(rows)) == [
        InputText(0, "x", metadata='{"n": null}'),
        InputText(1, input_ids=[1], metadata='{"text": null}'),
    ]


@pytest.mark.parametrize("text", [math.nan, None, b"bytes", Path("x"), object(), {1, 2}, 3 + 4j])
def test_what_is_no_text_says_so(text: object) -> None:
    for row in (text, {"text": text}):
        (found,) = read_inputs(iter([row]))
        assert found.text is None
        assert found.reason.startswith("text 0: ")


class Picture:
    """Stands for what JSON cannot hold."""


def test_metadata_is_plain_json() -> None:
    values = {
        "nan": math.nan,
        "inf": [-math.inf, 1.5],
        "date": datetime.datetime(2026, 1, 2, 3, 4, 5),
        "stamp": pd.Timestamp("2026-01-02"),
        "nat": pd.NaT,
        "na": pd.NA,
        "delta": datetime.timedelta(seconds=90),
        "bytes": b"\x00\xff",
        "numpy": np.float32(0.5),
        "array": np.array([[1, 2]]),
        "day": np.datetime64("2026-01-02"),
        "torch": torch.tensor([True]),
        "decimal": Decimal("1.10"),
        "uuid": uuid.UUID(int=5),
        "nested": {"a": ("b", {3})},
        7: "seven",
        "lone \ud800": "\ud800 and \ud83d\ude00 '\"\0",
        "picture": Picture(),
        "long": "é" * 5000,
    }
    (found,) = read_inputs([{"text": "x"} | values])
    assert json.loads(found.metadata) == {
        "nan": None,
        "inf": [None, 1.5],
        "date": "2026-01-02T03:04:05",
        "stamp": "2026-01-02T00:00:00",
        "nat": None,
        "na": None,
        "delta": "0:01:30",
        "bytes": "00ff",
        "numpy": 0.5,
        "array": [[1, 2]],
        "day": "2026-01-02",
        "torch": [True],
        "decimal": "1.10",
        "uuid": "00000000-0000-0000-0000-000000000005",
        "nested": {"a": ["b", [3]]},
        "7": "seven",
        "lone \ufffd": "\ufffd and 😀 '\"\0",
        "picture": {"left_out": "Picture"},
        "long": {"left_out": 5002},
    }
    found.metadata.encode()


def test_metadata_is_bounded() -> None:
    row = {"text": "x"} | {f"column {n}": "y" * 4000 for n in range(100)}
    (found,) = read_inputs([row])
    assert found.text == "x"
    assert list(json.loads(found.metadata)) == ["left_out"]
    loop: dict = {"text": "x"}
    loop["loop"] = loop
    (found,) = read_inputs([loop])
    assert "text 0: its other columns cannot be written as JSON" in found.reason


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=12,
)


@given(st.lists(JSONS | st.dictionaries(st.sampled_from(["text", "input_ids", "x"]), JSONS)))
def test_no_row_whatever_it_holds_stops_the_others(rows: list) -> None:
    *found, last = read_inputs(iter([*rows, "last"]))
    assert (len(found), last.text) == (len(rows), "last")
    for text in found:
        assert (text.text is None) + (text.input_ids is None) + (text.reason is None) == 2
        json.loads(text.metadata, parse_constant=pytest.fail)
        for written in (text.text, text.metadata, text.reason):
            (written or "").encode()


def test_files_come_in_the_order_in_which_they_are_named(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / f"{name}.txt").write_text(name)
    files = read_inputs([tmp_path / "c.txt", tmp_path / "a.txt"])
    assert texts_of(files) == ["c", "a"]
    assert files.description == f"{tmp_path / 'c.txt'}, {tmp_path / 'a.txt'}"
    assert texts_of(read_inputs(tmp_path / "*.txt")) == ["a", "b", "c"]
    assert texts_of(read_inputs(str(tmp_path / "[!b].t?t"))) == ["a", "c"]


def test_folders_give_the_files_that_can_be_read(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/deep/er.txt", "README.md", "_log/x.txt", ".cache/y.txt"):
        path = tmp_path / "corpus.v1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "corpus.v1" / "_SUCCESS").touch()
    folder = tmp_path / "corpus.v1"
    assert texts_of(read_inputs(folder)) == ["a/deep/er.txt", "a/z.txt", "b.txt"]
    assert texts_of(read_inputs(f"file://{folder}")) == ["a/deep/er.txt", "a/z.txt", "b.txt"]
    assert texts_of(read_inputs(f"file://{folder}/*/*.txt")) == ["a/z.txt"]
    assert texts_of(read_files([folder / "*.txt", f"{folder}/a/*.txt"])) == ["b.txt", "a/z.txt"]


def test_other_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.txt", "a.txt", "in/c.jsonl.gz"):
        (tmp_path / "bucket" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "bucket" / name).write_bytes(name.encode())
    (tmp_path / "bucket" / "in" / "c.jsonl.gz").write_bytes(gzip.compress(b'"packed"'))
    (tmp_path / "bucket" / "d.parquet").write_bytes(parquet_of([{"text": "column"}]))
    elsewhere = pa.fs.SubTreeFileSystem(str(tmp_path), pa.fs.LocalFileSystem())

    class Remote:
        from_uri = staticmethod(lambda uri: (elsewhere, uri.removeprefix("s3://")))

    monkeypatch.setattr(pa.fs, "FileSystem", Remote)
    assert texts_of(read_inputs("s3://bucket/in/c.jsonl.gz")) == ["packed"]
    assert texts_of(read_inputs("s3://bucket/*.txt")) == ["a.txt", "b.txt"]
    files = read_inputs("s3://bucket")
    assert texts_of(files) == ["a.txt", "b.txt", "column", "packed"]
    assert files.description == "bucket/a.txt, bucket/b.txt, bucket/d.parquet and 1 more"
    with pytest.raises(FileError, match=r"s3://bucket/none: expected a file or folder, but there"):
        read_inputs("s3://bucket/none")


def test_paths_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    Path("in/a*[1].txt").write_text("starred")
    Path("in/ab.txt").write_text("plain")
    assert texts_of(read_inputs("in/ab.txt")) == ["plain"]
    assert texts_of(read_inputs("in/a*.txt")) == ["starred", "plain"]
    assert texts_of(read_inputs(Path("in/a*[1].txt"))) == ["starred"], "a name that is there wins"
    for here in (".", "*/*.txt", "./in/../in"):
        assert texts_of(read_inputs(here)) == ["starred", "plain"]


@pytest.mark.parametrize(
    "text",
    ["The dog chased the cat", "why?", "a\0b", "x" * 5000, "", "\ud800", "/no/such.jsonl", "*"],
)
def test_a_text_alone_must_be_a_path(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError, match="Expected a list of texts, or a path that is there, not"):
        list(read_inputs(text or "?"))


def test_files_that_are_not_there_or_of_no_known_kind(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("a.json", "b.parquet.gz", "c", "d.gz"):
        (tmp_path / name).touch()
    faults = {
        tmp_path / "none.txt": r"none\.txt: expected a file or folder, but there is none\.",
        tmp_path / "empty": r"empty names no file: expected a file with one of the suffixes \.parq",
        tmp_path / "*.csv": r"\*\.csv names no file: expected a file that it matches\.",
        tmp_path / "no" / "*.csv": r"\*\.csv names no file: expected a file that it matches\.",
        tmp_path
        / "a.json": r"a\.json: the suffix must be one of .*with one object a line is named",
        tmp_path / "b.parquet.gz": r"b\.parquet\.gz: the suffix must be one of \.parquet, \.pq",
        tmp_path / "c": r"c: the suffix must be one of .*\.txt \(or one of the last five with \.gz",
        tmp_path / "d.gz": r"d\.gz: the suffix must be one of",
        tmp_path / "*": r"a\.json: the suffix must be one of",
        tmp_path / "a\0b.txt": r"cannot be read: Embedded NUL",
        tmp_path / "\ud800.txt": r"cannot be read: 'utf-8' codec can't encode",
        "nowhere://bucket/x.jsonl": r"nowhere://bucket/x\.jsonl cannot be read: Unrecognized",
        "file:///no such.txt": r"cannot be read: Cannot parse URI",
    }
    for path, fault in faults.items():
        with pytest.raises(FileError, match=fault):
            read_files([path])
    with pytest.raises(FileError, match="at least one file to read texts from, got none"):
        read_files([])


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.jsonl.gz", gzip.compress(os.urandom(9000))[:-4000], "ended before the end-of-stream"),
        ("a.jsonl.gz", b"no gzip", "Not a gzipped file"),
        ("a.csv.bz2", bz2.compress(b"text\nx\n")[:-9], "ended before the end-of-stream"),
        ("a.txt.xz", lzma.compress(b"x\n")[:-9], "ended before the end-of-stream"),
        ("a.txt.xz", b"no xz", "not supported|format"),
        ("a.txt.zst", zstd(b"x\n")[:-1], "Truncated compressed stream"),
        ("a.txt.zst", b"no zstd", "ZSTD decompress failed"),
        ("a.parquet", b"", "Parquet file size is 0 bytes"),
        ("a.parquet", parquet_of(ROWS)[:-20], "Parquet magic bytes not found"),
        ("a.arrow", b"no arrow at all", "cannot be read"),
        ("a.feather", arrow_of(ROWS)[:-20], "cannot be read"),
        ("a.csv", b"a,b\nx,y\n", r"has no column 'text' and none of 'input_ids', only 'a', 'b'"),
        ("a.csv", b"text,text\nx,y\n", "has several columns 'text'; rename all but one"),
        ("a.csv", b'"open', "should be the header, but this is no row of CSV"),
        ("a.parquet", parquet_of([{"a": 1}]), r"has no column 'text' .* say which one holds"),
        ("a.jsonl", b"\n\n", "Expected at least one text, but .* holds none"),
        ("a.csv", b"text\n", "Expected at least one text, but .* holds none"),
        ("a.csv", b"", "Expected at least one text, but .* holds none"),
    ],
)
def test_damaged_and_foreign_files(name: str, content: bytes, fault: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError, match=fault) as caught:
        list(read_inputs(tmp_path / name))
    assert name in str(caught.value)


def test_damage_in_the_middle_is_met_after_what_comes_before_it(tmp_path: Path) -> None:
    content = json_lines([f"{n} {os.urandom(40).hex()}" for n in range(5000)])
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(gzip.compress(content)[:-50_000])
    read = iter(read_inputs(path))
    assert [next(read).text.split()[0] for _ in range(100)] == [str(n) for n in range(100)]
    with pytest.raises(
        FileError, match=r"jsonl\.gz cannot be read: Compressed file ended .* again"
    ):
        list(read)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a.txt").write_text("x")
    inputs = read_inputs(tmp_path / "a.txt")
    monkeypatch.setattr("gattn.surveys.inputs.files.rows_in", refuse)
    with pytest.raises(FileError, match=r"a\.txt cannot be read: Permission denied\. Repair it"):
        list(inputs)


@pytest.mark.parametrize("texts", [None, 3, {"text": ["a"]}, b"bytes"])
def test_what_holds_no_texts(texts: object) -> None:
    with pytest.raises(FileError, match="Expected texts, rows or sequences of ids one after the"):
        read_inputs(texts)


@pytest.mark.parametrize("texts", [[], (), iter([]), pd.DataFrame({"text": []})])
def test_no_texts_at_all(texts: object) -> None:
    with pytest.raises(FileError, match=r"Expected at least one text, but the .* holds none"):
        list(read_inputs(texts))


def test_tables_that_hold_no_texts() -> None:
    with pytest.raises(FileError, match=r"the pandas DataFrame has no column 'text' .* only 'a'"):
        list(read_inputs(pd.DataFrame({"a": ["x"]})))
    mixed = pd.DataFrame({"text": ["x", 3]}, dtype=object)
    with pytest.raises(FileError, match=r"cannot be read as a table: .* frame\.to_dict"):
        list(read_inputs(mixed))
    assert [text.text for text in read_inputs(mixed.to_dict("records"))] == ["x", None]


def test_an_iterator_is_read_once() -> None:
    inputs = read_inputs(text for text in ["a", "b"])
    assert inputs.description == "the generator"
    assert texts_of(inputs) == ["a", "b"]
    with pytest.raises(FileError, match="the generator can be read once only: pass a list"):
        list(inputs)


def test_no_more_is_taken_from_an_iterator_than_is_read() -> None:
    taken = itertools.count()
    assert texts_of(read_inputs(f"{n}" for n in taken).first(3)) == ["0", "1", "2"]
    assert next(taken) == 3


def test_fingerprints_of_files_tell_names_and_sizes(tmp_path: Path) -> None:
    def fingerprint(name: str, content: str, column: str = "text") -> str:
        (tmp_path / name).write_text(content)
        return read_inputs(tmp_path / name, column).fingerprint

    first = fingerprint("a.txt", "xy")
    assert first == fingerprint("a.txt", "xy")
    (tmp_path / "moved").mkdir()
    assert first == fingerprint("moved/a.txt", "xy")
    assert len({first, fingerprint("b.txt", "xy"), fingerprint("a.txt", "xyz")}) == 3
    assert first != fingerprint("a.txt", "xy", "prompt")
    assert first == read_inputs(tmp_path / "a.txt").first(1).fingerprint


def test_fingerprints_of_anything_else_tell_what_it_holds() -> None:
    contents = [
        ["a", "b"],
        ["ab"],
        ["a", "c"],
        [[1]],
        [[2]],
        [{"text": "a", "n": 1}, "b"],
        ["a", None],
    ]
    assert len({read_inputs(content).fingerprint for content in contents}) == len(contents)
    before = read_inputs(["a", "b"]).fingerprint
    inputs = read_inputs(iter(["a", "b"]))
    list(inputs)
    assert inputs.fingerprint == before == read_inputs(["a", "b", "c"]).first(2).fingerprint


@pytest.mark.parametrize("count", [200, 20_000])
def test_rows_are_made_one_at_a_time(count: int) -> None:
    made = 0

    def rows() -> Iterator[str]:
        nonlocal made
        for made in range(1, count + 1):  # noqa: B007
            yield "text"

    for read, _ in enumerate(read_inputs(rows()), 1):
        assert made == read
    assert made == count


def test_a_large_row_group_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    numbers = np.random.default_rng(0)
    texts = [numbers.bytes(500).hex() for _ in range(20_000)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=20_000, use_dictionary=False)
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in read_inputs(path)]
    assert len(held) == 20_000
    assert max(held) < sum(map(len, texts)) / 3


def test_rows_that_cannot_be_read_keep_what_else_they_hold():
    rows = [{"lang": "en", "label": 3}, {"text": "\ud800", "lang": "de"}, {"text": 5, "n": 1}, 7]
    found = list(read_inputs(rows))
    assert all(text.reason for text in found)
    assert [json.loads(text.metadata) for text in found] == [
        {"lang": "en", "label": 3},
        {"lang": "de"},
        {"n": 1},
        {},
    ]


def test_names_of_files_in_a_list_are_not_taken_for_texts(tmp_path):
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path in paths:
        path.write_text("The dog")
    with pytest.raises(FileError, match="are names of files"):
        read_inputs([str(path) for path in paths])
    assert len(list(read_inputs([str(paths[0]), "no file"]))) == 2
