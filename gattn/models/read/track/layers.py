"""Which layer of its stack an attention call is: the order of the calls tells."""

from __future__ import annotations

from typing import NamedTuple
from weakref import ref

from torch import Tensor, nn

from gattn.errors import CaptureError
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.modules import Modules


class _Last(NamedTuple):
    """The last attention call; a query that was freed was not part of a split."""

    module: nn.Module
    query: ref[Tensor]
    stop: int


class LayersOfCall:
    """The layers that one call of a model goes through.

    `depth` counts those of each stack so far; `ran` names the modules that ran and should show
    their attention.
    """

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self.depth: dict[str, int] = {}
        self.ran: set[str] = set()
        self._of: dict[str, list[int]] = {}
        self._last: _Last | None = None

    @property
    def shown(self) -> set[str]:
        """The names of the modules whose attention was seen."""
        return set(self._of)

    def next(self, name: str, stack: str) -> int:
        """Return the number of a further layer, in which a module attends."""
        layer = self.depth.get(stack, 0)
        self.depth[stack] = layer + 1
        self._of.setdefault(name, []).append(layer)
        return layer

    def last(self, name: str) -> int:
        """Return the layer that a module attended in last."""
        return self._of[name][-1]

    def again(self, name: str) -> int:
        """Find the layer of a call after the model's own, such as gradient checkpointing makes."""
        layers = self._of.get(name, [])
        if len(layers) != 1:
            kind = type(self._modules.model).__name__
            raise CaptureError(
                f"{name or kind} attended outside of a call of the {kind} that the context was "
                "opened on, as when its forward or another method is called instead of the model, "
                "so its layer and tokens are not known. Call the model, as in model(x), or open "
                "the context on a module whose own forward calls that method."
            )
        return layers[0]

    def start_of_split(self, call: SeenCall) -> int:
        """Return where the tokens of a call begin that continues the last one; 0 where it does not.

        Vision models split the queries of a layer by image, and attend in each part by itself.
        """
        last = self._last
        one = None if last is None or last.module is not call.module else last.query()
        if last is None or one is None:
            return 0
        is_of_one = one.untyped_storage().data_ptr() == call.query.untyped_storage().data_ptr()
        return last.stop if is_of_one and one.storage_offset() < call.query.storage_offset() else 0

    def ended_with(self, module: nn.Module) -> bool:
        """Return whether the last call was a module's, so that the next one may continue it."""
        return self._last is not None and self._last.module is module

    def note(self, call: SeenCall | None, start: int = 0) -> None:
        """Note a call, which the next one may continue; None if it was not read."""
        if call is None:
            self._last = None
        else:
            self._last = _Last(call.module, ref(call.query), start + call.query.shape[2])

    def check(self) -> None:
        """Refuse a call whose layers cannot be numbered by their order."""
        self._modules.check_layers(self._of, self.depth)
