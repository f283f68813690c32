"""Names tokens by their texts, and finds which of them make a word."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from gattn.checks import warn
from gattn.names.pieces import from_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_SHOWN = 3

Words: TypeAlias = tuple[int | None, ...]

_SPACES = ("Ġ", "▁")


def names_of(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase | None) -> tuple[str, ...]:
    """Name tokens by their texts, or without a tokenizer by their ids.

    An id that the tokenizer does not have is named like ``<17>``.
    """
    if tokenizer is None:
        return tuple(str(i) for i in ids)
    return _named(ids, _written(ids, tokenizer), tokenizer)


def entries_of(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase | None) -> list[str]:
    """Name tokens of the vocabulary, with the space that begins a word."""
    names = names_of(ids, tokenizer)
    if tokenizer is None:
        return list(names)
    raw = tokenizer.convert_ids_to_tokens(list(ids))
    return [
        f" {name.lstrip(' ')}" if (one or "").startswith(_SPACES) and len(one) > 1 else name
        for one, name in zip(raw, names, strict=True)
    ]


def names_of_run(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase | None) -> tuple[str, ...]:
    """Name the tokens that a model was given; warn if a tokenizer cannot have made these ids."""
    if tokenizer is None:
        return names_of(ids, tokenizer)
    written = _written(ids, tokenizer)
    _warn_of_unknown(ids, written, tokenizer)
    return _named(ids, written, tokenizer)


def warn_of_unknown(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase | None) -> None:
    """Warn if a tokenizer cannot have made the ids that a model is given."""
    if tokenizer is not None:
        _warn_of_unknown(ids, _written(ids, tokenizer), tokenizer)


def _warn_of_unknown(
    ids: Sequence[int], written: Sequence[str | None], tokenizer: PreTrainedTokenizerBase
) -> None:
    lost = [i for i, token in zip(ids, written, strict=True) if token is None]
    if not lost:
        return
    numbers = sorted(set(lost))
    some = ", ".join(map(str, numbers[:_SHOWN])) + " ..." * (len(numbers) > _SHOWN)
    warn(
        f"The tokenizer has {len(tokenizer):,} tokens, but none with the ids {some} that the model "
        "is given: it is probably that of another model, and then other tokens have wrong names, "
        "too. Pass the tokenizer that made these ids, or name tokens by tokens=."
    )


def _written(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str | None]:
    """Return how a tokenizer writes ids; None for those that it does not have.

    Many write what they do not have as the unknown token, which has an id of its own.
    """
    tokens: list[str | None] = list(tokenizer.convert_ids_to_tokens(list(ids)))
    unknown, its_id = tokenizer.unk_token, tokenizer.unk_token_id
    return [
        None if not token or (token == unknown and i != its_id) else token
        for i, token in zip(ids, tokens, strict=True)
    ]


def _named(
    ids: Sequence[int], written: Sequence[str | None], tokenizer: PreTrainedTokenizerBase
) -> tuple[str, ...]:
    special = set(tokenizer.all_special_ids)
    texts = {token: _readable(token, tokenizer) for token in set(written) if token is not None}
    return tuple(
        f"<{i}>" if token is None else token if i in special else texts[token]
        for i, token in zip(ids, written, strict=True)
    )


def spellings_of(
    ids: Sequence[int], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[str], list[str]]:
    """Return a tokenizer's names of tokens: as it writes them, and with spaces for its marks."""
    raw = [token or f"<{i}>" for i, token in zip(ids, _written(ids, tokenizer), strict=True)]
    return raw, [token.replace("Ġ", " ").replace("▁", " ") for token in raw]


def _readable(token: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """Decode one token, without the space before it; parts of characters read ``<0xE7>``."""
    text = tokenizer.convert_tokens_to_string([token])
    if "\N{REPLACEMENT CHARACTER}" in text and all(c in _BYTES for c in token):
        text = from_bytes(bytes(_BYTES[c] for c in token))
    return trimmed(text) or token


def _byte_alphabet() -> dict[str, int]:
    """Return byte-level BPE's alphabet: printable bytes as themselves, others from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    shown = {chr(byte): byte for byte in printable}
    return shown | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def trimmed(text: str) -> str:
    """Strip spaces, unless there is nothing else."""
    return text.strip(" ") or text


def words_of(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase | None) -> Words:
    """Return the number of each token id's word, None for special tokens; () if not certain.

    Between special tokens the ids are decoded; if that text encodes to the same ids again, its
    words are theirs.
    """
    if tokenizer is None or not tokenizer.is_fast:
        return ()
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    words: list[int | None] = []
    first = 0
    for is_special, some in groupby(ids, lambda i: i in special):
        part = list(some)
        found = [None] * len(part) if is_special else _words_between(part, tokenizer)
        if found is None:
            return ()
        words += [None if word is None else first + word for word in found]
        first += 1 + max((word for word in found if word is not None), default=-1)
    return tuple(words)


def _words_between(
    ids: list[int], tokenizer: PreTrainedTokenizerBase
) -> Sequence[int | None] | None:
    text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    again = tokenizer(text, add_special_tokens=False, verbose=False)
    return again.word_ids(0) if again["input_ids"] == ids else None


def words_of_run(
    ids: Sequence[int], generated: int, tokenizer: PreTrainedTokenizerBase | None
) -> Words:
    """Return the words of a prompt and of what was generated; if need be, only of the prompt."""
    words = words_of(ids, tokenizer)
    if words or not generated:
        return words
    words = words_of(ids[:-generated], tokenizer)
    return words + (None,) * generated if words else ()
