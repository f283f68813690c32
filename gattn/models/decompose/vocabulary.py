"""The two ends of a residual stream: what tokens put into it, and what logits read of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError, ModelError, SelectionError
from gattn.models.decompose.fixed_norms import (
    inputs_replaced,
    outputs_replaced,
    rows_of,
)
from gattn.models.decompose.layer_weights import affine_map
from gattn.models.decompose.linear_runs import LinearRuns
from gattn.models.decompose.skipping import Skipping
from gattn.models.load.loading import input_device
from gattn.models.load.token_texts import names_of, spellings_of
from gattn.models.watch.contexts import Context
from gattn.models.watch.hooks import hooks_on, in_this_thread
from gattn.normalizers.base import widened

_AT_ONCE = 256


class Vocabulary:
    """The tokens of a model as vectors of its residual stream, with the norms held fixed.

    Parameters
    ----------
    runs : LinearRuns
        The model.
    """

    def __init__(self, runs: LinearRuns) -> None:
        self._runs = runs
        self.embedding = runs.embedding
        # Encoder and decoder may have modules of their own that share the weight.
        self._sharing = [
            module
            for module in runs.model.modules()
            if isinstance(module, nn.Embedding) and module.weight is self.embedding.weight
        ]

    @cached_property
    def vectors(self) -> Tensor:
        """What each token puts into the stream, without its position: (tokens, dim)."""
        probes = self._runs.probes(self.embeddings.shape[-1])
        found = torch.cat([self._streams(some)[:, 0] for some in probes.split(_AT_ONCE)])
        weight, _ = affine_map("What embeddings put into the residual stream", probes, found)
        if not weight.any():
            raise CaptureError(
                f"The {self._runs.stack} stack of {self._runs.name} does not read the embeddings "
                "of tokens alone, so they are no vectors of its residual stream."
            )
        vectors: Tensor = self.embeddings.to(weight) @ weight
        return vectors

    @cached_property
    def embeddings(self) -> Tensor:
        """What the embedding gives for each token: (tokens, dim of embeddings)."""
        with torch.no_grad():
            ids = torch.arange(len(self), device=input_device(self._runs.model))
            found: Tensor = widened(self.embedding(ids))
        return found

    @cached_property
    def products(self) -> Tensor:
        """The sum over tokens of the products of what they put into the stream: (dim, dim)."""
        return self.vectors.T @ self.vectors

    def __len__(self) -> int:
        return len(self.embedding.weight)

    def _streams(self, rows: Tensor) -> Tensor:
        """Return what the first layer reads of a token with each embedding: (rows, 1, dim)."""
        found: list[Tensor] = []
        skipping = Skipping()

        def note(module: nn.Module, given: Tensor) -> Tensor:
            found.append(given.detach())
            skipping.is_on = True
            return given

        runs = self._runs
        with (
            runs.norms.fixed(),
            self.replaced(rows[:, None]),
            inputs_replaced(runs.modules[:1], note),
            skipping,
        ):
            runs.run(Context(), len(rows), 1)
        return widened(found[0])

    @contextmanager
    def replaced(self, rows: Tensor) -> Iterator[None]:
        """Replace all embeddings of tokens by rows that broadcast to (rows, tokens, dim)."""
        with outputs_replaced(self._sharing, lambda given: rows.to(given).expand_as(given)):
            yield

    # What logits read

    def logits(self, rows: Tensor) -> Tensor:
        """Return the logits of vectors in place of the last layer's output: (rows, tokens).

        They are those of the unembedding alone, before caps and scales.
        """
        runs, skipping = self._runs, Skipping(is_on=True)
        found: list[Tensor] = []
        unembedding = runs.model.get_output_embeddings()
        if not runs.has_logits or unembedding is None:
            raise CaptureError(
                f"{runs.name} has no logits of the {runs.stack} stack: expected a language model, "
                "such as one of AutoModelForCausalLM."
            )

        def put_in(given: Tensor) -> Tensor:
            skipping.is_on = False
            return rows[:, None].to(given).expand_as(given)

        def note(module: nn.Module, args: Any, kwargs: Any, result: Tensor) -> None:
            found.append(widened(rows_of(result)))

        with (
            runs.norms.fixed(),
            outputs_replaced(runs.modules[-1:], put_in),
            hooks_on([unembedding], leave=in_this_thread(note)),
            skipping,
        ):
            runs.run(Context(), len(rows), 1)
        return found[0]

    def written(self, vectors: Tensor) -> Tensor:
        """Return by how much vectors (rows, dim) change each token's logit: (rows, tokens)."""
        zero, once, twice = self.logits(
            torch.cat([0 * vectors[:1], vectors, 2 * vectors])
        ).tensor_split([1, 1 + len(vectors)])
        found: Tensor = once - zero
        missing = (twice - zero - 2 * found).abs().max()
        if not missing <= 4 * self._runs.tolerance * twice.abs().max():
            raise CaptureError(_NOT_LINEAR)
        return found

    @cached_property
    def read_and_written(self) -> Tensor:
        """The sum over tokens of what each reads of the stream, times what it puts in: (dim, dim).

        It is U E, for logits x U and vectors E of all tokens, summed in blocks.
        """
        probes = self._runs.probes(self._runs.width)
        size = min(_AT_ONCE, max((1 << 24) // len(self), 1))
        found = [self.logits(some)[:, : len(self)] @ self.vectors for some in probes.split(size)]
        weight, _ = affine_map("Logits", probes, torch.cat(found))
        return weight

    # The tokens' names

    def names(self, ids: list[int]) -> tuple[str, ...]:
        """Name tokens by their texts."""
        return names_of(ids, self._runs.tokenizer)

    def id_of(self, token: int | str) -> int:
        """Find a token by its id or its text."""
        if isinstance(token, int):
            if 0 <= token < len(self):
                return token
            raise SelectionError(f"No token {token}; the model has 0 .. {len(self) - 1}.")
        tokenizer = self._runs.tokenizer
        if tokenizer is None:
            raise ModelError("A token's text needs tokenizer=; without one, pass its id.")
        ids = tokenizer.encode(token, add_special_tokens=False)
        if len(ids) == 1:
            return int(ids[0])
        spellings = spellings_of(range(len(tokenizer)), tokenizer)[1]
        found = [n for n, spelling in enumerate(spellings) if token == spelling]
        if len(found) == 1:
            return found[0]
        shown = ", ".join(map(repr, names_of(ids, tokenizer)))
        raise SelectionError(
            f"{token!r} is {len(ids)} tokens, {shown}: expected one; a word within a text is "
            f"{' ' + token!r}, with the space before it."
        )


_NOT_LINEAR = (
    "The logits are no linear function of the residual stream, even with the norms held fixed: "
    "what a head writes has no effect of its own on them."
)
