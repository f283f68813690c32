"""From a text to attention graphs
===============================

Run a text through a model, and get its attention graphs.

The embedded model needs no network. First all heads at a glance, then the head that attends most to
the previous token. Finally, on a list that is repeated three times, an induction head: in the
repeats, most words read a word that followed an earlier occurrence of theirs, and the others read
the start of the text.
"""

import matplotlib.pyplot as plt

import gattn

# %%
# A text runs through the embedded model, and each head becomes an attention graph. The table says
# what each head does; the picture shows all heads.

trace = gattn.capture("The dog chased the cat, and the cat chased the dog")
table = trace.summary()
print(table[["entropy", "previous_token", "induction", "label"]].round(2).to_string())
trace.draw().savefig("all_heads.png", dpi=110)

# %%
# One head: the one that attends most to the previous token.

_, layer, head = table["previous_token"].idxmax()
print(f"previous token: layer {layer}, head {head} ({table['previous_token'].max():.2f})")
trace[layer, head].draw("arcs").figure.savefig("previous_token_head.png", dpi=110)

# %%
# On a list that is repeated three times, an induction head. Edges below 0.15 are left out, and the
# line below the picture says how much of the attention is shown.

repeated = gattn.capture("The river tall green lamp river tall green lamp river tall green lamp")
scores = repeated.summary()["induction"]
_, layer, head = scores.idxmax()
print(f"induction: layer {layer}, head {head} ({scores.max():.2f})")
repeated[layer, head].draw("arcs", threshold=0.15).figure.savefig("induction_head.png", dpi=110)
plt.close("all")
