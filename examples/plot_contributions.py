"""A long look at the start, and little taken
==========================================

Attention says how much a head looks at the start of a text, not how much it takes from there.

On average, half of the embedded model's heads attend more to the start of this text than to any
other token. What travels along an edge is attention times a vector, so a head that looks at a short
vector takes little (Kobayashi et al. 2020, Attention is not only a weight). In the two induction
heads, 2.0 and 2.1, the vector of the start is a seventh as long as those of other tokens: the start
has over three quarters of head 2.0's attention, but only half of the lengths that it takes. Where
this head copies, at the last two "the", the start still has a fifth of the attention, but 3 % of
the lengths. Not every sink is idle, though: in head 1.0, which gives the start two thirds of its
attention, its vector is as long as the others', and in head 1.2 almost twice as long. You have to
measure. For whole layers, ALTI (Ferrando et al. 2022) asks how much nearer each token's vector
brings a layer to its output, and counts the residual stream as the token's own. By this measure,
the start has 7 % of layer 1, 3 % of layer 3 and 1 % of the others, while the mean attention of the
heads gives it 8 to 47 %.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import gattn
from gattn.analysis import alti, contributions

text = "The dog chased the cat, and the cat chased the dog"
model, tokenizer = gattn.load_model()
trace = gattn.capture(text, model, tokenizer)
lengths = contributions(text, model, tokenizer, of="head")  # (layer, head, query, key)
taken = lengths / lengths.sum("key")  # each key's share of all that a head adds
tokens = lengths.key_token.values

# %%
# For each head, the attention to the start, what it takes from there, and the length of the start's
# vector relative to others.

rows = {}
for (layer, head), graph in trace.only_stack.items():
    attention = graph.to_dense()
    vectors = lengths[layer, head, -1] / attention[-1]  # ||W_O v_j||: the last token sees them all
    rows[layer, head] = {
        "attention": attention[1:, 0].mean(),
        "taken": float(taken[layer, head, 1:, 0].mean()),
        "start's length": float(vectors[0]),
        "others' length": float(vectors[1:].median()),
        "start leads": attention[1:, 0].mean() > attention[1:, 1:].mean(0).max(),
    }
heads = pd.DataFrame(rows).T.rename_axis(["layer", "head"])
heads["ratio"] = heads["start's length"] / heads["others' length"]
print(heads.astype(float).round(2).to_string())

# %%
# Whole layers, residual stream included.

mixing = alti(text, model, tokenizer)
layers = pd.DataFrame(
    {
        "attention": heads["attention"].groupby("layer").mean(),
        "ALTI": mixing[:, 1:, 0].mean("query").to_series(),
    }
)
print(layers.astype(float).round(3).to_string())

# %%
# A short vector gives little, however much a head looks at it.

figure, axes = plt.subplot_mosaic(
    [["heads", "heads", "layers"], ["attention", "vectors", "taken"]],
    figsize=(13, 9),
    height_ratios=[1, 1.2],
    layout="constrained",
)
ax = axes["heads"]
ax.axhline(1, color="0.7", lw=0.8, ls="--")
ax.scatter(heads["attention"], heads["ratio"].astype(float), color="C0")
for (layer, head), row in heads.iterrows():
    apart = (5, -12) if (layer, head) in [(0, 1), (1, 3)] else (5, 3)  # two have near neighbours
    ax.annotate(
        f"{layer}.{head}", (row["attention"], row["ratio"]), apart, textcoords="offset points"
    )
ax.set(
    yscale="log",
    ylim=(0.1, 2.5),
    xlabel="attention to the start, mean over the other tokens",
    ylabel="length of the start's vector\nrelative to others",
    title="Each head: how much it looks at the start, and how much there is to take",
)
ax.set_yticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "1", "2"])
ax.minorticks_off()

ax = axes["layers"]
places = np.arange(len(layers))
ax.bar(places - 0.2, layers["attention"], 0.4, label="attention, mean of the heads", color="C0")
ax.bar(places + 0.2, layers["ALTI"], 0.4, label="ALTI, with the residual stream", color="C1")
ax.set_xticks(places, [f"layer {n}" for n in layers.index])
ax.set_title("The start's share, by two measures")
ax.set_ylim(0, 0.6)
ax.legend(frameon=False, loc="upper left")

attention = trace[2, 0].to_dense()
vectors = lengths[2, 0, -1] / attention[-1]
axes["vectors"].barh(range(len(tokens)), vectors, color="C0")
axes["vectors"].set_yticks(range(len(tokens)), tokens)
axes["vectors"].invert_yaxis()
axes["vectors"].set_title("Head 2.0: length of the vectors")
pictures = {"attention": attention, "taken": taken[2, 0].values}
titles = {"attention": "Head 2.0: attention", "taken": "Head 2.0: share of the lengths"}
for name, values in pictures.items():
    ax = axes[name]
    ax.imshow(values, cmap="Blues", vmin=0, vmax=1)
    ax.set_xticks(range(len(tokens)), tokens, rotation=90)
    ax.set_yticks(range(len(tokens)), tokens)
    ax.set_title(titles[name])
figure.savefig("contributions.png", dpi=110)
plt.close("all")
