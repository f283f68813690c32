"""One head that does two things
==============================

Head 2.0 of the embedded model repeats words, and where there is nothing to repeat, it rests on the
first token: which parts of its queries and keys do the one, and which the other?

A list of four words is repeated. At the last "green", head 2.0 gives 74 % of its attention to the
two occurrences of "lamp", the word that followed "green" before: it is an induction head. At the
words' first occurrence nothing is to be repeated, and it gives 84 % of its attention to the first
token, on which many heads rest. Are these two things one mechanism, or two?

A score is a sum over pairs of a part of the query and a part of the key. Less the mean over all
keys, which no softmax sees, two pairs stand out. The edges to "lamp" are made by the query of MLP 1
with the key of head 1.1, the previous-token head; those to the first token by the query of head 1.0
with the key of MLP 0. So there are two mechanisms in one head, and they share neither side.

The model then runs without one part on one side of this head alone, and all else as it was. Without
MLP 1 in its queries, or 1.1 in its keys, the head no longer repeats: 7 % and 4 % are left, and it
rests as before. Without head 1.0 in its queries, or MLP 0 in its keys, it no longer rests: 16 % and
33 % are left, and it repeats as before. Without another head of layer 1 in its keys, it does both
nearly as before. Head 2.1 does both things, too, by the same parts, and there they compete: without
1.0 in its queries, it repeats more, 99 % where it was 79 %.
"""

import matplotlib.pyplot as plt
import pandas as pd

import gattn
from gattn import Without

model, tokenizer = gattn.load_model()
text = "The river tall green lamp river tall green lamp river tall green"
first = [2, 3, 4, 5]  # river, tall, green and lamp, when they are new
edges = {"repeats": {"query": -1, "key": " lamp"}, "rests": {"query": first, "key": 0}}


def done(head: int) -> dict[str, float]:
    """Return how much attention a head of layer 2 gives to "lamp", and to the first token."""
    attention = gattn.capture(text, model, tokenizer)[2, head].to_dense()
    return {
        "repeats": float(attention[-1, [5, 9]].sum()),
        "rests": float(attention[first, 0].mean()),
    }


# %%
# What both kinds of edges are made of, and the attention that would be left without a part.

found = {
    name: gattn.why(text, model, tokenizer, layer=2, head=0, **asked)
    for name, asked in edges.items()
}
for name, why in found.items():
    print(f"\nhead 2.0 {name}: scores less the mean over keys")
    print(why.table("mean").head(4).round(3).to_string(index=False))
    for side in ("query", "key"):
        print(f"attention without a part of the {side}")
        print(why.without(side).head(2).round(3).to_string(index=False))

# %%
# The model runs without one of the parts, in the queries or in the keys of one head.

cuts = [("mlp 1", "query"), ("1.1", "key"), ("1.0", "query"), ("mlp 0", "key"), ("1.3", "key")]
rows = {}
for head in (0, 1):
    rows[f"2.{head}", "unchanged"] = done(head)
    for part, side in cuts:
        with gattn.edited(model, Without(part, side=side, layer=2, head=head)):
            rows[f"2.{head}", f"no {part} in the {side}"] = done(head)
measured = pd.DataFrame(rows).T
print(measured.round(3).to_string())

# %%
# Above, the largest pairs of two edges in the text; below, what each cut leaves.

figure, axes = plt.subplot_mosaic(
    [["repeats", "rests"], ["2.0", "2.1"]], figsize=(12, 9), layout="constrained"
)
for name, why in found.items():
    why.draw_paths(ax=axes[name], edges=2, most=2)
    axes[name].set_title(f"head 2.0 {name}")
for head in ("2.0", "2.1"):
    bars = measured.loc[head].rename(lambda name: name.replace(" in ", "\nin "))
    bars.plot.bar(ax=axes[head], rot=0, legend=head == "2.0", ylim=(0, 1.25))
    axes[head].tick_params(axis="x", labelsize=8)
    axes[head].set(title=f"head {head}", ylabel="attention")
    for bars in axes[head].containers:
        axes[head].bar_label(bars, fmt="%.2f", size=8)
figure.savefig("one_head_two_things.png", dpi=110)
plt.close("all")
