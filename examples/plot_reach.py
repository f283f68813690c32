"""How far back a window reaches
=============================

Reach: how far back a narrow window lets the embedded model look, and what parts two tokens.

In the running model every head may read only the last three tokens. Each layer then carries
information two tokens further, so that after four layers the last token can know of the eight
before it and of no other. Trying it out says the same: with another word in the place of any of
these the prediction moves, and with another word anywhere before them it stays as it is.

Within reach not all count alike. From eight tokens back there is a single walk through the layers,
from four back there are nineteen. How far a token can matter is bounded by the walks' attention,
here that of windows whose three tokens are read alike: the bound falls several hundredfold from the
nearest tokens to the farthest, and the model's moves fall with it. What parts the token six back
from the prediction is three edges, though ten walks lead there. Cut in the model, in all heads of
their layers, they leave the prediction independent of that token, and of the farthest, whose only
walk goes past it; of all others it still depends.
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
    """Put another word at each position in turn: how far the last token's scores move."""
    texts = tokens.repeat(count + 1, 1)
    texts[range(count), range(count)] = other
    with torch.no_grad(), gattn.edited(model, Restrict(window), *edits):
        scores = model(input_ids=texts).logits[:, -1]
    return (scores[:-1] - scores[-1]).abs().amax(1).numpy()


# %%
# In how many layers information can travel; on how many walks; and where it is narrowest.

fewest = reach(window, depth=layers)
squashed = oversquashing(window, depth=layers)
farthest, parted = int(squashed.index[0]), count - 7
cut = bottlenecks(window, parted, count - 1, depth=layers, cut="edges")
print(squashed.round(4))
print(cut)

# %%
# The model itself, with the window, and with the narrowest place cut.

edits = [Cut(layer=n, query=i, key=j) for n, i, j in cut[["layer", "query", "key"]].to_numpy()]
before, after = moves(), moves(*edits)
print(np.stack([before, after]).round(4))
agreement = squashed["influence"].corr(pd.Series(before), method="spearman")
print(f"bound and moves: Spearman {agreement:.2f}")

# %%
# Who can be reached, and what is left of that in the model.

figure, axes = plt.subplots(2, 2, figsize=(13, 8.6), layout="constrained")
fewest.draw(ax=axes[0, 0], title="layers until key's information can be at query")

ax, positions = axes[0, 1], np.arange(count)
ax.bar(positions - 0.2, before, 0.4, label="window of three tokens")
ax.bar(positions + 0.2, after, 0.4, label=f"and {len(cut)} edges cut")
ax.axvline(farthest - 0.5, color="0.6", ls="--", lw=0.8)
ax.set(xlabel="the token that is replaced", ylabel="largest move of the last token's scores")
ax.set_title("what the model's prediction depends on")
ax.legend(loc="upper left")

ax = axes[1, 0]
ax.semilogy(squashed.index, squashed["influence"], "o-", label="bound on the influence")
ax.semilogy(
    squashed.index, squashed["walks"] / squashed["walks"].sum(), "s--", label="walks, share"
)
ax.set(xlabel="the token that information comes from", xlim=axes[0, 1].get_xlim())
ax.set_title("over-squashing: within reach, but hardly")
ax.legend()

cut.draw(ax=axes[1, 1])
figure.savefig("reach.png", dpi=110)
plt.close("all")
