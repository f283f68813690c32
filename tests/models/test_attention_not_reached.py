"""Attention that code keeps before a mask or dropout changes it: edited, or warned of."""

from __future__ import annotations

import warnings
from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from hand_written import EDITS, ROOT, TOKENS, Layer, Model, made
from torch import nn
from torch.nn import functional

from gattn import Cut, capturing, edited

P = 0.3
MASK = torch.arange(TOKENS) == 5
MASKS = {
    "filled": lambda a: a.masked_fill(MASK, 0.0),
    "times": lambda a: a * ~MASK,
    "divided": lambda a: a * ~MASK / (a * ~MASK).sum(-1, keepdim=True),
    "above a number": lambda a: a * (a > 0.12),
}
KEEPS = {
    "copy": lambda a: a.detach().clone(),
    "itself": lambda a: a,
    "parameter": lambda a: nn.Parameter(a.detach().clone()),
    "array": lambda a: a.detach().numpy().copy(),
    "list": lambda a: a.tolist(),
    "places": lambda a: a.argmax(-1),
}


def keeping(keep, change, kept):
    def way(q, k, v):
        attention = (q @ k.mT / ROOT).softmax(-1)
        kept.append(keep(attention))
        attention = change(attention)
        return attention @ v

    return way


@pytest.mark.parametrize("keep", KEEPS.values(), ids=KEEPS)
@pytest.mark.parametrize("change", MASKS.values(), ids=MASKS)
def test_what_code_keeps_before_a_mask_is_as_it_was_and_warned_of(keep, change):
    kept = []
    model, x = made(keeping(keep, change, kept))
    with torch.no_grad():
        plain, before = model(x), kept[-1]
        with (
            edited(model, EDITS["cut"][0]),
            pytest.warns(UserWarning, match=r"blocks\.1 .*as by a mask.* is not edited"),
        ):
            assert not torch.equal(model(x), plain)
    one, other = (torch.as_tensor(a).detach() for a in (kept[-1], before))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("change", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_nothing_is_said_where_nothing_is_kept(change, with_gradients):
    def way(q, k, v):
        attention = (q @ k.mT / ROOT).softmax(-1)
        changed = change(attention)
        return changed @ v

    model, x = made(way)
    with torch.set_grad_enabled(with_gradients), warnings.catch_warnings():
        warnings.simplefilter("error")
        with edited(model, EDITS["cut"][0]):
            model(x)


class Attribute(Layer):
    """Keeps the attention that a mask left, for users to read."""

    def forward(self, x):
        q, k, v = self.parts(x)
        self.attention = (q @ k.mT / ROOT).softmax(-1) * ~MASK
        return self.out((self.attention @ v).transpose(1, 2).flatten(2))


def test_what_meets_the_values_is_edited_where_it_is_kept_without_gradients():
    model, x = made(None)
    model.blocks = nn.ModuleList(Attribute(None) for _ in range(2)).double()
    model(x)
    plain = model.blocks[1].attention.clone()
    says = r"not edited.*torch\.no_grad\(\)"
    with edited(model, EDITS["cut"][0]), pytest.warns(UserWarning, match=says):
        model(x)
    assert torch.equal(model.blocks[1].attention, plain)
    with edited(model, EDITS["cut"][0]), torch.no_grad():
        model(x)
    wanted = plain.clone()
    rest = 1 - plain[:, 2, 4, 3]  # Of that, what the mask took is no less.
    wanted[:, 2, 4] /= rest[:, None]
    wanted[:, 2, 4, 3] = 0
    torch.testing.assert_close(model.blocks[1].attention, wanted.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("keep", [KEEPS["copy"], KEEPS["itself"], KEEPS["array"]])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_edits_reach_what_code_keeps_before_a_dropout(keep, with_gradients):
    kept, dropped = [], []

    def change(a):
        dropped.append(functional.dropout(a, P))
        return dropped[-1]

    model, x = made(keeping(keep, change, kept))
    edit, by_hand = EDITS["cut"]
    with torch.set_grad_enabled(with_gradients), edited(model, edit):
        found = model(x)
    kept, dropped = kept[-2:], dropped[-2:]
    for n, block in enumerate(model.blocks):
        q, k, v = block.parts(x)
        wanted = by_hand((q @ k.mT / ROOT).softmax(-1), n)
        one = torch.as_tensor(kept[n])
        torch.testing.assert_close(one, wanted, rtol=0, atol=1e-11, check_stride=False)
        left = wanted.masked_fill(dropped[n] == 0, 0.0) / (1 - P)
        torch.testing.assert_close(dropped[n], left, rtol=0, atol=1e-11)
        x = x + block.out((left @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(found, x, rtol=0, atol=1e-11)


def test_asking_whether_attention_is_finite_keeps_none_of_it():
    def way(q, k, v):
        attention = (q @ k.mT / ROOT).softmax(-1)
        assert torch.isfinite(attention).all()
        return attention.masked_fill(MASK, 0.0) @ v

    model, x = made(way)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with edited(model, EDITS["cut"][0]):
            model(x)


class Pair(Layer):
    """Gives its attention beside its output, as it was before a mask."""

    def forward(self, x):
        q, k, v = self.parts(x)
        attention = (q @ k.mT / ROOT).softmax(-1)
        masked = attention.masked_fill(MASK, 0.0)
        return self.out((masked @ v).transpose(1, 2).flatten(2)), attention


class Around(Model):
    """Calls another model while it holds the attention of its first layer."""

    def __init__(self, inner, *, returns):
        super().__init__(None)
        self.blocks = nn.ModuleList((Pair(None), Layer(plain)))
        self.inner, self.returns = [inner], returns

    def forward(self, x):
        found, attention = self.blocks[0](x)
        x = self.inner[0](x + found)
        x = x + self.blocks[1](x)
        return (x, attention) if self.returns else x


def plain(q, k, v):
    return (q @ k.mT / ROOT).softmax(-1) @ v


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_what_a_model_keeps_is_known_when_its_own_call_ends(returns, with_gradients):
    inner, x = made(plain)
    model, edit = Around(inner, returns=returns).double().eval(), Cut(layer=0, query=4, key=3)
    says = pytest.warns(UserWarning, match=r"blocks\.0 .* keeps or returns of it is not edited")
    with torch.set_grad_enabled(with_gradients), warnings.catch_warnings():
        warnings.simplefilter("error")
        with edited(model, edit), edited(inner, edit), says if returns else nullcontext():
            model(x)


SHAPES = {
    "folded": lambda a, v: (a.flatten(0, 1) @ v.flatten(0, 1)).view_as(v),
    "head by head": lambda a, v: torch.stack([a[:, n] @ v[:, n] for n in range(a.shape[1])], 1),
}


class Shaped(Pair):
    def forward(self, x):
        q, k, v = self.parts(x)
        self.attention = (q @ k.mT / ROOT).softmax(-1)
        return self.out(self.way(self.attention, v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("way", SHAPES.values(), ids=SHAPES)
def test_attention_that_meets_the_values_in_another_shape_is_warned_of_as_that(way):
    model, x = made(None)
    model.blocks = nn.ModuleList(Shaped(way) for _ in range(2)).double().eval()
    with edited(model, EDITS["cut"][0]), pytest.warns(UserWarning, match="or in its shape"):
        found = model(x)
    wanted, output = model.dense(x, EDITS["cut"][1])
    torch.testing.assert_close(found, output, rtol=0, atol=1e-11)
    with edited(model, EDITS["cut"][0]), torch.no_grad():
        model(x)
    torch.testing.assert_close(model.blocks[1].attention, wanted[1].detach(), rtol=0, atol=1e-11)


@pytest.mark.filterwarnings("ignore:.*keeps or returns of it is not edited")
def test_what_code_keeps_of_attention_that_was_edited_is_in_the_way_of_no_proof():
    kept = []
    model, x = made(keeping(KEEPS["copy"], MASKS["filled"], kept))
    edit = EDITS["cut in all heads"][0]
    with edited(model, edit), capturing(model) as run:
        model(x)
        model(x[:1])  # which is proved anew, while code holds what it kept
    assert len(kept) >= 4
    assert len(run.traces) == 3


LAST, LOG, QUEUE, HOLDER = None, [], deque(), SimpleNamespace()


class Keeping(Layer):
    """Keeps a detached copy in some place, before a mask."""

    def forward(self, x):
        q, k, v = self.parts(x)
        attention = (q @ k.mT / ROOT).softmax(-1)
        self.way(self, attention)
        attention = attention.masked_fill(MASK, 0.0)
        return self.out((attention @ v).transpose(1, 2).flatten(2))


def in_a_global(layer, a):
    global LAST
    LAST = a.detach()


def in_a_class(layer, a):
    Keeping.last = a.detach().clone()


def in_a_closure():
    last = None

    def keep(layer, a):
        nonlocal last
        last = a.detach()

    return keep


ELSEWHERE = {
    "a global": in_a_global,
    "a class": in_a_class,
    "a closure": in_a_closure(),
    "a list": lambda layer, a: LOG.append(a.detach()),
    "a list of pairs": lambda layer, a: LOG.append(("name", a.detach().clone())),
    "a deque": lambda layer, a: QUEUE.append(a[:, 2].detach()),
    "an object": lambda layer, a: setattr(HOLDER, "last", [a.detach() > 0.1]),
    "attention with its gradients": lambda layer, a: LOG.append(a),
}


@pytest.mark.parametrize("keep", ELSEWHERE.values(), ids=ELSEWHERE)
def test_what_code_keeps_outside_the_model_is_warned_of_under_gradients(keep):
    model, x = made(None)
    model.blocks = nn.ModuleList(Keeping(keep) for _ in range(2)).double().eval()
    says = r"blocks\.1 .* keeps or returns of it is not edited"
    with edited(model, EDITS["cut"][0]), pytest.warns(UserWarning, match=says):
        model(x)


USES = {
    "a mask": lambda a: a.masked_fill(a.detach() < 0.01, 0.0),
    "a detached factor": lambda a: a * (a.detach() > 0.01) * ~MASK,
    "written out": None,
}


@pytest.mark.parametrize("change", USES.values(), ids=USES)
def test_what_only_gradients_need_is_not_kept(change):
    def way(q, k, v):
        scores = q @ k.mT / ROOT
        if change is not None:
            return change(scores.softmax(-1)) @ v
        exponentials = (scores - scores.detach().amax(-1, keepdim=True)).exp()
        return exponentials @ v / exponentials.sum(-1, keepdim=True)

    model, x = made(way)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with edited(model, EDITS["cut"][0]):
            model(x).sum().backward()
