"""How far four pictures can be trusted
====================================

How far can you trust four pictures of one prediction?

The embedded model continues a list that is repeated for the third time: it predicts " lamp" with
probability 0.93. Attention, contributions, information flow routes, and estimates from one backward
pass each say which of the 1,456 edges matter for that. Here they are compared with the model.

- Single edges are cut, 400 of them drawn at random, which gives exact effects. Rank correlation
  with the effects' sizes: estimates 0.99, routes 0.78, attention 0.48, contributions 0.39.
- Edges are cut from the top of each ranking. By the estimates and by the routes, three are enough:
  the probability of " lamp" falls to 0.01 or less. The seven edges with the most attention change
  nothing, because there the first token reads itself, which is all it can do.
- Edges are restored in a model without any. By the routes, 15 are enough; by attention, it takes
  218. With the estimates, best so far, the model predicts " lamp" with 10 to 20 % of the edges, and
  no longer with 30 %: they describe single cuts in the whole model, not a model with few edges.

So no picture is faithful in every sense: say in which. For whole tokens, cut off from all that read
them, the rank correlation with the effects is 0.80 for gradient rollout, 0.64 for rollout, 0.38 for
flow and 0.18 for the last layer's attention; but there are only 13 tokens, and only the first two
correlations are clearly above 0.
"""

import matplotlib.pyplot as plt
import numpy as np

import gattn
from gattn.analysis import (
    contributions,
    deletion_curve,
    flow,
    gradient_rollout,
    insertion_curve,
    rank_agreement,
    rollout,
    routes,
)

model, tokenizer = gattn.load_model()
model = model.double()  # in float32, many effects are smaller than rounding errors
text = "The river tall green lamp river tall green lamp river tall green"
answer = {"metric": "probability", "target": " lamp"}
trace = gattn.capture(text, model, tokenizer)
last = len(trace.tokens) - 1

edges = {
    "attention": trace,
    "contribution": contributions(text, model, tokenizer, of="head"),
    "routes": routes(text, model, tokenizer, threshold=0),
    "estimate": gattn.estimate(text, model, tokenizer, sample=0, **answer),
}
# %%
# Edges are cut and restored, from the top of each ranking.

steps = [0, 3 / 1456, 7 / 1456, 0.01, 0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 0.9, 1]
options = answer | {"steps": steps, "random": 3}
deleted = deletion_curve(edges, text, model, tokenizer, **options)
inserted = insertion_curve(edges, text, model, tokenizer, **options)
agreement = rank_agreement(edges, text, model, tokenizer, sample=400, **answer)

# %%
# The same for whole tokens.

through = gradient_rollout(text, model, tokenizer, **answer)
tokens = {
    "attention": np.mean([trace[3, head].to_dense()[last] for head in range(4)], axis=0),
    "rollout": rollout(trace).sel(layer=3, query=last),
    "flow": flow(trace, queries=last).sel(query=last),
    "gradient rollout": through.sel(layer=3, query=last),
}
of_tokens = rank_agreement(tokens, text, model, tokenizer, **answer)

for name, table in {"cut": deleted, "restored": inserted}.items():
    print(f"Edges {name}: probability of ' lamp'")
    print(table[["count", *edges]].round(3).to_string())
print("Edges:", agreement.round(3).to_string(), "Tokens:", of_tokens.round(3).to_string(), sep="\n")

# %%
# Two curves, and how well rankings agree with the exact effects.

figure, axes = plt.subplots(1, 3, figsize=(16, 4.8), width_ratios=[1, 1, 0.8], layout="constrained")
for ax, table in zip(axes, (deleted, inserted), strict=False):
    table.draw(ax=ax)
    ax.set_xscale("symlog", linthresh=0.005)
    ax.set_xticks([0, 0.01, 0.1, 1], ["0 %", "1 %", "10 %", "100 %"])
rows = [(f"edges: {name}", row) for name, row in agreement.iterrows()]
rows += [(f"tokens: {name}", row) for name, row in of_tokens.iterrows()]
axes[2].axvline(0, color="0.7", lw=0.8)
for place, (_, row) in enumerate(rows):
    axes[2].plot(row[["low", "high"]], [place, place], color="0.5")
    axes[2].plot(row["correlation"], place, "o", color="C0")
axes[2].set_yticks(range(len(rows)), [name for name, _ in rows])
axes[2].invert_yaxis()
axes[2].set_title("rank correlation with exact effects, 95 %", size="medium")
axes[2].spines[["top", "right"]].set_visible(False)
figure.savefig("faithfulness.png", dpi=110)
plt.close("all")
