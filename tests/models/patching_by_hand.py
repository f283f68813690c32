"""Forward hooks that change the values or outputs of a small GPT-2 by hand."""

from contextlib import contextmanager

import torch

import gattn

IDS = [5, 17, 42, 17, 8, 33]
OTHER = [44, 2, 9, 30, 17, 51]
LONGER = [*OTHER, 12, 7]
HEADS, DIM = 4, 8


def logits_of(model, ids, *edits):
    with torch.no_grad():
        if not edits:
            return model(torch.tensor([ids])).logits[0]
        with gattn.edited(model, *edits):
            return model(torch.tensor([ids])).logits[0]


@contextmanager
def hooked(model, what, change):
    """Change values or outputs (tokens, heads, dim) of each layer by hand: change(layer, x)."""
    hooks = []
    for number, block in enumerate(model.transformer.h):

        def of_values(module, given, result, number=number):
            query, key, value = result.split(HEADS * DIM, dim=-1)
            value = change(number, value[0].unflatten(-1, (HEADS, DIM)))
            return torch.cat([query, key, value.flatten(-2)[None]], dim=-1)

        def of_outputs(module, given, number=number):
            return (change(number, given[0][0].unflatten(-1, (HEADS, DIM))).flatten(-2)[None],)

        if what == "values":
            hooks.append(block.attn.c_attn.register_forward_hook(of_values))
        else:
            hooks.append(block.attn.c_proj.register_forward_pre_hook(of_outputs))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def recorded(model, what, ids):
    kept = {}

    def keep(layer, x):
        kept[layer] = x.clone()
        return x

    with hooked(model, what, keep):
        logits_of(model, ids)
    return kept


def by_hand(model, what, new, tokens=slice(None), layer=1, heads=(1, 3), edits=()):
    """Run the model with `new` (tokens, heads, dim) in some heads of a layer, after edits."""

    def change(number, x):
        if number != layer:
            return x
        x = x.clone()
        for head in heads:
            x[tokens, head] = new(x)[tokens, head]
        return x

    with hooked(model, what, change):
        return logits_of(model, IDS, *edits)
