"""Finds which tokens make a word, where no text is known: ids are decoded and encoded again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Words: TypeAlias = tuple[int | None, ...]


def words_of(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase | None) -> Words:
    """Give the word of each token id, None of special ones; nothing where that is not certain.

    Between special tokens the ids are decoded; where that text encodes to these ids again, its
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
    """Give the words of a prompt and what was generated; where need be, of the prompt alone."""
    words = words_of(ids, tokenizer)
    if words or not generated:
        return words
    words = words_of(ids[:-generated], tokenizer)
    return words + (None,) * generated if words else ()
