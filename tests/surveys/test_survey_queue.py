"""The queue of a survey: what is still to do, on the disk."""

import errno
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gattn.errors import FileError
from gattn.surveys.inputs.inputs import InputText, read_inputs
from gattn.surveys.store import queue
from gattn.surveys.store.queue import (
    SCHEMA,
    Queued,
    characters_of_a_part,
    cut,
    done,
    fill,
    parts,
    read,
)

ROWS = [
    "The dog",
    "",
    "a\0b\n'; drop table heads; --",
    {"text": "😀", "n": 1, "text_id": 5},
    [3, 1, 2],
    {"input_ids": [7], "decoder_input_ids": [8, 9]},
    {"input_ids": []},
    "\ud800",
    "The dog",
]


def text_ids(folder: Path) -> list[int]:
    tables = [read(folder, first) for first in parts(folder)]
    return [n for table in tables for n in table["text_id"].to_pylist()]


def length(text: InputText) -> int:
    return len(text.text or "") + 4 * (
        len(text.input_ids or ()) + len(text.decoder_input_ids or ())
    )


def text_of(size: int, kind: int) -> InputText:
    ids = [0] * (size // 4)
    return [
        InputText(0, "x" * size),
        InputText(0, input_ids=ids),
        InputText(0, input_ids=ids[::2], decoder_input_ids=ids[1::2]),
        InputText(0, reason="why"),
    ][kind]


SIZES = st.integers(0, 40) | st.integers(0, 80_000) | st.sampled_from([65_535, 65_536, 65_537])


@given(st.lists(st.builds(text_of, SIZES, st.integers(0, 3)), max_size=200))
def test_parts_are_as_long_as_they_may_be(texts: list[InputText]) -> None:
    found = list(cut(iter(texts)))
    assert [text for part in found for text in part] == texts
    for part in found:
        assert 1 <= len(part) <= 64
        assert len(part) == 1 or sum(map(length, part)) <= 65_536
    for part, after in pairwise(found):
        assert len(part) == 64 or sum(map(length, [*part, after[0]])) > 65_536


@pytest.mark.parametrize(
    ("texts", "sizes"),
    [
        (["x"] * 65, [64, 1]),
        (["x" * 32_768] * 3, [2, 1]),
        ([[0] * 8_192] * 3, [2, 1]),
        ([[0] * 8_192, "x" * 32_768, ""], [3]),
        (["", "x" * 65_537, "", ""], [1, 1, 2]),
        (["x" * 5_000_000], [1]),
    ],
)
def test_where_parts_end(texts: list, sizes: list[int]) -> None:
    assert [len(part) for part in cut(read_inputs(texts))] == sizes


def test_what_is_queued_comes_back_as_it_was(tmp_path: Path) -> None:
    inputs = read_inputs(ROWS)
    assert fill(tmp_path / "new" / "survey", inputs) == Queued(9, inputs.fingerprint)
    assert sorted(os.listdir(tmp_path / "new" / "survey")) == ["inputs"]
    assert parts(tmp_path / "new" / "survey") == [0]
    table = read(tmp_path / "new" / "survey", 0)
    assert table.schema.equals(SCHEMA)
    assert [InputText(**row) for row in table.to_pylist()] == list(inputs)
    path = tmp_path / "new" / "survey" / "inputs" / "000000000.parquet"
    assert pq.ParquetFile(path).metadata.row_group(0).column(1).compression == "ZSTD"


def test_parts_are_named_by_their_first_text_and_go_when_done(tmp_path: Path) -> None:
    fill(tmp_path, read_inputs(map(str, range(200))))
    assert parts(tmp_path) == [0, 64, 128, 192]
    names = ["000000000", "000000064", "000000128", "000000192"]
    assert sorted(path.stem for path in (tmp_path / "inputs").iterdir()) == names
    assert read(tmp_path, 128)["text"].to_pylist() == [str(n) for n in range(128, 192)]
    done(tmp_path, 64)
    done(tmp_path, 64)
    assert parts(tmp_path) == [0, 128, 192]
    with pytest.raises(
        FileError, match=r"000000064\.parquet does not exist: expected a part that is"
    ):
        read(tmp_path, 64)
    for first in parts(tmp_path):
        done(tmp_path, first)
    assert parts(tmp_path) == []


def test_parts_are_in_the_order_of_numbers_not_of_names(tmp_path: Path) -> None:
    (tmp_path / "inputs").mkdir()
    for first in (2_000_000_000, 64, 999_999_999):
        (tmp_path / "inputs" / f"{first:09d}.parquet").touch()
    assert parts(tmp_path) == [64, 999_999_999, 2_000_000_000]


def test_a_folder_without_a_queue_has_nothing_to_do(tmp_path: Path) -> None:
    assert parts(tmp_path / "none") == []


def test_folders_that_look_like_columns_add_none(tmp_path: Path) -> None:
    folder = tmp_path / "model=gpt2"
    fill(folder, read_inputs(["x"]))
    assert read(folder, 0).column_names == SCHEMA.names


@pytest.mark.parametrize("limit", [1, 64, 65, 200, 1000])
def test_a_limit_takes_the_first_texts(limit: int, tmp_path: Path) -> None:
    queued = fill(tmp_path, read_inputs(map(str, range(200))), limit=limit)
    assert queued.num_texts == min(limit, 200)
    assert text_ids(tmp_path) == list(range(min(limit, 200)))


def test_a_sample_is_drawn_once_each_and_keeps_order_and_numbers(tmp_path: Path) -> None:
    inputs = read_inputs([str(n) for n in range(1000)])
    queued = fill(tmp_path, inputs, sample=100, seed=3)
    assert queued == Queued(100, inputs.fingerprint)
    drawn = text_ids(tmp_path)
    assert drawn == sorted(set(drawn))
    assert len(drawn) == 100
    tables = pa.concat_tables(read(tmp_path, first) for first in parts(tmp_path))
    assert tables["text"].to_pylist() == [str(n) for n in drawn]
    assert parts(tmp_path) == [drawn[0], drawn[64]]

    fill(tmp_path, inputs, sample=100, seed=3)
    assert text_ids(tmp_path) == drawn
    fill(tmp_path, inputs, sample=100, seed=4)
    assert text_ids(tmp_path) != drawn


def test_samples_are_fair(tmp_path: Path) -> None:
    inputs = read_inputs([str(n) for n in range(10)])
    counts = np.zeros(10)
    for seed in range(300):
        fill(tmp_path, inputs, sample=3, seed=seed)
        counts[text_ids(tmp_path)] += 1
    # Each is drawn with chance 0.3: 90 times, with a standard deviation of 7.9.
    assert np.all(np.abs(counts - 90) < 4.5 * 7.9)


def test_a_sample_of_the_first_texts(tmp_path: Path) -> None:
    fill(tmp_path, read_inputs([str(n) for n in range(1000)]), limit=20, sample=20)
    assert text_ids(tmp_path) == list(range(20))
    fill(tmp_path, read_inputs([str(n) for n in range(1000)]), limit=np.int64(20))
    assert text_ids(tmp_path) == list(range(20))


def test_samples_that_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="A sample of 4 needs more texts than the 3 there are"):
        fill(tmp_path, read_inputs(["a", "b", "c"]), sample=4)
    with pytest.raises(
        FileError, match="the generator can be read only once: pass a list of texts"
    ):
        fill(tmp_path, read_inputs(text for text in "abc"), sample=2)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["limit", "sample"])
@pytest.mark.parametrize("count", [0, -1, 2.0, True, "3"])
def test_counts_are_whole_and_not_zero(name: str, count: object, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=f"{name} must be a whole number ≥ 1, not {count!r}"):
        fill(tmp_path, read_inputs(["a"]), **{name: count})


@pytest.mark.parametrize("count", [200, 20_000])
def test_at_most_one_part_and_a_text_are_in_memory(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = written = most = 0

    def texts() -> Iterator[str]:
        nonlocal made, most
        for made in range(1, count + 1):
            most = max(most, made - written)
            yield "text"

    def written_part(path: Path, part: list[InputText]) -> None:
        nonlocal written
        written += len(part)

    monkeypatch.setattr(queue, "_write_part", written_part)
    assert fill(tmp_path, read_inputs(texts())).num_texts == count == made == written
    assert most == 65


def test_an_earlier_queue_is_replaced(tmp_path: Path) -> None:
    fill(tmp_path, read_inputs(map(str, range(200))))
    (tmp_path / "inputs.part").mkdir()
    (tmp_path / "inputs.part" / "000000999.parquet").touch()
    fill(tmp_path, read_inputs(["x"]))
    assert parts(tmp_path) == [0]
    assert os.listdir(tmp_path) == ["inputs"]


def test_a_queue_is_there_wholly_or_not_at_all(tmp_path: Path) -> None:
    def texts() -> Iterator[str]:
        yield from map(str, range(150))
        assert len(list((tmp_path / "inputs.part").iterdir())) == 2
        raise ZeroDivisionError("the caller's own fault")

    with pytest.raises(ZeroDivisionError, match="the caller's own"):
        fill(tmp_path, read_inputs(texts()))
    assert os.listdir(tmp_path) == []


def test_a_process_that_is_killed_leaves_no_queue(tmp_path: Path) -> None:
    code = """
        import os, signal, sys
        from pathlib import Path
        from gattn.surveys.inputs.inputs import read_inputs
        from gattn.surveys.store.queue import fill

        def texts():
            yield from map(str, range(150))
            os.kill(os.getpid(), signal.SIGKILL)

        fill(Path(sys.argv[1]), read_inputs(texts()))
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code), tmp_path], check=False)
    assert run.returncode == -9
    assert os.listdir(tmp_path) == ["inputs.part"]
    assert parts(tmp_path) == []
    fill(tmp_path, read_inputs(["x"]))
    assert os.listdir(tmp_path) == ["inputs"]


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(queue.pq, "write_table", full)
    with pytest.raises(
        FileError, match=r"cannot be written to .*No space left on device.* Make room"
    ):
        fill(tmp_path, read_inputs(["x"]))
    assert os.listdir(tmp_path) == [], "what was written makes room again"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=r"The texts cannot be written to .*choose another folder"):
        fill(tmp_path / "file" / "survey", read_inputs(["x"]))


def test_texts_none_of_which_can_be_read(tmp_path: Path) -> None:
    rows = [{"prompt": "x"}, {"prompt": "y"}]
    fault = (
        "None of the 2 texts can be read. The first: text 0: it has no 'text' and no 'input_ids'"
    )
    with pytest.raises(FileError, match=re.escape(fault)):
        fill(tmp_path, read_inputs(rows))
    assert os.listdir(tmp_path) == []
    assert fill(tmp_path, read_inputs([*rows, "z"])).num_texts == 3


def test_a_damaged_part_says_so(tmp_path: Path) -> None:
    fill(tmp_path, read_inputs(["x"]))
    (tmp_path / "inputs" / "000000000.parquet").write_bytes(b"PAR1 or not")
    with pytest.raises(FileError, match=r"000000000\.parquet cannot be read .* in another folder"):
        read(tmp_path, 0)


@given(text=st.text(st.characters(codec="utf-8")), name=st.text(st.characters(codec="utf-8")))
def test_any_text_fits_the_table(text: str, name: str) -> None:
    columns = {
        field: [getattr(found, field) for found in read_inputs([{"text": text, name + "!": text}])]
        for field in SCHEMA.names
    }
    assert pa.table(columns, SCHEMA)["text"].to_pylist() == [text]


def test_parts_of_models_with_many_heads_are_shorter(tmp_path):
    assert characters_of_a_part(4 * 4) == characters_of_a_part(None) == 65_536
    assert 12 * 12 * characters_of_a_part(12 * 12) == pytest.approx(2**22, rel=1e-3)
    assert characters_of_a_part(100 * 100) == 4_096
    texts = ["x" * 1000] * 20
    fill(tmp_path, read_inputs(texts), most_characters=characters_of_a_part(32 * 32))
    assert [len(read(tmp_path, first)) for first in parts(tmp_path)] == [4] * 5
