"""Weight functions: the score of every key in the plane, of every offset, or of every edge."""

from collections.abc import Callable
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

import gattn
from gattn import TokenGraph, WeightFunction

QUERY = torch.tensor([[1.4, 0.7]])
KEYS = torch.tensor(
    [[1.9, 1.2], [0.8, 0.2], [-0.6, 1.5], [2.2, -0.9], [-1.8, -1.1], [-1.4, 0.6], [0.3, -1.9]]
)
SIDE = 121
PLANE = torch.stack(torch.meshgrid(*[torch.linspace(-2.6, 2.6, SIDE)] * 2, indexing="xy"), -1)
COLOURS = "RdBu"
HEADS = 2


def _seeded(make: Callable[[], WeightFunction], seed: int = 2) -> WeightFunction:
    torch.manual_seed(seed)
    return make().requires_grad_(False)


def _turning() -> WeightFunction:
    weight = gattn.Bilinear(1, 2).requires_grad_(False)
    (matrix,) = weight.parameters()
    matrix.copy_(torch.tensor([[[0.0, 1.0], [-1.0, 0.0]]]))
    return weight


def _random_features() -> WeightFunction:
    return gattn.KernelFeatures(gattn.PerformerFeatures(2, 12, seed=1))


OF_VECTORS: dict[str, Callable[[], WeightFunction]] = {
    "Dot": gattn.Dot,
    "ScaledDotProduct": gattn.ScaledDotProduct,
    "Bilinear": _turning,
    "Additive": lambda: _seeded(lambda: gattn.Additive(1, 2, 8)),
    "GAT": lambda: _seeded(lambda: gattn.GAT(1, 2), seed=4),
    "GATv2": lambda: _seeded(lambda: gattn.GATv2(1, 2, 8)),
    "Cosine": lambda: gattn.Cosine(3.0),
    "SwinCosine": lambda: gattn.SwinCosine(1).requires_grad_(False),
    "SquaredDistance": lambda: gattn.SquaredDistance(0.5),
    "L1Distance": gattn.L1Distance,
    "Polynomial": lambda: gattn.Polynomial(2, c=1.0),
    "KernelFeatures": _random_features,
    "Softcap": lambda: gattn.Softcap(gattn.Dot(), 2.0),
}


def _scores(weight: WeightFunction, query: torch.Tensor, key: torch.Tensor) -> np.ndarray:
    graph = TokenGraph.bipartite(len(query), len(key))
    (head,) = gattn.attention_graphs(query[None], key[None], graph, weight=weight, scores=True)
    return head.score.reshape(len(query), len(key))


def _plane(name: str) -> Figure:
    """Draw the score of every key in the plane, and seven keys with sizes by their attention."""
    weight = OF_VECTORS[name]()
    score = _scores(weight, QUERY, PLANE.reshape(-1, 2)).reshape(SIDE, SIDE)
    attention = torch.tensor(_scores(weight, QUERY, KEYS)[0]).softmax(-1)
    figure, ax = plt.subplots(figsize=(2.9, 2.3), layout="constrained")
    x, y = PLANE[..., 0], PLANE[..., 1]
    end = np.abs(score).max()
    levels = MaxNLocator(9).tick_values(score.min(), score.max())
    drawn = ax.contourf(x, y, score, levels, cmap=COLOURS, norm=Normalize(-end, end))
    ax.contour(x, y, score, levels, colors="0.45", linewidths=0.4, negative_linestyles="solid")
    ax.scatter(*KEYS.T, s=14 + 420 * attention, c="#253c94", alpha=0.85, ec="w", lw=0.8, zorder=3)
    ax.annotate(
        "",
        QUERY[0].tolist(),
        (0, 0),
        arrowprops={"fc": "k", "ec": "w", "lw": 0.6, "width": 2.4, "headwidth": 8, "headlength": 8},
        zorder=4,
    )
    ax.set_aspect("equal")
    ax.set(xlim=(-2.6, 2.6), ylim=(-2.6, 2.6), xticks=[0], yticks=[0])
    figure.colorbar(drawn, ax=ax, shrink=0.9, label="w(i, j)", ticks=MaxNLocator(5))
    return figure


def _biases(name: str) -> Figure:
    """Draw the score by the offset from query to key, one line per head."""
    figure, ax = plt.subplots(figsize=(2.9, 2.3), layout="constrained")
    offsets = np.arange(-24, 25)
    score = _by_offset(OF_OFFSETS[name](), offsets)
    for head, line in enumerate(score):
        ax.step(offsets, line, where="mid", lw=1.6, label=f"head {head}", color=f"C{head}")
    _offset_axes(ax)
    return figure


def _learned(weight: WeightFunction) -> WeightFunction:
    """Replace the zeros by numbers that training might find: (buckets, heads)."""
    (table,) = weight.requires_grad_(False).parameters()
    generator = torch.Generator().manual_seed(6)
    table.copy_((torch.randn(table.shape, generator=generator) * 0.5).cumsum(0))
    return weight


OF_OFFSETS: dict[str, Callable[[], WeightFunction]] = {
    "ALiBi": lambda: gattn.ALiBi(HEADS),
    "T5RelativeBias": lambda: _learned(
        gattn.T5RelativeBias(HEADS, num_buckets=16, max_distance=24)
    ),
    "RelativePosition": lambda: _learned(gattn.RelativePosition(HEADS, 8)),
}


def _by_offset(weight: WeightFunction, offsets: np.ndarray, dim: int = 1) -> np.ndarray:
    """Score keys that are all the same vector as the query, by their offset: (heads, offsets)."""
    tokens = len(offsets)
    same = torch.ones(HEADS, tokens, dim) / dim**0.25
    found = gattn.attention_graphs(
        same, same, TokenGraph.complete(tokens), weight=weight, scores=True
    )
    return np.stack([head.score.reshape(tokens, tokens)[tokens // 2] for head in found])


def _rotary(_: str) -> Figure:
    """Draw the score of a query and keys that are all the same vector, by their offset."""
    offsets = np.arange(-24, 25)
    figure, ax = plt.subplots(figsize=(2.9, 2.3), layout="constrained")
    for base in (100.0, 10_000.0):
        rotated = gattn.Rotary(gattn.ScaledDotProduct(), base=base)
        ax.plot(offsets, _by_offset(rotated, offsets, 32)[0], lw=1.6, label=f"base {base:,.0f}")
    _offset_axes(ax)
    return figure


def _offset_axes(ax: Axes) -> None:
    ax.axvline(0, color="0.7", lw=0.7, zorder=0)
    ax.set(xlabel="offset, key - query", ylabel="w(i, j)", xlim=(-24, 24))
    ax.legend(fontsize=7, frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1))


def _edges(name: str) -> Figure:
    """Draw the scores of all pairs of nine tokens, with a dependency tree as edge features."""
    words = ["the", "old", "dog", "saw", "a", "cat"]
    features = torch.zeros(6, 6, 2)
    for dependent, head in ((0, 2), (1, 2), (2, 3), (4, 5), (5, 3)):
        features[dependent, head, 0] = features[head, dependent, 1] = 1.0
    torch.manual_seed(0)
    tokens = torch.randn(1, 6, 4)
    weights = {"EdgeBias": gattn.EdgeBias(1, 2), "EdgeProduct": gattn.EdgeProduct(1, 4, 2)}
    weight = weights[name].requires_grad_(False)
    if name == "EdgeBias":
        next(weight.parameters()).copy_(torch.tensor([[2.0], [-1.0]]))
    graph = TokenGraph.complete(6)
    (head,) = gattn.attention_graphs(
        tokens, tokens, graph, weight=weight, edge_features=features, scores=True
    )
    figure, ax = plt.subplots(figsize=(2.9, 2.3), layout="constrained")
    score = head.score.reshape(6, 6)
    end = np.abs(score).max()
    drawn = ax.pcolormesh(score, cmap=COLOURS, vmin=-end, vmax=end, ec="w", lw=0.8)
    ax.set_xticks(np.arange(6) + 0.5, words, rotation=60)
    ax.set_yticks(np.arange(6) + 0.5, words)
    ax.tick_params(length=0)
    ax.invert_yaxis()
    ax.set_aspect("equal")
    ax.set(xlabel="key", ylabel="query")
    ax.spines[:].set_visible(False)
    figure.colorbar(drawn, ax=ax, shrink=0.9, label="w(i, j)", ticks=MaxNLocator(5))
    return figure


PICTURES = (
    {f"weight_{name}": partial(_plane, name) for name in OF_VECTORS}
    | {f"weight_{name}": partial(_biases, name) for name in ("ALiBi", "T5RelativeBias")}
    | {"weight_RelativePosition": partial(_biases, "RelativePosition")}
    | {"weight_Rotary": partial(_rotary, "Rotary")}
    | {f"weight_{name}": partial(_edges, name) for name in ("EdgeBias", "EdgeProduct")}
)
