"""Where values put one token in the place of others, these have no names."""

import pytest
import torch
from test_moved_without_an_index import NAMES, TOKENS, WIDTH, Model, captured

X = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0)).double()
SIZE = 2.4


def size(x):
    return x.norm(dim=-1, keepdim=True)


def first(x):
    return x[:, :1]


PUTS = {
    "small": lambda x: torch.where(size(x) <= SIZE, first(x), x),
    "not small": lambda x: torch.where(~(size(x) <= SIZE), x, first(x)),
    "large": lambda x: torch.where(size(x) > SIZE, x, first(x)),
    "some middle one": lambda x: x.where(size(x) > SIZE, x[:, 3:4]),
    "infinite": lambda x: torch.where(x.abs() / (size(x) > SIZE) == torch.inf, first(x), x),
    "weighed": lambda x: torch.lerp(x, first(x).expand_as(x), (size(x) <= SIZE).to(x)),
    "products": lambda x: x * (size(x) > SIZE) + first(x) * (size(x) <= SIZE),
    "masked": lambda x: x.masked_fill(size(x) <= SIZE, 0) + first(x) * (size(x) <= SIZE),
    "both masked": lambda x: (
        x.masked_fill(size(x) <= SIZE, 0)
        + first(x).expand_as(x).clone().masked_fill_(size(x) > SIZE, 0)
    ),
    "of some": lambda x: torch.where(size(x) <= SIZE, x[:, :3].mean(1, keepdim=True), x),
    "later": lambda x: torch.where(size(x) <= SIZE, first(x) * 1.0, x * 1.0),
}


@pytest.mark.parametrize("name", PUTS)
def test_one_token_in_place_of_others_has_not_their_names(name):
    model = Model(lambda x, score: PUTS[name](x))
    stack, said = captured(model, X)
    assert 0 < int((model.before != model.after).all(-1).sum()) < TOKENS
    assert stack[1, 0].tokens == ()
    assert any("picks or orders tokens, by their values" in one for one in said)


LEARNED = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1)).double()
TABLE = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(2)).double()
KEEPS = {
    "zero": lambda x: x.masked_fill(size(x) <= SIZE, 0),
    "learned": lambda x: torch.where(size(x) <= SIZE, LEARNED, x),
    "table": lambda x: torch.where(size(x) <= SIZE, TABLE, x + TABLE),
    "one of a table": lambda x: torch.where(size(x) <= SIZE, x + TABLE[:1], x + TABLE),
    "mean": lambda x: torch.where(size(x) <= SIZE, x.mean(1, keepdim=True), x),
    "added after a mask": lambda x: x.masked_fill(size(x) <= SIZE, 0) + 0.3 * first(x),
    "part": lambda x: torch.where(size(x) <= SIZE, x + first(x), x * 2 + first(x)),
    "experts": lambda x: torch.where(size(x) <= SIZE, x.sin(), x.cos()),
    "largest": lambda x: x * (x >= x.topk(3, -1).values[..., -1:]),
    "clipped": lambda x: torch.where(x > 1, torch.ones_like(x), x),
    "missing": lambda x: torch.where(torch.isnan(x), x.roll(1, 1), x),
    "finite": lambda x: torch.where(torch.isfinite(x).all(-1, keepdim=True), x, first(x)),
    "where it is": lambda x: torch.where(torch.arange(TOKENS)[:, None] < 0, first(x), x),
}


@pytest.mark.parametrize("name", KEEPS)
def test_tokens_that_others_do_not_replace_keep_their_names(name):
    model = Model(lambda x, score: KEEPS[name](x))
    stack, said = captured(model, X)
    assert list(stack[1, 0].tokens) == NAMES
    assert not said
    wanted = model.layers[1].attention[0].detach()
    torch.testing.assert_close(torch.tensor(stack[1, 0].to_dense()), wanted, rtol=0, atol=1e-12)
