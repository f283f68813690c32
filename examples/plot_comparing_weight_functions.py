"""Two weight functions on the same queries and keys
=================================================

Two weight functions on a trained model's own queries and keys: which heads change, and why.

In one layer of the embedded model at a time, queries and keys are scored by half their squared
distance, -‖q - k‖² / 2√d, instead of the scaled dot product. That is the dot product minus half the
squared lengths of query and key, and the query's length cancels in the softmax. So the only change
is that longer keys lose attention. The four heads that attend most to the start token now give it
between a fifth and two thirds of what they gave before: the longer its key, the more it loses, and
in heads 2.0 and 2.1 its key is the longest of all. The three heads that change most are among these
four. The previous-token head 1.1, and head 0.0, which reads the token itself, hardly change.
"""

import matplotlib.pyplot as plt
import pandas as pd

import gattn
from gattn.analysis import compare, head_table

model, tokenizer = gattn.load_model()
text = (
    "The dog chased the cat, and the cat chased the dog. Anna has a red ball, and Tom a blue book."
)
dim = model.config.head_dim
before = gattn.capture(text, model, tokenizer, scores=True)
weight = gattn.SquaredDistance(0.5 / dim**0.5)

# %%
# The weight function is swapped in the live model, in one layer at a time.

tables, after = [], {}
for layer in range(4):  # one at a time, so that queries and keys are the same
    with gattn.edited(model, gattn.Swap(layer=layer, weight=weight)):
        trace = gattn.capture(text, model, tokenizer, layers=[layer], scores=True)
    same = gattn.capture(text, model, tokenizer, layers=[layer])
    after |= dict(trace.only_stack)
    scores = head_table(same)[["first_token", "label"]]
    swapped = head_table(trace)[["first_token", "label"]].add_suffix("_after")
    tables.append(compare(same, trace)[["distance"]].join(scores).join(swapped))
table = pd.concat(tables).droplevel("stack")


def key_lengths(place: tuple[int, int]) -> pd.Series:
    """Find half the squared lengths of keys over √d from the scores, minus their mean."""
    last = before[place].query == len(before.tokens) - 1
    lengths = before[place].score[last] - after[place].score[last]
    return pd.Series(lengths - lengths.mean(), index=range(len(before.tokens)))


# %%
# How much longer the start token's key is than the others, from the difference of the scores.

table["start_key"] = [key_lengths(place)[0] for place in table.index]
print(table.round(2).to_string())

# %%
# What each head loses, and why.

order = table.sort_values("distance")
names = [f"{layer}.{head}" for layer, head in order.index]
figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.6), layout="constrained")
left.barh(names, order["distance"], color="0.85", label="distance between the two")
left.plot(order["first_token"], names, "o", color="C0", label="dot product: start token")
left.plot(
    order["first_token_after"],
    names,
    "o",
    mfc="w",
    color="C1",
    label="squared distance: start token",
)
left.set(xlabel="attention to the start token; Jensen-Shannon distance", ylabel="head")
left.legend(frameon=False, loc="lower right")
lost = table["first_token"] - table["first_token_after"]
right.scatter(table["start_key"], lost, color="C0")
for (layer, head), x, y in zip(table.index, table["start_key"], lost, strict=True):
    right.annotate(f"{layer}.{head}", (x, y), (4, 3), textcoords="offset points", size=8)
right.axhline(0, color="0.8", lw=0.8)
right.set(
    xlabel="half the squared length of the start token's key over √d, beyond the mean of all keys",
    ylabel="attention that the start token loses",
)
figure.savefig("comparing_weight_functions.png", dpi=110)
plt.close("all")
