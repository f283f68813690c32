"""Parts of a survey: the rows of consecutive texts, one file in each of its folders.

A part is named after its first text. Its files get their names only once they are complete, the one
in ``texts/`` last: a part is in the survey if and only if that file exists.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gattn.errors import FileError
from gattn.files.whole_files import UNNAMED, replacing
from gattn.surveys.store.checksums import check_file, sign
from gattn.surveys.store.schemas import LISTS

FOLDERS = ("texts", *LISTS, "failures")
_MARK = "texts"
_NAME = re.compile(r"\d{9,}\.parquet")
_ROWS = 1 << 18
"""The rows per row group: few enough to find one graph quickly, enough to compress well."""


def part_path(folder: Path, table: str, first: int) -> Path:
    """Return the file in which a table has the part that begins with text `first`."""
    return folder / table / f"{first:09d}.parquet"


def write_part(folder: Path, first: int, tables: Mapping[str, pa.Table]) -> None:
    """Write a part, which is in the survey once this returns and not before."""
    names = sorted(tables, key=lambda name: name == _MARK)
    try:
        for name in set(FOLDERS) - set(names):  # An earlier attempt may have had other failures.
            part_path(folder, name, first).unlink(missing_ok=True)
        for name in names:
            path = part_path(folder, name, first)
            path.parent.mkdir(exist_ok=True)
            with replacing(path) as unnamed:
                write_file(tables[name], unnamed, **_packing(tables[name]))
    except BaseException:
        if not part_path(folder, _MARK, first).exists():
            for name in names:
                part_path(folder, name, first).unlink(missing_ok=True)
        raise


def write_file(table: pa.Table, path: Path, **packing: Any) -> None:
    """Write a table, with the checksum that `read_rows` verifies.

    Its pages have checksums too, for other readers.
    """
    options = {"compression": "zstd", "write_page_checksum": True} | packing
    pq.write_table(table, path, row_group_size=_ROWS, **options)
    sign(path)


def _packing(table: pa.Table) -> dict[str, Any]:
    """Choose the encoding of each column, so that similar neighbours take little room."""
    kinds = {field.name: field.type for field in table.schema}
    numbers = [name for name, kind in kinds.items() if pa.types.is_floating(kind)]
    texts = [name for name, kind in kinds.items() if pa.types.is_string(kind)]
    whole = [name for name in kinds if name not in numbers and name not in texts]
    encoding = dict.fromkeys(numbers, "BYTE_STREAM_SPLIT")
    encoding |= dict.fromkeys(whole, "DELTA_BINARY_PACKED")
    return {
        "compression_level": 3,
        "use_dictionary": texts,
        "column_encoding": encoding,
        "store_schema": False,
    }


def parts_in(folder: Path) -> list[int]:
    """List the parts of a survey in order, by the numbers of their first texts."""
    paths = list((folder / _MARK).glob("*.parquet"))
    if strangers := [path for path in paths if not is_part(path)]:
        raise FileError(f"{min(strangers)} is not part of a survey: move it elsewhere.")
    return sorted(int(path.stem) for path in paths)


def part_of(parts: list[int], text_id: int) -> int | None:
    """Return which part a text must be in, if it is in the survey at all."""
    place = bisect_right(parts, text_id)
    return parts[place - 1] if place else None


def remove_leftovers(folder: Path) -> None:
    """Remove the files of parts that an interrupted run did not finish."""
    known = set(parts_in(folder))
    for path in folder.glob(f"{UNNAMED}*.part"):
        path.unlink()
    for table in FOLDERS:
        for path in (folder / table).glob(f"{UNNAMED}*.part"):
            path.unlink()
        for path in (folder / table).glob("*.parquet"):
            if is_part(path) and int(path.stem) not in known:
                path.unlink()


def is_part(path: Path) -> bool:
    """Return whether a file is named like a part."""
    return bool(_NAME.fullmatch(path.name))


def has_texts(folder: Path) -> bool:
    """Return whether any text of a survey was captured."""
    return any(count_rows(part_path(folder, _MARK, first)) for first in parts_in(folder))


def count_texts(folder: Path) -> int:
    """Count the texts in a survey, including those that failed."""
    paths = [part_path(folder, name, n) for n in parts_in(folder) for name in (_MARK, "failures")]
    return sum(count_rows(path) for path in paths if path.exists())


def read_rows(path: Path, **options: Any) -> pa.Table:
    """Read a file of a survey, after verifying its checksum."""
    with reading(path):
        check_file(path)
        return pq.read_table(path, partitioning=None, **options)


def count_rows(path: Path) -> int:
    """Count the rows of a file from its footer; raises the errors of `read_rows`."""
    with reading(path):
        check_file(path)
        return int(pq.read_metadata(path).num_rows)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Report a file that cannot be read, and what to do."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise FileError(
            f"{path} cannot be read ({error}); remove the file of this name from texts/, or write "
            "the survey again."
        ) from error
