"""Attention in one line of arithmetic
===================================

Self-attention in one line of arithmetic, on three words.

Three tokens with four features attend to each other by their plain dot products (no 1/√d and no
learned matrices): scores X Xᵀ, a softmax over each row, and the weighted sum of the features.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from gattn import Dot, TokenGraph, attention_graphs, graph_attention

tokens = ["pool", "beats", "badminton"]
x = np.array([[0.5, 0.1, 0.1, 0.2], [0.1, 0.5, 0.2, 0.1], [0.5, 0.1, 0.2, 0.1]])

# %%
# The graph says who may attend (here all tokens), the weight function how much an edge scores (here
# the plain dot product).

features = torch.tensor(x)[None]  # one head
graph = TokenGraph.complete(3)
head = attention_graphs(features, features, graph, weight=Dot(), scores=True, tokens=tokens)[0]
output = graph_attention(features, features, features, graph, weight=Dot())[0].numpy()

print("scores X Xᵀ\n", x @ x.T)
print("attention\n", head.to_dense().round(2))
print("output\n", output.round(2))

# %%
# The same attention as a graph and as a matrix.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
head.draw("arcs", ax=left).set_title("attention as a graph")
head.draw("matrix", ax=right).set_title("and as a matrix")
figure.savefig("pool_beats_badminton.png", dpi=150)
