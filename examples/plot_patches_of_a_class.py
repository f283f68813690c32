"""The patches that a class needs
==============================

Which patches of a picture does a vision transformer need for its answer, and does rollout show
them?

A small vision transformer learns to tell four shapes, each over several patches, on noise. For some pictures
that it has not seen, `gattn.circuit` looks for the fewest patches that keep 90 % of the probability
of the shape, with all other patches cut off from all queries, in all layers and heads. Rollout of
the attention ranks the same patches. Both rankings are tested in the same way: patches are cut from
the top (deletion) or restored from the top (insertion), and the area under the probability tells
how early it falls or returns.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import ViTConfig, ViTForImageClassification

import gattn
from gattn.analysis import deletion_curve, insertion_curve, rollout

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

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
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
    images, labels = pictures(64)
    optimizer.zero_grad()
    cross_entropy(vit(pixel_values=images).logits, labels).backward()
    optimizer.step()
    schedule.step()
vit.eval()
images, labels = pictures(256)
with torch.no_grad():
    answers = vit(pixel_values=images).logits.softmax(-1)
right = (answers.argmax(-1) == labels).float().mean()
print(f"{right:.0%} of {len(labels)} new pictures are told")

# %%
# The smallest sets of patches, and how rankings do when patches are cut or restored.

chosen = [int((labels == n).nonzero()[n % 2, 0]) for n in range(len(SHAPES))]
areas: dict[str, list[dict[str, float]]] = {"deletion": [], "insertion": []}
circuits = []
for number in chosen:
    inputs = {"pixel_values": images[number][None]}
    target = SHAPES[int(answers[number].argmax())]
    found = gattn.circuit(inputs, vit, target=target, units="tokens", random=0, progress=False)
    circuits.append(found)
    passed = rollout(gattn.capture(inputs, vit)).isel(layer=-1, query=0)
    rankings = {
        "circuit": found.by_token().fillna(-1).to_numpy().tolist(),
        "rollout": passed.to_numpy().tolist(),
    }
    for name, curve in (("deletion", deletion_curve), ("insertion", insertion_curve)):
        curves = curve(
            rankings, inputs, vit, metric="probability", target=target, random=5, progress=False
        )
        areas[name].append(curves.attrs["area"])
    kept = len(found.units())
    print(f"{target}: {kept} of {len(found.tokens)} tokens keep {found.faithfulness:.0%}")
for name, some in areas.items():
    means = {who: float(np.mean([one[who] for one in some])) for who in some[0]}
    print(name, ", ".join(f"{who} {area:.2f}" for who, area in means.items()))

# %%
# What is lost without each patch of the circuits.

figure, axes = plt.subplots(1, len(chosen), figsize=(12, 3.4))
for number, found, ax in zip(chosen, circuits, axes, strict=True):
    picture = images[number, 0].clamp(0, 1).numpy()
    found.by_token().draw_image(np.stack([picture] * 3, -1), grid=(SIZE // PATCH,) * 2, ax=ax)
    ax.set_title(f"{SHAPES[labels[number]]}: {len(found.units())} tokens")
figure.savefig("patches.png", dpi=110)
plt.close("all")
