"""Attention flow favours early tokens
===================================

Attention flow, and why it favours tokens that stand early in a text.

Attention flow asks how much could get from each token through all layers if every edge were a pipe
as wide as its attention. In a causal model, information can only pass through the tokens between
source and target, so early tokens have more paths, whatever the model does. In the embedded model,
the flow to a token has a mean rank correlation of 0.87 with how early its source is; rollout has
0.03. Even if every token attends equally to all tokens before it, so that there is nothing to find,
the flow to the last token falls from 1 to 0.15. So compare flow with that of even attention: only
the three words before the last one send it more than that.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import spearmanr

import gattn
from gattn.analysis import flow, rollout

text = "The river tall green lamp river tall green lamp river tall green"
trace = gattn.capture(text)
count, layers = len(trace.tokens), len(trace.only_stack.layers)
flows, rolled = flow(trace), rollout(trace)[-1]

# %%
# The same for even attention, where there is nothing to find.

even = np.tri(count) / np.arange(1, count + 1)[:, None]
even = np.broadcast_to(even, (layers, count, count))
even_flows, even_rolled = flow(even[:, None]), rollout(even[:, None])[-1]


def earliness(shares) -> float:
    """Correlate what each token gets from those before it with how early they are."""
    rows = shares.to_numpy()
    of_each = [spearmanr(rows[i, 1:i], -np.arange(1, i)).statistic for i in range(5, count)]
    return float(np.mean(of_each))


print(
    f"rank correlation with earliness: flow {earliness(flows):.2f}, rollout {earliness(rolled):.2f}"
)
last, even_last = flows.to_numpy()[-1], even_flows.to_numpy()[-1]
gain = last - even_last
for position, token in enumerate(trace.tokens):
    print(
        f"{token:>14} {last[position]:.2f}, even {even_last[position]:.2f}, {gain[position]:+.2f}"
    )

# %%
# Flow between all tokens; and flow to the last one, compared with even attention.

figure, (left, middle, right) = plt.subplots(
    1, 3, figsize=(15, 4.8), width_ratios=[1.25, 1, 1], layout="constrained"
)
flows.draw(ax=left, title="attention flow in the embedded model")
positions = np.arange(count)
tokens = [f"{token} {position}" for position, token in enumerate(trace.tokens)]
pairs = [
    (middle, "flow", flows[-1], even_flows[-1]),
    (right, "rollout", rolled[-1], even_rolled[-1]),
]
for ax, name, ours, others in pairs:
    ax.bar(positions, ours, color="0.7", label="embedded model")
    ax.step(positions, others, where="mid", color="C3", label="even attention")
    ax.set_xticks(positions, tokens, rotation=90, parse_math=False)
    ax.set_title(f"{name} to the last token")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
figure.savefig("attention_flow.png", dpi=110)
plt.close("all")
