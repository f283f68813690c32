"""What is known of a model's modules: their names, and the stacks to which they belong."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gattn.caching import cached_property
from gattn.errors import CaptureError
from gattn.models.hugging_face.media import modality
from gattn.models.load.limits import text_config
from gattn.models.load.walking import names_of
from gattn.models.read.track.stacks import Kind, check_seen, home, kinds, stack_name


class Modules:
    """The modules of a model; what is found serves all its calls, in any thread."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.config: Any = getattr(model, "config", None)
        self.is_encoder_decoder = bool(getattr(self.config, "is_encoder_decoder", False))
        self.side = "decoder_input_ids" if self.is_encoder_decoder else "input_ids"
        """The name of the ids that a cache holds."""
        self.stacks: dict[str, str] = {}
        self.apart: dict[str, tuple[str, str]] = {}
        self.unread: set[str] = set()
        """The modules among whose tokens some may be padding."""
        self.with_holes: set[str] = set()
        """The modules whose masks take tokens between others."""
        self.foreign: set[str] = set()
        """The stacks whose tokens are not text: images, sounds."""
        self.crossing: set[str] = set()
        """The stacks of cross-attention."""
        # A model may replace modules as it runs; the identities of those known are not given anew.
        self.held = names_of(model)
        self._names: dict[int, str] = {id(part): name for name, part in self.held.items()}
        self._homes: dict[str, str] = {}

    @property
    def ids(self) -> Collection[int]:
        """The identities of all modules."""
        return self._names.keys()

    def owns(self, module: nn.Module) -> bool:
        """Return whether a module is a part of the model."""
        return id(module) in self._names

    def name(self, module: nn.Module) -> str:
        """Return a module's qualified name."""
        return self._names[id(module)]

    def stack(self, module: nn.Module, is_encoder: Callable[[], bool]) -> str:
        """Name the stack of a module: cross, encoder, decoder, vision, audio, text or qformer.

        If several lists of layers would have the same name, the first that runs gets it, and the
        others are named by their paths in the model. `is_encoder` tells an encoder from a decoder
        by its present call, in case its name does not.
        """
        name = self.name(module)
        if name not in self.stacks:
            short = stack_name(module, name, self.is_encoder_decoder)
            if short is None:
                short = "encoder" if is_encoder() else "decoder"
            place, is_cross = home(name), short == "cross"
            if self._homes.setdefault(short, place) != place:
                short = f"{place} cross" if is_cross else place
            self.stacks[name] = short
            if is_cross:
                self.crossing.add(short)
            if modality(name):
                self.foreign.add(short)
        return self.stacks[name]

    def note_unread(self, name: str, unread: Tensor, real: Tensor, before: Sequence[int]) -> None:
        """Note a module among whose tokens some may be padding.

        Real tokens are shown; a text has as many `before`. One that is alone in its text is none.
        """
        if not bool(unread.any()):
            return
        counts = torch.tensor(before, device="cpu") + real.sum(1)
        some = unread & real & (counts > 1)[:, None]
        if bool(some.any()) and (any(before) or bool((real & ~unread).any())):
            self.unread.add(name)

    def note_holes(self, name: str, real: Tensor) -> None:
        """Note a module whose mask takes tokens between `real` ones, (sequences, tokens)."""
        counts = real.cumsum(1)
        if bool((~real & (counts > 0) & (counts < counts[:, -1:])).any()):
            self.with_holes.add(name)

    @cached_property
    def _alike(self) -> Mapping[Kind, Sequence[str]]:
        return kinds(self.held)

    def check_layers(self, seen: Collection[str], calls: Mapping[str, int]) -> None:
        """Refuse a call whose layers cannot be numbered by their order.

        `seen` are the modules whose attention was seen, `calls` counts those of each stack.
        """
        config = self.config
        text = text_config(config) if hasattr(config, "get_text_config") else config
        layers = getattr(text, "num_hidden_layers", None)
        layers = layers if isinstance(layers, int) else None  # LXMERT's are of several kinds.
        check_seen(self.model, self._alike, seen, layers)
        for stack, number in calls.items():
            modules = sum(self.stacks[name] == stack for name in seen)
            if layers is not None and modules < number > layers:
                raise CaptureError(
                    f"{type(self.model).__name__} calls its attention {number} times in {layers} "
                    "layers: a layer's attention combines several softmaxes, or a part ran twice, "
                    "so these are not the layers that its configuration tells of. Capture a module "
                    "of your own whose forward calls the model: it is read as one of any library."
                )
