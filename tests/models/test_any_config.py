"""A model's `config` may be anything: only transformers' own is read."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import gattn
from gattn.errors import ModelError

IDS = torch.tensor([[1, 2, 3, 4]])


class OwnModel(nn.Module):
    """A small language model with a configuration of its own, as in nanoGPT."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.table = nn.Embedding(9, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 9)

    def forward(self, ids):
        x = self.table(ids)
        return self.head(x + self.attention(x, x, x, need_weights=False)[0])


@pytest.fixture(
    params=[
        SimpleNamespace(n_layer=1, num_hidden_layers="1", is_encoder_decoder=None),
        {"vocab_size": 9},
        None,
        "small",
        lambda: 9,
    ],
    ids=lambda config: type(config).__name__,
)
def model(request):
    torch.manual_seed(0)
    return OwnModel(request.param).eval()


@pytest.mark.parametrize(
    "run",
    [
        lambda model: gattn.capture(IDS, model),
        lambda model: gattn.capture("some text", model),
        lambda model: next(gattn.capture_many([IDS], model)),
        lambda model: gattn.effect(IDS, [gattn.Cut(layer=0)], model),
        lambda model: gattn.estimate(IDS, model),
        lambda model: gattn.analysis.value_zeroing(IDS, model),
    ],
)
def test_a_function_is_asked_for_in_place_of_a_text(model, run):
    with pytest.raises(ModelError, match=r"not OwnModel\. .* pass a function that calls it"):
        run(model)


def test_functions_are_run(model):
    cut = gattn.Cut(layer=0, query=3, key=1)
    trace = gattn.capture(lambda: model(IDS), model)
    x = model.table(IDS)
    wanted = model.attention(x, x, x, average_attn_weights=False)[1][0].detach().numpy()
    assert trace[0, 1].to_dense() == pytest.approx(wanted[1], abs=1e-6)
    (effect,) = gattn.effect(
        lambda: model(IDS)[0, 3], [cut], model, metric="probability", target=5, progress=False
    )["effect"]
    with torch.no_grad():
        plain = model(IDS)[0, 3].softmax(-1)[5]
        with gattn.edited(model, cut):
            edited = model(IDS)[0, 3].softmax(-1)[5]
    assert effect == pytest.approx(float(edited - plain), abs=1e-7)
    assert effect != 0
