"""Names tokens by their texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gattn.names.pieces import from_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def names_of(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase | None) -> tuple[str, ...]:
    """Name tokens by their texts, or without a tokenizer by their ids."""
    if tokenizer is None:
        return tuple(str(i) for i in ids)
    raw: list[str] = [tokenizer.convert_ids_to_tokens([i])[0] or f"<{i}>" for i in ids]
    special = set(tokenizer.all_special_ids)
    return tuple(
        token if i in special else _readable(token, tokenizer)
        for i, token in zip(ids, raw, strict=True)
    )


def spellings_of(
    ids: Sequence[int], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[str], list[str]]:
    """Give what a tokenizer calls tokens: as it writes them, and with spaces for its marks."""
    raw: list[str] = [tokenizer.convert_ids_to_tokens([i])[0] or f"<{i}>" for i in ids]
    return raw, [token.replace("Ġ", " ").replace("▁", " ") for token in raw]


def _readable(token: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """Decode one token, without the space before it; parts of characters read ``<0xE7>``."""
    text = tokenizer.convert_tokens_to_string([token])
    if "\N{REPLACEMENT CHARACTER}" in text and all(c in _BYTES for c in token):
        text = from_bytes(bytes(_BYTES[c] for c in token))
    return trimmed(text) or token


def _byte_alphabet() -> dict[str, int]:
    """Read byte-level BPE's alphabet: bytes that print stand for themselves, others from U+0100."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    shown = {chr(byte): byte for byte in printable}
    return shown | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def trimmed(text: str) -> str:
    """Take off spaces, unless there is nothing else."""
    return text.strip(" ") or text
