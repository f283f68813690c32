"""The main job: a text runs through a model and comes out as attention graphs.

The embedded model needs no network. All heads at a glance, the head that reads the previous token
most, and the head that continues a repeated pattern most (an induction head).
"""

import matplotlib.pyplot as plt

import gattn

trace = gattn.capture("The dog chased the cat, and the cat chased the dog")
table = trace.summary()
print(table.round(2))

trace.draw().savefig("dog_and_cat_all_heads.png", dpi=150)

figure, axes = plt.subplots(2, 1, figsize=(9, 8.4), layout="constrained")
for ax, score in zip(axes, ("previous_token", "induction"), strict=True):
    _, layer, head = table[score].idxmax()
    trace[layer, head].draw("arcs", ax=ax)
    print(f"{score}: layer {layer}, head {head} ({table[score].max():.2f})")
figure.savefig("dog_and_cat_two_heads.png", dpi=150)
