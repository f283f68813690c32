"""Learning queries and keys
=========================

Queries, keys and values learn to find a flagged token by back-propagation.

Each sequence has eight tokens with a random value each; one token carries a flag. Every token must
output the flagged token's value. Before training, attention is spread over all tokens; after it,
every query reads the flagged token.
"""

import matplotlib.pyplot as plt
import torch

from gattn import GraphAttention, TokenGraph

torch.manual_seed(0)
LENGTH, CHANNELS = 8, 8
graph = TokenGraph.complete(LENGTH)


def sequences(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw features (batch, tokens, channels) and the value to report (batch, tokens)."""
    x = torch.zeros(batch, LENGTH, CHANNELS)
    value = torch.rand(batch, LENGTH) * 2 - 1
    flagged = torch.randint(LENGTH, (batch,))
    x[..., 0] = value
    x[torch.arange(batch), flagged, 1] = 1.0
    x[..., 2:] = torch.randn(batch, LENGTH, CHANNELS - 2) / 3
    wanted = value[torch.arange(batch), flagged]
    return x, wanted[:, None].expand(-1, LENGTH)


# %%
# One layer with one head. What it attends to before training:

layer = GraphAttention(CHANNELS, CHANNELS)
optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
example, _ = sequences(1)
flag = int(example[0, :, 1].argmax())
tokens = [f"{v:+.1f}" for v in example[0, :, 0].tolist()]
tokens[flag] += " flag"
before = layer.graphs(example[0], graph, tokens=tokens)[0]

# %%
# Training, and what it attends to afterwards.

losses = []
for _ in range(300):
    x, wanted = sequences(64)
    loss = (layer(x, graph)[..., 0] - wanted).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
after = layer.graphs(example[0], graph, tokens=tokens)[0]

first, last = sum(losses[:20]) / 20, sum(losses[-20:]) / 20
print(f"loss {first:.3f} -> {last:.3f}")
print(f"attention to the flagged token {before.to_dense()[:, flag].mean():.2f} -> ", end="")
print(f"{after.to_dense()[:, flag].mean():.2f}")

# %%
# Before, after, and the loss.

figure, axes = plt.subplots(1, 3, figsize=(15, 4.4), layout="constrained")
before.draw("matrix", ax=axes[0])
axes[0].set_title("before")
after.draw("matrix", ax=axes[1])
axes[1].set_title("after 300 steps")
axes[2].plot(losses, color="0.3")
axes[2].set(xlabel="step", ylabel="mean squared error", yscale="log", title="loss")
figure.savefig("learning_queries_and_keys.png", dpi=150)
