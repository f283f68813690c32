"""What a patch of a picture reads
================================

Attention over the picture itself: which patches does a patch read, in each head and through layers?

A vision transformer cuts a picture into patches, and its heads let patches read each other. The
heads here are simple enough to check by eye: one gives attention to patches of the same colour, one
to patches nearby, and one to patches that are both. So by colour, a patch of the red roof gives all
its attention to the nine patches of the roof; by place, a quarter of it goes elsewhere. Rollout
says what passes through two layers of such heads: the roof still gets 92 %.

For a model of your own, capture its run with ``gattn.capturing(vit, grid=(14, 14))``, or say later
where the patches lie, as in ``trace.on_grid(14, 14)``; all pictures below then work as they are.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import gattn
from gattn.analysis import rollout

SIZE, PATCH = 224, 16
SIDE = SIZE // PATCH


def landscape() -> np.ndarray:
    """Draw a house and a tree on a meadow, (SIZE, SIZE, 3) from 0 to 1."""
    y, x = np.mgrid[0:SIZE, 0:SIZE] / SIZE
    picture = np.stack([0.45 + 0.4 * y, 0.68 + 0.25 * y, np.full_like(y, 0.95)], axis=-1)
    parts = {
        (0.99, 0.86, 0.30): (x - 0.8) ** 2 + (y - 0.2) ** 2 < 0.008,  # the sun
        (0.36, 0.58, 0.22): y > 0.64 - 0.08 * np.sin(5 * x + 0.6),  # the meadow
        (0.92, 0.86, 0.74): (abs(x - 0.32) < 0.13) & (abs(y - 0.66) < 0.1),  # the wall
        (0.70, 0.18, 0.14): (y > 0.36) & (y < 0.57) & (abs(x - 0.32) < 1.1 * (y - 0.36)),  # roof
        (0.35, 0.20, 0.10): (abs(x - 0.32) < 0.03) & (y > 0.62) & (y < 0.76),  # the door
        (0.38, 0.24, 0.12): (abs(x - 0.74) < 0.02) & (y > 0.58) & (y < 0.8),  # the trunk
        (0.10, 0.34, 0.14): (x - 0.74) ** 2 + (y - 0.52) ** 2 < 0.013,  # the crown
    }
    for colour, where in parts.items():
        picture[where] = colour
    return picture


# %%
# Patches by their mean colour and their place, weighted differently for each of three heads.

picture = landscape()
patches = torch.tensor(picture).unfold(0, PATCH, PATCH).unfold(1, PATCH, PATCH)
colour = patches.mean((-1, -2)).flatten(0, 1)
place = torch.cartesian_prod(*2 * [torch.arange(SIDE, dtype=torch.float64)]) / SIDE
weights = [(9, 0), (0, 14), (9, 6)]  # of colour and place
features = torch.stack([torch.cat([c * colour, p * place], dim=1) for c, p in weights])
layer = gattn.attention_graphs(
    features,
    features,
    gattn.TokenGraph.complete(SIDE**2),
    weight=gattn.SquaredDistance(1.0),
)
attention = np.stack([head.to_dense() for head in layer])
trace = gattn.AttentionTrace.from_arrays([attention, attention], model="by colour and place")
trace = trace.on_grid(SIDE, SIDE, image_size=(SIZE, SIZE))

roof, crown, sun = (7, 4), (7, 10), (2, 11)
ax = trace[0, 0].draw_image(picture, query=roof)
ax.figure.savefig("roof.png", dpi=110)

# %%
# Three heads, and three patches in each.

figure = trace.draw_image(picture, query=[roof, crown, sun], heads="0.0,0.1,0.2")
figure.savefig("image.png", dpi=110)

# %%
# Rollout: what passes through both layers to the patch of the roof. It keeps most itself, so the
# colours end at the largest number of another patch.

passed = rollout(trace)
token = trace[0, 0].geometry.token_at(*roof)
reached = passed.sel(layer=1, query=token)
ax = passed.draw_image(picture, query=roof, vmax=float(reached.drop_sel(key=token).max()))
ax.figure.savefig("rollout.png", dpi=110)

is_red = (colour[:, 0] - colour[:, 1] > 0.2).numpy()
shares = {"colour": attention[0], "place": attention[1], "rollout": passed.sel(layer=1).to_numpy()}
shares = {name: float(matrix[token, is_red].sum()) for name, matrix in shares.items()}
print(f"{is_red.sum()} of {SIDE**2} patches are red; the patch of the roof gives them")
print(", ".join(f"{100 * share:.0f} % ({name})" for name, share in shares.items()))
plt.close("all")
