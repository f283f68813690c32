"""The spectrum of a head
======================

Hear the shape of a head: its graph's frequencies, the states on it, and how rank falls.

Thirty random words are repeated. Without directions, a head's graph has frequencies, the
eigenvalues of its normalized Laplacian. For the head of the embedded model that reads the previous
token, they are those of a path, 1 - cos(πk / (n - 1)), to within a hundredth. The head that reads
the start most has nearly those of a star: 0, many 1s, and 2. On these graphs, the hidden states are
signals, and the edges of most heads do not link tokens with similar states. Compared with the same
states assigned to other tokens, the states that a layer reads are much smoother along only two
heads of the last layer, 3.0 and 3.1. They are much rougher along the heads of layer 1 that read the
start, whose state is unlike any other. And attention alone would soon make all tokens alike: of the
differences between the rows of the layers' product, 15 % are left after four layers, and 43 % with
a residual stream of one half; the model's own states stay as far apart as they were.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import gattn
from gattn.analysis import graph_frequencies, hidden_ranks, rank_collapse, spectral_table

model, tokenizer = gattn.load_model()
names = tokenizer.convert_ids_to_tokens(list(range(tokenizer.vocab_size)))
words = [n for n, name in enumerate(names) if name[:1] == "Ġ" and name[4:].islower()]
generator = torch.Generator().manual_seed(0)
drawn = torch.tensor(words)[torch.randperm(len(words), generator=generator)[:30]]
tokens = torch.cat([torch.tensor([tokenizer.bos_token_id]), drawn, drawn])

trace = gattn.capture(tokens, model, tokenizer)
with torch.no_grad():
    hidden = model(input_ids=tokens[None], output_hidden_states=True).hidden_states

# %%
# Frequencies of two heads, and of the graphs that they resemble.

scores = trace.summary().loc["decoder"]
previous, start = scores["previous_token"].idxmax(), scores["first_token"].idxmax()
count = len(tokens)
frequencies = graph_frequencies(trace)
path = 1 - np.cos(np.pi * np.arange(count) / (count - 1))
star = np.array([0.0, *[1.0] * (count - 2), 2.0])

# %%
# How hidden states vary along the edges, and how the same states do when assigned to other tokens.

table = spectral_table(trace, hidden)
dealt = [
    spectral_table(trace, [x[:, torch.randperm(count, generator=generator)] for x in hidden])
    for _ in range(10)
]
chance = sum(one["smoothness"] for one in dealt) / len(dealt)
print(table.assign(smoothness_by_chance=chance).round(2).to_string())

alone, mixed = rank_collapse(trace), rank_collapse(trace, residual=0.5)
states = hidden_ranks(hidden)
print(states.round(2).to_string())

# %%
# Frequencies, smoothness and rank.

figure, axes = plt.subplots(1, 3, figsize=(14, 4.4), layout="constrained")
ax, index = axes[0], range(count)
for place, shape, name, colour in (
    (previous, path, "a path", "C0"),
    (start, star, "a star", "C1"),
):
    label = f"head {place[0]}.{place[1]}, {'previous token' if name == 'a path' else 'the start'}"
    ax.plot(index, frequencies.sel(layer=place[0], head=place[1]), "o", ms=3, c=colour, label=label)
    ax.plot(index, shape, lw=0.9, c="0.2", ls="-" if name == "a path" else ":", label=name)
ax.set(xlabel="index", ylabel="frequency", title="Two heads, and the graphs they resemble")
ax.legend(frameon=False)

ax = axes[1]
for layer, head in table.index:
    ends = chance[layer, head], table.loc[(layer, head), "smoothness"]
    x = layer + 0.15 * (head - 1.5)
    ax.plot([x, x], ends, c="0.8", zorder=0)
    ax.scatter(x, ends[0], fc="white", ec="0.3", s=24, label="shuffled" * (layer == head == 0))
    ax.scatter(x, ends[1], c="C0", s=24, label="original" * (layer == head == 0))
ax.set(xlabel="heads, by layer", ylabel="smoothness (less is smoother)")
ax.set(title="The states that each layer reads, on its heads", xticks=range(4))
ax.legend(frameon=False)

ax, depth = axes[2], range(1, 5)
ax.plot(range(5), states["residual"], "s-", c="0.2", label="the model's hidden states")
ax.plot(depth, mixed, "o--", c="C0", label="layers' product, half residual stream")
ax.plot(depth, alone, "o-", c="C3", label="layers' product, attention alone")
ax.set(xlabel="layers", ylabel="distance from rank one", ylim=(0, 1.4), xticks=range(5))
ax.set_title("How far tokens are from being alike")
ax.legend(frameon=False, loc="upper left")
figure.savefig("spectrum.png", dpi=110)
plt.close("all")
