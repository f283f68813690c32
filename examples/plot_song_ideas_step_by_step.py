"""A head, step by step
====================

Every step of a head on the prompt "List new ideas for a song".

Six tokens have four features each. Matrices turn them into queries, keys and values; the scaled
scores of future tokens are masked, as in a decoder; the softmax of each row is the attention; the
output is its weighted sum of the values. `gattn.steps` shows each step as a table.
"""

import matplotlib.pyplot as plt
import numpy as np

import gattn
from gattn import TokenGraph

tokens = ["List", "new", "ideas", "for", "a", "song"]
x = np.array(
    [
        [0.1, -0.2, 0.1, 0.2],
        [0.8, 0.8, -0.9, 0.5],
        [-0.6, 0.4, 0.5, -0.9],
        [0.9, -0.7, 0.8, 0.7],
        [0.4, 0.3, 0.4, 0.4],
        [0.8, 0.2, 0.9, -0.2],
    ]
)
w_q = np.array(
    [[3.4, -2.1, 0.8, 1.9], [-1.2, 0.5, 3.7, -0.8], [2.9, 1.1, -3.4, 0.6], [0.7, 2.8, 1.3, -2.5]]
)
# The key and value matrices are arbitrary, with a fixed seed.
draw = np.random.default_rng(seed=1)
w_k, w_v = draw.normal(size=(2, 4, 4)).round(1)

# %%
# Each step of the head, as a table.

steps = gattn.steps(x, w_q, w_k, w_v, TokenGraph.causal(6), tokens=tokens)
print(steps)

# %%
# The scaled scores, and the attention that softmax computes from them.

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
steps.head.draw("matrix", ax=left, values="score").set_title("scaled scores")
steps.head.draw("arcs", ax=right).set_title("attention")
figure.savefig("song_ideas_step_by_step.png", dpi=150)
