"""Five weight functions, one layer
================================

The same layer with five edge weight functions, side by side.

One layer, the same projections and the same nine tokens; only the weight function w(i, j) differs.
"""

import matplotlib.pyplot as plt
import torch

from gattn import (
    ALiBi,
    Cosine,
    GraphAttention,
    ScaledDotProduct,
    SquaredDistance,
    TokenGraph,
)

tokens = ["a", "rose", "is", "a", "rose", "is", "a", "rose", "."]
torch.manual_seed(3)
words = sorted(set(tokens))
features = torch.randn(len(words), 16)[[words.index(token) for token in tokens]]
graph = TokenGraph.causal(len(tokens))
layer = GraphAttention(16, 8, heads=2)

weights = {
    "scaled dot product": ScaledDotProduct(),
    "scaled dot product + ALiBi": ScaledDotProduct() + ALiBi(2),
    "cosine": 5.0 * Cosine(),
    "squared distance": SquaredDistance(0.25),
    "a function of your own": lambda q, k, pairs: -(q - k).abs().amax(-1),
}

figure, axes = plt.subplots(1, 5, figsize=(21, 4.4), layout="constrained")
for ax, (name, weight) in zip(axes, weights.items(), strict=True):
    same = GraphAttention(16, 8, heads=2, weight=weight)
    same.load_state_dict(layer.state_dict(), strict=False)
    head = same.graphs(features, graph, tokens=tokens)[0]
    head.draw("matrix", ax=ax)
    ax.set_title(name)
    print(f"{name}: {head.kept_mass.sum():.0f} rows, entropy of the last row ", end="")
    last = torch.from_numpy(head.to_dense()[-1])
    print(f"{-(last * last.log()).sum():.2f} nats")
figure.savefig("five_weight_functions.png", dpi=150)
