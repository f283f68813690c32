"""A toy translation
=================

`torch.nn.Transformer` learns to translate, and its cross-attention shows which word reads which.

The toy language is English with a French order of words: an adjective follows its noun. The model
is torch's own, with two layers of encoder and decoder, trained for a few seconds. Its
cross-attention, from the words that it writes to those of the source, is a stack of its own,
captured like any other. What matters is measured: each edge from a source word is cut in all of the
cross-attention, and the probability of the right word is compared. Each word needs the one that it
translates, and no other; without the verb, the model guesses, and here its guess is often right.
"""

from dataclasses import replace

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import gattn

torch.manual_seed(0)
ADJECTIVES = {"red": "rouge", "small": "petit", "white": "blanc", "fast": "rapide"}
NOUNS = {"cat": "chat", "dog": "chien", "horse": "cheval", "bird": "oiseau", "man": "homme"}
VERBS = {"sees": "voit", "follows": "suit", "likes": "aime", "finds": "trouve"}
KINDS = (ADJECTIVES, NOUNS, VERBS, ADJECTIVES, NOUNS)  # of the words of each sentence
ORDER = [1, 0, 2, 4, 3]  # noun, adjective, verb, noun, adjective
SOURCE = sorted(word for kind in (ADJECTIVES, NOUNS, VERBS) for word in kind)
TARGET = ["<start>", *sorted(word for kind in (ADJECTIVES, NOUNS, VERBS) for word in kind.values())]
WIDTH, LENGTH = 32, len(KINDS)


def sentences(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw sentences (count, words) and their translations, by the numbers of their words."""
    sources, targets = [], []
    for kind in KINDS:
        drawn = torch.randint(len(kind), (count,)).tolist()
        words = [list(kind)[n] for n in drawn]
        sources.append([SOURCE.index(word) for word in words])
        targets.append([TARGET.index(kind[word]) for word in words])
    return torch.tensor(sources).T, torch.tensor(targets)[ORDER].T


class Translator(nn.Module):
    """Predicts each word of a translation from the source and the words before."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = (
            nn.Embedding(len(SOURCE), WIDTH),
            nn.Embedding(len(TARGET), WIDTH),
        )
        self.place = nn.Parameter(torch.randn(LENGTH, WIDTH) / 2)
        self.transformer = nn.Transformer(
            WIDTH, 2, 2, 2, dim_feedforward=64, dropout=0.0, batch_first=True
        )
        self.answer = nn.Linear(WIDTH, len(TARGET))

    def forward(self, source: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
        """Take words of both sides, (batch, words); return logits (batch, words, vocabulary)."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        given = self.source(source) + self.place, self.target(written) + self.place
        # Told that the mask is causal, torch need not look, and one proof serves for all calls.
        return self.answer(self.transformer(*given, tgt_mask=mask, tgt_is_causal=True))


def begun(targets: torch.Tensor) -> torch.Tensor:
    """Give the words that are known before each word of a translation."""
    return torch.cat([torch.zeros_like(targets[:, :1]), targets[:, :-1]], dim=1)


# %%
# Training.

model = Translator()
optimizer = torch.optim.Adam(model.parameters(), lr=0.006)
for _ in range(150):
    sources, targets = sentences(64)
    logits = model(sources, begun(targets))
    loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()

# %%
# One sentence.

words = ["red", "cat", "sees", "small", "dog"]
source = torch.tensor([[SOURCE.index(word) for word in words]])
translation = [kind[word] for kind, word in zip(KINDS, words, strict=True)]
translation = [translation[n] for n in ORDER]
target = torch.tensor([[TARGET.index(word) for word in translation]])


def run() -> torch.Tensor:
    """Return the logits of each word of the translation."""
    return model(source, begun(target))[0]


said = [TARGET[n] for n in run().argmax(-1).tolist()]
print(f"{' '.join(words)} -> {' '.join(said)} (loss {loss.item():.4f})")

# %%
# The stacks are named by the paths of their modules.

trace = gattn.capture(run, model)
print(trace)
stack = next(name for name in trace.stacks if "multihead_attn" in name)

# %%
# Every edge of the cross-attention, cut in all layers and heads at once: how much probability does
# the right word lose?

lost = torch.zeros(LENGTH, LENGTH)
for query in range(LENGTH):
    cuts = [gattn.Cut(query=query, key=key, stack=stack) for key in range(LENGTH)]
    effects = gattn.effect(
        run,
        cuts,
        model=model,
        metric="probability",
        position=query,
        target=int(target[0, query]),
        progress=False,
    )
    lost[query] = torch.tensor(-effects["effect"].to_numpy())
needed = [words[n] for n in lost.argmax(1).tolist()]
print(dict(zip(translation, needed, strict=True)))

# %%
# The heads of the last layer, and what the cuts take away. Keys are the words of the source, and
# queries those that are written.

figure, axes = plt.subplots(1, 3, figsize=(15, 4.8), layout="constrained")
for head, ax in enumerate(axes[:2]):
    named = replace(trace[stack][1, head], tokens=tuple(words), query_tokens=tuple(translation))
    named.draw("matrix", ax=ax)
picture = axes[2].imshow(lost.numpy(), cmap="magma_r", vmin=0, vmax=1)
axes[2].set_xticks(range(LENGTH), words, rotation=90)
axes[2].set_yticks(range(LENGTH), translation)
axes[2].set_title("probability lost when the edge is cut")
figure.colorbar(picture, ax=axes[2])
figure.savefig("toy_translation.png", dpi=110)
plt.close("all")
