"""Scores before, attention after
==============================

The scores before the softmax and the attention after it are both directed graphs.

The same queries and keys, normalized by `Identity` (the attention is the score itself, signed) and
by `Softmax`. Both graphs can be exported to NetworkX, and to GraphML for other tools.
"""

import matplotlib.pyplot as plt
import networkx as nx
import torch

from gattn import Identity, Softmax, TokenGraph, attention_graphs

tokens = ["the", "quick", "brown", "fox", "jumps"]
generator = torch.Generator().manual_seed(7)
query, key = torch.randn(2, 1, 5, 8, generator=generator, dtype=torch.float64)
graph = TokenGraph.complete(5)

# %%
# One weight function, two normalizers.

scores = attention_graphs(query, key, graph, normalizer=Identity(), tokens=tokens)[0]
attention = attention_graphs(query, key, graph, normalizer=Softmax(), tokens=tokens)[0]

# %%
# Both become NetworkX graphs, and files for other tools.

for name, head in (("scores", scores), ("attention", attention)):
    network = head.to_networkx()
    strongest = max(network.edges(data="weight"), key=lambda edge: edge[2])
    ends = " -> ".join(network.nodes[node]["token"] for node in strongest[:2])
    print(f"{name}: {network}, strongest edge {ends} ({strongest[2]:.2f})")
    head.save(f"{name}.graphml")

ranks = nx.pagerank(attention.to_networkx().reverse())
print("PageRank along 'attends to':", {tokens[i]: round(rank, 2) for i, rank in ranks.items()})

# %%
# Blue edges score above zero, orange ones below; attention is never negative.

figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
scores.draw("circle", ax=axes[0]).set_title("scores")
attention.draw("circle", ax=axes[1]).set_title("attention")
figure.savefig("scores_and_attention.png", dpi=150)
