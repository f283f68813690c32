"""Rows and columns of an alignment (as in MSA Transformers), some of which are padding alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

WIDTH, HEADS, BATCH, ROWS, COLUMNS = 16, 2, 2, 3, 5


class _Axis(nn.Module):
    def __init__(self, *, is_row: bool) -> None:
        super().__init__()
        self.is_row, self.qkv = is_row, nn.Linear(WIDTH, 3 * WIDTH)

    def attention(self, x: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        """Give the attention (batch, rows or columns, heads, tokens, tokens), and the values."""
        if not self.is_row:
            x, padding = x.transpose(1, 2), padding.transpose(1, 2)
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(3, 0, 1, 4, 2, 5)
        scores = (q @ k.mT / 8**0.5).masked_fill(padding[:, :, None, None], -torch.inf)
        return scores.softmax(-1).nan_to_num(), v

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        weights, v = self.attention(x, padding)
        found = (weights @ v).transpose(2, 3).flatten(3)
        return found if self.is_row else found.transpose(1, 2)


class _Alignment(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.row, self.column = _Axis(is_row=True), _Axis(is_row=False)
        self.double().eval()

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        x = x + self.row(x, padding)
        found: Tensor = x + self.column(x, padding)
        return found


def _dense(weights: Tensor, *, is_row: bool) -> np.ndarray:
    """Spread the attention of one head over all tokens of an alignment."""
    found = torch.zeros(ROWS, COLUMNS, ROWS, COLUMNS, dtype=weights.dtype)
    for row in range(ROWS):
        for column in range(COLUMNS):
            if is_row:
                found[row, column, row] = weights[row, column]
            else:
                found[row, column, :, column] = weights[column, row]
    dense: np.ndarray = found.reshape(ROWS * COLUMNS, -1).numpy()
    return dense


PADDED = {"rows and columns": (slice(2, None), slice(4, None)), "columns": (slice(0), slice(3, 5))}


@pytest.mark.parametrize("padded", PADDED)
def test_rows_that_are_padding_alone_stand_where_their_keys_do(padded: str) -> None:
    model, x = _Alignment(), torch.randn(BATCH, ROWS, COLUMNS, WIDTH, dtype=torch.float64)
    padding = torch.zeros(BATCH, ROWS, COLUMNS, dtype=torch.bool)
    rows, columns = PADDED[padded]
    padding[1, rows], padding[1, :, columns] = True, True
    cut = Cut(layer=0, query=1, key=2)
    with torch.no_grad():
        plain = model(x, padding)
        with capturing(model) as run:
            assert torch.equal(model(x, padding), plain)
        first, _ = model.row.attention(x, padding)
        second, _ = model.column.attention(x + model.row(x, padding), padding)
        with edited(model.row, cut):
            found = model.row(x, padding)
        _, v = model.row.attention(x, padding)
    for n, trace in enumerate(run.traces):
        for head in range(HEADS):
            by_column = _dense(second[n, :, head], is_row=False)
            np.testing.assert_allclose(
                trace.stacks["column"][0, head].to_dense(), by_column, atol=1e-12
            )
            by_row = _dense(first[n, :, head], is_row=True)
            np.testing.assert_allclose(trace.stacks["row"][0, head].to_dense(), by_row, atol=1e-12)
    first[:, 0, :, 1, 2] = 0
    kept = first / first.sum(-1, keepdim=True).clamp(min=1e-30)
    torch.testing.assert_close(found, (kept @ v).transpose(2, 3).flatten(3))


class _Points(nn.Module):
    """Weighs each channel of the differences between points, as Point Transformers do."""

    def __init__(self, *, masks_queries: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.masks_queries = masks_queries
        self.q, self.k, self.v, self.scores = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.double().eval()

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        mask = real[:, None, :].expand(-1, x.shape[1], -1)
        mask = mask & real[:, :, None] if self.masks_queries else mask
        scores = self.scores(self.q(x)[:, :, None] - self.k(x)[:, None])
        lowest = torch.finfo(x.dtype).min
        weights = self.shown = scores.masked_fill(~mask[..., None], lowest).softmax(2)
        return torch.einsum("bijd,bijd->bid", weights, self.v(x)[:, None].expand_as(weights))


def test_points_that_padding_hides_are_refused_with_a_way_to_show_them() -> None:
    x, real = torch.randn(BATCH, 9, WIDTH, dtype=torch.float64), torch.ones(BATCH, 9).bool()
    real[1, 7:] = False
    with (
        torch.no_grad(),
        pytest.raises(CaptureError, match="mask padded keys, but not queries"),
        capturing(model := _Points(masks_queries=True)),
    ):
        model(x, real)
    with torch.no_grad(), capturing(model := _Points(masks_queries=False)) as run:
        model(x, real)
    for n, trace in enumerate(run.traces):
        for channel in range(WIDTH):
            found = trace[0, channel].to_dense()
            wanted = model.shown[n, : len(found), : len(found), channel]
            np.testing.assert_allclose(found, wanted, atol=1e-12)
