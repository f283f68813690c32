"""Over-squashing: which tokens' information is squeezed out on its way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from gattn.analysis.propagation.layered import Layered, Passages, check_number, token_graphs
from gattn.analysis.propagation.mixed import NOTED, Mixed
from gattn.analysis.reading.attention import Attention
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.reading.reductions import Reduction
from gattn.analysis.reading.results import Table, column
from gattn.errors import SelectionError
from gattn.names.choices import HeadChoice
from gattn.names.text import placed


def oversquashing(
    given: Passages,
    query: int | str = -1,
    *,
    tokens: Sequence[str] = (),
    heads: HeadChoice = None,
    reduce: Reduction = "mean",
    depth: int | None = None,
    residual: bool = True,
) -> Table:
    r"""Return which tokens' information is squeezed out on its way to one query: over-squashing.

    The more tokens information is mixed with on its way, the less the query's output can depend on
    it. The sensitivity of the output at i to the input at j is bounded, up to constants of the
    layers, by :math:`(\tilde A_L \cdots \tilde A_1)_{ij}`: the sum over all walks of the product of
    their attention. Of attention that is `gattn.analysis.rollout`; a token graph has the same
    attention on each edge of a row.

    Parameters
    ----------
    given, tokens
        As in `gattn.analysis.reach`.
    query : int or str
        The token i: its position, negative from the end, or its text; by default the last.
    heads, reduce : optional
        Which heads are read for the influence, and how they become one, as in
        `gattn.analysis.rollout`. For walks, an edge of any head counts.
    depth : int, optional
        How many layers a token graph stands for.
    residual : bool
        Whether a token keeps what it has in each layer: Ã = (A + I) / 2 instead of A.

    Returns
    -------
    Table
        One row per token j that reaches the query, by ``position``, with

        - ``token``;
        - ``layers``: the fewest layers that it takes;
        - ``walks``: how many walks there are;
        - ``influence``: the bound above. If all attention was kept, it sums to 1, a sink outside of
          the text left out; with ``residual=False`` to less if a token attends to nothing;
        - ``even_shares``: the influence times the number of tokens that reach the query. A token
          with far less than 1 is over-squashed.

    Raises
    ------
    SelectionError
        As in `walks` and `gattn.analysis.rollout`; also if there is no such query, or `heads` are
        given with a token graph, which has none.

    References
    ----------
    Topping et al. (2022), Understanding over-squashing and bottlenecks on graphs via curvature.
    Di Giovanni et al. (2023), On over-squashing in message passing neural networks. Barbero et al.
    (2024), Transformers need glasses! Information over-squashing in language tasks.
    """
    stack = Layered.of(given, tokens, depth, residual).counted()
    row = stack.row(query, "query")
    has_heads = not token_graphs(given)
    is_plain = heads is None and isinstance(reduce, str) and reduce == "mean"
    if not has_heads and not is_plain:
        raise SelectionError(
            "A token graph has no heads: leave heads= and reduce= out, or give attention."
        )
    number = _walks_to(stack, row)
    at = placed(stack.positions[row], stack.tokens, row)
    notes = [f"influence on the output at position {at}", *stack.notes]
    if has_heads:
        mixed = Mixed.of(
            layers_of(cast(Attention, given), tokens, differing=True),
            heads,
            reduce,
            None if residual else 0.0,
        )
        rolled, lost = mixed.rolled()
        influence = rolled[-1][row].cpu().numpy()
        if (most := float(lost[-1][row])) > NOTED:
            notes.append(f"influences are lower bounds: all together they lack at most {most:.2g}")
    else:
        influence = _uniform(stack, row)
    fewest = _fewest(stack, row)
    there = np.flatnonzero(np.isfinite(fewest))
    return Table.of(
        {
            "position": np.array(stack.positions)[there],
            "token": column(stack.tokens[row] for row in there),
            "layers": fewest[there].astype(np.int64),
            "walks": number[there],
            "influence": influence[there],
            "even_shares": influence[there] * len(there),
        },
        name="oversquashing",
        computed_from=stack.source,
        edits=stack.edits,
        notes=notes,
        index=["position"],
    )


def _walks_to(stack: Layered, row: int) -> NDArray[np.float64]:
    """Count the walks from each key to one query."""
    number: NDArray[np.float64] = np.eye(len(stack))[row]
    for depth in reversed(range(len(stack.layers))):
        number = number @ stack.passing(depth).astype(np.float64)
        check_number(number, len(stack.layers))
    return number


def _fewest(stack: Layered, row: int) -> NDArray[np.float64]:
    """Count the layers until each key can be at one query."""
    fewest = np.full(len(stack), np.inf)
    fewest[row] = 0
    start = there = np.arange(len(stack)) == row
    for depth in range(len(stack.layers)):
        # Of layers that are alike, one more is one step more; others begin at the query anew.
        alike = len(stack.edges) == 1
        for before in [depth] if alike else reversed(range(depth + 1)):
            begun = there if alike or before < depth else start
            there = stack.passing(before).T @ begun.astype(np.int32) > 0
        fewest[there] = np.minimum(fewest[there], depth + 1)
    return fewest


def _uniform(stack: Layered, row: int) -> NDArray[np.float64]:
    """Roll out the same attention on each edge of a row, for one query."""
    influence: NDArray[np.float64] = np.eye(len(stack))[row]
    for depth in reversed(range(len(stack.layers))):
        edges = stack.attention_edges(depth)
        degree = np.diff(edges.indptr)
        share = np.where(degree > 0, 0.5 if stack.residual else 1.0, 0.0)
        read = (influence * share / np.maximum(degree, 1)) @ edges.astype(np.float64)
        influence = read + (influence * (1 - share) if stack.residual else 0.0)
    return influence
