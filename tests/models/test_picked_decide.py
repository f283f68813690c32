"""Picked tokens decide what code does by sizes and numbers too, not only where they go."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gattn import capturing
from gattn.errors import CaptureError

WIDTH, TOKENS = 8, 5


class Turning(nn.Module):
    """Reads tokens backwards where `decides` says so, and gives them back in order."""

    def __init__(self, decides: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.qkv, self.decides = nn.Linear(WIDTH, 3 * WIDTH), decides

    def forward(self, x: Tensor) -> Tensor:
        turns = self.decides(x)
        x = x.flip(1) if turns else x
        q, k, v = self.qkv(x).unflatten(-1, (3, 1, -1)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v)[:, 0]
        return y.flip(1) if turns else y


def _first(x: Tensor) -> Tensor:
    return x[0, :, 0]


def _ordered(x: Tensor) -> Tensor:
    """Take tokens by an order that their values decide; only two of them are in it."""
    return x.gather(1, x[..., :1].argsort(1)[:, :2].expand(-1, -1, WIDTH))


def by_length_of_mask(x: Tensor) -> bool:
    return len(_first(x)[_first(x) > 0.1]) > 2


def by_rows_of_mask(x: Tensor) -> bool:
    return x[x[..., 0] > 0.1].shape[0] > 4


def by_masked_select(x: Tensor) -> bool:
    return x.masked_select(x > 0.1).numel() > 40


def by_rows_at_nonzero(x: Tensor) -> bool:
    return x[0, (_first(x) > 0.1).nonzero()[:, 0]].shape[0] > 2


def by_rows_at_where(x: Tensor) -> bool:
    return x[torch.where(x[..., 0] > 0.1)].shape[0] > 4


def by_unique_of_picked(x: Tensor) -> bool:
    return _ordered(x)[0, :, 0].sign().unique().numel() > 1


def by_nonzero_of_picked(x: Tensor) -> bool:
    return (_ordered(x)[:, :, 1] > 0).nonzero().shape[0] > 2


def by_counts_of_picked(x: Tensor) -> bool:
    return (_ordered(x)[0, :, 1] > 0).long().bincount().numel() > 1


def by_sum_of_picked(x: Tensor) -> bool:
    return bool(_ordered(x)[..., 1].sum() > 0)


def by_number_of_picked(x: Tensor) -> bool:
    return _ordered(x)[0, 0, 1].item() > 0


def by_any_of_picked(x: Tensor) -> bool:
    return bool((_ordered(x)[..., 1] > 1).any())


def by_equal_picked(x: Tensor) -> bool:
    return torch.equal(_ordered(x)[:, 0].sign(), x[:, 0].sign())


def by_list_of_picked(x: Tensor) -> bool:
    return sum((_ordered(x)[..., 1] > 0).flatten().tolist()) > 2


def by_numpy_of_picked(x: Tensor) -> bool:
    return int((_ordered(x)[..., 1] > 0).numpy().sum()) > 2


def by_number_of_masked(x: Tensor) -> bool:
    return bool(_first(x)[_first(x) > 0.1].sum() > 1)


def by_number_of_topk(x: Tensor) -> bool:
    return bool(_first(x)[_first(x).topk(2).indices].sum() > 1)


def by_sliced_at_argmax(x: Tensor) -> bool:
    return x[:, : int(_first(x).argmax())].shape[1] > 2


def by_size_of_full(x: Tensor) -> bool:
    made = torch.full((1,), float(len(_first(x)[_first(x) > 0.1])))
    return bool(made > 2)


def by_put_in_place(x: Tensor) -> bool:
    made = torch.zeros(2, 4, 2)
    made[:, 1:3].copy_(_ordered(x)[..., :2])
    return bool((made.flatten() > 0).sum() > 3)


def by_loop_over_picked(x: Tensor) -> bool:
    turns = False
    for row in x[x[..., 0] > 0.1]:
        turns = not turns and row.shape[0] == WIDTH
    return turns


_DECIDES = [
    *(by_length_of_mask, by_rows_of_mask, by_masked_select, by_rows_at_nonzero, by_rows_at_where),
    *(by_unique_of_picked, by_nonzero_of_picked, by_counts_of_picked, by_sum_of_picked),
    *(by_number_of_picked, by_any_of_picked, by_equal_picked, by_list_of_picked),
    *(by_numpy_of_picked, by_number_of_masked, by_number_of_topk),
    *(by_size_of_full, by_put_in_place, by_loop_over_picked),
]


@pytest.mark.parametrize("decides", _DECIDES)
@torch.no_grad()
def test_what_code_decides_by_what_it_picked_is_refused(decides: Callable[[Tensor], bool]) -> None:
    model = Turning(decides).eval()
    for seed in range(3):
        x = torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))
        with pytest.raises(CaptureError, match="picks or orders"), capturing(model):
            model(x)


@torch.no_grad()
def test_code_may_decide_by_the_place_of_the_largest_number() -> None:
    model, turned = Turning(by_sliced_at_argmax).eval(), set()
    for seed in range(6):
        x = torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))
        turned.add(by_sliced_at_argmax(x))
        with capturing(model) as run:
            model(x)
        q, k, _ = model.qkv(x).chunk(3, -1)
        for trace, wanted in zip(run.traces, (q @ k.mT / WIDTH**0.5).softmax(-1), strict=True):
            assert trace[0, 0].to_dense() == pytest.approx(wanted.numpy(), abs=1e-5)
    assert turned == {True, False}
