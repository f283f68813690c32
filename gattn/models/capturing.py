"""Captures the attention graphs of a live model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from gattn.engines import tiles
from gattn.errors import CaptureError, ModelError, SelectionError
from gattn.graph import TokenGraph
from gattn.head import AttentionGraph
from gattn.keep import All, Keep, as_keep
from gattn.models.encoding import Encoding, Inputs, encode, pad
from gattn.models.interface import RoutedCall, watching
from gattn.models.loading import find_tokenizer, load_model, model_name
from gattn.models.reading import Sides, read_call
from gattn.store import KeptEdges
from gattn.trace import AttentionTrace, Stack

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    Model: TypeAlias = str | Path | PreTrainedModel | None

_LARGEST_DEFAULT = 1 << 30
_CROSS = ("crossattention", "cross_attn", "encoder_attn", "encdecattention")


def capture(
    inputs: Inputs,
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    keep: Keep | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    scores: bool = False,
) -> AttentionTrace:
    """Run a model on one text and capture the attention graph of every head.

    The model computes its output with the implementation it was loaded with, on its own masks;
    gattn reads queries and keys on the way and computes the attention from them. On some rows of
    every layer it checks that this attention, times the values, is the model's own output.

    Parameters
    ----------
    inputs : str, sequence of int, Tensor, or mapping
        One text, the token ids of one sequence, or a tokenizer's output for one sequence (with
        ``decoder_input_ids`` for an encoder-decoder model).
    model : str, Path or PreTrainedModel, optional
        A hub name, a folder or a transformers model; by default the embedded model.
    tokenizer : PreTrainedTokenizerBase, optional
        The model's tokenizer; found by the model's name where not given.
    keep : Keep, optional
        Which edges to keep. By default all, while that stays under 1 GiB.
    layers, heads : sequence of int, optional
        Which layers and heads to capture; all by default.
    scores : bool
        Whether to store the scores before the softmax as well.

    Returns
    -------
    AttentionTrace
        Padding is cut off: nodes are the real tokens.

    Raises
    ------
    CaptureError
        Where the text is empty or too long, the attention is NaN, not routed through
        transformers' attention interface, or not what gattn reads it as.
    ModelError
        Where the model or its tokenizer cannot be loaded or is in training mode.
    SelectionError
        Where there is no such layer or head.
    GraphError
        Where `keep` is none.
    """
    traces = capture_many(
        [inputs],
        model,
        tokenizer,
        keep=keep,
        layers=layers,
        heads=heads,
        scores=scores,
        progress=False,
    )
    return next(traces)


def capture_many(
    inputs: Iterable[Inputs],
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    keep: Keep | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    scores: bool = False,
    batch_size: int = 8,
    progress: bool = True,
) -> Iterator[AttentionTrace]:
    """Capture many texts in batches with padding; yield one trace after another, in their order.

    Parameters
    ----------
    inputs : iterable
        Texts, or what else `capture` takes.
    batch_size : int
        How many sequences run at once, at most: those that come with other tensors, such as token
        types, run by themselves.
    progress : bool
        Whether to show a progress bar on stderr, after the first second.
    model, tokenizer, keep, layers, heads, scores
        As in `capture`.
    """
    from tqdm import tqdm

    if isinstance(inputs, (str, Mapping)):
        raise CaptureError(
            "capture_many takes several inputs, such as a list of texts; capture takes one."
        )
    layers, heads = _choice("layers", layers), _choice("heads", heads)
    if not isinstance(batch_size, int) or batch_size < 1:
        raise CaptureError(f"batch_size must be a whole number of at least 1, not {batch_size!r}.")
    keep = None if keep is None else as_keep(keep)
    model, tokenizer = _resolved(model, tokenizer)
    if model.training:
        raise ModelError(
            "The model is in training mode, where dropout is random: call model.eval()."
        )
    total = len(inputs) if isinstance(inputs, Sequence) else None
    with tqdm(total=total, desc="capturing", unit="text", delay=1, disable=not progress) as bar:
        numbered = enumerate(inputs)
        while batch := list(islice(numbered, batch_size)):
            encodings = [
                _encoded(one, model, tokenizer, "" if total == 1 else f"input {number}: ")
                for number, one in batch
            ]
            # A batch has the same tensors for each of its sequences.
            for _, alike in groupby(encodings, lambda encoding: encoding.tensors.keys()):
                run = _Run(model, list(alike), keep, layers, heads, scores)
                run.forward(tokenizer)
                for trace in run.traces():
                    bar.update()
                    yield trace


def _choice(name: str, chosen: Sequence[int] | None) -> list[int] | None:
    """Check which layers or heads were chosen."""
    if chosen is None:
        return None
    try:
        numbers = [index(number) for number in chosen]
    except TypeError as error:
        raise SelectionError(
            f"{name} takes a list of whole numbers, such as {name}=[0, 2], not {chosen!r}."
        ) from error
    if not numbers:
        raise SelectionError(f"{name} is empty: name at least one, or None for all.")
    if len(set(numbers)) < len(numbers):
        raise SelectionError(f"{name}={numbers} names one of them twice: name each once.")
    return numbers


def _encoded(
    inputs: Inputs,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    place: str,
) -> Encoding:
    try:
        return encode(inputs, model, tokenizer)
    except (CaptureError, ModelError) as error:
        raise type(error)(f"{place}{error}") from error


def _resolved(
    model: Model, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    from transformers import PreTrainedTokenizerBase

    if tokenizer is not None and not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ModelError(
            "tokenizer must be a transformers tokenizer, such as "
            f"AutoTokenizer.from_pretrained(name), not {tokenizer!r:.60}."
        )
    if model is None or isinstance(model, (str, Path)):
        loaded, found = load_model(model)
        return loaded, tokenizer or found
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
        raise ModelError(
            "model must be a hub name, a folder or a transformers model, not "
            f"{type(model).__name__}."
        )
    if tokenizer is None:
        tokenizer = find_tokenizer(model)
    return model, tokenizer


class _Run:
    """One forward pass over a batch, and the heads that it shows."""

    def __init__(
        self,
        model: PreTrainedModel,
        encodings: list[Encoding],
        keep: Keep | None,
        layers: Sequence[int] | None,
        heads: Sequence[int] | None,
        scores: bool,
    ) -> None:
        self._model, self._encodings, self._scores = model, encodings, scores
        self._layers, self._heads = layers, heads
        self._keep = keep or All()
        if keep is None:
            self._check_size()
        self._calls: dict[str, int] = {}
        self._modules: dict[str, set[str]] = {}
        self._known: dict[Any, Any] = {}
        self._found: list[dict[str, dict[tuple[int, int], AttentionGraph]]] = [
            {} for _ in encodings
        ]

    def _check_size(self) -> None:
        config = self._model.config.get_text_config()
        layers = getattr(config, "num_hidden_layers", None) or 1
        heads = getattr(config, "num_attention_heads", None) or 1
        if self._layers is not None:
            layers = len(self._layers)
        if self._heads is not None:
            heads = len(self._heads)
        pairs = sum(encoding.num_pairs for encoding in self._encodings)
        size = 4 * layers * heads * pairs * (2 if self._scores else 1)
        if size > _LARGEST_DEFAULT:
            raise CaptureError(
                f"Keeping all edges of {layers} layers x {heads} heads would take about "
                f"{size / 2**30:.1f} GiB; pass keep=Threshold(0.01) or keep=TopK(8), choose layers "
                "and heads, or insist with keep=All()."
            )

    def forward(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        """Run the model and look at each call of its attention."""
        config = self._model.config
        if config.is_encoder_decoder and not all(e.decoder_tokens for e in self._encodings):
            raise CaptureError(
                f"{type(self._model).__name__} has an encoder and a decoder: pass a mapping with "
                "input_ids and decoder_input_ids."
            )
        batch = pad(self._encodings, getattr(tokenizer, "pad_token_id", None) or 0)
        batch = {name: values.to(self._model.device) for name, values in batch.items()}
        options = {"use_cache": False} if hasattr(config, "use_cache") else {}
        with torch.no_grad(), watching(self._model, self._see):
            self._model(**batch, **options)
        if not self._calls:
            raise CaptureError(
                f"{type(self._model).__name__} does not route its attention through transformers' "
                "attention interface, so there is nothing to capture."
            )
        self._check_layers()
        layers = range(max(self._calls.values()))
        if missing := set(self._layers or ()) - set(layers):
            raise SelectionError(
                f"No layer {min(missing)}; the model has layers 0 .. {layers[-1]}."
            )

    def _check_layers(self) -> None:
        """Refuse layers that mix several attentions: one module may serve each layer only once."""
        layers = getattr(self._model.config.get_text_config(), "num_hidden_layers", None)
        for stack, calls in self._calls.items():
            if layers is not None and len(self._modules[stack]) < calls > layers:
                raise CaptureError(
                    f"{type(self._model).__name__} calls its attention {calls} times in {layers} "
                    "layers: the attention of a layer is a combination of several softmaxes, which "
                    "gattn does not read."
                )

    def _see(self, routed: RoutedCall) -> None:
        stack = _stack_name(routed, self._model)
        layer = self._calls.get(stack, 0)
        self._calls[stack] = layer + 1
        self._modules.setdefault(stack, set()).add(routed.name)
        if self._layers is not None and layer not in self._layers:
            return
        count = routed.query.shape[1]
        heads = list(range(count) if self._heads is None else self._heads)
        if missing := [head for head in heads if not 0 <= head < count]:
            raise SelectionError(f"No head {missing[0]}; layer {layer} has heads 0 .. {count - 1}.")
        for element, encoding in enumerate(self._encodings):
            call = read_call(routed, _sides(routed, stack, element, encoding), self._known)
            assert isinstance(call.graph, TokenGraph)
            store = KeptEdges(heads, self._keep, self._scores, call.query.dtype)
            store.begin(call.graph)
            for rows, columns, allowed, score, attention in tiles.row_blocks(call):
                store.add_rows(rows, columns, allowed, attention[0, heads], score[0, heads])
            found = self._found[element].setdefault(stack, {})
            for graph in store.graphs(
                has_sink=call.normalizer.has_sink,
                layer=layer,
                model=model_name(self._model),
                weight_function=repr(call.weight),
                normalizer=repr(call.normalizer),
                **encoding.names(stack),
            ):
                found[layer, graph.head or 0] = graph

    def traces(self) -> Iterator[AttentionTrace]:
        """Give the trace of each sequence."""
        for found in self._found:
            stacks = {name: Stack(name, heads) for name, heads in found.items()}
            yield AttentionTrace(stacks, model_name(self._model))


def _stack_name(routed: RoutedCall, model: PreTrainedModel) -> str:
    name = routed.name.lower()
    if any(word in name for word in _CROSS):
        return "cross"
    parts = name.split(".")
    if model.config.is_encoder_decoder:
        return next((part for part in parts if part in ("encoder", "decoder")), "decoder")
    if any("vision" in part for part in parts):
        return "vision"
    return "decoder" if getattr(routed.module, "is_causal", True) else "encoder"


def _sides(routed: RoutedCall, stack: str, element: int, encoding: Encoding) -> Sides:
    """Find the real tokens of a batch element: padding is on the right."""
    names = encoding.names(stack)
    keys = len(names["tokens"])
    queries = len(names["query_tokens"]) if stack == "cross" else keys
    batch, _, longest, _ = routed.query.shape
    if element >= batch or longest < queries or routed.key.shape[2] < keys:
        raise CaptureError(
            f"{routed.name} sees {batch} x {longest} queries and {routed.key.shape[2]} keys, but "
            f"the input has {queries} and {keys} tokens: expected one query and one key a token. "
            "Models that attend in windows, or to other things than tokens, cannot be captured."
        )
    return Sides(element, torch.arange(queries), torch.arange(keys), stack == "cross")
