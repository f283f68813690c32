"""Models that pick or order tokens by value, at random, or by a mask before they attend."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError


class Attention(nn.Module):
    """Attends to tokens in an order of its own, and puts them back."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(16, 16) for _ in range(3))
        self.how = how
        self.own: Tensor | None = None

    def order(self, x: Tensor) -> Tensor:
        if self.how == "random":
            return torch.randperm(x.shape[1])
        if self.how == "noise":
            return torch.rand(x.shape[1]).argsort()
        if self.how == "values":
            return x[0, :, 0].argsort(descending=True)
        if self.how == "numbers by values":
            return torch.arange(x.shape[1])[x[0, :, 0].argsort()]
        if self.how == "reversed":
            return torch.arange(x.shape[1] - 1, -1, -1)
        return torch.arange(x.shape[1])

    def forward(self, x: Tensor) -> Tensor:
        order = self.order(x)
        y = x[:, order]
        attention = (self.to_q(y) @ self.to_k(y).mT / 4).softmax(-1)
        back = order.argsort()
        out = (attention @ self.to_v(y))[:, back]
        self.own = attention.detach()[:, back][:, :, back]
        return out


class Outer(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.attend = Attention("as they are")
        self.picks = Attention(how)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x[:, self.picks.order(x)])


class Packed(nn.Module):
    """Attends among the tokens that a mask leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(16, 16) for _ in range(3))
        self.own: Tensor | None = None

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = x[:, mask]
        attention = (self.to_q(y) @ self.to_k(y).mT / 4).softmax(-1)
        at = mask.nonzero()[:, 0]
        self.own = torch.zeros(x.shape[1], x.shape[1])
        self.own[at[:, None], at] = attention.detach()[0]
        out = torch.zeros_like(x)
        out[:, mask] = attention @ self.to_v(y)
        return out


@pytest.mark.parametrize("how", ["random", "noise"])
def test_tokens_that_come_into_other_slots_each_time_are_refused(how):
    torch.manual_seed(0)
    model, x = Attention(how).eval(), torch.randn(1, 6, 16)
    said = "at random" if how == "random" else "values or chance pick its tokens"
    with pytest.raises(CaptureError, match=said), capturing(model):
        model(x)
    with (
        pytest.raises(CaptureError, match=said),
        edited(model, Cut(layer=0, head=0, query=0, key=1)),
    ):
        model(x)


@torch.no_grad()
@pytest.mark.parametrize("how", ["values", "numbers by values"])
def test_an_order_that_values_decide_is_followed_as_long_as_they_decide_the_same(how):
    torch.manual_seed(0)
    model = Attention(how).eval()
    for x in torch.randn(3, 1, 6, 16):
        with capturing(model) as run:
            model(x)
        found = torch.tensor(run.trace[0, 0].to_dense())
        torch.testing.assert_close(found, model.own[0])
        with edited(model, Cut(layer=0, head=0, query=0, key=1)):
            model(x)
        assert model.own[0, 0, 1] == 0


def test_a_fixed_order_is_read():
    torch.manual_seed(0)
    model, x = Attention("reversed").eval(), torch.randn(2, 6, 16)
    with capturing(model) as run, torch.no_grad():
        model(x)
    assert model.own is not None
    for n, trace in enumerate(run.traces):
        torch.testing.assert_close(torch.tensor(trace[0, 0].to_dense()), model.own[n])


@pytest.mark.parametrize("how", ["random", "values"])
def test_tokens_that_were_picked_outside_are_numbered_as_they_come_with_a_warning(how):
    torch.manual_seed(0)
    model, x = Outer(how).eval(), torch.randn(1, 6, 16)
    with (
        pytest.warns(UserWarning, match="numbered in the order in which"),
        capturing(model) as run,
        torch.no_grad(),
    ):
        model(x)
    assert model.attend.own is not None
    torch.testing.assert_close(torch.tensor(run.trace[0, 0].to_dense()), model.attend.own[0])


def test_tokens_that_a_mask_picks_are_proved_for_each_mask():
    torch.manual_seed(0)
    model, x = Packed().eval(), torch.randn(1, 6, 16)
    for left in ([0, 1, 4], [2, 3, 5], [0, 4, 5]):
        mask = torch.zeros(6, dtype=torch.bool)
        mask[left] = True
        with capturing(model) as run, torch.no_grad():
            model(x, mask)
        found = torch.tensor(run.trace[0, 0].to_dense())
        assert model.own is not None
        torch.testing.assert_close(found, model.own)


def test_attributes_that_change_between_calls_are_seen():
    torch.manual_seed(0)
    model, x = Attention("reversed").eval(), torch.randn(1, 6, 16)
    for how in ("reversed", "as it is", "reversed"):
        model.how = how
        with capturing(model) as run, torch.no_grad():
            model(x)
        assert model.own is not None
        torch.testing.assert_close(torch.tensor(run.trace[0, 0].to_dense()), model.own[0])


class Given(Attention):
    """Attends among the tokens that an argument lists."""

    def forward(self, x: Tensor, order: Tensor) -> Tensor:
        y = x[:, order]
        attention = (self.to_q(y) @ self.to_k(y).mT / 4).softmax(-1)
        self.own = torch.zeros(x.shape[1], x.shape[1])
        self.own[order[:, None], order] = attention.detach()[0]
        out = torch.zeros_like(x)
        out[:, order] = attention @ self.to_v(y)
        return out


def test_an_order_that_is_given_is_proved_for_each_order():
    torch.manual_seed(0)
    model, x = Given("given").eval(), torch.randn(1, 6, 16)
    for order in ([0, 1, 2, 3], [5, 3, 1, 0], [2, 3, 4, 5]):
        with capturing(model) as run, torch.no_grad():
            model(x, torch.tensor(order))
        assert model.own is not None
        torch.testing.assert_close(torch.tensor(run.trace[0, 0].to_dense()), model.own)


def test_a_forward_that_is_replaced_is_proved_anew():
    torch.manual_seed(0)
    model, x = Attention("as it is").eval(), torch.randn(1, 6, 16)
    other = Attention("reversed")
    for order in (model.order, other.order):
        model.order = order
        with capturing(model) as run, torch.no_grad():
            model(x)
        assert model.own is not None
        torch.testing.assert_close(torch.tensor(run.trace[0, 0].to_dense()), model.own[0])


class Chunks(nn.Module):
    """Merges the softmaxes of two chunks of keys by their normalizers."""

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ x.mT / 4
        parts = [scores[..., :3], scores[..., 3:]]
        values = [x[:, :3], x[:, 3:]]
        weights = torch.stack([part.logsumexp(-1) for part in parts]).softmax(0)
        outs = [part.softmax(-1) @ value for part, value in zip(parts, values, strict=True)]
        return weights[0][..., None] * outs[0] + weights[1][..., None] * outs[1]


def test_softmaxes_of_chunks_that_are_merged_are_refused():
    torch.manual_seed(0)
    model = Chunks().eval()
    with pytest.raises(CaptureError, match="by which its softmax divides"), capturing(model):
        model(torch.randn(1, 6, 16))


class Fewer(nn.Module):
    """Attends to patches of an image, and again to those whose numbers are largest."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.maps = nn.ModuleList(nn.Linear(8, 24) for _ in range(2))

    def attend(self, n: int, x: Tensor) -> Tensor:
        q, k, v = self.maps[n](x).chunk(3, -1)
        return (q @ k.mT / 3).softmax(-1) @ v

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).mT
        x = x + self.attend(0, x)
        score = x.norm(dim=-1).mean(0)
        x = x[:, score > score.median()]
        return x + self.attend(1, x)


def test_fewer_tokens_where_numbers_are_nan_are_the_models_doing():
    torch.manual_seed(0)
    model = Fewer().eval()
    by_values = pytest.raises(CaptureError, match=r"by their values .* \(index\)")
    with torch.no_grad(), by_values, capturing(model):
        model(torch.randn(2, 3, 16, 16))
