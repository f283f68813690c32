"""Your own model
==============

Any PyTorch model can be captured, drawn, cut and measured: here one of twenty lines.

The model has one layer of attention, written with torch's own function, and learns to reverse a
word of eight letters. It succeeds by attending to the mirrored position: the first letter out reads
the last letter in. gattn sees this without any change to the model. Cutting an edge of that
diagonal makes the model forget just that letter, and cutting any other edge changes nothing.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import gattn

torch.manual_seed(0)
LETTERS, LENGTH, WIDTH = 26, 8, 32


class Attention(nn.Module):
    """One head."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix tokens (batch, tokens, channels)."""
        q, k, v = (part(x)[:, None] for part in (self.query, self.key, self.value))
        return scaled_dot_product_attention(q, k, v)[:, 0]


class Reverser(nn.Module):
    """Says which letter belongs in each place of the reversed word."""

    def __init__(self) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.attention, self.answer = Attention(), nn.Linear(WIDTH, LETTERS)

    def forward(self, word: torch.Tensor) -> torch.Tensor:
        """Take letters (batch, places), and return logits (batch, places, letters)."""
        return self.answer(self.attention(self.letter(word) + self.place.weight))


# %%
# It trains in about two seconds.

model = Reverser()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(300):
    words = torch.randint(LETTERS, (64, LENGTH))
    loss = cross_entropy(model(words).flatten(0, 1), words.flip(1).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()

text = "computer"
word = torch.tensor([[ord(letter) - ord("a") for letter in text]])
said = "".join(chr(ord("a") + n) for n in model(word)[0].argmax(-1).tolist())
print(f"{text} -> {said} (loss {loss.item():.3f})")

# %%
# A function that runs the model is all that gattn needs. In the names of the tokens, a number is
# the place.

tokens = [f"{letter}{n}" for n, letter in enumerate(text)]
trace = gattn.capture(lambda: model(word), model, tokens=tokens)
print(trace)

# %%
# The number that the function returns is the metric, here the loss on the reversed word. Each edge
# is cut in turn.


def error() -> torch.Tensor:
    """Compute the loss on the word."""
    return cross_entropy(model(word)[0], word[0].flip(0))


edges = [(query, key) for query in range(LENGTH) for key in range(LENGTH)]
cuts = [gattn.Cut(layer=0, head=0, query=query, key=key) for query, key in edges]
effects = gattn.effect(error, cuts, model=model, progress=False)
effects.attrs["tokens"] = tokens
print(effects.nlargest(3, "effect")[["edit", "plain", "edited"]].round(3).to_string())

# One edge cut: only the letter that it carries is lost.
with torch.no_grad(), gattn.edited(model, gattn.Cut(layer=0, query=2, key=5)):
    cut = "".join(chr(ord("a") + n) for n in model(word)[0].argmax(-1).tolist())
print(f"without the edge from {tokens[5]} to place 2: {cut}")

# %%
# Left, what each place reads; right, how much the loss rises when an edge is cut.

figure, axes = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
trace[0, 0].draw("matrix", ax=axes[0])
effects.draw("matrix", ax=axes[1])
figure.savefig("your_own_model.png", dpi=110)
plt.close("all")
