"""Tokens that a table gives for integers that values made have names only if none may be moved."""

import pytest
import torch
from test_moved_without_an_index import NAMES, TOKENS, WIDTH, Model, captured
from torch import nn

X = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0)).double()
TABLE = torch.randn(20, WIDTH, generator=torch.Generator().manual_seed(1)).double()
EDGES = torch.linspace(-2, 2, 19).double()


class Quantizing(Model):
    """Gives each token a row of a table, by its values."""

    def __init__(self, number, move, look_up):
        super().__init__(lambda x, score: look_up(self.table, move(number(self, x))))
        self.register_buffer("edges", EDGES)
        self.table = nn.Parameter(TABLE)


LOOKS_UP = {
    "embedding": lambda table, number: nn.functional.embedding(number, table),
    "index": lambda table, number: table[number],
    "index_select": lambda table, number: table.index_select(0, number[0])[None],
}


NUMBERS = {
    "buckets": lambda model, x: torch.bucketize(model.score(x)[..., 0], model.edges),
    "nearest": lambda model, x: torch.cdist(x, model.table).argmin(-1),
    "rounded": lambda model, x: (model.score(x)[..., 0].sigmoid() * 19).long().clamp(0, 19),
}


@pytest.mark.parametrize("how", LOOKS_UP)
@pytest.mark.parametrize("name", NUMBERS)
def test_rows_of_a_table_that_are_moved_have_no_names(name, how):
    model = Quantizing(NUMBERS[name], lambda number: number.flip(1), LOOKS_UP[how])
    stack, said = captured(model, X)
    assert stack[1, 0].tokens == ()
    assert any("picks or orders tokens" in one for one in said)


@pytest.mark.parametrize("how", LOOKS_UP)
@pytest.mark.parametrize("name", NUMBERS)
def test_rows_of_a_table_in_place_keep_names(name, how):
    model = Quantizing(NUMBERS[name], lambda number: number, LOOKS_UP[how])
    stack, said = captured(model, X)
    assert list(stack[1, 0].tokens) == NAMES
    assert not said
    wanted = model.layers[1].attention[0].detach()
    torch.testing.assert_close(torch.tensor(stack[1, 0].to_dense()), wanted, rtol=0, atol=1e-12)
