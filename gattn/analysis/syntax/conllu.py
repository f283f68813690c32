"""Reads dependency trees from CoNLL-U, the format of Universal Dependencies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from gattn.errors import FileError

_FIELDS = 10
_EMPTY_NODE = re.compile(r"\d+\.\d+")


@dataclass(frozen=True)
class Sentence:
    """A sentence with its dependency tree.

    Parameters
    ----------
    text : str
        The text.
    words : tuple of str
        Its syntactic words; a contraction such as "don't" may be two.
    heads : tuple of int or None
        The word on which each word depends, counted from 0; None for a root.
    relations : tuple of str
        The relation of each word to its head, such as "nsubj".
    spans : tuple of (start, stop)
        The characters of each word in the text; words of a contraction that cannot be told apart
        there share all of its characters.
    """

    text: str
    words: tuple[str, ...]
    heads: tuple[int | None, ...]
    relations: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.words)


def read_conllu(source: str | PathLike[str]) -> list[Sentence]:
    """Read sentences with their dependency trees.

    Words, multiword tokens (1-2), HEAD and DEPREL are read; empty nodes (1.1) and all else is left
    out. The text is that of ``# text =``, or of the forms and ``SpaceAfter=No``.

    Parameters
    ----------
    source : str or path
        A file in UTF-8, or the text itself, which has several lines.

    Returns
    -------
    list of Sentence
        Each with its text, words and tree.

    Raises
    ------
    FileError
        If there is no such file, or a line is not CoNLL-U; the message names the line.

    References
    ----------
    https://universaldependencies.org/format.html
    """
    if not isinstance(source, (str, PathLike)):
        raise FileError(f"source is a path, or CoNLL-U as a text, not {type(source).__name__}.")
    if isinstance(source, str) and "\n" in source:
        content, name = source.removeprefix("\ufeff"), "the text"
    else:
        name = repr(source) if isinstance(source, str) else str(source)
        try:
            content = Path(source).read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            raise FileError(f"{name} cannot be read as CoNLL-U in UTF-8: {error}.") from error
    lines = enumerate((line.rstrip("\r") for line in content.split("\n")), start=1)
    blocks = groupby(lines, key=lambda line: bool(line[1].strip()))
    sentences = [_sentence(list(block), name) for is_there, block in blocks if is_there]
    found = [sentence for sentence in sentences if sentence is not None]
    if not found:
        raise FileError(f"{name} holds no sentence in CoNLL-U.")
    return found


class _Line(NamedTuple):
    """A word's line, or that of a multiword token, whose head and relation are empty."""

    number: int
    first: int
    last: int
    form: str
    head: str
    relation: str
    has_space: bool
    is_word: bool


def _sentence(block: list[tuple[int, str]], name: str) -> Sentence | None:
    comments = [line for _, line in block if line.startswith("#")]
    rows = [(number, line) for number, line in block if not line.startswith("#")]
    if not rows:
        return None
    lines = list(_lines(rows, name))
    words = [line for line in lines if line.is_word]
    for expected, word in enumerate(words, start=1):
        if word.first != expected:
            raise _error(name, word.number, f"the word's ID is {word.first}, expected {expected}")
    texts = [c.partition("=")[2].strip() for c in comments if c[1:].split("=")[0].strip() == "text"]
    surface = list(_surface(lines, len(words), name))
    text = texts[0] if texts else _built(surface)
    heads = tuple(_head(word, len(words), name) for word in words)
    _check_tree(heads, words, name)
    return Sentence(
        text,
        tuple(word.form for word in words),
        heads,
        tuple(word.relation for word in words),
        tuple(_spans(text, surface, words, name)),
    )


def _lines(rows: list[tuple[int, str]], name: str) -> Iterator[_Line]:
    for number, line in rows:
        fields = line.split("\t")
        if len(fields) != _FIELDS:
            raise _error(
                name, number, f"{_FIELDS} fields with tabs between them expected, not {len(fields)}"
            )
        place, form, head, relation, rest = (fields[n] for n in (0, 1, 6, 7, 9))
        if _EMPTY_NODE.fullmatch(place):
            continue
        first, _, last = place.partition("-")
        is_range = bool(last)
        if not (first.isdecimal() and (last or first).isdecimal()) or not form:
            raise _error(name, number, f"a word's ID and its form expected, not {place!r} {form!r}")
        has_space = "SpaceAfter=No" not in rest.split("|")
        yield _Line(
            number, int(first), int(last or first), form, head, relation, has_space, not is_range
        )


def _surface(lines: list[_Line], count: int, name: str) -> Iterator[_Line]:
    """Return what stands in the text: multiword tokens, and the words outside of them."""
    seen = covered = 0
    for line in lines:
        if line.is_word:
            seen = line.first
            if seen > covered:
                yield line
            continue
        if line.first != seen + 1 or not covered < line.first < line.last <= count:
            raise _error(name, line.number, "a multiword token covers words that follow it")
        covered = line.last
        yield line


def _built(surface: list[_Line]) -> str:
    return "".join(line.form + " " * line.has_space for line in surface).strip()


def _head(word: _Line, count: int, name: str) -> int | None:
    head = int(word.head) if word.head.isdecimal() else -1
    if not 0 <= head <= count:
        raise _error(name, word.number, f"HEAD is a number from 0 to {count}, not {word.head!r}")
    if head == word.first:
        raise _error(name, word.number, f"HEAD is another word, not {head}, the word's own ID")
    return head - 1 if head else None


def _check_tree(heads: tuple[int | None, ...], words: list[_Line], name: str) -> None:
    for start, word in enumerate(words):
        place: int | None = start
        for _ in heads:
            place = None if place is None else heads[place]
        if place is not None:
            raise _error(name, word.number, f"the heads above {word.form!r} go in a circle")


def _spans(
    text: str, surface: list[_Line], words: list[_Line], name: str
) -> Iterator[tuple[int, int]]:
    stop = 0
    for line in surface:
        start = stop
        while start < len(text) and text[start].isspace():
            start += 1
        stop = start + len(line.form)
        if text[start:stop] != line.form:
            raise _error(
                name,
                line.number,
                f"the text has {text[start:stop]!r} here, not {line.form!r}",
            )
        parts = [word.form for word in words[line.first - 1 : line.last]]
        ends = list(accumulate(map(len, parts), initial=start))
        spans = list(pairwise(ends))
        is_spelt_out = ends[-1] == stop and all(
            text[a:b].casefold() == part.casefold()
            for (a, b), part in zip(spans, parts, strict=True)
        )
        yield from spans if is_spelt_out else [(start, stop)] * len(parts)


def _error(name: str, number: int, problem: str) -> FileError:
    return FileError(f"{name}, line {number}: {problem}.")
