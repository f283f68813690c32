"""Token graphs: every edge as a square and as an arc, with one query's neighbourhood marked."""

from collections.abc import Callable
from functools import partial

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from gattn import TokenGraph

EDGE, MARKED, NODE, EMPTY = "#9dbfe0", "#bd5f14", "#253c94", "#f3f3f1"
N = 12
POINTS = torch.randn(N, 2, generator=torch.Generator().manual_seed(4))
MASK = np.eye(N, dtype=bool) | np.eye(N, k=-2, dtype=bool) | (np.arange(N) % 5 == 0)

GRAPHS: dict[str, Callable[[], TokenGraph]] = {
    "complete": lambda: TokenGraph.complete(N),
    "causal": lambda: TokenGraph.causal(N),
    "decoding": lambda: TokenGraph.causal(1, num_keys=N, query_offset=N - 1),
    "window": lambda: TokenGraph.window(N, 3),
    "window_both": lambda: TokenGraph.window(N, 2, causal=False),
    "dilated": lambda: TokenGraph.dilated(N, 6, 3),
    "prefix": lambda: TokenGraph.prefix(N, 4),
    "documents": lambda: TokenGraph.documents([0] * 4 + [1] * 5 + [2] * 3),
    "strided": lambda: TokenGraph.strided(N, 4),
    "longformer": lambda: TokenGraph.longformer(N, 1, [0, 6]),
    "bigbird": lambda: TokenGraph.bigbird(N, 1, random_blocks=1, seed=3),
    "expander": lambda: TokenGraph.expander(N, 3, seed=5),
    "nearest": lambda: TokenGraph.nearest(POINTS, 3),
    "bipartite": lambda: TokenGraph.bipartite(5, N),
    "self_loops": lambda: TokenGraph.self_loops(N),
    "from_mask": lambda: TokenGraph.from_mask(MASK),
    "from_edge_index": lambda: TokenGraph.from_edge_index(
        torch.tensor([[0, 2, 4, 6, 8, 9, 10], [3, 3, 6, 8, 11, 8, 8]]), N
    ),
    "from_edges": lambda: TokenGraph.from_edges(
        [("dog", "chased"), ("cat", "chased"), ("a", "cat")],
        ["the", "dog", "chased", "a", "cat"],
    ),
    "from_networkx": lambda: TokenGraph.from_networkx(nx.cycle_graph(N)),
    "disjoint_union": lambda: TokenGraph.disjoint_union(
        [TokenGraph.causal(7), TokenGraph.complete(5)]
    ),
    "and": lambda: TokenGraph.causal(N) & TokenGraph.strided(N, 3),
    "or": lambda: TokenGraph.window(N, 3) | TokenGraph.strided(N, 5),
    "minus": lambda: TokenGraph.causal(N) - TokenGraph.self_loops(N),
}


def _draw(name: str) -> Figure:
    graph = GRAPHS[name]()
    mask = graph.mask().numpy()
    query = _marked(mask)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(4.8, 2), width_ratios=(1, 1.5), layout="constrained"
    )
    _squares(left, mask, query)
    _arcs(right, graph, mask, query)
    return figure


def _marked(mask: np.ndarray) -> int:
    """Choose query 8, or in smaller graphs the one that reads most."""
    return 8 if len(mask) > 8 else int(mask.sum(1).argmax())


def _squares(ax: Axes, mask: np.ndarray, query: int) -> None:
    shown = mask.astype(int)
    shown[query] *= 2
    ax.pcolormesh(shown, cmap=ListedColormap([EMPTY, EDGE, MARKED]), vmin=0, vmax=2, ec="w", lw=0.6)
    ax.invert_yaxis()
    ax.set_aspect("equal")
    ax.set(xlabel="key", ylabel="query", xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


def _arcs(ax: Axes, graph: TokenGraph, mask: np.ndarray, query: int) -> None:
    keys, queries = mask.shape[1], mask.shape[0]
    raised = 3.0 if graph.is_bipartite else 0.0
    for row, column in np.argwhere(mask).tolist():
        start, end = (column, 0.0), (_place(graph, row, queries, keys), raised)
        if start != end:
            _arrow(ax, start, end, MARKED if row == query else EDGE, row == query)
    if graph.is_bipartite:
        places = [_place(graph, row, queries, keys) for row in range(queries)]
        ax.scatter(places, [raised] * queries, s=24, color=NODE, zorder=4)
    loops = [key for key in range(keys) if _has_loop(graph, mask, key)]
    ax.scatter(range(keys), [0] * keys, s=24, color=NODE, zorder=4)
    ax.scatter(loops, [0] * len(loops), s=70, facecolor="none", edgecolor=EDGE, lw=1.4, zorder=3)
    ax.plot(_place(graph, query, queries, keys), raised, "o", ms=6, color=MARKED, zorder=5)
    ax.set(xlim=(-0.8, keys - 0.2), ylim=(-0.8, max(raised + 0.8, keys / 2 - 0.5)))
    ax.set_aspect("equal")
    ax.axis("off")


def _place(graph: TokenGraph, row: int, queries: int, keys: int) -> float:
    if graph.is_bipartite:
        return (row + 0.5) * keys / queries - 0.5
    return row + graph.query_offset


def _has_loop(graph: TokenGraph, mask: np.ndarray, key: int) -> bool:
    if graph.is_bipartite:
        return False
    row = key - graph.query_offset
    return 0 <= row < len(mask) and bool(mask[row, key])


def _arrow(
    ax: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, marked: bool
) -> None:
    flat = start[1] == end[1]
    bend = (-0.9 if start < end else 0.9) if flat else 0.0
    ax.add_patch(
        FancyArrowPatch(
            start,
            end,
            connectionstyle=f"arc3,rad={bend}",
            arrowstyle="-|>,head_width=1.6,head_length=3" if marked else "-",
            shrinkA=3,
            shrinkB=4,
            color=colour,
            lw=1.3 if marked else 0.7,
            zorder=2 if marked else 1,
        )
    )


PICTURES = {f"graph_{name}": partial(_draw, name) for name in GRAPHS}
