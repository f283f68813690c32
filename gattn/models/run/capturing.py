"""Captures the attention graphs of a live model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby, islice
from typing import TYPE_CHECKING, cast

import torch

from gattn.checks import whole
from gattn.errors import CaptureError, ModelError
from gattn.heads.trace import AttentionTrace
from gattn.keep import Keep
from gattn.models.load.encoding import Encoding, Inputs, encode
from gattn.models.load.loading import check_module, check_tokenizer, is_any_model, resolved
from gattn.models.run.functions import RunFunction, Runnable, prepared
from gattn.models.run.names.naming import Naming, Tokens
from gattn.models.run.opening import opened
from gattn.models.run.options import Contributions, Options
from gattn.models.run.prompt import Prompt
from gattn.models.run.recording import Recording
from gattn.names.choices import HeadChoice, LayerChoice
from gattn.progress import bar

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from gattn.models.load.loading import Model


def capture(
    inputs: Runnable,
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    keep: Keep | None = None,
    layers: LayerChoice = None,
    heads: HeadChoice = None,
    scores: bool = False,
    contributions: Contributions = False,
    tokens: Tokens | None = None,
    grid: tuple[int, int] | None = None,
) -> AttentionTrace:
    """Run a model on one text, or a function that calls it, and capture every head's graph.

    The model computes its output with the implementation it was loaded with, on its own masks;
    gattn reads queries and keys on the way and computes the attention from them. On some rows of
    every layer it checks that this attention, times the values, is the model's own output.

    Parameters
    ----------
    inputs : str, sequence of int, Tensor, mapping, or callable
        One text, the token ids of one sequence, or a tokenizer's or processor's output for one
        sequence (with ``decoder_input_ids`` for an encoder-decoder model; with images or sounds
        for a model that takes them); or a function without arguments that calls the model on one
        sequence, such as ``lambda: model(image)``.
    model : str, Path or PreTrainedModel, optional
        A hub name, a folder or a transformers model; by default the embedded model. For a
        function, the module that it calls.
    tokenizer : PreTrainedTokenizerBase, optional
        The model's tokenizer; by default found by the model's name.
    keep : Keep, optional
        Which edges to keep. By default all, as long as they take less than 1 GiB.
    layers : int or sequence of int, optional
        Which layers to capture; all by default.
    heads : int, sequence of int, or sequence of (layer, head), optional
        Which heads to capture: one or several of every layer, or single heads by place, which may
        be text such as "2.1"; all by default.
    scores : bool
        Whether to store the scores before the softmax as well.
    contributions : bool or "value"
        Whether to store the length of what each edge adds to the layer's output, ||A_ij W_O v_j||;
        "value" stores ||A_ij v_j||, for models whose output projection W_O is not known.
    tokens, grid
        The tokens' texts, and where patches lie, as in `capturing`.

    Returns
    -------
    AttentionTrace
        Padding is cut off: nodes are the real tokens. Its `logits` are the model's.

    Raises
    ------
    CaptureError
        If the text is empty or too long, the attention is NaN, cannot be seen, or differs from
        what gattn reads; where contributions are wanted and W_O cannot be verified.
    ModelError
        If the model or its tokenizer cannot be loaded or is in training mode.
    SelectionError
        If there is no such layer or head.
    GraphError
        If `keep` is not a `Keep`.

    Examples
    --------
    >>> gattn.capture("The cat sat on the mat", "gpt2")
    >>> gattn.capture(lambda: encoder(x), encoder, tokens=words)
    """
    options = Options(keep, layers, heads, scores, contributions)
    prompt = prepared(inputs, model, tokenizer, Naming(tokens, grid))
    recording = _captured(prompt, options, keeps_logits=True)
    if isinstance(prompt, RunFunction) and len(recording.traces) > 1:
        raise CaptureError(
            f"{prompt} ran {len(recording.traces)} sequences, but capture gives the trace of one: "
            "run one, or use gattn.capturing, whose run.traces lists them all."
        )
    return recording.trace


def capture_many(
    inputs: Iterable[Inputs],
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    keep: Keep | None = None,
    layers: LayerChoice = None,
    heads: HeadChoice = None,
    scores: bool = False,
    contributions: Contributions = False,
    batch_size: int = 8,
    progress: bool = True,
) -> Iterator[AttentionTrace]:
    """Capture many texts in batches with padding; yield one trace after another, in their order.

    The traces hold no logits, which would take more memory than the graphs.

    Parameters
    ----------
    inputs : iterable
        Texts, or whatever else `capture` takes.
    batch_size : int
        How many sequences run at once, at most; those that come with other tensors than their
        neighbours, such as token types, run separately.
    progress : bool
        Whether to show a progress bar on stderr, after the first second.
    model, tokenizer, keep, layers, heads, scores, contributions
        As in `capture`.

    Yields
    ------
    AttentionTrace
        The trace of each sequence.

    Raises
    ------
    CaptureError, ModelError, SelectionError, GraphError
        As `capture` does.
    """
    if isinstance(inputs, (str, Mapping)):
        raise CaptureError(
            "capture_many takes several inputs, such as a list of texts; capture takes one."
        )
    options = Options(keep, layers, heads, scores, contributions)
    batch_size = whole("batch_size", batch_size, 1, CaptureError)
    model, tokenizer = resolved(model, tokenizer)
    total = len(inputs) if isinstance(inputs, Sequence) else None
    with bar(total=total, desc="capturing", unit="text", progress=progress) as shown:
        numbered = enumerate(inputs)
        while batch := list(islice(numbered, batch_size)):
            encodings = [
                _encoded(one, model, tokenizer, f"input {number}: ") for number, one in batch
            ]
            # A batch has the same tensors for each of its sequences.
            for _, alike in groupby(encodings, lambda encoding: encoding.tensors.keys()):
                for trace in capture_encoded(list(alike), model, tokenizer, options):
                    shown.update()
                    yield trace


def capture_encoded(
    encodings: list[Encoding],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    options: Options,
) -> list[AttentionTrace]:
    """Capture sequences with the same tensors at once, in one batch with padding."""
    return _captured(Prompt.batch(encodings, model, tokenizer), options).traces


def _captured(
    prompt: Prompt,
    options: Options,
    *,
    keeps_logits: bool = False,
) -> Recording:
    """Run a model once, and record it."""
    if prompt.encodings is not None:
        options.check_size(prompt.model, prompt.encodings)
    recording = Recording(
        prompt.model,
        prompt.tokenizer,
        options,
        keeps_logits=keeps_logits,
        naming=prompt.naming,
    )
    recording.reads_one_call = not isinstance(prompt, RunFunction)
    with torch.no_grad():
        prompt.run(recording, **({} if keeps_logits else prompt.few_logits))
    recording.finish()
    return recording


def capturing(
    model: PreTrainedModel | nn.Module,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    keep: Keep | None = None,
    layers: LayerChoice = None,
    heads: HeadChoice = None,
    scores: bool = False,
    contributions: Contributions = False,
    tokens: Tokens | None = None,
    grid: tuple[int, int] | None = None,
) -> AbstractContextManager[Recording]:
    """Capture the attention of any call of a model, generation included.

    Within the context, in this thread, each call of the model is recorded; ``run.trace`` is then
    the trace of the one sequence that ran, ``run.traces`` those of several. Steps that continue a
    cache continue the trace: it covers the prompt and all generated tokens except the last, which
    never enters the model. Without a cache each step has its own trace, as any other call has.
    Caches may be copied, reordered and cropped: each continuation of a prompt has its own trace,
    with the prompt. Beam search and assisted decoding give the traces of the sequences that
    `generate` returns, in that order. Calls in other threads, as in continuous batching, are not
    seen.

    Several samples of one text encode it once: its encoder's stack is in the trace of each.
    Under a custom mask, (batch, heads, queries, keys), a token that neither reads nor is read
    counts as padding.

    Parameters
    ----------
    model : nn.Module
        A transformers model, or any other PyTorch model that computes attention with torch's
        functions: `scaled_dot_product_attention`, `nn.MultiheadAttention`, `flex_attention`, or a
        softmax of scores and its product with values; or with torch-geometric. Its stacks are named
        by the paths of its modules.
    tokenizer, keep, layers, heads, scores, contributions
        As in `capture`. In models of other libraries, a tokenizer names the tokens of an input of
        integers (batch, tokens).
    tokens : sequence of str, mapping of str to sequence of str, or list of these, optional
        The tokens' texts: for all stacks that have as many tokens, by stack, or these for each
        sequence of a batch, without padding. In place of a stack's texts may be those of its
        queries and keys, as ``{"cross": {"query": target, "key": source}}``, or those of the
        tokens that are no patches, as ``["class", "register"]``.
    grid : (int, int), optional
        How many rows and columns of patches an image has; see `AttentionTrace.on_grid`. Tokens
        before them are named by `tokens`.

    Returns
    -------
    context manager
        Of a `Recording`, whose `trace` and `traces` are there while the context is open, and
        afterwards.

    Raises
    ------
    CaptureError, ModelError, SelectionError, GraphError
        As `capture` does; also where a cache holds tokens from before the context, and, as it
        closes, where `tokens` or `grid` fit no stack that ran.

    Examples
    --------
    >>> with gattn.capturing(model, keep=gattn.TopK(8)) as run:
    ...     model.generate(**inputs, max_new_tokens=20)
    >>> run.trace

    >>> encoder = torch.nn.TransformerEncoder(layer, 2).eval()
    >>> with gattn.capturing(encoder, tokens=words) as run:
    ...     encoder(x)
    >>> run.trace[1, 3].draw()
    """
    check_module("capturing", model)
    check_tokenizer(tokenizer)
    options = Options(keep, layers, heads, scores, contributions)
    if not is_any_model(model):
        model, tokenizer = resolved(cast("PreTrainedModel", model), tokenizer)
    naming = Naming(tokens, grid)
    recording = Recording(model, tokenizer, options, keeps_logits=True, naming=naming)
    return _capturing(model, recording, is_named=tokens is not None or grid is not None)


@contextmanager
def _capturing(model: nn.Module, recording: Recording, *, is_named: bool) -> Iterator[Recording]:
    with opened(model, recording) as calls:
        yield recording
    recording.finish(calls)
    if is_named:
        _ = recording.traces  # Names, or a grid, may fit no text that ran.


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
