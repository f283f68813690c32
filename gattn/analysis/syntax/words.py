"""Words of a text: the tokens of each, by the tokenizer or by the characters of a sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gattn.analysis.syntax.conllu import Sentence
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph
from gattn.names.pieces import joined

Matrix: TypeAlias = NDArray[np.float64]

_MARK = re.compile(r"^(<.*>|\[.*\])$", re.S)
"""How special tokens look."""
_BLANK = " \n\t\N{LOWER ONE EIGHTH BLOCK}"
_LONGEST_CHARACTER = 4
_COMPARED = (
    ": the texts of tokens are compared with the characters of sentence.text, case aside. Capture "
    "sentence.text; if this is its trace, some of its tokens are named otherwise than by their "
    "characters, as [UNK], ##ing and \N{LOWER ONE EIGHTH BLOCK}The are, and cannot be compared."
)


@dataclass(frozen=True, eq=False)
class Words:
    """Words of a text: the tokens of each, and its text."""

    tokens: list[list[int]]
    texts: list[str]
    size: int

    def matrix(self, attention: Matrix) -> Matrix:
        """Merge tokens to words: (heads, tokens, tokens) to (heads, words, words)."""
        member = np.zeros((len(self.tokens), self.size))
        for word, tokens in enumerate(self.tokens):
            member[word, tokens] = 1
        mean = member / np.maximum(member.sum(1, keepdims=True), 1)
        merged: Matrix = mean @ attention @ member.T
        diagonal = np.arange(len(self.tokens))
        merged[:, diagonal, diagonal] = 0
        return merged


def words_of(graph: AttentionGraph) -> Words:
    """Find the words that the tokenizer knows, or take each token as one."""
    labels, count = graph.labels(), graph.graph.num_tokens
    if not graph.words:
        return Words([[n] for n in range(count)], labels, count)
    groups: list[list[int]] = []
    for n, word in enumerate(graph.words):
        if word is None:
            continue
        if n and word == graph.words[n - 1]:
            groups[-1].append(n)
        else:
            groups.append([n])
    texts = [joined([labels[n] for n in some], ()) for some in groups]
    return Words(groups, texts, count)


def aligned(tokens: Sequence[str], sentence: Sentence) -> tuple[Words, list[int]]:
    """Group words that share tokens; give their tokens, and the group of each word."""
    spans = _token_spans(tokens, sentence)
    reach: list[list[int]] = [
        [n for n, span in enumerate(spans) if span and span[0] < stop and start < span[1]]
        for start, stop in sentence.spans
    ]
    groups: list[list[int]] = []
    group_of: list[int] = []
    for word, some in enumerate(reach):
        if not some:
            raise SelectionError(f"No token holds the word {sentence.words[word]!r}.")
        if groups and some[0] <= groups[-1][-1]:
            groups[-1] += [n for n in some if n > groups[-1][-1]]
        else:
            groups.append(some)
        group_of.append(len(groups) - 1)
    return Words(groups, [], len(tokens)), group_of


def _token_spans(tokens: Sequence[str], sentence: Sentence) -> list[tuple[int, int] | None]:
    """Find each token's characters in the text; None for special tokens."""
    text, place, n = sentence.text, 0, 0
    spans: list[tuple[int, int] | None] = []
    while n < len(tokens):
        while place < len(text) and text[place].isspace():
            place += 1
        width, length = _matching(tokens[n:], text, place)
        if width:
            spans += [(place, place + length)] * width
            place, n = place + length, n + width
        elif _MARK.match(tokens[n]) or not tokens[n].strip(_BLANK):
            spans.append(None)
            n += 1
        else:
            raise SelectionError(
                f"Token {n} of the trace is {tokens[n]!r}, but the sentence continues with "
                f"{text[place : place + 20]!r}{_COMPARED}"
            )
    if text[place:].strip():
        raise SelectionError(f"The trace ends before {text[place:].strip()[:20]!r}{_COMPARED}")
    return spans


def _matching(tokens: Sequence[str], text: str, place: int) -> tuple[int, int]:
    """Count the tokens that spell the next characters, and these characters; 0 if none do."""
    for width in range(1, min(len(tokens), _LONGEST_CHARACTER) + 1):
        part = joined(tokens[:width], ()).strip()
        if part and text[place : place + len(part)].casefold() == part.casefold():
            return width, len(part)
        if "<0x" not in part and "<0x" not in tokens[0]:
            break
    return 0, 0
