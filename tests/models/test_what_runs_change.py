"""What a model changes of globals, classes and variables around functions is as after one run."""

import contextvars
import random
from collections import Counter, OrderedDict, defaultdict, deque
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import torch
from torch import nn

import gattn


class Own:
    calls = 0
    shared: ClassVar = set()

    def __init__(self):
        self.calls_of_it, self.seen = 0, deque()


class Slots:
    __slots__ = ("calls",)

    def __init__(self):
        self.calls = 0


def counting():
    calls = 0

    def count():
        nonlocal calls
        calls += 1
        return calls

    return count


def counted(function):
    def wrapper(*given):
        wrapper.calls += 1
        return function(*given)

    wrapper.calls = 0
    return wrapper


NUMBER, TEXT, PAIRS, NOTHING = 0, "", (), None
LIST, DICT, SET, QUEUE, BYTES = [], {}, set(), deque(), bytearray()
COUNTS, ORDERED, DEFAULTS = Counter(), OrderedDict(), defaultdict(int)
NESTED = {"a": [0], "set": set()}
ARRAY, TENSOR, NAMES = np.zeros(1), torch.zeros(1), SimpleNamespace(calls=0)
OBJECT, SLOTS, VARIABLE = Own(), Slots(), contextvars.ContextVar("variable", default=0)
DICE, NUMPY_DICE = random.Random(0), np.random.default_rng(0)
TRUE_DICE = random.SystemRandom()
CLOSURE, OTHER = counting(), SimpleNamespace(draws=[])


@counted
def wrapped(x):
    return x


def change_globals():
    global NUMBER, TEXT, PAIRS, NOTHING
    NUMBER, TEXT, PAIRS, NOTHING = NUMBER + 1, TEXT + "a", (*PAIRS, 1), (NOTHING or 0) + 1


def change_containers():
    for one in (LIST, QUEUE, BYTES, OBJECT.seen):
        one.append(1)
    for one in (DICT, ORDERED):
        one[len(one)] = 1
    SET.add(len(SET))
    NESTED["a"][0] += 1
    NESTED["set"].add(len(NESTED["set"]))
    COUNTS["a"] += 1
    DEFAULTS["a"] += 1
    ARRAY[0] += 1
    TENSOR.add_(1)
    VARIABLE.set(VARIABLE.get() + 1)
    OTHER.draws = [*OTHER.draws, (DICE.random(), NUMPY_DICE.random())]
    TRUE_DICE.random()


def change_attributes():
    NAMES.calls += 1
    OBJECT.calls_of_it += 1
    Own.calls += 1
    Own.shared.add(len(Own.shared))
    SLOTS.calls += 1
    CLOSURE()
    change_attributes.calls = getattr(change_attributes, "calls", 0) + 1


class Model(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.own, self.seen, self.held = 0, set(), Slots()

    @classmethod
    def of_class(cls):
        cls.others = getattr(cls, "others", 0) + 1

    def forward(self, x):
        change_globals()
        change_containers()
        change_attributes()
        self.of_class()
        type(self).calls += 1
        self.own += 1
        self.seen.add(len(self.seen))
        self.held.calls += 1
        return self.attention(wrapped(x), x, x, need_weights=False)[0]


def changed(model):
    around = CLOSURE.__closure__[0].cell_contents, wrapped.calls, change_attributes.calls
    rebound = NUMBER, len(TEXT), len(PAIRS), NOTHING
    lists = map(len, (LIST, DICT, SET, QUEUE, BYTES, ORDERED, NESTED["set"], OBJECT.seen))
    numbers = NESTED["a"][0], COUNTS["a"], DEFAULTS["a"], int(ARRAY[0]), int(TENSOR), VARIABLE.get()
    own = NAMES.calls, OBJECT.calls_of_it, Own.calls, len(Own.shared), SLOTS.calls
    of_model = Model.calls, Model.others, model.own, len(model.seen), model.held.calls
    return [*rebound, *lists, *numbers, *own, *of_model, *around, len(OTHER.draws)]


@torch.no_grad()
def test_all_that_a_model_changes_is_as_after_one_run():
    torch.manual_seed(0)
    model, dice, numpy_dice = Model().eval(), random.Random(0), np.random.default_rng(0)
    for number in (1, 2):
        with gattn.capturing(model):
            model(torch.randn(1, 4, 8))
        assert changed(model) == [number] * len(changed(model))
    assert OTHER.draws == [(dice.random(), numpy_dice.random()) for _ in range(2)]
    with gattn.edited(model, gattn.Cut(key=0, query=3)):
        model(torch.randn(1, 4, 8))
    assert changed(model) == [3] * len(changed(model))
