"""Walking along attention
=======================

Walk along attention: where a walker goes, where it stays, and which tokens belong together.

A walker at a word moves to the words that its head attends to there. On a list of four words,
repeated three times, it walks very differently in two heads of the embedded model. Head 1.1 reads
the previous token: each step takes the walker one word back, and after four steps it is at the same
word one repeat earlier. Head 2.0 is an induction head: the first step leads from the last "lamp" to
the words that followed the earlier ones, and from there half of the walkers go to the start of the
text, where causal attention holds them for good.

That is why the stationary distribution of every causal head is the start of the text, whatever its
weights. In PageRank, the walker sometimes starts again anywhere, so it still tells heads apart: the
start has four fifths of it in the heads that read it most, less than half in the two that read the
previous token, and less than a tenth in heads 0.0 and 0.1, which read the word itself. In these
four heads, where the start attracts least, communities found by Louvain's method have the highest
modularity, and they are runs of neighbouring words.
"""

import matplotlib.pyplot as plt
import numpy as np

import gattn
from gattn.analysis import bounces, communities, pagerank, stationary

text = "The river tall green lamp" + " river tall green lamp" * 2
trace = gattn.capture(text)
table = trace.summary().loc["decoder"]
last = len(trace.tokens) - 1

walk = bounces(trace, -1, steps=4)
back = walk.sel(layer=1, head=1)
induction = walk.sel(layer=2, head=0)
ranks = pagerank(trace)
ends = stationary(trace)
print(ends.notes)

# %%
# Communities, and the share of PageRank that the start attracts.

parts = communities(trace)
start = ranks[..., 0].to_numpy().ravel()
modularity = parts.modularity.to_numpy().ravel()
table = table.assign(pagerank_of_start=start, modularity=modularity)
print(table[["previous_token", "first_token", "pagerank_of_start", "modularity"]].round(2))

# %%
# Two walks; PageRank in all heads; and communities.

figure, axes = plt.subplots(2, 2, figsize=(13, 8), layout="constrained")
back.draw(ax=axes[0, 0])
induction.draw(ax=axes[0, 1])
for ax, name in zip(axes[0], ("1.1, previous token", "2.0, induction"), strict=True):
    ax.set_title(f"a walker along head {name}, from the last token")

heads = [f"{layer}.{head}" for layer, head in table.index]
order = np.argsort(-start)
ax = axes[1, 0]
ax.imshow(ranks.to_numpy().reshape(16, -1)[order], cmap="YlGnBu", vmin=0, aspect="auto")
ax.set_yticks(range(16), [heads[n] for n in order])
ax.set_xticks(range(last + 1), trace.tokens, rotation=45, ha="right", parse_math=False)
ax.set_title("PageRank in all heads")

ax = axes[1, 1]
ax.scatter(start, modularity)
for n in order:
    beside = {"xytext": (5, 2)} if n % 2 else {"xytext": (-5, -8), "ha": "right"}
    ax.annotate(heads[n], (start[n], modularity[n]), textcoords="offset points", size=8, **beside)
ax.set(xlabel="PageRank of the start of the text", ylabel="modularity of the communities")
ax.set_title("the less the start attracts, the clearer the communities")
ax.set(xlim=(0, 1), ylim=(0, 0.8))
figure.savefig("pagerank.png", dpi=110)
plt.close("all")
