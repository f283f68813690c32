"""The queue of a survey: one file per part that is still to do, removed once it is done."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gattn.checks import whole
from gattn.errors import FileError
from gattn.files.whole_files import sync_folder
from gattn.surveys.inputs.inputs import Inputs, InputText
from gattn.surveys.store.checksums import check_file
from gattn.surveys.store.parts import count_rows, is_part, part_path, write_file

SCHEMA = pa.schema(
    [
        pa.field("text_id", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("input_ids", pa.list_(pa.int64())),
        pa.field("decoder_input_ids", pa.list_(pa.int64())),
        pa.field("metadata", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
    ]
)
MOST_TEXTS = 64
MOST_CHARACTERS, LEAST_CHARACTERS = 65_536, 4_096
_CHARACTERS_BY_HEADS = 1 << 22
"""Characters per part times heads: about ten million edges kept by the default `Threshold`."""
CHARACTERS_PER_ID = 4
FOLDER = "inputs"
_UNNAMED = f"{FOLDER}.part"


class Queued(NamedTuple):
    """What `fill` wrote: how many texts, and the fingerprint of the inputs."""

    num_texts: int
    fingerprint: str


def characters_of_a_part(num_heads: int | None) -> int:
    """Choose the most characters per part for a model with `num_heads` heads in all layers.

    Parts then take about the same memory and disk space, whatever the model.
    """
    fair = _CHARACTERS_BY_HEADS // max(num_heads or 1, 1)
    return min(max(fair, LEAST_CHARACTERS), MOST_CHARACTERS)


def cut(
    texts: Iterable[InputText], most_characters: int = MOST_CHARACTERS
) -> Iterator[list[InputText]]:
    """Cut texts into parts, each as long as allowed.

    A part has at most 64 texts and `most_characters` characters, where a token id counts as four; a
    longer text is a part by itself.
    """
    part: list[InputText] = []
    room = most_characters
    for text in texts:
        room -= _length(text)
        if part and (room < 0 or len(part) == MOST_TEXTS):
            yield part
            part, room = [], most_characters - _length(text)
        part.append(text)
    if part:
        yield part


def fill(
    folder: Path,
    inputs: Inputs,
    *,
    limit: int | None = None,
    sample: int | None = None,
    seed: int = 0,
    most_characters: int = MOST_CHARACTERS,
) -> Queued:
    """Write the queue of a survey, completely or not at all; it replaces an earlier one.

    Parameters
    ----------
    folder : Path
        The survey's folder, created if needed.
    inputs : Inputs
        What to read.
    limit : int, optional
        Take only the first texts.
    sample : int, optional
        Of these, draw so many at random, without replacement; they keep their order and `text_id`.
        This reads the inputs twice.
    seed : int
        The random seed of the sample.
    most_characters : int
        The length of a part, as in `cut`.
    """
    limit, sample = at_least_one("limit", limit), at_least_one("sample", sample)
    inputs = inputs.first(limit)
    texts = iter(inputs) if sample is None else _sampled(inputs, sample, seed)
    unnamed = folder / _UNNAMED
    with _writing(folder):
        shutil.rmtree(unnamed, ignore_errors=True)
        unnamed.mkdir(parents=True)
    try:
        num_texts = _write(folder, cut(texts, most_characters))
        with _writing(folder):
            shutil.rmtree(folder / FOLDER, ignore_errors=True)
            sync_folder(unnamed)
            unnamed.rename(folder / FOLDER)
            sync_folder(folder)
    finally:
        shutil.rmtree(unnamed, ignore_errors=True)
    return Queued(num_texts, inputs.fingerprint)


def parts(folder: Path) -> list[int]:
    """List the parts that are still to do in order, by the numbers of their first texts."""
    return sorted(int(path.stem) for path in (folder / FOLDER).glob("*.parquet") if is_part(path))


def read(folder: Path, first: int) -> pa.Table:
    """Read the texts of a part."""
    path = part_path(folder, FOLDER, first)
    try:
        check_file(path)
        return pq.ParquetFile(path).read()
    except FileNotFoundError as error:
        raise FileError(f"{path} does not exist: expected a part that is still to do.") from error
    except (pa.ArrowException, OSError) as error:
        raise FileError(
            f"{path} cannot be read ({error}); start a new survey of the same texts in another "
            "folder."
        ) from error


def count(folder: Path, first: int) -> int:
    """Count the texts of a part; raises the errors of `read_rows`."""
    return count_rows(part_path(folder, FOLDER, first))


def done(folder: Path, first: int) -> None:
    """Remove a part from the queue, if it is there."""
    part_path(folder, FOLDER, first).unlink(missing_ok=True)


def _length(text: InputText) -> int:
    ids = len(text.input_ids or ()) + len(text.decoder_input_ids or ())
    return len(text.text or "") + CHARACTERS_PER_ID * ids


def _sampled(inputs: Inputs, sample: int, seed: int) -> Iterator[InputText]:
    if inputs.walks_once:
        raise FileError(
            f"A sample counts all texts first, but {inputs.description} can be read only once: "
            "pass a list of texts, or files."
        )
    count = sum(1 for _ in inputs)
    if sample > count:
        raise FileError(f"A sample of {sample:,} needs more texts than the {count:,} there are.")
    drawn = np.random.default_rng(seed).choice(count, sample, replace=False, shuffle=False)
    wanted = iter(np.sort(drawn).tolist())
    return _picked(inputs, wanted)


def _picked(inputs: Inputs, wanted: Iterator[int]) -> Iterator[InputText]:
    text_id = next(wanted, None)
    for text in inputs:
        if text.text_id == text_id:
            yield text
            text_id = next(wanted, None)


def _write(folder: Path, cut_texts: Iterable[list[InputText]]) -> int:
    num_texts, first_fault, has_text = 0, None, False
    for part in cut_texts:
        with _writing(folder):
            _write_part(part_path(folder, _UNNAMED, part[0].text_id), part)
        num_texts += len(part)
        has_text = has_text or any(text.reason is None for text in part)
        first_fault = first_fault or next((text.reason for text in part if text.reason), None)
    if not has_text:
        raise FileError(f"None of the {num_texts:,} texts can be read. The first: {first_fault}")
    return num_texts


def _write_part(path: Path, part: Sequence[InputText]) -> None:
    columns = {name: [getattr(text, name) for text in part] for name in SCHEMA.names}
    write_file(pa.table(columns, SCHEMA), path)
    with path.open("rb+") as file:
        os.fsync(file.fileno())


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileError(
            f"The texts cannot be written to {folder}: {error}. Make room or choose another "
            "folder, and run again."
        ) from error


def at_least_one(name: str, count: int | None) -> int | None:
    """Check a number of texts; None for all."""
    return None if count is None else whole(name, count, 1, FileError)
