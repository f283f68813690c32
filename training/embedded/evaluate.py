"""Head scores on repeated random tokens, and bits per byte of text, also of trigram baselines."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional
from transformers import PreTrainedModel

BOS = 0


@dataclass
class HeadScores:
    """Attention of each head, and losses, on repeated random sequences.

    Parameters
    ----------
    previous
        Mean attention to the previous token, for each layer and head.
    induction
        Mean attention, in the second saying, to the token after the same token in the first.
    start
        Mean attention to the start token.
    first_loss, second_loss
        Mean loss in nats on the first and on the second saying.
    """

    previous: torch.Tensor
    induction: torch.Tensor
    start: torch.Tensor
    first_loss: float
    second_loss: float


def repeated_tokens(count: int, length: int, vocab_size: int, seed: int) -> torch.Tensor:
    """Draw rows of the start token and a repeated span of uniformly random ordinary tokens."""
    generator = torch.Generator().manual_seed(seed)
    span = torch.randint(1, vocab_size, (count, length), generator=generator)
    return torch.cat([torch.full((count, 1), BOS), span, span], dim=1)


@torch.no_grad()
def score_heads(
    model: PreTrainedModel, count: int = 100, length: int = 50, seed: int = 20_000
) -> HeadScores:
    """Score all heads of a causal model on repeated random sequences.

    Parameters
    ----------
    model
        The model; its attention implementation is set to "eager" and back.
    count, length
        Number of sequences, and tokens in one saying.
    seed
        Seed of the sequences.

    Returns
    -------
    HeadScores
    """
    tokens = repeated_tokens(count, length, model.config.vocab_size, seed)
    before = model.config._attn_implementation
    training = model.training
    model.eval()
    model.set_attn_implementation("eager")
    output = model(tokens, output_attentions=True, use_cache=False)
    model.set_attn_implementation(before)
    model.train(training)
    attention = torch.stack(output.attentions).float()
    previous = attention.diagonal(-1, dim1=-2, dim2=-1).mean((1, 3))
    second = torch.arange(length + 1, 2 * length + 1)
    induction = attention[..., second, second - length + 1].mean((1, 3))
    start = attention[..., 1:, 0].mean((1, 3))
    loss = functional.cross_entropy(
        output.logits[:, :-1].float().transpose(1, 2), tokens[:, 1:], reduction="none"
    )
    return HeadScores(
        previous, induction, start, loss[:, :length].mean().item(), loss[:, length:].mean().item()
    )


@torch.no_grad()
def model_nats(
    model: PreTrainedModel, documents: Sequence[Sequence[int]], window: int = 256
) -> float:
    """Sum the loss in nats over documents; each token sees at least half a window before it.

    Parameters
    ----------
    model
        The causal model.
    documents
        Tokens of each document without the start token, which is put before each window.
    window
        Tokens per window; consecutive windows overlap by half.

    Returns
    -------
    float
    """
    total = 0.0
    half = window // 2
    for tokens in documents:
        position = 0
        while position < len(tokens):
            begin = max(0, position - half)
            end = min(len(tokens), begin + window)
            row = torch.tensor([[BOS, *tokens[begin:end]]])
            logits = model(row[:, :-1], use_cache=False).logits[0].float()
            loss = functional.cross_entropy(logits, row[0, 1:], reduction="none")
            total += loss[position - begin :].double().sum().item()
            position = end
    return total


class KneserNeyTrigram:
    """Interpolated Kneser-Ney trigram over integers, with one discount per order.

    Parameters
    ----------
    documents
        Training sequences; each is read with two start symbols in front.
    vocab_size
        Number of symbols; the lowest order is mixed with the uniform distribution over them.
    """

    def __init__(self, documents: Iterable[Sequence[int]], vocab_size: int) -> None:
        trigrams: Counter[tuple[int, int, int]] = Counter()
        for tokens in documents:
            padded = [-1, -1, *tokens]
            trigrams.update(zip(padded, padded[1:], padded[2:], strict=False))
        bigrams = Counter((b, c) for _, b, c in trigrams)
        unigrams = Counter(c for _, c in bigrams)
        self.counts = (unigrams, bigrams, trigrams)
        self.discounts = tuple(self._discount(counts) for counts in self.counts)
        self.vocab_size = vocab_size
        self.total = sum(unigrams.values())
        self.bigram_totals: defaultdict[int, int] = defaultdict(int)
        self.bigram_kinds: defaultdict[int, int] = defaultdict(int)
        for (b, _), count in bigrams.items():
            self.bigram_totals[b] += count
            self.bigram_kinds[b] += 1
        self.trigram_totals: defaultdict[tuple[int, int], int] = defaultdict(int)
        self.trigram_kinds: defaultdict[tuple[int, int], int] = defaultdict(int)
        for (a, b, _), count in trigrams.items():
            self.trigram_totals[a, b] += count
            self.trigram_kinds[a, b] += 1

    @staticmethod
    def _discount(counts: Counter) -> float:
        once = sum(count == 1 for count in counts.values())
        twice = sum(count == 2 for count in counts.values())
        return once / (once + 2 * twice) if once and twice else 0.5

    def probability(self, a: int, b: int, c: int) -> float:
        """Return the probability of `c` after `a` and `b`."""
        unigrams, bigrams, trigrams = self.counts
        low, middle, high = self.discounts
        value = max(unigrams[c] - low, 0) + low * len(unigrams) / self.vocab_size
        value /= self.total
        total = self.bigram_totals.get(b, 0)
        if total:
            kinds = self.bigram_kinds[b]
            value = (max(bigrams[b, c] - middle, 0) + middle * kinds * value) / total
        total = self.trigram_totals.get((a, b), 0)
        if total:
            kinds = self.trigram_kinds[a, b]
            value = (max(trigrams[a, b, c] - high, 0) + high * kinds * value) / total
        return value

    def nats(self, documents: Iterable[Sequence[int]]) -> float:
        """Sum the loss in nats over documents."""
        total = 0.0
        for tokens in documents:
            padded = [-1, -1, *tokens]
            for a, b, c in zip(padded, padded[1:], padded[2:], strict=False):
                total -= math.log(self.probability(a, b, c))
        return total


def bits_per_byte(nats: float, texts: Iterable[str]) -> float:
    """Convert a loss in nats of texts to bits per byte of their UTF-8."""
    return nats / math.log(2) / sum(len(text.encode("utf-8")) for text in texts)
