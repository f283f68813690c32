"""A map of heads
==============

A map of heads: which heads attend alike, and what they do.

Eight lists of thirty random tokens, each repeated once, go through the embedded model; scores and
distances are means over the lists. Heads that attend alike are near each other on the map, and here
they also have similar scores: the two induction heads of layer 2 are each other's nearest
neighbours, three heads of layer 1 attend mostly to the first token, the previous-token head has a
weaker one next to it, and the two heads that read the token itself are far from everything else.
The labels come only from the scores, the map and the tree only from the distances. The map shows
half of the spread; the tree shows all distances.
"""

import matplotlib.pyplot as plt
import torch

import gattn
from gattn.analysis import head_clusters, head_distances, head_map, head_table, over_texts

model, tokenizer = gattn.load_model()
LISTS, TOKENS = 8, 30

generator = torch.Generator().manual_seed(1)
drawn = torch.randint(1, tokenizer.vocab_size, (LISTS, TOKENS), generator=generator)
start = torch.full((LISTS, 1), tokenizer.bos_token_id)
lists = torch.cat([start, drawn, drawn], dim=1)
traces = list(gattn.capture_many(lists, model, tokenizer, progress=False))

# %%
# Scores of the heads and distances between them, as means over the lists.

scores = over_texts(head_table(trace) for trace in traces)
distances = over_texts(head_distances(trace) for trace in traces).mean
clusters = head_clusters(distances, 6)
places = head_map(distances)

table = scores.mean.loc["decoder"]
print(table[["previous_token", "first_token", "induction", "label"]].round(2).to_string())
print(clusters.T.round(2).to_string())
print(places.notes[0])

# %%
# The map, the tree, and the scores.

figure = plt.figure(figsize=(14, 10.5), layout="constrained")
axes = figure.subplot_mosaic([["map", "tree"], ["table", "table"]], height_ratios=[1.3, 1])
places.draw(ax=axes["map"])
clusters.draw(ax=axes["tree"])
columns = ["entropy", "edges_for_90", "mean_distance", "locality", "confidence"]
columns += ["previous_token", "first_token", "same_token", "induction"]
table.draw(ax=axes["table"], columns=columns)
figure.savefig("head_map.png", dpi=110)
plt.close("all")
