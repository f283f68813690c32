"""Which friendships a graph network needs
=======================================

Graph attention networks: every friendship of Zachary's karate club is cut in a trained GAT.

A graph attention network is told the communities of four members, one of each, and predicts those
of the other thirty from the friendships alone. Its attention says how much each member reads from
each friend. Which friendships it needs is another question. Each is cut in both directions and in
all layers of the trained network, and the right communities become less likely, or more. The cut
gives what the network gives on the graph without that friendship; the attention does not foretell
it.

gattn reads torch-geometric's own layers, such as `GATConv`, and its own layer, `GraphAttention`,
which takes the same parameters. Two networks trained on the same members need some of the same
friendships.
"""

import matplotlib.pyplot as plt
import networkx as nx
import pandas as pd
import torch
from torch import nn
from torch_geometric.datasets import KarateClub
from torch_geometric.nn import GATConv
from torch_geometric.utils import to_networkx

import gattn
from gattn import Cut, GraphAttention

data = KarateClub()[0]
others = ~data.train_mask


class Network(nn.Module):
    """Two layers of attention over friendships, of either library."""

    def __init__(self, layer: type[nn.Module]) -> None:
        super().__init__()
        self.first = layer(data.num_features, 8, heads=4, add_self_loops=True)
        self.second = layer(32, 4, add_self_loops=True)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Give the log-probabilities of the communities, (members, 4)."""
        x = nn.functional.elu(self.first(x, edge_index))
        return self.second(x, edge_index).log_softmax(-1)


def trained(layer: type[nn.Module]) -> Network:
    """Train on the four members whose community is known."""
    torch.manual_seed(0)
    network = Network(layer)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(100):
        known = network(data.x, data.edge_index)[data.train_mask]
        loss = nn.functional.nll_loss(known, data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval().requires_grad_(False)


def likelihood(network: Network, edge_index: torch.Tensor) -> torch.Tensor:
    """Average the log-probability of the right community over the other members."""
    found = network(data.x, edge_index)
    return found[others, data.y[others]].mean()


gat = trained(GATConv)
right = gat(data.x, data.edge_index).argmax(-1) == data.y
print(f"{int(right[others].sum())} of {int(others.sum())} communities are predicted")

# %%
# What each member reads: one head of the first layer, in which every member also reads itself.

with gattn.capturing(gat) as run:
    gat(data.x, data.edge_index)
print(run.trace)
print(run.trace[0, 0])

# %%
# Cut each friendship in turn, in both directions and in all layers. Without the edge in the data,
# the network says the same.

friends = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
cuts = [[Cut(query=i, key=j), Cut(query=j, key=i)] for i, j in friends.T.tolist()]
needs = gattn.effect(lambda: likelihood(gat, data.edge_index), cuts, model=gat, progress=False)

most_needed = friends[:, int(needs.effect.argmin())]
rest = ~torch.isin(data.edge_index, most_needed).all(0)
without = likelihood(gat, data.edge_index[:, rest]) - likelihood(gat, data.edge_index)
print(f"cut {needs.effect.min():.4f}, without the edge {without:.4f}")

# %%
# Attention does not say which friendships are needed. A network of gattn's own layers, trained on
# the same four members, needs some of the same.

read = sum(run.trace[0, head].to_dense() for head in range(4)) / 4
i, j = friends
ours = trained(GraphAttention)
also = gattn.effect(lambda: likelihood(ours, data.edge_index), cuts, model=ours, progress=False)
compared = pd.DataFrame(
    {"GATConv": -needs.effect, "attention": read[i, j] + read[j, i], "GraphAttention": -also.effect}
)
print(compared.corr("spearman").round(2))

# %%
# Both on one layout: what the first layer reads, and which friendships the predictions need (red)
# or would do better without (blue). Members whose community was known are ringed.

club = to_networkx(data, to_undirected=True)
places = nx.kamada_kawai_layout(club)
figure, axes = plt.subplots(1, 2, figsize=(13, 6.6), layout="constrained")
heads = [(0, head) for head in range(4)]
run.trace.with_layout(places).draw_graph(heads=heads, self_loops=False, ax=axes[0])
axes[0].set_title("What the first layer of the GAT reads")

most = needs.effect.abs().max()
lines = nx.draw_networkx_edges(
    club,
    places,
    edgelist=friends.T.tolist(),
    edge_color=-needs.effect,
    edge_cmap=plt.get_cmap("coolwarm"),
    edge_vmin=-most,
    edge_vmax=most,
    width=0.5 + 5 * needs.effect.abs() / most,
    ax=axes[1],
)
rings = ["black" if known else "white" for known in data.train_mask]
colours = [plt.get_cmap("Set2")(int(group)) for group in data.y]
nx.draw_networkx_nodes(club, places, node_color=colours, edgecolors=rings, ax=axes[1])
nx.draw_networkx_labels(club, places, font_size=8, ax=axes[1])
axes[1].set_title("Friendships that its predictions need")
axes[1].set_aspect("equal")
axes[1].axis("off")
figure.colorbar(lines, ax=axes[1], shrink=0.5, label="log-probability lost without it")
figure.savefig("karate_club.png", dpi=150)
