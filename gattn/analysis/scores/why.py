"""Takes the scores of one head apart: who wrote its queries, and who its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from gattn.analysis.reading.arguments import several_tokens
from gattn.analysis.reading.sources import Source, counted
from gattn.analysis.scores.taken_apart import Why
from gattn.checks import whole
from gattn.errors import CaptureError, SelectionError, ShapeError
from gattn.graph.rules.keys import list_keys
from gattn.models.decompose.before import stream_before
from gattn.models.decompose.listening import listened
from gattn.models.edit.applying import parts as parts_of
from gattn.models.edit.without import Without
from gattn.models.load.loading import model_name
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall
from gattn.models.run.editing import open_edits
from gattn.models.run.functions import Runnable, prepared
from gattn.models.stream.parts import Stream, Writer
from gattn.names.tokens import find_tokens
from gattn.normalizers import Normalizer, Softmax

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model

Token: TypeAlias = "int | str | Sequence[int | str] | None"


def why(
    text: Runnable,
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    layer: int,
    head: int,
    query: Token = None,
    key: Token = None,
    parts: Mapping[str, Tensor] | None = None,
    stack: str | None = None,
) -> Why:
    r"""Take the scores of one head apart, by who wrote its queries and its keys.

    The residual stream before a layer is a sum of parts, :math:`x_i = \sum_a x_i^a`: of embeddings,
    of each earlier head and MLP, and of biases. With the statistics of norms as they are in this
    run, queries and keys are linear in it, rotations by position included, and so a score is a sum
    over pairs of parts:

    .. math::

        s_{ij} = \sum_a \sum_b q_i^a \cdot k_j^b / \sqrt{d} + \beta_{ij},

    where :math:`q^a` and :math:`k^b` are what parts a and b alone give, projections' biases are a
    part of their own on either side, and :math:`\beta` is what the model adds, such as ALiBi. It
    is verified that all this sums to the scores that the model computed. A soft cap is applied to
    the sum; what is taken apart is the score before it.

    The MLP of a layer stands for all that the layer adds after its self-attention: experts, and in
    a decoder that reads an encoder, cross-attention too.

    Parameters
    ----------
    text, model, tokenizer
        As in `gattn.capture`, but one text, or a function that runs one.
    layer, head : int
        The head.
    query, key : int, str, or sequence of these, optional
        Tokens by position, negative from the end, or by text, which names every token of that text:
        the edges from these keys to these queries. Without queries, all are meant. Without keys,
        the question is what brings each query to the keys that it attends to, and all edges count;
        see `gattn.analysis.scores.taken_apart.Why.table`.
    parts : mapping of str to Tensor, optional
        Parts of your own in place of embeddings, heads and MLPs, such as features of a sparse
        autoencoder: what each adds to the stream before the layer, (tokens, dim). What they do not
        explain is a part, the "error".
    stack : str, optional
        Which stack, such as "encoder", if the model has several.

    Returns
    -------
    Why
        The parts of the scores.

    Raises
    ------
    SelectionError
        If there is no such head, stack or token, if there is none of the edges, or if `parts` are
        not named.
    ShapeError
        If `parts` are not (tokens, dim).
    CaptureError
        As in `gattn.capture`; also if queries and keys are not known or not linear in the stream,
        or if parts do not sum to what the model computed. Half precision is refused.
    ModelError
        If the model cannot be loaded.

    References
    ----------
    Elhage et al. (2021), A mathematical framework for transformer circuits; Kamath et al. (2025),
    Tracing attention computation through feature interactions.

    Examples
    --------
    >>> found = gattn.why(text, layer=2, head=0, query=-1, key=" lamp")
    >>> found.table()  # which pairs of parts the score is made of
    >>> found.without("key")  # the attention if the keys had no part in them
    """
    prompt = prepared(text, model, tokenizer)
    _check_edits(open_edits(prompt.model), layer)
    layer, head = whole("layer", layer, 0, SelectionError), whole("head", head, 0, SelectionError)
    found = listened(prompt, layer, head, stack)
    if parts is None:
        own = found.place.stack
        stream = stream_before(layer, found.embeddings, text, model, tokenizer, own)
        stream.check(found.residual, found.call.name)
    else:
        stream = _given(parts, found.residual, f"{layer}.{head}")
    texts = prompt.texts(found.place.stack, None, len(found.residual))
    queries = places("query", query, texts)
    sides = []
    for name, side in (("queries", found.queries), ("keys", found.keys)):
        vectors = side.of(stream.parts)
        side.check(vectors, f"The {name} of {found.call.name}")
        sides.append(torch.cat([vectors, side.constant[None].to(vectors)]).cpu().double())
    with torch.no_grad():
        writers = (*stream.writers, Writer("bias"))
        made = in_parts(found.call, found.place, found.reading, head, writers, sides, texts)
    size, edits = counted(len(texts), "token"), open_edits(prompt.model)
    source = Source(model_name(prompt.model), found.place.stack, size=size, edits=edits)
    made = replace(made, computed_from=f"{source}, head {layer}.{head}")
    return made.among(queries, None if key is None else places("key", key, texts))


def _given(parts: Mapping[str, Tensor], residual: Tensor, own: str) -> Stream:
    """Take the stream apart as a caller says, for the head `own`; what is left is the error."""
    if not isinstance(parts, Mapping) or not parts:
        raise SelectionError(
            f"parts is a mapping from a name of your own to a tensor, as in {{'feature': x}}, not "
            f"{parts!r:.80}."
        )
    if taken := sorted({"error", "bias", own} & set(map(str, parts))):
        raise SelectionError(
            f"No part may have the name {taken[0]!r}, which stands for something else: choose "
            "another."
        )
    shape = tuple(residual.shape)
    for name, part in parts.items():
        if not isinstance(part, Tensor) or part.shape != residual.shape:
            had = tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__
            raise ShapeError(
                f"The part {name!r} must be a tensor (tokens, dim), here {shape}, not {had}."
            )
    some = [part.detach().to(residual) for part in parts.values()]
    error = residual - sum(some, torch.zeros_like(residual))
    writers = [Writer("given", name=str(name)) for name in parts]
    return Stream([*writers, Writer("error")], torch.stack([*some, error]))


def places(name: str, chosen: Token, texts: Sequence[str]) -> list[int]:
    """Find tokens by position or text; None for all."""
    if chosen is None:
        return list(range(len(texts)))
    all_ = range(len(texts))
    several = several_tokens(name, chosen)
    found = [place for one in several for place in find_tokens(one, all_, texts, name)]
    if not found or len(set(found)) < len(found):
        raise SelectionError(f"{name} names at least one token, and each once, not {chosen!r:.80}.")
    return found


def in_parts(
    call: SeenCall,
    place: Place,
    reading: Reading,
    head: int,
    writers: Sequence[Writer],
    sides: Sequence[Tensor],
    texts: Sequence[str],
) -> Why:
    """Join the parts of queries and keys, and verify them against the model's scores.

    Each side is (writers, tokens, dim), queries without the scale.
    """
    size = len(texts)
    scores = torch.full((size, size), -torch.inf, dtype=torch.double)
    attention = torch.zeros(size, size, dtype=torch.double)
    (part,) = parts_of(reading, [head])
    for block in part.blocks():
        assert block.scores is not None
        keys, at = list_keys(block.columns).cpu(), torch.arange(size)[block.rows, None]
        scores[at, keys] = block.scores[0, 0].cpu().double()
        attention[at, keys] = block.attention[0, 0].cpu().double()
    bias = None
    if (features := reading.attention.edge_features) is not None:
        bias = features[..., head].cpu().double()
    scale = call.query.shape[-1] ** -0.5 if call.scale is None else call.scale
    query, key = scale * sides[0], sides[1]
    made = Why(
        stack=place.stack,
        layer=place.layer,
        head=head,
        tokens=tuple(texts),
        writers=tuple(writers),
        queries=query,
        keys=key,
        scores=scores,
        attention=attention,
        bias=bias,
        softcap=call.softcap,
        sink=_sink(reading.attention.normalizer, head),
    )
    return made.verified(call.name)


def _check_edits(edits: Sequence[object], layer: int) -> None:
    """Refuse edits that would read the streams on which the layer runs."""
    for edit in edits:
        if isinstance(edit, Without):
            layers = edit.layers()
            if layers is None or max(layers) >= layer:
                raise CaptureError(
                    f"{edit} is open, which computes what layer {layer} or a later one reads: "
                    "gattn.why runs that layer on other streams. Close it, or ask about a later "
                    "layer."
                )


def _sink(normalizer: Normalizer, head: int) -> float | None:
    """Return the logit of a head's sink."""
    sink = normalizer.sink if isinstance(normalizer, Softmax) else None
    return float(sink[head]) if isinstance(sink, Tensor) else sink
