"""Whether an answer depends on attention is told from rounding, and from constants in a metric."""

import copy

import pytest
import torch
from circuits_by_hand import QUIET, edges_of
from torch import nn

import gattn


class Ignoring(nn.Module):
    """Adds what it reads and takes it away again, which leaves its rounding."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(30, 16), nn.Linear(16, 30)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, ids):
        x = self.embed(ids)
        read = self.attend(x, x, x, need_weights=False)[0]
        return self.out((x + read) - read)


@pytest.mark.parametrize(
    "answer",
    [
        {"target": 3, "position": -1},
        {"position": -1},
        {"metric": lambda z: 1e3 + z[-1].double().square().sum()},
    ],
)
def test_rounding_is_no_dependence(answer):
    torch.manual_seed(1)
    model, ids = Ignoring().eval(), torch.randint(0, 30, (1, 7))
    found = gattn.circuit(lambda: model(ids)[0], model, random=0, **QUIET, **answer)
    assert found.graph["full"] != found.graph["empty"]
    assert found.graph["edges"] == 0
    assert "does not depend on attention" in found.notes[0]


def test_a_constant_that_a_metric_adds_changes_nothing(embedded):
    model = copy.deepcopy(embedded[0]).double()
    text, lamp = "red green lamp red green", embedded[1](" lamp")["input_ids"][-1]
    alone, shifted = (
        gattn.circuit(
            text, model, embedded[1], metric=lambda z, c=c: z[-1, lamp] + c, random=0, **QUIET
        )
        for c in (0.0, 1e6)
    )
    assert edges_of(alone) == edges_of(shifted)
    assert shifted.faithfulness == pytest.approx(alone.faithfulness, rel=1e-6)
