"""Caches of a model's own, in dictionaries whose keys are modules."""

from __future__ import annotations

from typing import ClassVar
from weakref import WeakKeyDictionary

import pytest
import torch
from caching_models import Attending, Text, check, counted, dense, stepped
from torch import nn

import gattn

IDS = torch.tensor([[3, 1, 4, 1, 5]])
SHARED = {}


class Shared(Attending):
    held: ClassVar = {}


def extended_by(kept, name):
    """Keep keys and values in a dictionary, under a name that is made of the layer."""

    def extended(layer, k, v, past, at):
        held = kept(layer)
        before = held[name(layer)][0].shape[2] if name(layer) in held else 0
        at = counted(k, before)
        if before:
            k, v = (torch.cat(pair, 2) for pair in zip(held[name(layer)], (k, v), strict=True))
        held[name(layer)] = k, v
        return k, v, None, at

    return extended


NAMES = {"module": lambda x: x, "id": id, "tuple": lambda x: (x, "self")}
"""What is made of a layer to be a key."""
KEPT = {
    "attribute": lambda layer: layer.held,
    "class": lambda layer: type(layer).held,
    "global": lambda layer: SHARED,
}


def made(kept, name, dictionary=dict):
    torch.manual_seed(0)
    kind = Shared if kept == "class" else Attending
    layers = [kind(extended_by(KEPT[kept], NAMES[name])) for _ in range(2)]
    model, held = Text(*layers).double().eval(), dictionary()
    SHARED.clear()
    Shared.held.clear()
    if kept == "attribute":
        for layer in layers:
            layer.held = held
    return model


def compare(model, run):
    with torch.no_grad():
        wanted, whole = dense(model, IDS)
        with gattn.capturing(model) as seen:
            torch.testing.assert_close(run(), whole)
        assert len(seen.traces) == 1
        assert seen.trace.generated == 2
        check(seen.trace, wanted)


PLACES = [(kept, name, dict) for kept in KEPT for name in NAMES]
PLACES.append(("attribute", "module", WeakKeyDictionary))


@pytest.mark.parametrize(("kept", "name", "dictionary"), PLACES)
def test_steps_continue_a_text_whose_keys_are_kept_by_module(kept, name, dictionary):
    model = made(kept, name, dictionary)
    compare(model, lambda: torch.cat(stepped(model, IDS, 3, is_given=False), 1))
    held = {"attribute": vars(model.layers[0]).get("held"), "class": Shared.held}
    assert len(held.get(kept, SHARED)) == 2  # None of a copy of the model.


def by_argument(layer, k, v, past, at):
    cache, name = past
    held = cache.get(name(layer))
    before = 0 if held is None else held[0].shape[2]
    at = counted(k, before)
    if before:
        k, v = (torch.cat(pair, 2) for pair in zip(held, (k, v), strict=True))
    cache[name(layer)] = k, v
    return k, v, None, at


class Given(Text):
    def forward(self, ids, at, cache):
        x = self.embed(ids) + self.place(at)
        for layer in self.layers:
            x = x + layer(x, (cache, self.name), at)[0]
        return x


@pytest.mark.parametrize("name", NAMES)
def test_steps_continue_a_text_whose_keys_are_given_by_module(name):
    torch.manual_seed(0)
    model = Given(Attending(by_argument), Attending(by_argument)).double().eval()
    model.name = NAMES[name]

    def run():
        cache, found = {}, []
        for ids, at in (
            (IDS[:, :3], torch.arange(3)),
            *((IDS[:, n : n + 1], torch.tensor([n])) for n in (3, 4)),
        ):
            found.append(model(ids, at, cache))
        return torch.cat(found, 1)

    compare(model, run)


class Projected(Attending):
    """Keeps what its projections give by hooks, as Whisper does."""

    def __init__(self):
        super().__init__(None)
        self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x, past=None, at=None):
        q = self.qkv(x)[..., :16]
        k, v = self.key(x), self.value(x)
        q, k, v = (one.unflatten(-1, (4, -1)).transpose(1, 2) for one in (q, k, v))
        hides = torch.arange(k.shape[2]) > at[:, None]
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hides, -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)), None


def test_steps_continue_a_text_whose_keys_hooks_keep_by_module():
    torch.manual_seed(0)
    model = Text(Projected(), Projected()).double().eval()
    with torch.no_grad():
        for layer in model.layers:
            layer.qkv.weight[16:] = torch.cat([layer.key.weight, layer.value.weight])
            layer.qkv.bias[16:] = torch.cat([layer.key.bias, layer.value.bias])
    cache = {}

    def keep(module, args, output):
        if module in cache:
            output = torch.cat([cache[module], output], 1)
        cache[module] = output
        return output

    for layer in model.layers:
        layer.key.register_forward_hook(keep)
        layer.value.register_forward_hook(keep)
    compare(model, lambda: torch.cat(stepped(model, IDS, 3, is_given=False), 1))
    assert len(cache) == 4
