"""Batches of training rows: text, and repeated spans of random tokens or of text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from corpus import Corpus
from tokenizers import Tokenizer

IGNORED = -100
BOS = 0


def encode_stream(tokenizer: Tokenizer, documents: list[str]) -> np.ndarray:
    """Encode all documents as one array of tokens, each after the start token."""
    encoded = tokenizer.encode_batch(documents, add_special_tokens=False)
    return np.concatenate([np.array([BOS, *item.ids], dtype=np.int64) for item in encoded])


@dataclass
class Mixture:
    """The share of each type of row in a batch, as a function of the step.

    Parameters
    ----------
    repeats
        Share of rows that repeat a span: at the start, and from `turn` on.
    turn
        Progress at which the later share is reached; the change to it is linear and starts at
        half of `turn`.
    horizon
        Step at which progress is 1.
    random_share
        Share of the repeating rows whose span is of random tokens; the others take text.
    story_share
        Share of the text rows that are taken from the stories: before and after
        `late_from`.
    swapped
        From `late_from` on, share of the tokens of stories in whose place stands a token drawn
        from all text: the stories are so regular that the model would trust them too much.
    late_from
        Step of these changes.
    aligned_share
        Share of the text rows that start at the start of a document.
    first_dropped
        Share of the first saying of random spans that has no target: nothing can be learned
        there but to expect any token.
    """

    repeats: tuple[float, float] = (0.6, 0.2)
    turn: float = 0.2
    horizon: int = 6000
    random_share: float = 0.6
    story_share: tuple[float, float] = (0.3, 0.2)
    swapped: float = 0.08
    late_from: int = 2000
    aligned_share: float = 0.4
    first_dropped: float = 0.9

    def repeat_share(self, step: int) -> float:
        """Return the share of repeating rows."""
        first, last = self.repeats
        progress = step / self.horizon
        done = min(1.0, max(0.0, 2 * progress / self.turn - 1))
        return first + (last - first) * done


class Sampler:
    """Draws a step's batch, which depends only on the seed and the number of the step.

    Parameters
    ----------
    tokenizer
        The byte-level tokenizer.
    corpus
        The training text.
    mixture
        Shares of the kinds of rows.
    seed
        Seed of all batches.
    """

    def __init__(self, tokenizer: Tokenizer, corpus: Corpus, mixture: Mixture, seed: int) -> None:
        self.streams = [
            encode_stream(tokenizer, corpus.docs),
            encode_stream(tokenizer, corpus.stories),
        ]
        self.starts = [np.flatnonzero(stream == BOS) for stream in self.streams]
        self.vocab_size = tokenizer.get_vocab_size()
        self.mixture = mixture
        self.seed = seed

    def text(self, rng: np.random.Generator, step: int, rows: int, length: int) -> np.ndarray:
        """Draw rows of consecutive tokens."""
        late = step >= self.mixture.late_from
        story = rng.random(rows) < self.mixture.story_share[late]
        aligned = rng.random(rows) < self.mixture.aligned_share
        out = np.empty((rows, length), dtype=np.int64)
        for kind, stream in enumerate(self.streams):
            chosen = np.flatnonzero(story == bool(kind))
            offsets = rng.integers(0, len(stream) - length, len(chosen))
            starts = self.starts[kind]
            starts = starts[starts + 1 + length <= len(stream)]
            heads = starts[rng.integers(0, len(starts), len(chosen))] + 1
            offsets = np.where(aligned[chosen], heads, offsets)
            out[chosen] = stream[offsets[:, None] + np.arange(length)]
        if late:
            swapped = (rng.random((rows, length)) < self.mixture.swapped) & story[:, None]
            other = [stream[rng.integers(0, len(stream), out.shape)] for stream in self.streams]
            coin = rng.random(out.shape) < 0.5
            out = np.where(swapped, np.where(coin, other[0], other[1]), out)
        return out

    def batch(self, step: int, rows: int, length: int) -> tuple[torch.Tensor, ...]:
        """Draw inputs and targets of a step.

        Parameters
        ----------
        step
            Number of the step.
        rows, length
            Shape of the batch.

        Returns
        -------
        inputs, targets : torch.Tensor
            The targets skip most of what cannot be predicted.
        """
        rng = np.random.default_rng((self.seed, step))
        rolls = rng.random(rows)
        share = self.mixture.repeat_share(step)
        repeated = rolls < share
        random = rolls < share * self.mixture.random_share
        tokens = self.text(rng, step, rows, length)
        noise = rng.integers(1, self.vocab_size, (rows, length))
        tokens = np.where(random[:, None], noise, tokens)
        longest = int(min(length // 2, 24 + 400 * (step / self.mixture.horizon), 256))
        period = np.where(repeated, rng.integers(4, longest + 1, rows), length)[:, None]
        position = np.arange(length)[None, :]
        tokens = np.take_along_axis(tokens, position % period, axis=1)
        tokens = np.concatenate([np.full((rows, 1), BOS), tokens], axis=1)
        targets = tokens[:, 1:].copy()
        dropped = rng.random((rows, length)) < self.mixture.first_dropped
        targets[random[:, None] & (position < period) & dropped] = IGNORED
        return torch.from_numpy(tokens[:, :-1].copy()), torch.from_numpy(targets)
