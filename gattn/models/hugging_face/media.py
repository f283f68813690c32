"""Knows which text each image or sound of a call belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from gattn.models.hugging_face.generating import generation_frames

MODALITIES = {
    "qformer": ("qformer",),
    "vision": ("vision", "visual", "image"),
    "audio": ("audio", "speech"),
}
_TEXTS = ("input_ids", "inputs_embeds", "decoder_input_ids", "decoder_inputs_embeds")
_MEDIA = {
    "vision": ("pixel_values", "flattened_patches", "pixel_values_videos"),
    "audio": ("input_features", "input_values"),
}
_PLACES = {
    "pixel_values_videos": ("video_token_id", "video_token_index"),
    "vision": ("image_token_id", "image_token_index"),
    "audio": ("audio_token_id", "audio_token_index"),
}


def takes_text(model: nn.Module) -> bool:
    """Return whether a model may be given texts, to which images and sounds belong."""
    return not signature(model.forward).parameters.keys().isdisjoint(_TEXTS)


def modality(name: str) -> str:
    """Name the modality of a stack or module by its path; "" for text."""
    lower = name.lower()
    found = (n for n, words in MODALITIES.items() if any(word in lower for word in words))
    return next(found, "")


@dataclass(frozen=True)
class Belonging:
    """For each element of a call's batch, its sequence, and its rank within that sequence."""

    sequences: list[int]
    ranks: list[int]

    @property
    def is_alone(self) -> bool:
        """Whether each element is a whole sequence."""
        return not any(self.ranks)


class Batch:
    """What a call of a model was given: texts, images and sounds.

    Parameters
    ----------
    given : mapping
        The call's arguments, by name.
    config : PreTrainedConfig, optional
        The model's configuration, which says which tokens are placeholders of images.
    ids : Tensor, optional
        The tokens of texts that come in a later call, if images are encoded before them.
    has_choices : bool
        Whether texts come as (texts, choices, tokens), and not as (texts, tokens, codebooks).
    """

    def __init__(
        self,
        given: Mapping[str, Any],
        config: Any,
        ids: Tensor | None = None,
        *,
        has_choices: bool = True,
    ) -> None:
        tensors = {n: x for n, x in given.items() if isinstance(x, Tensor) and x.dim()}
        self.has_text = any(name in tensors for name in _TEXTS)
        known = [(name, tensors[name]) for name in _TEXTS if name in tensors]
        texts = [_rows(*one) if has_choices else len(one[1]) for one in known]
        if not texts and ids is not None:
            texts = [len(ids)]
        self.texts = texts[0] if texts else None
        self._lengths = [
            x.shape[-2:][0] if name.endswith("embeds") else x.shape[-1] for name, x in known
        ]
        self._ids = tensors.get("input_ids", ids)
        self._media: dict[str, tuple[str, Tensor]] = {}
        for kind, names in _MEDIA.items():
            some = [(name, tensors[name]) for name in names if name in tensors]
            if len(some) == 1:
                self._media[kind] = some[0]
        self._first = None if self.has_text else next(iter(tensors.items()), None)
        self._config = config
        self._counted: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}

    @property
    def size(self) -> int | None:
        """How many sequences there are: texts, or else images or sounds."""
        if self.texts is not None:
            return self.texts
        some = [*self._media.values(), *([self._first] if self._first else [])]
        return len(some[0][1]) if some else None

    def belonging(
        self, stack: str, count: int, start: int = 0, length: int = 0
    ) -> Belonging | None:
        """Say to which sequence each of `count` elements of a stack's call belongs, if known.

        Images belong to the text that has placeholders for them; if texts have none, image n
        belongs to text n, if there are as many. Those that belong to no known text come after all
        texts. `start` and `length` locate a call that is part of one sequence with all images.
        """
        kind, texts = modality(stack), self.texts
        name, tensor = self._medium(kind)
        packed = Belonging([0], [0]) if count == 1 else None  # patches, or codebooks of a sound
        if texts is None:
            return _folded(count, self.size if tensor is None else len(tensor)) or packed
        if not kind and count == texts and not self._may_be_media(count, length):
            return Belonging(list(range(count)), [0] * count)
        if not kind and tensor is None:
            return packed
        tokens = self._tokens(name, kind)
        fills = count == texts and self._fill_places(tokens, count, length)
        if not kind and count <= texts and not fills:
            return None
        if texts == 1 and tokens:
            return Belonging([0] * count, list(range(count)))
        rows = count if tensor is None else len(tensor)
        if not tokens:
            alike = _folded(count, rows)
            if alike is None:
                return None
            first = 0 if rows == texts else texts
            return Belonging([first + n for n in alike.sequences], alike.ranks)
        if tensor is not None and tensor.dim() == 2 and kind == "vision":
            return self._packed(tokens, count, start, length, rows)
        is_nested = tensor is not None and tensor.dim() > 4
        units = count if is_nested or count % rows else rows
        shares = self._shares(tokens, units)
        if shares is None:
            return Belonging([texts + n for n in range(count)], [0] * count)
        owner = [text for text, share in enumerate(shares) for _ in range(share)]
        return ranked([owner[n * units // count] for n in range(count)])

    def _may_be_media(self, count: int, length: int) -> bool:
        """Return whether as many elements as texts may be images of which some texts have more.

        Elements as long as texts are these.
        """
        some = {self._tokens(name, kind) for kind, (name, _) in self._media.items()} - {()}
        are_even = [
            self._shares(one, count) == [1] * count or not self._places(one) for one in some
        ]
        return length not in self._lengths and not all(are_even)

    def _fill_places(self, tokens: tuple[int, ...], count: int, length: int) -> bool:
        """Return whether elements have as many tokens as texts have placeholders for images."""
        return count * length == self._places(tokens)

    def _places(self, tokens: tuple[int, ...]) -> int:
        """Count the placeholders in all texts."""
        counted = self._counts(tokens)
        return 0 if counted is None else sum(counted[0])

    def _medium(self, kind: str) -> tuple[str, Tensor | None]:
        """Find the tensor in which a stack's images or sounds came, if it is a single one."""
        if self._first is not None and not self._media:
            return self._first
        found = [one for of, one in self._media.items() if of == kind or kind in ("", "qformer")]
        return found[0] if len(found) == 1 else ("", None)

    def _tokens(self, name: str, kind: str) -> tuple[int, ...]:
        """Return the placeholder tokens of images or sounds."""
        kind = "audio" if kind == "audio" or name in _MEDIA["audio"] else "vision"
        found = (getattr(self._config, one, None) for one in _PLACES.get(name) or _PLACES[kind])
        return tuple(token for token in found if isinstance(token, int))

    def _counts(self, tokens: tuple[int, ...]) -> tuple[list[int], list[int]] | None:
        """Count the placeholders in each text, and the runs of them."""
        if tokens in self._counted:
            return self._counted[tokens]
        if self._ids is None or self._ids.dim() != 2:
            return None
        is_place = torch.isin(self._ids.cpu(), torch.tensor(tokens, device="cpu")).int()
        begins = is_place.diff(dim=1, prepend=is_place.new_zeros(len(is_place), 1)) > 0
        found = self._counted[tokens] = is_place.sum(1).tolist(), begins.sum(1).tolist()
        return found

    def _shares(self, tokens: tuple[int, ...], units: int) -> list[int] | None:
        """Share out `units` images, or patches of the same size, among the texts, in order."""
        counted = self._counts(tokens)
        if counted is None:
            return None
        places, runs = counted
        whole, texts = sum(places), len(places)
        if not whole:
            return [1] * texts if units == texts else None
        found = []
        if sum(runs) == units:
            found.append(runs)
        if len(set(places)) == 1 and units % texts == 0:
            found.append([units // texts] * texts)
        if (whole % units == 0 or units % whole == 0) and not any(
            x * units % whole for x in places
        ):
            found.append([x * units // whole for x in places])
        return found[0] if found and all(one == found[0] for one in found) else None

    def _packed(
        self, tokens: tuple[int, ...], count: int, start: int, length: int, rows: int
    ) -> Belonging:
        """Find the text that a part of all patches belongs to: a single one, or none."""
        texts = self.texts or 0
        shares = self._shares(tokens, rows)
        if shares is not None and count == 1 and sum(shares) == rows:
            for text, (begin, end) in enumerate(pairwise(accumulate(shares, initial=0))):
                if begin <= start and start + length <= end:
                    return Belonging([text], [0])
        return Belonging([texts] * count, list(range(count)))

    def origin(self, sequence: int) -> int:
        """Give where a text's patches begin, if the patches of all texts are one sequence."""
        name, tensor = self._medium("vision")
        if tensor is None or tensor.dim() != 2 or self.texts is None or sequence >= self.texts:
            return 0
        shares = self._shares(self._tokens(name, "vision"), len(tensor))
        return 0 if shares is None else sum(shares[:sequence])


def _rows(name: str, values: Tensor) -> int:
    """Count texts; multiple choice input is (batch, choices, tokens)."""
    inner = 2 if name.endswith("embeds") else 1
    return values.shape[:-inner].numel() if values.dim() > inner + 1 else len(values)


def _folded(count: int, rows: int | None) -> Belonging | None:
    """Read elements as rows that are each cut into as many windows; None if they do not divide."""
    if rows and count % rows:
        return None
    each = count // rows if rows else 1
    return Belonging([n // each for n in range(count)], [n % each for n in range(count)])


def ranked(sequences: list[int]) -> Belonging:
    """Count the elements that belong to the same sequence."""
    seen: dict[int, int] = {}
    ranks = []
    for sequence in sequences:
        ranks.append(seen.get(sequence, 0))
        seen[sequence] = ranks[-1] + 1
    return Belonging(sequences, ranks)


def generated_from(model: nn.Module) -> Tensor | None:
    """Return the texts that a model is generating from, if it is: (texts, tokens)."""
    for name, frame in generation_frames(model):
        if name == "generate" and frame.f_locals["self"] is model:
            some = (frame.f_locals.get(name) for name in ("inputs_tensor", "input_ids", "inputs"))
            known = (x for x in some if isinstance(x, Tensor) and x.dim() == 2)
            return next((x for x in known if not x.is_floating_point()), None)
    return None
