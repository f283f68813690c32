"""Models that make sparse tensors as they run, as graph layers do of an adjacency matrix."""

import pytest
import torch
from torch import nn

import gattn

TOKENS, WIDTH = 5, 8
NAMES = ["a", "b", "c", "d", "e"]
ADJACENCY = (torch.rand(TOKENS, TOKENS, generator=torch.Generator().manual_seed(0)) > 0.5).double()


def _made():
    places = ADJACENCY.nonzero().T
    numbers = torch.ones(places.shape[1], dtype=torch.float64)
    return torch.sparse_coo_tensor(places, numbers, ADJACENCY.shape, check_invariants=True)


class Model(nn.Module):
    def __init__(self, spread):
        super().__init__()
        layers = [nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in range(2)]
        self.layers, self.spread = nn.ModuleList(layers).double(), spread

    def forward(self, x):
        for n, layer in enumerate(self.layers):
            x = x + layer(x, x, x, need_weights=False)[0]
            if not n:
                x = x + self.spread(x[0])[None]
        return x


@pytest.fixture
def x():
    return torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize(
    "spread",
    [
        lambda x: torch.sparse.mm(ADJACENCY.to_sparse(), x),
        lambda x: ADJACENCY.to_sparse() @ x,
        lambda x: ADJACENCY.to_sparse_csr() @ x,
        lambda x: (ADJACENCY.to_sparse() * 2.0) @ x,
        lambda x: _made() @ x,
        lambda x: (x.to_sparse() * 1.0).to_dense(),
    ],
    ids=["sparse.mm", "coo", "csr", "scaled", "made", "of tokens"],
)
def test_tokens_that_a_sparse_matrix_spreads_keep_their_names(spread, x):
    model = Model(spread).eval()
    with torch.no_grad(), gattn.capturing(model, tokens=NAMES) as run:
        model(x)
    first, second = model.layers
    with torch.no_grad():
        x = x + first(x, x, x, need_weights=False)[0]
        x = x + spread(x[0])[None]
        own = second(x, x, x, average_attn_weights=False)[1][0]
    last = run.trace["layers"][1, 1]
    torch.testing.assert_close(torch.tensor(last.to_dense()), own[1], rtol=0, atol=1e-12)
    assert list(last.tokens) == NAMES


def test_attention_that_is_sparse_is_refused(x):
    model = Model(lambda x: torch.sparse.softmax((x @ x.T * ADJACENCY).to_sparse(), 1) @ x)
    with (
        torch.no_grad(),
        pytest.raises(gattn.errors.CaptureError, match=r"torch\.sparse\.softmax"),
        gattn.capturing(model.eval()),
    ):
        model(x)


class Kept(nn.Module):
    """Leaves small attention out, and then makes a sparse tensor of the rest."""

    def __init__(self, use):
        super().__init__()
        self.qkv, self.use = nn.Linear(WIDTH, 3 * WIDTH).double(), use

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        self.own = torch.softmax(q @ k.mT, -1)
        return self.use(self.own, torch.where(self.own > 0.1, self.own, 0), v)


def test_attention_that_is_counted_in_a_sparse_tensor_is_shown(x):
    model = Kept(lambda own, some, v: own @ v * some.to_sparse().values().numel())
    with torch.no_grad(), gattn.capturing(model.eval()) as run:
        model(x)
    torch.testing.assert_close(
        torch.tensor(run.trace[0, 0].to_dense()), model.own[0], rtol=0, atol=1e-12
    )


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize(
    "use",
    [
        lambda own, some, v: torch.sparse.mm(some[0].to_sparse(), v[0])[None],
        lambda own, some, v: some.to_sparse_csr().to_dense() @ v,
    ],
    ids=["product", "dense again"],
)
def test_masked_attention_that_is_sparse_is_refused(use, x):
    model = Kept(use).eval()
    with (
        torch.no_grad(),
        pytest.raises(gattn.errors.CaptureError, match="sparse"),
        gattn.capturing(model),
    ):
        model(x)
