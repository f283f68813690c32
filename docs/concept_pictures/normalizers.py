"""Normalizers: a row of scores and its attention, and how it responds to one of the scores."""

from collections.abc import Callable
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import gattn
from gattn import Normalizer

SCORES = torch.tensor([2.0, 1.5, 1.4, 0.4, -0.3, -1.2])
POSITIVE = torch.tensor([2.0, 1.5, 1.4, 0.4, 0.3, 0.1])
MOVED = torch.linspace(-4, 5, 181)
SCORE, ATTENTION, MARKED = "0.72", "#2471b1", "#bd5f14"

NORMALIZERS: dict[str, Callable[[], Normalizer]] = {
    "Softmax": gattn.Softmax,
    "Softmax_sink": lambda: gattn.Softmax(sink=1.5),
    "Sparsemax": gattn.Sparsemax,
    "Entmax15": gattn.Entmax15,
    "Entmax": lambda: gattn.Entmax(1.25),
    "TopKSoftmax": lambda: gattn.TopKSoftmax(2),
    "Sigmoid": gattn.Sigmoid,
    "ReLU": gattn.ReLU,
    "Proportional": gattn.Proportional,
    "Identity": gattn.Identity,
}


def _attention(normalizer: Normalizer, scores: torch.Tensor) -> np.ndarray:
    return normalizer(scores[..., None, None, :])[..., 0, 0, :].numpy()


def _draw(name: str) -> Figure:
    normalizer = NORMALIZERS[name]()
    scores = POSITIVE if name == "Proportional" else SCORES
    figure, (left, right) = plt.subplots(1, 2, figsize=(4.6, 1.9), layout="constrained")
    _row(left, scores.numpy(), _attention(normalizer, scores))
    moved = MOVED[MOVED >= 0] if name == "Proportional" else MOVED
    rows = scores.repeat(len(moved), 1)
    rows[:, 1] = moved
    right.plot(moved, _attention(normalizer, rows)[:, 1], color=MARKED, lw=1.8)
    right.plot(scores[1], _attention(normalizer, scores)[1], "o", color=MARKED, ms=5)
    right.axhline(0, color="0.8", lw=0.7, zorder=0)
    right.set(xlabel="score of key 1", ylabel="its attention")
    return figure


def _row(ax: Axes, scores: np.ndarray, attention: np.ndarray) -> None:
    keys = np.arange(len(scores))
    ax.bar(keys - 0.2, scores, 0.36, color=SCORE, label="score")
    colours = [MARKED if key == 1 else ATTENTION for key in keys]
    ax.bar(keys + 0.2, attention, 0.36, color=colours, label="attention")
    for key in np.flatnonzero(attention == 0):
        ax.text(key + 0.2, 0.05, "0", ha="center", color=ATTENTION, fontsize=8)
    ax.axhline(0, color="0.4", lw=0.7)
    ax.set(xlabel="key", xticks=keys, ylim=(min(-0.2, scores.min() - 0.15), 2.2))
    ax.set_title("grey: score, coloured: attention", fontsize=8)


PICTURES = {f"normalizer_{name}": partial(_draw, name) for name in NORMALIZERS}
