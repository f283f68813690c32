"""The texts of the study, of three kinds."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice

from benchmarks.surveys.corpus import docstrings

# fmt: off
WORDS = (
    "river", "tall", "green", "lamp", "stone", "bird", "cold", "bread", "glass", "king", "door",
    "sand", "milk", "horse", "round", "blue", "paper", "tree", "night", "gold", "ship", "salt",
    "wolf", "cloud",
)
# fmt: on
SENTENCES = (
    "The cat that the dog chased ran up the old tree.",
    "She gave him the book because he had asked for it.",
    "When the rain stopped, the children went out to play.",
    "Nobody knew why the train was late again that morning.",
    "The river is wide, but the bridge across it is narrow.",
    "My sister sold her car and bought a small boat.",
    "The soup was too hot, so we waited for a while.",
    "He opened the door and saw that the room was empty.",
    "The king had three sons, and the youngest was the wisest.",
    "They say that the mountain is higher than it looks.",
    "The teacher asked the class a question that nobody could answer.",
    "A bird built its nest under the roof of our house.",
    "If you find the key, please leave it on the table.",
    "The old man told us a story about the sea.",
    "We left the city early and arrived before noon.",
    "The letter that came yesterday was not for me.",
    "Her brother plays the piano, and she plays the violin.",
    "The baker sold all his bread before eight in the morning.",
    "It was dark, so he lit the lamp and went on reading.",
    "The farmer counted his sheep twice and still missed one.",
)
_FEWEST, _MOST = 40, 80
"""How many characters of a docstring are read."""


def repeated_words(count: int) -> list[str]:
    """Make lists of five words, repeated two and a half times."""
    draw = random.Random(0)
    return [" ".join((draw.sample(WORDS, 5) * 3)[:13]).capitalize() for _ in range(count)]


def first_lines(count: int) -> list[str]:
    """Return first lines of docstrings of Python's standard library, drawn evenly."""
    lines = sorted({text.split("\n")[0] for text in docstrings()})
    fitting = [line for line in lines if _FEWEST <= len(line) <= _MOST and line.isascii()]
    return random.Random(0).sample(fitting, count)


def sentences(count: int) -> list[str]:
    """Return plain sentences."""
    return list(islice(SENTENCES, count))


KINDS: dict[str, Callable[[int], list[str]]] = {
    "repeated words": repeated_words,
    "docstrings": first_lines,
    "sentences": sentences,
}
