"""One head by its weights alone: its QK and OV circuits, and the tokens that they speak of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gattn.analysis.from_weights.composition import centred, stream_notes
from gattn.analysis.from_weights.factored import FactoredMatrix
from gattn.analysis.reading.results import Table, column
from gattn.checks import whole
from gattn.errors import CaptureError, SelectionError
from gattn.models.decompose.layer_weights import layer_weights, rotations
from gattn.models.decompose.linear_runs import LinearRuns
from gattn.models.decompose.vocabulary import Vocabulary
from gattn.models.load.limits import longest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model

_AT_ONCE = 64


def head_weights(
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    layer: int,
    head: int,
    distance: int = 0,
    stack: str | None = None,
) -> HeadWeights:
    r"""Read the weights of one head: what it attends to, and what it then writes.

    Parameters
    ----------
    model, tokenizer, stack
        As in `gattn.compose`.
    layer, head : int
        The head.
    distance : int
        How many tokens the query is after the key, where rotary embeddings turn queries and keys by
        their positions.

    Returns
    -------
    HeadWeights
        Its QK and OV circuits as factored matrices.

    Raises
    ------
    SelectionError
        If there is no such layer or head.
    CaptureError, ModelError
        As in `gattn.compose`.

    References
    ----------
    Elhage et al. (2021), A mathematical framework for transformer circuits.
    """
    runs = LinearRuns(model, tokenizer, stack)
    limit = longest(runs.model)
    distance = whole("distance", distance, least=0, most=None if limit is None else limit - 1)
    layers = centred(runs, layer_weights(runs))
    found = next((one for one in layers if one.layer == layer), None)
    if found is None:
        raise SelectionError(f"No layer {layer}; the model has layers 0 .. {len(layers) - 1}.")
    if not 0 <= head < len(found.query):
        raise SelectionError(
            f"No head {head}; layer {layer} has heads 0 .. {len(found.query) - 1}."
        )
    turned = rotations(runs, layers, distance)[layers.index(found)][head]
    query = found.scale * found.query[head] @ turned
    notes = stream_notes(runs)
    if found.is_biased:
        notes.append("the model adds numbers of pairs of positions to the scores")
    return HeadWeights(
        layer,
        head,
        distance,
        FactoredMatrix(query, found.key[head].T),
        FactoredMatrix(found.value[head], found.output[head]),
        Vocabulary(runs),
        f"the weights of head {layer}.{head} of {runs.name}",
        tuple(notes),
    )


@dataclass(frozen=True, eq=False, repr=False)
class HeadWeights:
    r"""The weights of one head; vectors x of the residual stream are rows.

    Norms are folded in, without what depends on the token, and biases are left out. So
    :math:`x_i W_{QK} x_j^\top` is the score of query i and key j, the scale of scores included, and
    :math:`x_j W_{OV}` what the head writes for attending to j.

    Parameters
    ----------
    layer, head, distance
        The head, and how many tokens the query is after the key.
    qk : FactoredMatrix (dim, dim)
        The QK circuit :math:`W_Q W_K^\top`.
    ov : FactoredMatrix (dim, dim)
        The OV circuit :math:`W_V W_O`.
    vocabulary : Vocabulary
        The model's tokens.
    computed_from, notes
        What it was computed from, and what to mind.
    """

    layer: int
    head: int
    distance: int
    qk: FactoredMatrix
    ov: FactoredMatrix
    vocabulary: Vocabulary
    computed_from: str
    notes: tuple[str, ...] = ()

    def top_pairs(self, k: int = 50) -> Table:
        r"""Find the pairs of tokens that score highest through the full QK circuit.

        That is :math:`W_E W_{QK} W_E^\top`, where the rows of W_E are what tokens put into the
        stream; it is computed a block at a time.

        Parameters
        ----------
        k : int
            How many.

        Returns
        -------
        Table
            The columns ``query``, ``key``, ``writes`` (the tokens' texts), ``query_id``,
            ``key_id`` and ``score``, the highest first. ``writes`` is the token whose logit rises
            most if the head attends to the key; a model whose logits are not linear in the stream
            has no such column, and the notes say why.
        """
        k = whole("k", k, least=1)
        embedded = self.vocabulary.vectors
        best, queries, keys = (embedded @ self.qk @ embedded.T).largest(k)
        columns: dict[str, object] = {
            "query": column(self.vocabulary.names(queries)),
            "key": column(self.vocabulary.names(keys)),
        }
        notes = []
        try:
            columns["writes"] = column(self.vocabulary.names(self._written(keys)))
        except CaptureError as error:
            notes.append(f"no column of what the head writes: {error}")
        columns |= {"query_id": queries, "key_id": keys, "score": best.cpu().numpy()}
        return self._table(columns, "score", *notes)

    def _written(self, keys: list[int]) -> list[int]:
        """Return for each key the token whose logit rises most if the head attends to it."""
        several = sorted(set(keys))
        vectors = self.vocabulary.vectors[several] @ self.ov.left @ self.ov.right
        found = [self.vocabulary.written(some).argmax(1) for some in vectors.split(_AT_ONCE)]
        best = dict(zip(several, torch.cat(found).tolist(), strict=True))
        return [best[key] for key in keys]

    def writes(self, token: int | str, k: int = 10) -> Table:
        r"""Find the tokens whose logits rise most if the head attends to a token.

        That is the row of a token in the full OV circuit :math:`W_E W_{OV} W_U`.

        Parameters
        ----------
        token : int or str
            The token attended to: its id, or its text.
        k : int
            How many.

        Returns
        -------
        Table
            The columns ``token``, ``id`` and ``logit``, the highest first.

        Raises
        ------
        CaptureError
            If the model has no logits, or they are not linear in the stream.
        SelectionError
            If there is no such token.
        """
        vector = self.vocabulary.vectors[self.vocabulary.id_of(token)]
        written = self.vocabulary.written((vector @ self.ov.left @ self.ov.right)[None])
        return self._top(written[0], k, "logit")

    def nearest(self, direction: Tensor, k: int = 10) -> Table:
        """Find the tokens that put most of a direction into the stream.

        So singular vectors are read: ``weights.nearest(weights.qk.svd()[0][:, 0])``.

        Parameters
        ----------
        direction : Tensor (dim,)
            The direction.
        k : int
            How many.

        Returns
        -------
        Table
            The columns ``token``, ``id`` and ``product``, the highest first.
        """
        embedded = self.vocabulary.vectors
        return self._top(embedded @ direction.to(embedded), k, "product")

    @cached_property
    def copying(self) -> float:
        r"""How far the head raises the logits of the tokens that it attends to: from -1 to 1.

        :math:`\sum \operatorname{Re} \lambda_i / \sum |\lambda_i|` over the eigenvalues of the
        full OV circuit :math:`W_E W_{OV} W_U`: 1 if all are positive, as in heads that copy, -1 if
        the head lowers them (anti-copying). They are those of a matrix as wide as the head.
        """
        return share(self.ov.right @ self.vocabulary.read_and_written @ self.ov.left)

    @cached_property
    def matching(self) -> float:
        r"""How far a query scores keys that hold its own token highest: from -1 to 1.

        As `copying`, with the eigenvalues of the full QK circuit :math:`W_E W_{QK} W_E^\top`.
        """
        return share(self.qk.right @ self.vocabulary.products @ self.qk.left)

    def reading(self, earlier: HeadWeights) -> HeadWeights:
        r"""Return the head where its keys hold only what an earlier head wrote (K-composition).

        The QK circuit is then :math:`W_{QK} W_{OV}^\top` with the OV circuit of the earlier head:
        its keys are the tokens that the earlier head attends to. An induction head that reads a
        previous-token head so has a high `matching`.

        Parameters
        ----------
        earlier : HeadWeights
            A head of an earlier layer of the same model.
        """
        if earlier.layer >= self.layer or earlier.qk.shape != self.qk.shape:
            raise SelectionError(
                f"Head {self.layer}.{self.head} reads heads of earlier layers of the same model, "
                f"not {earlier.layer}.{earlier.head}."
            )
        source = f"{self.computed_from}, reading {earlier.layer}.{earlier.head}"
        return replace(self, qk=self.qk @ earlier.ov.T, computed_from=source)

    def _top(self, numbers: Tensor, k: int, name: str) -> Table:
        best = numbers.topk(min(whole("k", k, least=1), len(numbers)))
        ids = best.indices.tolist()
        names = column(self.vocabulary.names(ids))
        return self._table({"token": names, "id": ids, name: best.values.cpu().numpy()}, name)

    def _table(self, columns: dict[str, object], name: str, *notes: str) -> Table:
        notes = (*self.notes, *notes)
        return Table.of(columns, name=name, computed_from=self.computed_from, notes=notes)

    def __repr__(self) -> str:
        return f"HeadWeights({self.layer}.{self.head}, distance {self.distance})"


def share(matrix: Tensor) -> float:
    """Return the sum of the eigenvalues' real parts, over the sum of their sizes."""
    values = torch.linalg.eigvals(matrix.double())
    total = float(values.abs().sum())
    return float(values.real.sum()) / total if total else float(np.nan)
