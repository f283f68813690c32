"""Takes the scores of one head apart: who wrote its queries, and who its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, cast

import torch
from torch import Tensor

from gattn.analysis.reading.arguments import refuse_pair, several_tokens
from gattn.analysis.reading.sources import Source
from gattn.analysis.scores.features import Features, stream_of
from gattn.analysis.scores.measuring import measured_changes
from gattn.analysis.scores.taken_apart import Why
from gattn.checks import whole
from gattn.errors import CaptureError, SelectionError
from gattn.graph.rules.keys import list_keys
from gattn.heads.nouns import counted
from gattn.models.decompose.listening import Listened, listened
from gattn.models.decompose.sides import sum_of_parts
from gattn.models.edit.applying import parts as parts_of
from gattn.models.edit.heard import Hears
from gattn.models.load.loading import model_name
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall
from gattn.models.run.editing import open_edits
from gattn.models.run.functions import Runnable, prepared
from gattn.models.run.names.naming import Naming, Tokens
from gattn.models.stream.writers.parts import Stream, Writer
from gattn.names.choices import Chosen, HeadChoice, is_number, number_of
from gattn.names.tokens import find_tokens
from gattn.normalizers import Normalizer, Softmax

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model

_ROUNDING = 1e-5

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
    parts: Features | Mapping[str, Tensor] | None = None,
    split: HeadChoice = None,
    stack: str | None = None,
    measure: int = 0,
    tokens: Tokens | None = None,
    grid: tuple[int, int] | None = None,
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
        Tokens as in `gattn.Cut`, so that "2,3" is a patch of an image, and [2, 3] are two tokens:
        by position, negative from the end, or by text, which names every token of that text. They
        are the ends of the edges that are asked about; tokens that have none of them are left out.
        Without queries, all are meant. Without keys, the question is what brings each query to the
        keys that it attends to, and all edges count; see
        `gattn.analysis.scores.taken_apart.Why.table`.
    parts : Features or mapping of str to Tensor, optional
        Parts of your own in place of embeddings, heads and MLPs: `gattn.Features`, such as those of
        a sparse autoencoder, or what each part adds to the stream before the layer, (tokens, dim).
        What they do not explain is a part, the "error".
    split : str, (layer, head), or sequence of these, optional
        Earlier heads whose parts are split by the token that they read, with the attention of this
        run: "1.1" becomes "1.1 from 'lamp' (9)" and so on.
    stack : str, optional
        Which stack, such as "encoder", if the model has several.
    measure : int
        Of how many parts of either side, those of the largest predicted changes, the change of
        attention is also measured: by running the model with `gattn.Without`, in batches. `without`
        then shows it beside the prediction, in which norms do not feel that the part is gone.
    tokens, grid
        The tokens' texts, and where patches lie, as in `gattn.capturing`.

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
        If `parts` do not fit the stream.
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
    >>> gattn.why(text, layer=2, head=0, query=-1, key=9, measure=5).without("key")
    """
    measure = whole("measure, a number of parts,", measure, 0, SelectionError)
    prompt = prepared(text, model, tokenizer, Naming(tokens, grid))
    _check_edits(open_edits(prompt.model), layer)
    layer, head = number_of("layer", layer), number_of("head", head)
    splits = _splits(split, layer, parts is None)
    with torch.inference_mode(False), torch.no_grad():  # Inside it, none could be switched on.
        found = listened(prompt, layer, head, stack, splits if parts is None else None)
        stream = found.stream
        if stream is None:
            assert parts is not None
            stream = stream_of(parts, found.residual, f"{layer}.{head}")
        texts = prompt.texts(found.call, found.place, None, len(found.residual))
        sizes = {"key": len(texts)}
        where = found.place.stack
        grids = prompt.naming.grids(found.call.tokens, sizes, where, is_bipartite=False)
        refuse_pair("query", query, grids.get("key"))
        refuse_pair("key", key, grids.get("key"))
        writers = [*(_named(one, texts) for one in stream.all_writers), Writer("bias")]
        sides, call = _sides(found, stream), found.call
        made = in_parts(call, found.place, found.reading, head, writers, sides, texts, found.terms)
    size, edits = counted(len(texts), "token"), open_edits(prompt.model)
    source = Source(model_name(prompt.model), found.place.stack, size=size, edits=edits)
    made = replace(made, computed_from=f"{source}, head {layer}.{head}")
    queries = places("query", query, texts)
    made = made.among(queries, None if key is None else places("key", key, texts))
    if not measure:
        return made
    made.check_softmax(list(made.query))
    return replace(made, measured=measured_changes(made, prompt, stream, measure))


def _splits(split: HeadChoice, layer: int, is_own: bool) -> set[tuple[int, int]]:
    """Read the heads whose parts are split, which come before a layer."""
    if isinstance(split, tuple) and len(split) == 2 and all(map(is_number, split)):
        split = [cast("tuple[int, int]", split)]
    places = Chosen.of(None, split).heads or []
    if places and not is_own:
        raise SelectionError("split= is about the model's own heads: leave it or parts= out.")
    found = {one for one in places if isinstance(one, tuple) and one[0] < layer}
    if len(found) < len(places):
        raise SelectionError(
            f"split names earlier heads, of layers before {layer}, as in '1.1', not {split!r:.80}."
        )
    return found


def _named(writer: Writer, texts: Sequence[str]) -> Writer:
    """Name the token that a head read."""
    return writer if writer.source is None else replace(writer, name=texts[writer.source])


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


def _sides(found: Listened, stream: Stream) -> list[Tensor]:
    """Return what the parts give of the queries, and of the keys."""
    made = []
    for name, side in (("queries", found.queries), ("keys", found.keys)):
        vectors = side.of(stream)
        side.check(vectors, f"The {name} of {found.call.name}")
        made.append(vectors.cpu().double())
    return made


def in_parts(
    call: SeenCall,
    place: Place,
    reading: Reading,
    head: int,
    writers: Sequence[Writer],
    sides: Sequence[Tensor],
    texts: Sequence[str],
    terms: tuple[float, Tensor] | None = None,
) -> Why:
    """Join the parts of queries and keys, and verify them against the model's scores.

    Each side is (writers, tokens, dim), queries without the scale. `terms` are the scale and what
    is added, where the call does not say.
    """
    size = len(texts)
    scores = torch.full((size, size), -torch.inf, dtype=torch.double, device="cpu")
    attention = torch.zeros(size, size, dtype=torch.double, device="cpu")
    (part,) = parts_of(reading, [head])
    for block in part.blocks():
        assert block.scores is not None
        keys, at = (
            list_keys(block.columns).cpu(),
            torch.arange(size, device="cpu")[block.rows, None],
        )
        scores[at, keys] = block.scores[0, 0].cpu().double()
        attention[at, keys] = block.attention[0, 0].cpu().double()
    scale, bias = terms or (call.scale or call.query.shape[-1] ** -0.5, None)
    query, key = scale * sides[0], sides[1]
    if bias is not None:  # Zeros, but for rounding, are nothing that is added.
        most = float((sum_of_parts(query) @ sum_of_parts(key).T).abs().max())
        bias = bias.cpu() if float(bias.abs().max()) > _ROUNDING * most else None
    elif (features := reading.attention.edge_features) is not None:
        bias = features[..., head].cpu().double()
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
        if isinstance(edit, Hears):
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
