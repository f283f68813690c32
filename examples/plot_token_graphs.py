"""Who may attend to whom
======================

A gallery of token graphs.

Each square is one graph of 32 tokens: rows are queries, columns are keys, and a dark cell is an
edge.
"""

import matplotlib.pyplot as plt
import torch

from gattn import TokenGraph

N = 32
generator = torch.Generator().manual_seed(0)
graphs = {
    "complete": TokenGraph.complete(N),
    "causal": TokenGraph.causal(N),
    "window of 6": TokenGraph.window(N, 6),
    "window of 6, both ways": TokenGraph.window(N, 6, causal=False),
    "dilated": TokenGraph.dilated(N, 12, 3),
    "prefix of 8": TokenGraph.prefix(N, 8),
    "strided": TokenGraph.strided(N, 6),
    "documents": TokenGraph.documents([0] * 10 + [1] * 14 + [2] * 8),
    "Longformer": TokenGraph.longformer(N, 3, [0, 16]),
    "BigBird": TokenGraph.bigbird(N, 4, random_blocks=1, seed=3),
    "expander": TokenGraph.expander(N, 3, seed=5),
    "nearest neighbours": TokenGraph.nearest(torch.randn(N, 2, generator=generator), 5),
    "window | (causal & strided)": TokenGraph.window(N, 3) | TokenGraph.strided(N, 5),
    "causal - self-loops": TokenGraph.causal(N) - TokenGraph.self_loops(N),
    "disjoint union": TokenGraph.disjoint_union([TokenGraph.causal(20), TokenGraph.complete(12)]),
}

# %%
# Below each square is its number of edges.

figure, axes = plt.subplots(3, 5, figsize=(13, 9.4), layout="constrained")
for ax, (name, graph) in zip(axes.flat, graphs.items(), strict=True):
    ax.imshow(graph.mask().numpy(), cmap="Blues", vmin=-0.05, vmax=1.2, interpolation="none")
    ax.set(title=name, xticks=[], yticks=[])
    ax.set_xlabel(f"{graph.num_edges} edges", size="small", color="0.35")
    print(f"{name}: {graph}, {graph.num_edges} edges")
figure.get_layout_engine().set(h_pad=0.1)
figure.savefig("token_graphs.png", dpi=110)
