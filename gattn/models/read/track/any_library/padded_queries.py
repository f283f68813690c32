"""Leaves padding out of the queries of cross-attention, where self-attention before tells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from gattn.models.read.following import Progress
from gattn.models.read.places import Place, Side
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.modules import Modules

_Layer = nn.TransformerDecoderLayer
_STEPS = "forward", "_sa_block", "_mha_block"


class PaddedQueries:
    """The padding among the tokens of one call of a model, by the layers that attend among them.

    Cross-attention shows which keys are padding, but not which queries. In a layer of torch's
    decoder, these are the tokens of the self-attention before. Of other models that is not known.
    """

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._known: dict[str, tuple[Sequence[Side], Tensor, tuple[int, ...]]] = {}
        self.unknown: dict[str, str] = {}

    def note(self, call: SeenCall, queries: Sequence[Side], real: Tensor | None) -> None:
        """Note which queries of self-attention are tokens."""
        name = self._modules.name(call.module)
        self._known.pop(name, None)
        if call.tokens is not None and real is not None and not bool(real.all()):
            self._known[name] = queries, real, call.tokens.sequences

    def left_out(self, call: SeenCall, place: Place, progress: Progress) -> Place:
        """Return where cross-attention is, whose queries are no padding as far as is known."""
        if call.tokens is None or not place.is_bipartite or not self._known:
            return place
        name, length = self._modules.name(call.module), call.query.shape[2]
        where = self._modules.model.get_submodule(name.rpartition(".")[0])
        alike = {
            one: queries
            for one, (queries, real, sequences) in self._known.items()
            if real.shape[1] == length and sequences == call.tokens.sequences
        }
        if isinstance(where, _Layer) and where.multihead_attn is call.module and _is_plain(where):
            own = self._modules.name(where.self_attn)
            if own in alike:
                progress.real[place.stack] = self._known[own][1]
                return replace(place, queries=list(alike[own]))
        elif alike and all(len(side) == length for side in place.queries):
            self.unknown[name] = min(alike)
        return place


def _is_plain(layer: nn.Module) -> bool:
    """Return whether a layer runs as torch has written it."""
    is_own = all(getattr(type(layer), step) is getattr(_Layer, step) for step in _STEPS)
    return is_own and not any(step in vars(layer) for step in _STEPS)
