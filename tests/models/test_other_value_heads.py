"""Values of other heads than keys, and products with exponentials that are no attention."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import gattn
from gattn.errors import CaptureError


class OfSharedKeys(nn.Module):
    """Four heads of queries and of values, and two of keys."""

    def __init__(self, values: int = 4) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 4 * values)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (one(x).unflatten(-1, (-1, 4)).transpose(1, 2) for one in self.children())
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return y.transpose(1, 2).flatten(2)


@torch.no_grad()
@pytest.mark.parametrize("values", [1, 2, 4])
def test_values_of_more_or_fewer_heads_than_keys(values: int) -> None:
    model, x = OfSharedKeys(values).double().eval(), torch.randn(2, 5, 16, dtype=torch.float64)
    plain = model(x)
    with gattn.capturing(model, keep=gattn.All()) as run:
        assert torch.equal(model(x), plain)
    query = model.q(x).view(2, 5, 4, 4).transpose(1, 2)
    key = model.k(x).view(2, 5, 2, 4).transpose(1, 2).repeat_interleave(2, 1)
    expected = (query @ key.mT / 2).softmax(-1)
    for trace, heads in zip(run.traces, expected, strict=True):
        for head, wanted in enumerate(heads):
            found = torch.from_numpy(trace[0, head].to_dense())
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@torch.no_grad()
def test_state_spaces_of_transformers_run_as_they_are() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Mamba2Config(
        vocab_size=20, hidden_size=16, state_size=4, num_hidden_layers=1, num_heads=4,
        head_dim=8, n_groups=1, chunk_size=4, expand=2,
    )  # fmt: skip
    model = transformers.Mamba2Model(config).eval()
    ids = torch.randint(3, 20, (2, 11))
    with pytest.raises(CaptureError, match="cannot be seen"), gattn.capturing(model):
        model(ids)
