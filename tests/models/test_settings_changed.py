"""What code reads of settings, wherever these are kept, is part of what was proved."""

import os
import sys
from argparse import Namespace
from contextvars import ContextVar
from dataclasses import dataclass
from os import getenv

import numpy as np
import pytest
import settings_apart
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import gattn


class Plain:
    shift = 0


class Derived(Plain):
    pass


@dataclass
class Data:
    shift: int = 0


PLAIN, DATA, NAMESPACE = Plain(), Data(), Namespace(shift=0)
OF_ARRAY = np.zeros(2)


class Rolled(nn.Module):
    """Attends to keys that a setting shifts: which token each is depends on it."""

    settings: object = None

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def shift(self) -> int:
        return self.settings.shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        k, v = k.roll(self.shift(), 2), v.roll(self.shift(), 2)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class OfGlobalClass(Rolled):
    def shift(self) -> int:
        return Plain.shift


class OfGlobalObject(Rolled):
    def shift(self) -> int:
        return PLAIN.shift


class OfGlobalData(Rolled):
    def shift(self) -> int:
        return DATA.shift


class OfGlobalNamespace(Rolled):
    def shift(self) -> int:
        return NAMESPACE.shift


def shift_of_data() -> int:
    return DATA.shift


class OfFunction(Rolled):
    def shift(self) -> int:
        return shift_of_data()


class OfModule(Rolled):
    def shift(self) -> int:
        return settings_apart.shift


OF_CONTEXT = ContextVar("of_context", default=0)
OF_ENVIRONMENT = "SHIFT_OF_TESTS"


class OfContext(Rolled):
    def shift(self) -> int:
        return OF_CONTEXT.get()


class OfEnvironment(Rolled):
    def shift(self) -> int:
        return int(os.environ.get(OF_ENVIRONMENT, "0"))


class OfFunctionOfEnvironment(Rolled):
    def shift(self) -> int:
        return int(os.getenv(OF_ENVIRONMENT, "0"))


class OfGetenv(Rolled):
    def shift(self) -> int:
        return int(getenv(OF_ENVIRONMENT, "0"))


class OfGlobalArray(Rolled):
    def shift(self) -> int:
        return int(OF_ARRAY[1])


CHANGES = {
    "class of an object": (Rolled, Plain(), Plain),
    "class that a class derives from": (Rolled, Derived(), Plain),
    "class that is held": (Rolled, Plain, Plain),
    "object that is held": (Rolled, Data(), None),
    "global class": (OfGlobalClass, None, Plain),
    "class of a global object": (OfGlobalObject, None, Plain),
    "global object": (OfGlobalData, None, DATA),
    "global that a function reads": (OfFunction, None, DATA),
    "module": (OfModule, None, settings_apart),
    "global namespace": (OfGlobalNamespace, None, NAMESPACE),
}


def expected(model: Rolled, x: torch.Tensor, shift: int) -> np.ndarray:
    """Compute the attention of the first head from tokens to tokens."""
    q, k, _ = model.qkv(x)[0].unflatten(-1, (3, 2, 4)).permute(1, 2, 0, 3)
    attention = (q[0] @ k[0].roll(shift, 0).T / 2).softmax(-1)
    return attention.roll(-shift, -1).numpy()


@torch.no_grad()
@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_that_changes_is_proved_anew(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, held, where = CHANGES[name]
    model, x = kind().double().eval(), torch.randn(1, 5, 8, dtype=torch.float64)
    model.settings = held
    for shift in (0, 2):
        monkeypatch.setattr(where or held, "shift", shift)
        with gattn.capturing(model, keep=gattn.All()) as run:
            model(x)
        found = run.trace[0, 0].to_dense()
        np.testing.assert_allclose(found, expected(model, x, shift), atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize(
    "kind", [OfContext, OfEnvironment, OfFunctionOfEnvironment, OfGetenv, OfGlobalArray]
)
def test_what_a_context_or_the_environment_sets_is_proved_anew(
    kind: type[Rolled], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = kind().double().eval(), torch.randn(1, 5, 8, dtype=torch.float64)
    for shift in (0, 2):
        monkeypatch.setenv(OF_ENVIRONMENT, str(shift))
        monkeypatch.setattr(sys.modules[__name__], "OF_ARRAY", np.array([0, shift]))
        token = OF_CONTEXT.set(shift)
        try:
            with gattn.capturing(model, keep=gattn.All()) as run:
                model(x)
        finally:
            OF_CONTEXT.reset(token)
        found = run.trace[0, 0].to_dense()
        np.testing.assert_allclose(found, expected(model, x, shift), atol=1e-12)
