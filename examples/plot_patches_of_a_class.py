"""The patches that a class needs
==============================

Which patches of a picture does a vision transformer need for its answer, and does rollout show
them?

A small vision transformer learns to tell four shapes, each over several patches, on noise. For some
pictures that it has not seen, `gattn.circuit` looks for the fewest tokens that keep 90 % of the
probability of the shape, where all others carry the mean value over other pictures in place of
their own. One to four of fifty are enough. Rollout of the attention ranks the same tokens. Both
rankings are tested in the same way: tokens are ablated from the top (deletion), or all are ablated
and restored from the top (insertion), and the area under the probability tells how early it falls
or returns.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from torch.nn.functional import cross_entropy
from transformers import ViTConfig, ViTForImageClassification

import gattn
from gattn.analysis import rollout

SIZE, PATCH = 28, 4
SHAPES = ("square", "disc", "cross", "triangle")
Y, X = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
draw = torch.Generator().manual_seed(0)


def pictures(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw shapes on noise, (count, 1, SIZE, SIZE) with their labels."""
    labels = torch.randint(len(SHAPES), (count,), generator=draw)
    where = PATCH * torch.randint(1, SIZE // PATCH - 1, (count, 2), generator=draw) + 2
    x, y = (abs(one - where[:, n, None, None]) for n, one in enumerate((X, Y)))
    below = Y - where[:, 1, None, None] + 4
    shapes = torch.stack(
        [
            (x <= 4) & (y <= 4),
            x**2 + y**2 <= 18,
            ((x <= 1) & (y <= 4)) | ((y <= 1) & (x <= 4)),
            (2 * x <= below) & (below <= 8),
        ]
    )
    noise = 0.2 * torch.randn(count, 1, SIZE, SIZE, generator=draw)
    return shapes[labels, torch.arange(count)][:, None] + noise, labels


# %%
# The model learns.

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 150
torch.manual_seed(0)
vit = ViTForImageClassification(
    ViTConfig(
        image_size=SIZE,
        patch_size=PATCH,
        num_channels=1,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(SHAPES)),
        label2id={name: n for n, name in enumerate(SHAPES)},
    )
)
optimizer = torch.optim.AdamW(vit.parameters(), lr=4e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
for _ in range(steps):
    images, labels = pictures(32)
    optimizer.zero_grad()
    cross_entropy(vit(pixel_values=images).logits, labels).backward()
    optimizer.step()
    schedule.step()
vit.eval()
images, labels = pictures(256)
with torch.no_grad():
    answers = vit(pixel_values=images).logits.softmax(-1)
right = (answers.argmax(-1) == labels).float().mean()
print(f"{100 * right:.0f} % of {len(labels)} new pictures are told apart")

# %%
# Deletion and insertion: the probability with the first few tokens of an order ablated, or with all
# but these. A token is ablated by giving all its queries the mean value over other pictures.

others = [{"pixel_values": image[None]} for image in images[-8:]]
TOKENS = (SIZE // PATCH) ** 2 + 1
COUNTS = [1, 2, 4, 8, 16, 32]


def ablated(order: list[int]) -> list[gattn.Ablate]:
    """Ablate the first few tokens, all but the first few, and all."""
    some = [order[:count] for count in COUNTS] + [order[count:] for count in COUNTS]
    return [gattn.Ablate(others, key=keys, what="values") for keys in [*some, order]]


def areas(plain: float, values: np.ndarray) -> dict[str, float]:
    """Take the areas under the probability, over the share of the tokens."""
    *some, nothing = values
    shares = np.array([0, *COUNTS, TOKENS]) / TOKENS
    half = len(COUNTS)
    return {
        "deletion": float(np.trapezoid([plain, *some[:half], nothing], shares)),
        "insertion": float(np.trapezoid([nothing, *some[half:], plain], shares)),
    }


# %%
# The smallest sets of tokens, beside rollout and random orders.

chosen = [int((labels == n).nonzero()[0, 0]) for n in range(len(SHAPES))]
rows = []
circuits = []
for number in chosen:
    inputs = {"pixel_values": images[number][None]}
    answer = {"target": SHAPES[int(answers[number].argmax())]}
    found = gattn.circuit(
        inputs, vit, units="tokens", ablation=others, random=0, progress=False, **answer
    )
    circuits.append(found)
    passed = rollout(gattn.capture(inputs, vit)).isel(layer=-1, query=0)
    orders = {
        "circuit": np.argsort(-found.by_token().fillna(-1).to_numpy(), kind="stable"),
        "rollout": np.argsort(-passed.to_numpy(), kind="stable"),
        "random": np.random.default_rng(number).permutation(TOKENS),
    }
    edits = [edit for order in orders.values() for edit in ablated(order.tolist())]
    effects = gattn.effect(inputs, edits, vit, metric="probability", progress=False, **answer)
    for name, values in zip(orders, np.split(effects["edited"].to_numpy(), 3), strict=True):
        rows.append({"order": name, **areas(effects["plain"][0], values)})
    kept = len(found.units())
    print(f"{answer['target']}: {kept} of {TOKENS} tokens keep {100 * found.faithfulness:.0f} %")
table = pd.DataFrame(rows).groupby("order", sort=False).mean()
print(table.round(2))

# %%
# What is lost without each patch of the circuits.

figure, axes = plt.subplots(1, len(chosen), figsize=(12, 3.4))
for number, found, ax in zip(chosen, circuits, axes, strict=True):
    picture = images[number, 0].clamp(0, 1).numpy()
    found.by_token().draw_image(np.stack([picture] * 3, -1), grid=(SIZE // PATCH,) * 2, ax=ax)
    ax.set_title(f"{SHAPES[labels[number]]}: {len(found.units())} of {TOKENS}")
figure.savefig("patches.png", dpi=110)
plt.close("all")
