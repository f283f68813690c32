"""One row of a survey's input, as it comes: its text or its ids, and what else it holds."""

from __future__ import annotations

import datetime
import json
import math
import reprlib
from collections.abc import Mapping, Sequence, Set
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np

_LONGEST_VALUE = 4_096
_LONGEST_METADATA = 65_536
_COLUMNS_OF_IDS = {
    "input_ids",
    "attention_mask",
    "decoder_input_ids",
    "decoder_attention_mask",
}


class Row(NamedTuple):
    """What a row says, in the order in which an `InputText` has it."""

    text: str | None = None
    input_ids: Sequence[int] | None = None
    decoder_input_ids: Sequence[int] | None = None
    metadata: str = "{}"


class RowError(ValueError):
    """Why a row cannot be read."""


def row_of(value: Any, column: str) -> Row:
    """Read a text, a row with a text or ids, or a sequence of ids.

    Raises
    ------
    RowError
        Where it is none of these, or what it holds cannot be used.
    """
    if isinstance(value, str):
        return Row(text=_text(value))
    if isinstance(value, Mapping):
        return _row(value, column)
    if not _array(value, "the row").ndim:
        raise RowError(
            f"expected a text, a row with {column!r} or 'input_ids', or a sequence of ids, not "
            f"{type(value).__name__} {_short(value)}"
        )
    return Row(input_ids=_ids(value, None, "the row"))


def metadata_of(value: Any, column: str) -> str:
    """Write what a row that cannot be read holds beside its text, as far as that can be."""
    if not isinstance(value, Mapping):
        return "{}"
    try:
        return _metadata(value, {column, *_COLUMNS_OF_IDS})
    except RowError:
        return "{}"


def _row(row: Mapping[Any, Any], column: str) -> Row:
    rest = {name: value for name, value in row.items() if value is not None}
    if "input_ids" not in rest:
        if column not in rest:
            raise RowError(f"it has no {column!r} and no 'input_ids', only {_names(rest)}")
        return Row(text=_text(rest[column]), metadata=_metadata(row, {column, "input_ids"}))
    ids = _ids(rest["input_ids"], rest.get("attention_mask"), "input_ids")
    decoder_ids = None
    if "decoder_input_ids" in rest:
        mask = rest.get("decoder_attention_mask")
        decoder_ids = _ids(rest["decoder_input_ids"], mask, "decoder_input_ids")
    return Row(None, ids, decoder_ids, _metadata(row, _COLUMNS_OF_IDS))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise RowError(f"expected a text, not {type(value).__name__} {_short(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RowError(
            f"its text is not valid Unicode at character {error.start}, {value[error.start]!r}"
        ) from error
    return str(value)


def _ids(value: Any, mask: Any, name: str) -> list[int]:
    """Read ids, without those that an attention mask says are padding."""
    ids = _array(value, name)
    if not ids.size:
        ids = ids.reshape(-1).astype(np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or (ids.size and ids.max() >= 2**63):
        raise RowError(f"expected one sequence of whole token ids in {name}, not {_short(value)}")
    if mask is not None:
        is_real = _array(mask, f"the attention mask of {name}")
        if is_real.shape != ids.shape:
            raise RowError(
                f"the attention mask of {name} must have one entry per token, {len(ids)}, not "
                f"{_short(mask)}"
            )
        ids = ids[is_real.astype(bool)]
    found: list[int] = ids.tolist()
    return found


def _array(value: Any, name: str) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(value)
        return array[0] if array.ndim == 2 and len(array) == 1 else array
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise RowError(f"expected token ids in {name}, not {_short(value)}") from error


def _metadata(row: Mapping[Any, Any], read: set[str]) -> str:
    """Write what else a row holds as one JSON object."""
    try:
        values = (
            f"{_json(str(name))}: {_bounded(_json(value), _LONGEST_VALUE)}"
            for name, value in row.items()
            if name not in read
        )
        return _bounded(f"{{{', '.join(values)}}}", _LONGEST_METADATA)
    except (RecursionError, ValueError) as error:
        raise RowError(f"its other columns cannot be written as JSON: {error}") from error


def _bounded(text: str, longest: int) -> str:
    return text if len(text) <= longest else f'{{"left_out": {len(text)}}}'


def _json(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """Turn a value into one that JSON has; what it cannot be turned into says what it was."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return _valid(value)
    if isinstance(value, Mapping):
        return {_valid(str(name)): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | Set):
        return [_plain(part) for part in value]
    return _plain_of_kind(value)


def _plain_of_kind(value: Any) -> Any:
    kind = type(value).__name__
    if kind in {"NAType", "NaTType"}:
        return None
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, datetime.timedelta | Decimal | UUID):
        return str(value)
    return {"left_out": kind}


def _valid(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _names(row: Mapping[Any, Any]) -> str:
    return reprlib.repr(list(row)) if row else "empty columns"


def _short(value: Any) -> str:
    return _valid(reprlib.repr(value))
