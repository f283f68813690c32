"""Runs a model on chosen vectors in place of its residual stream, with the norms held fixed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError, ModelError
from gattn.models.decompose.decomposing import decompose
from gattn.models.decompose.fixed_norms import Norms, inputs_replaced
from gattn.models.decompose.skipping import Skipping
from gattn.models.load.limits import text_config
from gattn.models.load.loading import input_device, model_name, resolved
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall
from gattn.models.run.prompt import Prompt
from gattn.models.stream.layers import layers_of
from gattn.models.stream.rounding import tolerance
from gattn.models.watch.contexts import Context, without_contexts

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from gattn.models.load.loading import Model

UNIT = 64.0
_TOKENS, _AT_ONCE = 8, 256


class Seen(NamedTuple):
    """What a layer made of rows: queries of the last token of each, keys and values of the first.

    Each is (heads, rows, head dim), the keys' heads expanded to the queries'. `scale` multiplies
    scores; `is_biased` says that numbers of pairs of positions are added to them.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    is_biased: bool


class LinearRuns:
    """Runs of one stack of a model in which each layer reads chosen vectors.

    One ordinary run on a few tokens finds the layers, verifies their output projections
    (`gattn.models.decompose.decomposing`) and notes the norms.

    Parameters
    ----------
    model, tokenizer
        As in `gattn.capture`.
    stack : str, optional
        Which stack of self-attention; needed where the model has several.

    Raises
    ------
    CaptureError
        If the model does not read token ids; also as `decompose` does.
    ModelError
        If it is no model of transformers, or cannot be loaded.
    """

    def __init__(
        self,
        model: Model = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        stack: str | None = None,
    ) -> None:
        is_known = model is None or isinstance(model, (str, Path, nn.Module))
        if not is_known or (isinstance(model, nn.Module) and not hasattr(model, "config")):
            raise ModelError(
                "Weights are read off models of text of transformers: expected a hub name, a "
                f"folder or such a model, not {type(model).__name__}."
            )
        self.model, self.tokenizer = resolved(model, tokenizer)
        self.name = model_name(self.model)
        takes = getattr(self.model, "main_input_name", "input_ids")
        if takes != "input_ids":
            raise CaptureError(
                f"{self.name} reads {takes}: weights are read while the model runs on token ids, "
                "so expected a model of text."
            )
        self.embedding = _embedding(self.model, self.name)
        self.norms = Norms(has_factors=False)
        with without_contexts(), self.norms.noted(self.model):
            found = decompose(
                self.inputs(1, _TOKENS),
                self.model,
                self.tokenizer,
                read=lambda part: part,
                stack=stack,
                progress=False,
            )
        self.stack, self.sublayers = found.stack, found.results
        self.modules = [_around(self.model, part.name) for part in self.sublayers]

    @property
    def width(self) -> int:
        """The dimension of the residual stream."""
        return self.sublayers[0].residual.shape[-1]

    @property
    def has_logits(self) -> bool:
        """Whether the model makes logits of this stack's output."""
        is_encoder = self.model.config.is_encoder_decoder and self.stack == "encoder"
        return self.model.get_output_embeddings() is not None and not is_encoder

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the model."""
        kinds = (x.dtype for x in self.model.parameters() if x.is_floating_point())
        return next(kinds, torch.float32)

    @property
    def tolerance(self) -> float:
        """How large errors may be in the model's precision, relative to the largest number."""
        return tolerance(torch.empty(0, dtype=self.dtype, device="cpu"))

    def inputs(self, rows: int, length: int) -> dict[str, Tensor]:
        """Return any token ids, as the model takes them: (rows, length)."""
        config: Any = self.model.config
        padding = getattr(text_config(config), "pad_token_id", None)
        some = [n for n in range(_TOKENS + 1) if n != padding and n < self.embedding.num_embeddings]
        ids = torch.tensor([some[n % len(some)] for n in range(length)], device="cpu").repeat(
            rows, 1
        )
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return given | ({"decoder_input_ids": ids} if config.is_encoder_decoder else {})

    def layers(self, rows: Tensor, length: int = 1) -> list[Seen]:
        """Let each layer read a residual stream that holds one row in all its tokens.

        What layers compute after their attention is skipped.

        Parameters
        ----------
        rows : Tensor (rows, dim)
            The vectors.
        length : int
            How many tokens each sequence has.

        Returns
        -------
        list of Seen
            One per layer.
        """
        found: list[list[Seen]] = []
        for some in rows.split(max(_AT_ONCE // length, 1)):
            skipping = Skipping()
            seen = _Seeing(self.stack, skipping)
            put_in = _putting(some, skipping)
            with self.norms.fixed(), inputs_replaced(dict.fromkeys(self.modules), put_in), skipping:
                self.run(seen, len(some), length)
            found.append([seen.found[part.layer] for part in self.sublayers])
        return [_joined(parts) for parts in zip(*found, strict=True)]

    def run(self, context: Context, rows: int, length: int) -> Any:
        """Run the model in a context, without edits that are open: weights do not hear of them."""
        prompt = Prompt(self.model, self.tokenizer, self.inputs(rows, length))
        with torch.no_grad(), without_contexts():
            return prompt.run(context)[0]

    def probes(self, width: int) -> Tensor:
        """Return the rows that tell an affine map: zero, units, and some to check it by.

        Units are `UNIT` long, so that rounding of what is added hides less of them.
        """
        units = UNIT * torch.eye(width, device="cpu").to(input_device(self.model), self.dtype)
        return torch.cat([units.new_zeros(1, width), units, self.random(4, width)])

    def random(self, rows: int, width: int) -> Tensor:
        """Return random rows, always the same."""
        generator = torch.Generator().manual_seed(0)
        found = torch.randn(rows, width, generator=generator, dtype=torch.float64, device="cpu")
        return found.to(input_device(self.model), self.dtype)


def _embedding(model: PreTrainedModel, name: str) -> nn.Embedding:
    """Return the table of a model's tokens."""
    try:
        table: Any = model.get_input_embeddings()
    except NotImplementedError:  # Some models hash their tokens, or have several tables.
        table = None
    if isinstance(table, nn.Embedding):
        return table
    raise CaptureError(
        f"{name} has no one table of embeddings: expected an nn.Embedding, whose rows are what "
        "tokens put into the residual stream."
    )


def _putting(rows: Tensor, skipping: Skipping) -> Any:
    """Return the function that puts rows in place of a stream (rows, tokens, dim)."""

    def put_in(module: nn.Module, given: Tensor) -> Tensor:
        skipping.is_on = False
        if given.dim() != 3 or given.shape[0] != len(rows) or given.shape[2] != rows.shape[1]:
            raise CaptureError(
                f"A layer {type(module).__name__} is given {tuple(given.shape)}: expected "
                f"({len(rows)}, tokens, {rows.shape[1]}), so its weights are not known."
            )
        return rows[:, None].to(given).expand_as(given)

    return put_in


class _Seeing(Context):
    """Keeps queries, keys and values of the self-attention of one stack."""

    reads_one_call = True

    def __init__(self, stack: str, skipping: Skipping) -> None:
        self._stack, self._skipping = stack, skipping
        self.found: dict[int, Seen] = {}

    def wants(self, place: Place) -> bool:
        """Return whether a call is in the stack."""
        return place.stack == self._stack and not place.is_bipartite

    def see(self, call: SeenCall, place: Place, readings: list[Reading]) -> None:
        """Keep what was seen of a call."""
        whole = [reading.attention for reading in readings]
        query = torch.cat([one.query[:, :, -1] for one in whole]).transpose(0, 1)
        key, value = (
            torch.cat([getattr(one, side)[:, :, 0] for one in whole]).transpose(0, 1)
            for side in ("key", "value")
        )
        scale = query.shape[-1] ** -0.5 if call.scale is None else float(call.scale)
        is_biased = any(one.edge_features is not None for one in whole)
        self.found[place.layer] = Seen(query, key, value, scale, is_biased)
        self._skipping.is_on = True


def _joined(parts: Sequence[Seen]) -> Seen:
    """Join what was seen of some rows after another."""
    query, key, value = (
        torch.cat([getattr(part, name) for part in parts], dim=1)
        for name in ("query", "key", "value")
    )
    return parts[0]._replace(query=query, key=key, value=value)


def _around(model: nn.Module, name: str) -> nn.Module:
    """Find the layer that contains an attention module."""
    layers = layers_of(model)
    path = name.split(".")
    for end in range(len(path), 0, -1):
        module = model.get_submodule(".".join(path[:end]))
        if id(module) in layers:
            return module
    raise CaptureError(f"{name} is not in a list of layers.")
