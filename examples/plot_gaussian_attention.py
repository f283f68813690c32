"""Gaussian attention in a trained model
=====================================

A trained model with another weight function, and a few seconds of training that restore it.

Every head of the embedded model gets the Gaussian exponent -‖q - k‖² / (2σ²), with σ = 1, in place
of its scaled dot product. The model never saw anything like it, and its loss on unseen text becomes
worse than that of a uniform guess. Then the widths, one per head, and the query and key matrices
are trained for 60 steps on Python's reference topics, which are part of the model's training data;
everything else is frozen. The loss returns to where it was. Most widths grow to more than twice the
first one; two heads stay sharp, one of them the head that reads the previous token. The same
training with the scaled dot product shows that little of this comes from the additional text.

The number of steps can be given: python plot_gaussian_attention.py 30
"""

import sys
from contextlib import nullcontext
from pathlib import Path
from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import pandas as pd
import torch
from torch.nn.functional import cross_entropy

import gattn
from gattn import SquaredDistance, Swap

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
LENGTH, BATCH, EVERY = 64, 8, 15

_, tokenizer = gattn.load_model()
heldout = Path(sys.argv[0]).resolve().parents[1] / "training" / "embedded" / "heldout.txt"
unseen = heldout.read_text(encoding="utf-8").split("\n%%\n")
paragraphs = {part for text in unseen for part in text.split("\n\n")}
seen = [text for text in topics.values() if paragraphs.isdisjoint(text.split("\n\n"))]


def ids(texts: list[str]) -> torch.Tensor:
    """Encode texts as one long row of tokens."""
    return torch.tensor([n for text in texts for n in tokenizer(text, verbose=False)["input_ids"]])


def rows(stream: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Take rows of a stream of tokens, each after the start token."""
    some = stream[starts[:, None] + torch.arange(LENGTH)]
    return torch.nn.functional.pad(some, (1, 0), value=tokenizer.bos_token_id)


stream, test_stream = ids(seen), ids(unseen)
test = rows(test_stream, torch.arange(0, len(test_stream) - LENGTH, LENGTH)[:48])


def loss_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of a row's tokens."""
    logits = model(input_ids=tokens).logits[:, :-1]
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


# %%
# What is trained: query and key matrices, and the widths of the weight function.


def train(model: torch.nn.Module, widths: list[torch.nn.Parameter]) -> pd.Series:
    """Train queries, keys and widths; return the loss on unseen text, by step."""
    model.requires_grad_(False)
    named = dict(model.named_parameters())
    matrices = [x for name, x in named.items() if "q_proj" in name or "k_proj" in name]
    for matrix in matrices:
        matrix.requires_grad_(True)
    optimizer = torch.optim.Adam([{"params": matrices, "lr": 2e-3}, {"params": widths, "lr": 0.04}])
    fading = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, STEPS)
    generator = torch.Generator().manual_seed(0)
    losses = {}
    for step in range(STEPS + 1):
        if step % EVERY == 0 or step == STEPS:
            with torch.no_grad():
                losses[step] = loss_of(model, test).item()
        starts = torch.randint(len(stream) - LENGTH, (BATCH,), generator=generator)
        optimizer.zero_grad()
        loss_of(model, rows(stream, starts)).backward()
        optimizer.step()
        fading.step()
    return pd.Series(losses)


control, _ = gattn.load_model()
plain = train(control, [])

# %%
# The weight function is swapped in all heads, and the training steps run inside the context.

model, _ = gattn.load_model()
layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
factors = [torch.nn.Parameter(torch.full((heads,), 0.5)) for _ in range(layers)]  # 1 / 2 sigma^2
gaussian = [Swap(layer=n, weight=SquaredDistance(factors[n])) for n in range(layers)]
text = "The river tall green lamp river tall green lamp river tall green lamp"


def captured(edits: list[gattn.Edit]) -> gattn.AttentionTrace:
    """Capture the attention of the model with edits."""
    with gattn.edited(model, *edits) if edits else nullcontext():
        return gattn.capture(text, model, tokenizer)


traces = {"scaled dot product": captured([]), "Gaussian, not trained": captured(gaussian)}
with gattn.edited(model, *gaussian):
    losses = train(model, factors)
traces["Gaussian, trained"] = captured(gaussian)

# %%
# Loss, widths, and one induction head before and after.

sigma = pd.DataFrame([(2 * x.detach()).rsqrt().tolist() for x in factors])
_, layer, head = traces["scaled dot product"].summary()["induction"].idxmax()
print(pd.DataFrame({"scaled dot product": plain, "Gaussian": losses}).round(2).to_string())
print(f"sigma of each head, a row per layer:\n{sigma.round(2).to_string()}")

figure, axes = plt.subplot_mosaic(
    [["loss", "loss", "sigma"], list(traces)],
    figsize=(14, 9.4),
    height_ratios=[1, 1.25],
    layout="constrained",
)
ax = axes["loss"]
ax.axhline(plain[0], color="0.6", ls=":", label="unchanged model")
ax.plot(plain, color="0.3", label="scaled dot product, trained")
ax.plot(losses, color="C3", label="Gaussian, trained")
ax.set(xlabel="step", ylabel="loss on unseen text, nats per token", title="loss")
ax.legend(frameon=False)

ax = axes["sigma"]
for (n, number), width in sigma.stack().items():
    x = n + 0.2 * (number - (heads - 1) / 2)
    ax.scatter(x, width, color="C3", zorder=2)
    ax.annotate(
        f"{n}.{number}", (x, width), (0, 6), textcoords="offset points", ha="center", size=8
    )
ax.axhline(1, color="0.6", ls=":", zorder=0)
ax.set(
    xlabel="layer", xticks=range(layers), ylabel="sigma", ylim=(0, 3.2), title="width of each head"
)

for name, trace in traces.items():
    trace[layer, head].draw("matrix", ax=axes[name], legend=name == "Gaussian, trained")
    axes[name].set_title(f"layer {layer} · head {head}: {name}")
figure.savefig("gaussian_attention.png", dpi=110)
plt.close("all")
