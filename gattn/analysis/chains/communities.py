"""Communities of tokens in every head, by NetworkX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import networkx as nx
import numpy as np

from gattn.analysis.chains.centrality import (
    call,
    named_function,
    networks_of,
    parameters_of,
    usual_weights,
)
from gattn.analysis.reading.attention import Attention
from gattn.analysis.reading.layers_of import layers_of
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
    attention, tokens, backend, progress
        As in `centrality`.
    method : str or callable
        The name of a function in ``nx.community``, or a function of a graph that gives disjoint
        sets of all nodes.
    seed : int
        The seed, for methods that make random choices.
    **options
        Passed on to the method, such as ``resolution=1.5``.

    Returns
    -------
    Array (layer, head, token)
        The number of each token's community. Communities are numbered in the order of their first
        tokens. The coordinate ``modularity`` (layer, head) is how much more attention stays inside
        them than if the same tokens were linked at random.

    Raises
    ------
    SelectionError
        If there is no such method or backend, or queries and keys are different tokens.
    GraphError
        If NetworkX cannot compute it, or it does not give communities.

    Notes
    -----
    The graph has no direction, and the weights (A + Aᵀ) / 2. Attention of tokens to themselves is
    left out: it binds no two tokens, and keeps methods that pass labels on from moving at all.

    References
    ----------
    Blondel et al. (2008), Fast unfolding of communities in large networks.
    """
    function, name = named_function(method, nx.community, "nx.community")
    layers = layers_of(attention, tokens).square()
    options = usual_weights(function, name) | options
    if "seed" in parameters_of(function):
        options |= {"seed": seed}
    numbers, modularity = [], []
    for head, graph in networks_of(layers, "none", name, progress):
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
    axes = layers.axes("layer", "head", "token")
    shape = [len(labels) for labels in axes.values()]
    notes = ["(A + Aᵀ) / 2, without tokens' attention to themselves"]
    made = layers.array(np.reshape(numbers, shape), axes, "community", notes, are_kinds=True)
    return made.assign_coords(modularity=(("layer", "head"), np.reshape(modularity, shape[:2])))
