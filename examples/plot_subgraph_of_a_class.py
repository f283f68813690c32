"""The smallest subgraph for a node's class
========================================

Which edges of a graph does a graph attention network need to know the class of one node?

A GAT of two layers learns the four communities of Zachary's karate club from a few labels. For some
members, `gattn.circuit` looks for the fewest edges, in all layers and heads at once, on which alone
the network keeps 90 % of the probability that it gives to their community. GNNExplainer, with
its defaults, ranks the same edges by a mask that it trains. Both are measured in the same way: the
network itself runs with the top edges alone. The circuits of the three members have 7 to 9 edges;
of GNNExplainer's ranking, it takes 16 to 32 to keep as much.
"""

import sys

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.datasets import KarateClub
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn import GATConv
from torch_geometric.utils import add_self_loops

import gattn

torch.manual_seed(0)
data = KarateClub()[0]
edges = add_self_loops(data.edge_index)[0]  # to be kept or left out like any other edge


class GAT(torch.nn.Module):
    """Two layers of graph attention."""

    def __init__(self):
        super().__init__()
        self.first = GATConv(34, 8, heads=4, add_self_loops=False)
        self.last = GATConv(32, 4, heads=1, add_self_loops=False)

    def forward(self, x, edge_index):
        """Return the logits of each node's community."""
        return self.last(self.first(x, edge_index).relu(), edge_index)


gat = GAT()
optimizer = torch.optim.Adam(gat.parameters(), lr=0.01, weight_decay=1e-3)
for _ in range(200):
    optimizer.zero_grad()
    cross_entropy(gat(data.x, edges)[data.train_mask], data.y[data.train_mask]).backward()
    optimizer.step()
gat.eval()

# %%
# The circuits, and GNNExplainer's masks.

members = [int(number) for number in sys.argv[2:]] or [8, 23, 31]
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
explainer = Explainer(
    gat,
    GNNExplainer(epochs=steps),
    explanation_type="model",
    edge_mask_type="object",
    model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
)


def rows(pairs):
    """List edges (layer, head, query, key) for pairs (key, query) of nodes."""
    heads = [(0, head) for head in range(4)] + [(1, 0)]
    return [(*place, int(query), int(key)) for place in heads for key, query in pairs]


def kept(member, found, sets):
    """Return, for sets of edges, the share that each keeps, and the share that the others keep."""
    every = {tuple(pair) for pair in edges.T.tolist()}
    runs = []
    for some in (set(map(tuple, some)) for some in sets):
        runs += [gattn.Only(rows(some)), gattn.Only(rows(every - some))]
    answer = {"metric": "probability", "target": int(gat(data.x, edges)[member].argmax())}
    table = gattn.effect(lambda: gat(data.x, edges)[member], runs, gat, progress=False, **answer)
    empty, full = found.graph["empty"], found.graph["full"]
    return ((table["edited"] - empty) / (full - empty)).to_numpy().reshape(-1, 2)


results = []
for member in members:
    target = int(gat(data.x, edges)[member].argmax())
    found = gattn.circuit(
        lambda member=member: gat(data.x, edges)[member],
        gat,
        target=target,
        units="pairs",
        progress=False,
    )
    mask = explainer(data.x, edges, index=member).edge_mask
    ranked = edges.T[mask.argsort(descending=True)].tolist()
    own = found.units()[["key", "query"]].to_numpy().tolist()
    sizes = [size for size in (1, 2, 3, 5, 8, 12, 16, 24, 32, 48) if size <= int((mask > 0).sum())]
    *curve, same = kept(member, found, [ranked[:size] for size in [*sizes, len(own)]])
    curve = [share for share, _ in curve]
    results.append((member, found, own, sizes, curve, same))
    print(
        f"member {member}: {len(own)} edges keep {100 * found.faithfulness:.0f} %, and "
        f"{100 * (1 - found.completeness):.0f} % is left without them; GNNExplainer's first "
        f"{len(own)} keep {100 * same[0]:.0f} %, and {100 * same[1]:.0f} % is left without them"
    )

# %%
# How much the first edges keep, and the circuit of one member.

figure, axes = plt.subplots(1, 2, figsize=(13, 5), layout="constrained")
for number, (member, found, own, sizes, curve, _) in enumerate(results):
    colour = f"C{number}"
    axes[0].plot(sizes, curve, ".-", color=colour, label=f"member {member}, GNNExplainer")
    axes[0].plot(
        len(own), found.faithfulness, "*", ms=15, color=colour, label=f"member {member}, circuit"
    )
axes[0].axhline(1, color="0.8", lw=0.8, zorder=0)
axes[0].set(xscale="log", xlabel="edges", ylabel="share of the probability that they keep")
axes[0].legend(frameon=False)
axes[0].spines[["top", "right"]].set_visible(False)
results[0][1].draw(ax=axes[1])
figure.savefig("subgraph.png", dpi=110)
plt.close("all")
