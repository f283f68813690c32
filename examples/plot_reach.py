"""How far back a window reaches
=============================

Reach: how far back a narrow window lets the embedded model look, and what separates two tokens.

In the running model, every head may read only the last three tokens. So each layer carries
information two tokens further, and after four layers the last token can know of the eight before it
and no others. An experiment agrees: if any of these is replaced by another word, the prediction
changes; if any earlier word is replaced, it does not.

Not all tokens within reach count alike. From eight tokens back there is one walk through the
layers, from four back there are nineteen. The attention along these walks bounds how much a token
can matter; here it is that of windows that read their three tokens evenly. The bound falls several
hundredfold from the nearest tokens to the farthest, and the changes of the model's prediction fall
with it. Three edges separate the token six back from the prediction, although ten walks lead there.
When they are cut in the model, in all heads of their layers, the prediction no longer depends on
that token, nor on the farthest, whose only walk passes it; it still depends on all the others.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

import gattn
from gattn import Cut, Restrict, TokenGraph
from gattn.analysis import bottlenecks, oversquashing, reach

model, tokenizer = gattn.load_model()
text = "The river tall green lamp river tall green lamp river tall green lamp"
tokens = tokenizer(text, return_tensors="pt").input_ids
count = tokens.shape[1]
window = TokenGraph.window(count, 3)
layers = model.config.num_hidden_layers
(other,) = tokenizer.encode(" cat", add_special_tokens=False)


def moves(*edits: gattn.Edit) -> np.ndarray:
    """Replace the word at each position in turn: how much do the last token's scores change?"""
    texts = tokens.repeat(count + 1, 1)
    texts[range(count), range(count)] = other
    with torch.no_grad(), gattn.edited(model, Restrict(window), *edits):
        scores = model(input_ids=texts).logits[:, -1]
    return (scores[:-1] - scores[-1]).abs().amax(1).numpy()


# %%
# In how many layers information can travel, on how many walks, and where the bottleneck is.

fewest = reach(window, depth=layers)
squashed = oversquashing(window, depth=layers)
farthest, parted = int(squashed.index[0]), count - 7
cut = bottlenecks(window, parted, count - 1, depth=layers, cut="edges")
print(squashed.round(4))
print(cut)

# %%
# The model itself, with the window, and with the bottleneck cut.

edits = [Cut(layer=n, query=i, key=j) for n, i, j in cut[["layer", "query", "key"]].to_numpy()]
before, after = moves(), moves(*edits)
print(np.stack([before, after]).round(4))
agreement = squashed["influence"].corr(pd.Series(before), method="spearman")
print(f"bound and changes: Spearman {agreement:.2f}")

# %%
# Who can be reached, and what remains of it in the model.

figure, axes = plt.subplots(2, 2, figsize=(13, 8.6), layout="constrained")
fewest.draw(ax=axes[0, 0], title="layers until key's information can be at query")

ax, positions = axes[0, 1], np.arange(count)
ax.bar(positions - 0.2, before, 0.4, label="window of three tokens")
ax.bar(positions + 0.2, after, 0.4, label=f"and {len(cut)} edges cut")
ax.axvline(farthest - 0.5, color="0.6", ls="--", lw=0.8)
ax.set(xlabel="the token that is replaced", ylabel="largest change of the last token's logits")
ax.set_title("what the model's prediction depends on")
ax.legend(loc="upper left")

ax = axes[1, 0]
ax.semilogy(squashed.index, squashed["influence"], "o-", label="bound on the influence")
ax.semilogy(
    squashed.index, squashed["walks"] / squashed["walks"].sum(), "s--", label="walks, share"
)
ax.set(xlabel="the token that information comes from", xlim=axes[0, 1].get_xlim())
ax.set_title("over-squashing: within reach, but only just")
ax.legend()

cut.draw(ax=axes[1, 1])
figure.savefig("reach.png", dpi=110)
plt.close("all")
