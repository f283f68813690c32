"""What tests of circuits share: a text, a model run on some edges alone, and what was found."""

import torch
from dense_models import Dense
from torch import nn

TEXT = "The river tall green lamp river tall green lamp river tall green"
QUIET = {"progress": False}
EDGE = ["layer", "head", "query", "key"]


def edges_of(found):
    return {tuple(row) for row in found.table()[EDGE].to_numpy(dtype=int).tolist()}


def kept_alone(model, ids, rows):
    """Run a model on some (stack, layer, head, query, key); all other attention is zero."""

    def only(call, attention):
        mask = torch.zeros_like(attention)
        for stack, layer, *where in rows:
            if (stack, layer) == call.place:
                mask[(0, *where)] = 1
        return attention * mask

    return Dense().run(model, ids, after=only)


def rows_of(found):
    return list(found.table()[["stack", *EDGE]].itertuples(index=False, name=None))


def all_heads(count):
    return [divmod(n, 4) for n in range(count)]


def pairs(tokens):
    return [(query, key) for query in range(tokens) for key in range(query + 1)]


class Patches(nn.Module):
    """Each patch reads all patches."""

    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True).double().eval()

    def forward(self, x):
        return self.attend(x, x, x, need_weights=False)[0]
