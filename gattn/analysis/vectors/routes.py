"""Information flow routes: which edges and residual streams lead to a prediction, and how much."""

from __future__ import annotations

import json
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gattn.analysis.reading.results import told_in_graph
from gattn.analysis.vectors.importances import Norm, check_norm
from gattn.analysis.vectors.route_building import Builder, add_layer
from gattn.analysis.vectors.route_graphs import Routes
from gattn.errors import SelectionError
from gattn.models.decompose.decomposing import decompose
from gattn.models.decompose.decomposition import Decomposition
from gattn.models.decompose.read_out import comes_last, read_out
from gattn.models.load.token_texts import entries_of
from gattn.models.run.functions import RunFunction, Runnable, prepared, resolved_for
from gattn.models.run.names.naming import Naming, Tokens
from gattn.models.run.opening import opened
from gattn.models.run.prompt import Prompt
from gattn.models.run.record.predictions import shift_of
from gattn.models.stream.sublayers import Sublayer
from gattn.models.watch.contexts import Context
from gattn.names.tokens import described, find_token
from gattn.progress import walk

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from gattn.models.load.loading import Model
    from gattn.models.read.track.tracking import Tracker


def routes(
    text: Runnable,
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    position: int | str | None = None,
    threshold: float = 0.04,
    norm: Norm = 1,
    stack: str | None = None,
    progress: bool = True,
    tokens: Tokens | None = None,
    grid: tuple[int, int] | None = None,
) -> Routes:
    r"""Find the routes by which information flows to a prediction.

    Every residual stream of a model is a sum of vectors: after attention, of the stream before it
    and of what each token adds by each head; after the MLP, of the stream before it and of the
    MLP's output. The proximity of a part x of a sum y, and its importance, are

    .. math::

        p(x, y) = \max(\|y\| - \|y - x\|, 10^{-5}), \qquad
        c(x) = \frac{p(x, y)}{\sum_{x'} p(x', y)}.

    Parts whose importance is at most `threshold` are dropped, and the others divided by their sum;
    if all would be dropped, the most important stays. This is followed back, layer by layer, from
    the last stream of the token whose prediction is asked for: only what is still on a route is
    computed.

    Parameters
    ----------
    text, model, tokenizer
        As in `gattn.capture`, but one text.
    position : int or str, optional
        The token whose prediction is asked for: its position, negative from the end, or its text.
        By default the token in whose last stream the model reads its answer, if that is one alone:
        the last of a text that a model continues, if no other token reads it; otherwise runs with
        NaN in the last streams of other tokens tell which it is, such as the class token of an
        image.
    threshold : float
        The importance that a part must exceed, at least 0 and below 1. With 0 the graph has an edge
        for nearly every pair of tokens and layer; `route_importances` gives these as an array.
    norm : 1 or 2
        Of the vectors; the paper's is 1, the sum of absolute values.
    stack : str, optional
        Which stack of self-attention, if the model has several.
    progress : bool
        Whether to show a progress bar.
    tokens, grid
        The tokens' texts, and where patches lie, as in `gattn.capturing`.

    Returns
    -------
    Routes
        A `networkx.DiGraph` that ranks its paths by strength.

    Raises
    ------
    SelectionError
        If there is no such position, norm, threshold or stack; if no position is given, and the
        answer is not read from one token alone.
    CaptureError, ModelError
        As in `gattn.capture`; also if the parts of a layer cannot be found, or do not sum to its
        output.

    Notes
    -----
    Biases are not a part, as in the paper. If layers end in a norm of their sum, as in BERT, the
    vectors are those after the norm, its statistics fixed, and what the last norm changes counts
    as the MLP's.

    References
    ----------
    Ferrando and Voita (2024), Information flow routes: automatically interpreting language models
    at scale.

    Examples
    --------
    >>> found = gattn.analysis.routes("red green lamp, red green lamp, red green")  # lamp
    >>> found.paths(5)
    >>> found.draw()
    """
    check_norm(norm)
    _check_threshold(threshold)
    naming = Naming(tokens, grid)
    known = text, *resolved_for(text, model, tokenizer)
    found, ids = _decomposed(*known, stack, progress, naming)
    target = _target(found, position, prepared(*known, naming), ids)
    builder = Builder(found.tokens, found.layers[-1] + 1, target)
    reached = torch.tensor([target], device="cpu")
    device = found.results[0].residual.device.type
    with torch.no_grad(), torch.autocast(device, enabled=False):
        for sublayer in walk(found.results[::-1], "routes", "layer", progress=progress):
            reached = add_layer(builder, sublayer, reached, float(threshold), norm)
    graph = builder.graph
    graph.weigh()
    graph.graph.update(
        computed_from=found.source,
        **told_in_graph(found.edits),
        notes="\n".join(_notes(found, threshold, norm)),
        position=target,
        threshold=float(threshold),
        norm=int(norm),
        layers=len(found.layers),
        error=found.error,
        predicted=entries_of([ids[target]], known[2])[0] if ids else "",
        tokens=json.dumps(found.tokens),
    )
    return graph


class _Prediction(Context):
    """Reads what the model predicts after each token."""

    reads_one_call = True

    def __init__(self) -> None:
        self.ids: list[int] = []

    def end(self, tracker: Tracker, result: Any) -> None:
        logits = getattr(result, "logits", None)
        if isinstance(logits, Tensor) and logits.dim() == 3:
            self.ids = tracker.tokens.real_rows(logits[0], 0).argmax(-1).tolist()


def _decomposed(
    text: Runnable,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    stack: str | None,
    progress: bool,
    naming: Naming,
) -> tuple[Decomposition[Sublayer], list[int]]:
    """Take all layers apart; give the ids, too, that the model predicts at each token, if any."""
    prediction = _Prediction()
    with opened(model, prediction):
        known = text, model, tokenizer
        found = decompose(*known, read=_itself, stack=stack, progress=progress, naming=naming)
    config = getattr(model, "config", None)
    is_read = found.stack == "decoder" or not getattr(config, "is_encoder_decoder", False)
    is_named = is_read and len(prediction.ids) == len(found.tokens) and _speaks(model)
    return found, prediction.ids if is_named else []


def _target(
    found: Decomposition[Sublayer], position: int | str | None, prompt: Prompt, ids: list[int]
) -> int:
    """Find the token whose last stream routes lead to."""
    count = len(found.tokens)
    if position is not None:
        return find_token(position, range(count), found.tokens, "position")
    continues = ids and not isinstance(prompt, RunFunction) and shift_of(prompt.model) == 1
    if continues and comes_last(found.results):
        return count - 1
    target = read_out(prompt, found.results)
    if target is None:
        raise SelectionError(
            f"{type(prompt.model).__name__} does not read its answer from one token of "
            f"{found.stack!r} alone: it reads several, as a mean or an attention pool does, or "
            "gives each token an answer. Pass position=, the token that the routes lead to; "
            f"{described(found.tokens)}."
        )
    return target


def _itself(sublayer: Sublayer) -> Sublayer:
    return sublayer


def _speaks(model: PreTrainedModel) -> bool:
    """Return whether a model's logits are of tokens."""
    find = getattr(model, "get_output_embeddings", None)
    return find is not None and find() is not None


def _notes(found: Decomposition[Sublayer], threshold: float, norm: Norm) -> list[str]:
    notes = [*found.notes, f"parts of importance ≤ {threshold:g} dropped, L{norm} norm"]
    if any(sublayer.is_post_norm for sublayer in found.results):
        notes.append("the last norm of a layer counts as its MLP's")
    pairs = zip(found.results, found.results[1:], strict=False)
    if any(not torch.equal(one.end, other.residual) for one, other in pairs):
        notes.append("between layers the stream is changed, which is in no edge")
    return notes


def _check_threshold(threshold: object) -> None:
    is_number = isinstance(threshold, Real) and not isinstance(threshold, bool)
    if not is_number or not 0 <= float(threshold) < 1:  # type: ignore[arg-type]
        raise SelectionError(f"threshold is a number from 0 to below 1, not {threshold!r}.")
