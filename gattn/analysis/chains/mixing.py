"""Mixing: how fast walkers along attention forget where they started."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gattn.analysis.chains.chain import Chain, chain_notes, second_eigenvalue
from gattn.analysis.reading.attention import Attention
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.reading.results import Table
from gattn.progress import walk


def mixing(attention: Attention, *, tokens: Sequence[str] = (), progress: bool = True) -> Table:
    r"""Return how fast a walker along each head's attention forgets where it started.

    Parameters
    ----------
    attention : Attention
        Self-attention.
    tokens : sequence of str
        The texts of an array's tokens; the result names no tokens.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Table
        One row per head, by ``layer`` and ``head``, with

        - ``second_eigenvalue``: :math:`|\lambda_2|` of P, the second largest absolute value;
        - ``relaxation_time``: :math:`1 / (1 - |\lambda_2|)`, in steps; infinite if walks are
          periodic or never meet;
        - ``closed_classes``: how many sets of tokens there are that no walk leaves.

        A causal head's eigenvalues are its diagonal; all its walks end at the first token, and the
        time is how long that takes.

    Raises
    ------
    SelectionError
        If queries and keys are different tokens.

    References
    ----------
    Levin, Peres and Wilmer (2009), Markov chains and mixing times. Erel et al. (2025), Attention
    (as Discrete-Time Markov) Chains.
    """
    layers = layers_of(attention, tokens).square()
    rows, empty, causal, thinned = [], 0, 0, False
    for n in walk(range(len(layers)), "mixing", "layer", progress=progress):
        chain = Chain.of(layers, n)
        is_causal = chain.is_causal()
        for head, classes in enumerate(chain.closed_classes()):
            second = 1.0
            if len(classes) == 1:
                second = second_eigenvalue(chain.step[head], bool(is_causal[head]))
            rows.append(
                {
                    "layer": layers.layers[n],
                    "head": layers.heads[head],
                    "second_eigenvalue": second,
                    "relaxation_time": 1 / (1 - second) if second < 1 else np.inf,
                    "closed_classes": len(classes),
                }
            )
        empty += chain.empty
        causal += int(is_causal.sum())
        thinned |= bool(chain.missing.any())
    notes = chain_notes(layers, empty)
    if causal:
        notes.append(
            f"{causal} of {len(rows)} heads are causal: their eigenvalues are the attention of "
            "tokens to themselves"
        )
    if thinned:
        notes.append("eigenvalues of the kept attention; how far dropped edges move them is open")
    return layers.table(Table, rows, ["layer", "head"], "mixing", notes)
