"""Heads that share their keys and values
======================================

Grouped-query attention (GQA): query heads that share their keys and values.

The embedded model has four heads per layer, each with its own keys and values. Here, two
neighbouring heads share theirs: each key-value head is the mean of two, which is how Ainslie et al.
(2023, GQA) convert a trained model before they train it a little further. Without that training,
the head that reads the previous token survives, but the two induction heads, which now share one
key-value head, read what followed earlier far less.
"""

from copy import deepcopy

import matplotlib.pyplot as plt
import pandas as pd

import gattn

model, tokenizer = gattn.load_model()
config = deepcopy(model.config)
config.num_key_value_heads = 2
config.name_or_path = "two key-value heads"

# %%
# Each key-value head is the mean of two.

weights = model.state_dict()
for name, weight in weights.items():
    if "k_proj" in name or "v_proj" in name:
        pairs = weight.unflatten(0, (2, 2, config.head_dim))  # (key-value head, its pair, features)
        weights[name] = pairs.mean(1).flatten(0, 1)
grouped = type(model)(config).eval()
grouped.load_state_dict(weights)

# %%
# All heads of the new model; each head knows its key-value head.

text = "The river tall green lamp river tall green lamp river tall green lamp"
before = gattn.capture(text, model, tokenizer)
after = gattn.capture(text, grouped, tokenizer)
after.draw().savefig("all_grouped_heads.png", dpi=110)

parts = {"four key-value heads": before.summary(), "two": after.summary()}
columns = ["key_value_head", "previous_token", "induction"]
tables = {name: table.filter(columns) for name, table in parts.items()}
print(pd.concat(tables, axis=1).round(2).to_string())

# %%
# Layer 2: before (above) and after (below).

layer = 2
figure, axes = plt.subplots(2, 4, figsize=(15, 8.4), layout="constrained")
for row, trace in zip(axes, (before, after), strict=True):
    for head, ax in enumerate(row):
        trace[layer, head].draw("matrix", ax=ax, legend=head == 3)
figure.savefig("grouped_query_heads.png", dpi=110)
plt.close("all")
