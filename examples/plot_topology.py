"""Finding induction heads by their shape
======================================

Find induction heads only by counting components and loops.

The model reads lists of sixty different random words, and lists of thirty words that are repeated,
eight of each. Two heads of the embedded model lose a third or more of their independent cycles when
words repeat, at every threshold up to 0.1, and no other head loses as much as a fifth: 2.0 and 2.1,
the heads that find a word's earlier occurrence. Many weak edges give way to a few strong ones: at
0.25, these heads have a third of the components that they had. None of this reads a token's text or
position. Barcodes show the same over all thresholds at once. The head that reads the previous
token, 1.1, ties all tokens into one path by edges of nearly 1; head 0.0, which reads the query
itself, ties next to none; and the distances to such templates identify both.
"""

import matplotlib.pyplot as plt
import torch

import gattn
from gattn.analysis import barcode, template_distances, topology_table

model, tokenizer = gattn.load_model()
names = tokenizer.convert_ids_to_tokens(list(range(tokenizer.vocab_size)))
words = torch.tensor([n for n, x in enumerate(names) if x[:1] == "Ġ" and x[4:].islower()])
generator = torch.Generator().manual_seed(0)
start = torch.tensor([tokenizer.bos_token_id])
draws = [words[torch.randperm(len(words), generator=generator)[:60]] for _ in range(8)]
texts = {
    "once": [torch.cat([start, draw]) for draw in draws],
    "twice": [torch.cat([start, draw[:30], draw[:30]]) for draw in draws],
}
traces = {
    kind: [gattn.capture(tokens, model, tokenizer) for tokens in some]
    for kind, some in texts.items()
}
tables = {
    kind: sum(topology_table(trace) for trace in some) / len(some) for kind, some in traces.items()
}
# %%
# How many components and cycles are left when words repeat.

left = (tables["twice"] / tables["once"])[["betti0", "betti1"]]
print(left["betti1"].unstack().round(2).to_string())
weak = left["betti1"].unstack().loc[:, :0.1].dropna()
found = sorted(weak.index[(weak < 0.67).all(axis=1)])
print("heads that lose cycles when words repeat:", found)

distances = template_distances(traces["twice"][0]).drop(columns="punctuation")
print(distances.round(2).to_string())

# %%
# Barcodes show the same over all thresholds.

once, twice = (barcode(traces[kind][0]) for kind in ("once", "twice"))

figure, axes = plt.subplot_mosaic(
    [["cycles", "once", "path"], ["cycles", "twice", "self"]],
    figsize=(14, 6.2),
    width_ratios=[1.25, 1, 1],
    layout="constrained",
)
ax = axes["cycles"]
for place, row in weak.iterrows():
    style = {"c": "0.75", "lw": 1} if place not in found else {"lw": 2.2}
    label = f"head {place[0]}.{place[1]}" if place in found else None
    ax.plot([f"{t:g}" for t in row.index], row, "o-", ms=4, label=label, **style)
ax.plot([], [], c="0.75", label="other heads")
ax.axhline(1, c="0.4", lw=0.8, ls=":")
ax.set(xlabel="threshold", ylabel="independent cycles: repeated / not repeated", ylim=(0, 1.5))
ax.legend(frameon=False, loc="lower left")
for name, bars, (layer, head), title in (
    ("once", once, found[0], "head {}, words once"),
    ("twice", twice, found[0], "head {}, words twice"),
    ("path", twice, (1, 1), "head {}, the previous token"),
    ("self", twice, (0, 0), "head {}, the query itself"),
):
    bars.draw(layer=layer, head=head, ax=axes[name])
    axes[name].get_legend().remove()
    axes[name].set_title(title.format(f"{layer}.{head}"))
figure.savefig("topology.png", dpi=110)
plt.close("all")
