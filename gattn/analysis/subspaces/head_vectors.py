"""The queries and keys of one head on one text, as they enter its scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gattn.errors import CaptureError, SelectionError
from gattn.graph.rules.keys import list_keys
from gattn.models.edit.applying import parts
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.tracking import Tracker
from gattn.models.run.functions import Runnable, prepared
from gattn.models.watch.contexts import Context

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model

_EXACT = 1e-5
"""How far a product may be from a score, relative to the product of the vectors' lengths."""


@dataclass(frozen=True, eq=False)
class HeadVectors:
    """The queries and keys of one head on one text.

    Parameters
    ----------
    call, place, reading
        What was seen.
    head : int
        The head.
    tokens : tuple of str
        The tokens' texts.
    query, key : Tensor (tokens, dim)
        The vectors, biases and rotations by position included; queries times the scale.
    """

    call: SeenCall
    place: Place
    reading: Reading
    head: int
    tokens: tuple[str, ...]
    query: Tensor
    key: Tensor

    @property
    def scale(self) -> float:
        """What products are multiplied with, as queries are here."""
        return scale_of(self.call)

    @property
    def notes(self) -> list[str]:
        """What to mind when reading scores."""
        found = []
        if self.call.softcap is not None:
            found.append(f"scores are those before the soft cap of {self.call.softcap:g}")
        if self.reading.attention.edge_features is not None:
            found.append("what the model adds to scores by position is left out")
        return found

    def check(self, query: Tensor, key: Tensor) -> None:
        """Refuse edges whose score is not the product of their vectors, with what is added."""
        given = (self.query[query] * self.key[key]).sum(-1)
        size = self.query[query].norm(dim=-1) * self.key[key].norm(dim=-1)
        cap = self.call.softcap
        wanted = given if cap is None else cap * (given / cap).tanh()
        features = self.reading.attention.edge_features
        if features is not None:
            wanted = wanted + features[query, key, self.head].cpu().double()
        scores = self._scores(query, key)
        if bool((scores == -torch.inf).any()):
            at = int((scores == -torch.inf).nonzero()[0])
            raise SelectionError(
                f"Head {self.place.layer}.{self.head} has no edge from the key {int(key[at])} to "
                f"the query {int(query[at])}: label edges that it has, such as those with "
                "key ≤ query in a causal model."
            )
        missing = (scores - wanted).abs()
        if not bool((missing <= _EXACT * size).all()):
            raise CaptureError(
                f"The scores of {self.call.name} are not the products of its queries and keys: "
                f"they differ by up to {float(missing.max()):.1e}. An edit that replaces scores is "
                "open, or the model changes them in another way."
            )

    def _scores(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the model's scores of edges, computed a few rows at a time."""
        found = torch.full((len(query),), -torch.inf, dtype=torch.double, device="cpu")
        (part,) = parts(self.reading, [self.head])
        for block in part.blocks():
            assert block.scores is not None
            rows = torch.arange(len(self.tokens), device="cpu")[block.rows]
            chosen = ((query >= rows[0]) & (query <= rows[-1])).nonzero()[:, 0]
            keys, at = (
                list_keys(block.columns).cpu(),
                torch.arange(len(rows), device="cpu")[:, None],
            )
            dense = torch.full(
                (len(rows), len(self.tokens)), -torch.inf, dtype=torch.double, device="cpu"
            )
            dense[at, keys] = block.scores[0, 0].cpu().double()
            found[chosen] = dense[query[chosen] - rows[0], key[chosen]]
        return found


def head_vectors(
    text: Runnable,
    model: Model,
    tokenizer: PreTrainedTokenizerBase | None,
    layer: int,
    head: int,
    stack: str | None,
) -> HeadVectors:
    """Run a model on one text, and read the queries and keys of one head."""
    prompt, seeing = prepared(text, model, tokenizer), _Seeing(layer, head, stack)
    with torch.no_grad():
        prompt.run(seeing)
        call, place, reading = seeing.checked()
        query, key = (
            getattr(reading.attention, side)[0, head].detach().cpu().double()
            for side in ("query", "key")
        )
    tokens = prompt.texts(call, place, seeing.ids, len(query))
    return HeadVectors(call, place, reading, head, tokens, scale_of(call) * query, key)


def scale_of(call: SeenCall) -> float:
    """Return what a call multiplies products with."""
    return call.query.shape[-1] ** -0.5 if call.scale is None else float(call.scale)


class _Seeing(Context):
    """Keeps one call of the self-attention of a layer."""

    reads_one_call = True

    def __init__(self, layer: int, head: int, stack: str | None) -> None:
        self._layer, self._head, self._asked = layer, head, stack
        self._layers: dict[str, int] = {}
        self._seen: tuple[SeenCall, Place, Reading] | None = None
        self.ids: list[int] | None = None

    def wants(self, place: Place) -> bool:
        """Return whether a call is the layer's self-attention."""
        if place.is_bipartite:
            return False
        self._layers[place.stack] = max(self._layers.get(place.stack, 0), place.layer + 1)
        if self._asked is None and len(self._layers) > 1:
            raise SelectionError(
                f"The model has several stacks of self-attention, {' and '.join(self._layers)}: "
                f"choose one, as in stack={place.stack!r}."
            )
        return self._asked in (None, place.stack) and place.layer == self._layer

    def see(self, call: SeenCall, place: Place, readings: list[Reading]) -> None:
        """Keep a call on one whole text."""
        if self._seen is not None or len(readings) != 1 or len(readings[0].elements) != 1:
            raise CaptureError(
                f"{call.where} attends in several groups of tokens: expected a single sequence in "
                "one call. Give texts one by one; windows of an image are not supported."
            )
        if len(readings[0].queries) != len(readings[0].keys):
            raise CaptureError(
                f"{call.where} continues a cache, so the queries of earlier tokens are not seen: "
                "run the whole text at once."
            )
        if not readings[0].has_vectors or call.is_scores:
            raise CaptureError(
                f"{call.where} shows only its softmax, not its queries and keys: there are no "
                "vectors to compare."
            )
        self._seen = call, place, readings[0]

    def end(self, tracker: Tracker, result: Any) -> None:
        """Note the tokens."""
        if self._seen is not None:
            self.ids = tracker.tokens.ids(self._seen[1].stack, 0)

    def checked(self) -> tuple[SeenCall, Place, Reading]:
        """Return what was seen; refuse if there is no such layer or head."""
        known = self._layers.get(self._asked or next(iter(self._layers), ""), 0)
        if not known:
            there = " and ".join(map(repr, self._layers)) or "none"
            raise SelectionError(
                f"No stack {self._asked!r} of self-attention; there is {there}."
                if self._asked
                else "The model shows no self-attention."
            )
        if self._seen is None:
            raise SelectionError(f"No layer {self._layer}; the model has layers 0 .. {known - 1}.")
        heads = self._seen[2].heads
        if self._head >= heads:
            raise SelectionError(
                f"No head {self._head}; layer {self._layer} has heads 0 .. {heads - 1}."
            )
        return self._seen
