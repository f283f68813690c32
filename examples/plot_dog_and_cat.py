"""From a text to attention graphs
===============================

The main job: a text runs through a model and comes out as attention graphs.

The embedded model needs no network. All heads at a glance; the head that reads the previous token
most; and on a list said three times, an induction head: most words of the later sayings read a word
that followed an earlier occurrence of theirs, the others read the start.
"""

import matplotlib.pyplot as plt

import gattn

# %%
# A text runs through the embedded model, and each head is an attention graph. One row per head says
# what it does; the picture shows all of them.

trace = gattn.capture("The dog chased the cat, and the cat chased the dog")
table = trace.summary()
print(table.round(2).to_string())
trace.draw().savefig("all_heads.png", dpi=110)

# %%
# One head by itself: the one that reads the previous token most.

_, layer, head = table["previous_token"].idxmax()
print(f"previous token: layer {layer}, head {head} ({table['previous_token'].max():.2f})")
trace[layer, head].draw("arcs").figure.savefig("previous_token_head.png", dpi=110)

# %%
# And on a list said three times, an induction head. Edges below 0.15 are left out, and the line
# below the picture says how much of the attention is left.

repeated = gattn.capture("The river tall green lamp river tall green lamp river tall green lamp")
scores = repeated.summary()["induction"]
_, layer, head = scores.idxmax()
print(f"induction: layer {layer}, head {head} ({scores.max():.2f})")
repeated[layer, head].draw("arcs", threshold=0.15).figure.savefig("induction_head.png", dpi=110)
plt.close("all")
