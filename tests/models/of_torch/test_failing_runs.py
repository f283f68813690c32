"""Runs that mark tokens may fail as the model does; errors of gattn's own code come out."""

import pytest
import torch
from torch import nn

from gattn import capturing
from gattn.errors import CaptureError
from gattn.models.doors.proof.probing import rerunning, taints
from gattn.models.doors.proof.probing.failing import Stop, failing


def test_what_a_model_raises_on_nan_ends_a_run():
    for error in (ValueError("NaN"), Stop(), CaptureError("refused")):
        with failing():
            raise error
    with failing():
        torch.zeros(2) @ torch.zeros(3)


@pytest.mark.parametrize("given", [None, 3])
def test_errors_of_its_own_code_come_out(given):
    with pytest.raises(AttributeError), failing():
        taints.with_nan(given, torch.ones(2, dtype=torch.bool))


def test_a_proof_that_fails_by_itself_is_refused(monkeypatch):
    model = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    monkeypatch.setattr(rerunning, "reached", lambda *given, **named: taints.with_nan(None, None))
    x = torch.zeros(1, 3, 8)
    with torch.no_grad(), pytest.raises(CaptureError, match="NoneType"), capturing(model):
        model(x, x, x)
