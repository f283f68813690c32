"""Communities of tokens in every head, by NetworkX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import networkx as nx
import numpy as np

from gattn.analysis.chains.centrality import (
    by_token,
    call,
    graphs_of,
    named_function,
    parameters_of,
    usual_weights,
)
from gattn.analysis.reading.layers import Attention, Layers, named
from gattn.analysis.reading.results import Array
from gattn.errors import GraphError


def communities(
    attention: Attention,
    method: str | Callable[..., Any] = "louvain_communities",
    *,
    tokens: Sequence[str] = (),
    backend: str | None = None,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> Array:
    """Find communities of tokens that attend to each other in every head, by NetworkX.

    Parameters
    ----------
    attention : Attention
        Self-attention: a trace, a stack, a head or arrays.
    tokens : sequence of str
        The tokens' texts, where `attention` is an array, which does not know them.
    method : str or callable
        The name of a function in ``nx.community``, or a function of a graph that gives disjoint
        sets of all nodes.
    backend : str, optional
        The NetworkX backend that computes it, such as "cugraph", where installed.
    seed : int
        Of the random choices, for methods that make some.
    progress : bool
        Whether to print an estimate first and show a bar, where it takes more than a second.
    **options
        Passed on to the method, such as ``resolution=1.5``.

    Returns
    -------
    Array (layer, head, token)
        The number of each token's community. Communities are numbered in the order of their first
        tokens. The coordinate ``modularity`` (layer, head) says how much more attention stays
        inside them than if the same tokens were linked at random.

    Raises
    ------
    SelectionError
        Where there is no such method or backend, or queries and keys are different tokens.
    GraphError
        Where NetworkX cannot compute it, or it does not give communities.

    Notes
    -----
    The graph has no direction, and the weights (A + Aᵀ) / 2. Attention of tokens to themselves is
    left out: it binds no two tokens, and keeps methods that pass labels on from moving at all.

    References
    ----------
    Blondel et al. (2008), Fast unfolding of communities in large networks.
    """
    attention = named(attention, tokens)
    function, name = named_function(method, nx.community, "nx.community")
    layers = Layers.of(attention).square()
    options = usual_weights(function, name) | options
    if "seed" in parameters_of(function):
        options |= {"seed": seed}
    numbers, modularity = [], []
    for head, graph in graphs_of(attention, "none", name, progress):
        graph.remove_edges_from(list(nx.selfloop_edges(graph)))
        found = call(function, graph, head, backend, options)
        try:
            parts = sorted((set(part) for part in found), key=min)
            is_partition = nx.community.is_partition(graph, parts)
        except (TypeError, ValueError):
            is_partition = False
        if not is_partition:
            raise GraphError(
                f"{name} must give disjoint sets of all tokens, as nx.community."
                "louvain_communities does; wrap it in a function that chooses one partition."
            )
        community = {node: number for number, part in enumerate(parts) for node in part}
        numbers.append([community[node] for node in layers.positions])
        has_weight = graph.size(weight="weight") > 0
        modularity.append(nx.community.modularity(graph, parts) if has_weight else 0.0)
    notes = [*layers.mass_notes(), "(A + Aᵀ) / 2, without tokens' attention to themselves"]
    made = by_token("community", layers, np.array(numbers), notes, are_kinds=True)
    shape = made.shape[:2]
    return made.assign_coords(modularity=(("layer", "head"), np.reshape(modularity, shape)))
