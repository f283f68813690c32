"""Leaves padding out of the queries of cross-attention, where self-attention before tells it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from gattn.models.read.following import Progress
from gattn.models.read.masks import Mask
from gattn.models.read.places import Place, Side
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.modules import Modules

_Layer = nn.TransformerDecoderLayer
_STEPS = "forward", "_sa_block", "_mha_block"
_Padded = tuple[Sequence[Side], Tensor, tuple[int, ...]]
"""Where queries of self-attention are, which of its slots are tokens, and of which sequences."""


class PaddedQueries:
    """The padding among the tokens of one call of a model, by the layers that attend among them.

    Cross-attention shows which keys are padding, but not which queries. In a layer of torch's
    decoder, these are the tokens of the self-attention before, and so they are where those that are
    padding there read nothing, and all others something. Else that is not known.
    """

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._known: dict[str, _Padded] = {}
        self._earlier: list[_Padded] = []
        self.unknown: dict[str, str] = {}

    def note(self, call: SeenCall, queries: Sequence[Side], real: Tensor | None) -> None:
        """Note which queries of self-attention are tokens."""
        name = self._modules.name(call.module)
        self._known.pop(name, None)
        if call.tokens is not None and real is not None and not bool(real.all()):
            self._known[name] = queries, real, call.tokens.sequences
            self._earlier.append(self._known[name])

    def left_out(
        self, call: SeenCall, place: Place, progress: Progress, mask: Callable[[], Mask]
    ) -> Place:
        """Return where cross-attention is, whose queries are no padding as far as is known."""
        if call.tokens is None or not place.is_bipartite or not self._earlier:
            return place
        name, length = self._modules.name(call.module), call.query.shape[2]
        where = self._modules.model.get_submodule(name.rpartition(".")[0])
        of = length, call.tokens.sequences
        found = None
        if isinstance(where, _Layer) and where.multihead_attn is call.module and _is_plain(where):
            own = self._known.get(self._modules.name(where.self_attn))
            found = own if own is not None and _of(own) == of else None
        elif all(len(side) == length for side in place.queries):
            alike = [one for one in self._earlier if _of(one) == of]
            found = next((one for one in alike if _takes_away(mask(), one[1])), None)
            names = [one for one, known in self._known.items() if _of(known) == of]
            if found is None and names:
                self.unknown[name] = min(names)
        if found is None:
            return place
        progress.real[place.stack] = found[1]
        return replace(place, queries=list(found[0]))


def _of(padded: _Padded) -> tuple[int, tuple[int, ...]]:
    """Return how many slots there were, and whose."""
    return padded[1].shape[1], padded[2]


def _takes_away(mask: Mask, real: Tensor) -> bool:
    """Return whether a mask takes all keys away from the queries that are padding, and no other."""
    return mask.values is not None and torch.equal(mask.reads(len(real)).any(2), real)


def _is_plain(layer: nn.Module) -> bool:
    """Return whether a layer runs as torch has written it."""
    is_own = all(getattr(type(layer), step) is getattr(_Layer, step) for step in _STEPS)
    return is_own and not any(step in vars(layer) for step in _STEPS)
