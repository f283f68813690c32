"""What is known of memory does not hold for other memory that takes its place."""

from __future__ import annotations

import gc
import random

import torch
from torch import nn

import gattn
from gattn.models.doors.functions.calling.memory import memory_of
from gattn.models.doors.proof.probing.one_run.constants import Constants
from gattn.models.doors.proof.probing.one_run.picking import By, Picks

_D, _RUNS = 16, 10


class _Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(_D, _D) for _ in range(3))

    def heads(self, x, count):
        of_heads = (*x.shape[:2], count, _D // count)
        return (f(x).view(of_heads).transpose(1, 2) for f in (self.query, self.key, self.value))


class CastHeadByHead(_Heads):
    """Each head's attention is cast on its own, twice: the casts may take each other's memory."""

    def forward(self, x):
        query, key, value = self.heads(x, 4)
        self.kept = (query @ key.mT / 2).softmax(-1)
        value = value.double()
        return torch.cat(
            [
                self.kept.double()[:, n] @ value[:, n]
                + self.kept.double()[:, n] @ value[:, (n + 1) % 4]
                for n in range(4)
            ],
            -1,
        )


def _churn() -> list[torch.Tensor]:
    """Leave memory of many sizes free, and take some."""
    sizes = [random.choice((1, 4, 64, 256)) for _ in range(random.choice((0, 8, 40)))]
    some = [torch.empty(size) for size in sizes]
    return some[::2]


def test_memory_is_not_known_by_its_address():
    x = torch.empty(1000)
    known, place = memory_of(x), x.data_ptr()
    assert memory_of(x[3:]) == known == memory_of(x.view(10, 100))
    del x
    others = [torch.empty(1000) for _ in range(1)]
    while others[-1].data_ptr() != place and len(others) < 100:
        others.append(torch.empty(1000))
    assert all(memory_of(one) != known for one in others)
    assert memory_of(torch.empty(3, device="meta")) is None
    assert memory_of(torch.empty(0)) is None


@torch.no_grad()
def test_casts_of_single_heads_are_read_wherever_they_lie():
    random.seed(0)
    for _ in range(_RUNS):
        model, x, _kept = CastHeadByHead().eval(), torch.randn(1, 7, _D), _churn()
        gc.collect()
        with gattn.capturing(model) as run:
            model(x)
        assert len(run.trace.only_stack) == 8
        for n in range(8):
            found = torch.as_tensor(run.trace[0, n].to_dense())
            torch.testing.assert_close(found, model.kept[0, n // 2].double())


def test_picks_are_followed_in_their_own_memory_alone():
    model = nn.Linear(3, 3)
    picks = Picks(lambda: (), (), Constants(model))
    x, index = torch.randn(1000), torch.arange(1000)
    picks.begin(index)
    picked = x[index]
    picks.note("index", (x, [index]), {}, picked)
    assert picks.reaching((picked,)) == picks.found
    place = picked.data_ptr()
    del picked
    others = [torch.randn(1000)]
    while others[-1].data_ptr() != place and len(others) < 100:
        others.append(torch.randn(1000))
    picks.note("lift_fresh", (others[-1],), {}, others[-1])
    picks.saw("random", By.CHANCE, ())
    for memory in (None, memory_of(others[-1])):
        picks.forgive(memory)
    assert picks.reaching((others[-1],)) == picks.found[1:]
    assert len(picks.found) == 2
