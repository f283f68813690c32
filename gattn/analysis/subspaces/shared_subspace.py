"""Finds the subspaces that queries and keys share where they have a feature in common."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gattn.analysis.reading.results import Table
from gattn.analysis.subspaces.contrast import Contrast
from gattn.analysis.subspaces.head_vectors import HeadVectors, head_vectors
from gattn.analysis.subspaces.held_out import Directions, HeldOut
from gattn.analysis.subspaces.labelled_edges import EdgeLabels, LabelledEdges, Labels
from gattn.analysis.subspaces.subspace import SharedSubspace
from gattn.checks import whole
from gattn.errors import SelectionError
from gattn.models.load.loading import model_name
from gattn.models.run.editing import open_edits
from gattn.models.run.functions import Runnable, resolved_for
from gattn.names.choices import number_of
from gattn.progress import walk

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model

SHUFFLES = 19
"""If labels say nothing, theirs is the largest of 20 numbers in one case of 20."""


def shared_subspace(
    texts: Sequence[Runnable] | Mapping[Hashable, Runnable],
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    layer: int,
    head: int,
    edges: Labels,
    rank: int | None = None,
    stack: str | None = None,
    progress: bool = True,
) -> SharedSubspace:
    r"""Find directions in which queries and keys vary together on edges of one kind.

    Over the edges of many texts, *positive* ones, whose query and key share a feature, and
    *negative* ones, which do not, the contrastive covariance of one head is

    .. math::
        C = \operatorname{E}[q k^\top \mid +] - \operatorname{E}[q k^\top \mid -]
          = \sum_c \sigma_c u_c v_c^\top,

    with queries times the scale of scores. Its singular vectors span the subspaces of queries and
    of keys that hold the feature. The trace of C is by how much scores of positive edges are
    higher, on average, so that component c makes up :math:`\sigma_c \, u_c \cdot v_c` of it.

    Vectors are those of the product: after rotary embeddings and norms of queries and keys, and
    with biases of projections; each query head has the keys that it reads, where they are grouped.
    That products of queries and keys, with soft caps and what the model adds, are its scores is
    verified for each labelled edge.

    The first, third, ... text finds the directions, the others say how well they separate edges.
    All is done again with labels shuffled within each text, 19 times. Vectors are not kept: sums
    take a few matrices (dim, dim), held-out edges some numbers each.

    Parameters
    ----------
    texts : sequence or mapping
        Texts as in `gattn.capture`; of a mapping, the keys are their ``text_id``.
    model, tokenizer
        As in `gattn.capture`.
    layer, head : int
        The head.
    edges : callable or DataFrame
        The labelled edges: a function that takes a text's tokens and returns rows
        ``(query, key, label)``, or a table with these columns; or one table of all texts with the
        column ``text_id``, such as a survey's SQL gives. Tokens are positions from 0; a label is
        True or False. Edges without a label do not count.
    rank : int, optional
        How many components to keep; by default those whose singular value is above all those of
        shuffled labels.
    stack : str, optional
        Which stack, such as "encoder", if the model has several.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    SharedSubspace
        Its `components` are a table, the largest first, with the columns

        - ``singular_value``: :math:`\sigma_c`, and ``shuffled``, the largest of shuffled labels;
        - ``held_out``: :math:`u_c^\top C' v_c` with C' of the held-out texts, near
          :math:`\sigma_c` if the direction is there, too;
        - ``cosine``: :math:`u_c \cdot v_c`, how far the head's score reads what is shared;
        - ``score``: their product, by how much the component raises the score of positive edges;
        - ``auc``: how often :math:`(q \cdot u_c)(v_c \cdot k)` is larger on a positive edge than
          on a negative one.

        Its table `separation` has, of the scores of held-out edges, what comes from the
        ``subspace``, :math:`q^\top U U^\top V V^\top k`, from the ``rest``, and the ``whole``:
        means of either kind, their ``difference``, the ``auc``, and the range of that of shuffled
        labels.

    Raises
    ------
    SelectionError
        If there is no such head or stack, labels are none, or either half of the texts lacks edges
        of one kind.
    CaptureError
        As in `gattn.capture`; also if queries and keys are not known, or their products are not the
        scores.
    ModelError
        If the model cannot be loaded.

    References
    ----------
    Lee, Belinkov, Viégas and Wattenberg (2026), Decomposing query-key feature interactions using
    contrastive covariances.

    Examples
    --------
    >>> def same_token(tokens):
    ...     for i, one in enumerate(tokens):
    ...         yield from ((i, j, tokens[j] == one) for j in range(i))
    >>> gattn.analysis.shared_subspace(texts, layer=0, head=1, edges=same_token)
    """
    layer, head = number_of("layer", layer), number_of("head", head)
    given = EdgeLabels(texts, edges)
    named = given.texts
    if not named:
        raise SelectionError("There are no texts with labelled edges.")
    model, tokenizer = resolved_for(named[0][1], model, tokenizer)
    read = partial(
        head_vectors, model=model, tokenizer=tokenizer, layer=layer, head=head, stack=stack
    )
    labelled = _Labelled(read, given, progress)
    found = Contrast(SHUFFLES)
    for seen in labelled.texts(named[::2], "finding"):
        found.add(*seen)
    _check_kinds(found, "finds directions")
    matrices = found.matrices()
    left, values, right = torch.linalg.svd(matrices)
    kept = _kept(values, rank)
    held = HeldOut([Directions(u[:, :kept], v[:kept].T) for u, v in zip(left, right, strict=True)])
    for seen in labelled.texts(named[1::2], "holding out"):
        held.add(*seen)
    _check_kinds(held.contrast, "is held out")
    own = held.directions[0]
    held_out = torch.einsum("dc,de,ce->c", left[0], held.contrast.matrices()[0], right[0])
    facts = labelled.facts(model, found, held.contrast)
    parts = {"part": ["subspace", "rest", "whole"], **held.separation()}
    separation = Table.of(parts, name="separation", index=("part",), **facts)
    components = _components(values, held_out, own, held.areas())
    return SharedSubspace(
        layer=layer,
        head=head,
        covariance=matrices[0],
        query=own.query,
        key=own.key,
        singular_values=values[0],
        held_out=held_out,
        shuffled=values[1:],
        components=Table.of(components, name="components", index=("component",), **facts),
        separation=separation,
        read=read,
    )


def _kept(values: Tensor, rank: int | None) -> int:
    """Return how many components to keep, by singular values of own and shuffled labels."""
    if rank is None:
        return int((values[0] > values[1:].max()).sum())
    return whole("rank", rank, 1, SelectionError, most=values.shape[1])


def _components(
    values: Tensor, held_out: Tensor, own: Directions, areas: list[float]
) -> dict[str, Any]:
    """Make the columns of the table of components."""
    rank, cosine = own.query.shape[1], (own.query * own.key).sum(0)
    return {
        "component": range(rank),
        "singular_value": values[0, :rank],
        "shuffled": values[1:, :rank].amax(0),
        "held_out": held_out[:rank],
        "cosine": cosine,
        "score": held_out[:rank] * cosine,
        "auc": areas,
    }


class _Labelled:
    """Reads texts with their labelled edges, and shuffles the labels."""

    _last: HeadVectors

    def __init__(self, read: Any, edges: EdgeLabels, progress: bool) -> None:
        self._read, self._edges, self._progress = read, edges, progress
        self._generator = torch.Generator().manual_seed(0)

    def texts(
        self, named: Sequence[tuple[Hashable, Any]], what: str
    ) -> Iterator[tuple[Tensor, Tensor, LabelledEdges, Tensor]]:
        """Walk texts: queries, keys, edges, and labels (1 + shuffles, edges)."""
        for name, text in walk(named, what, "text", progress=self._progress):
            seen = self._last = self._read(text)
            edges = self._edges.of(name, seen.tokens)
            if len(edges.label):
                seen.check(edges.query, edges.key)
                yield seen.query, seen.key, edges, self._shuffled(edges.label)

    def facts(self, model: Any, found: Contrast, held: Contrast) -> dict[str, Any]:
        """Say what was read, and what to mind."""
        last, count = self._last, len(self._edges.texts)
        source = (
            f"{model_name(model)}, {last.place.stack} stack, head {last.place.layer}.{last.head}, "
            f"{count} texts, {found.positive + held.positive:,} positive and "
            f"{found.negative + held.negative:,} negative edges"
        )
        return {"computed_from": source, "notes": last.notes, "edits": open_edits(model)}

    def _shuffled(self, labels: Tensor) -> Tensor:
        orders = torch.rand(SHUFFLES, len(labels), generator=self._generator, device="cpu").argsort(
            1
        )
        return torch.cat([labels[None], labels[orders]])


def _check_kinds(found: Contrast, half: str) -> None:
    """Refuse to compare with nothing."""
    if not (found.positive and found.negative):
        raise SelectionError(
            f"The half of the texts that {half} has {found.positive} positive and "
            f"{found.negative} negative edges: expected some of both kinds. The first, third, ... "
            "text finds directions, the others are held out."
        )
