"""Calls of attention number the same tokens alike, though a model moves them in between."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack

import gattn
from gattn import capturing
from gattn.errors import CaptureError

TOKENS, WIDTH = 7, 8
GENERATOR = torch.Generator().manual_seed(0)
IN_ORDER = list(range(TOKENS))
FLIPPED = IN_ORDER[::-1]
ROLLED = [(n - 2) % TOKENS for n in IN_ORDER]
SWAPPED = [0, 2, 1, *range(3, TOKENS)]


class Head(nn.Module):
    """One head; `before` moves tokens within the module, `cut` is a slot of a query and a key."""

    def __init__(self, before=lambda x: x):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.before, self.cut = before, None

    def forward(self, x):
        x = self.before(x)
        scores = self.query(x) @ self.key(x).mT / WIDTH**0.5
        if self.cut is not None:
            scores[:, self.cut[0], self.cut[1]] = -torch.inf
        self.shown = scores.softmax(-1)
        return self.shown @ self.value(x)


class Model(nn.Module):
    """Three layers; `first` moves tokens before all of them, `between` before the second."""

    def __init__(self, *, first=None, between=None, within=None, residual=True, has_ids=False):
        super().__init__()
        torch.manual_seed(0)
        inner = [Head(), Head() if within is None else Head(within), Head()]
        self.layers = nn.ModuleList(inner)
        self.first, self.between, self.residual = first, between, residual
        self.embedding = nn.Embedding(20, WIDTH) if has_ids else nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = self.embedding(x)
        x = x if self.first is None else self.first(x)
        for number, layer in enumerate(self.layers):
            x = self.between(x) if self.between is not None and number == 1 else x
            x = x + layer(x) if self.residual else layer(x)
        return x


def flip(x):
    return x.flip(1)


def swap(x):
    return x[:, SWAPPED]


def late(x):
    return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)


def given(has_ids, batch=2):
    if has_ids:
        return torch.randint(0, 20, (batch, TOKENS), generator=GENERATOR)
    return torch.randn(batch, TOKENS, WIDTH, generator=GENERATOR)


def placed(attention, order, size=TOKENS):
    """Bring attention between slots (tokens, tokens) to the tokens that these are."""
    found = np.zeros((size, size), dtype=np.float32)
    found[np.ix_(order, order)] = attention
    return found


MOVES = {
    "none": ({}, [IN_ORDER] * 3),
    "flip between": ({"between": flip}, [IN_ORDER, FLIPPED, FLIPPED]),
    "flip without residual": (
        {"between": flip, "residual": False},
        [IN_ORDER, FLIPPED, FLIPPED],
    ),
    "roll between": ({"between": lambda x: x.roll(2, 1)}, [IN_ORDER, ROLLED, ROLLED]),
    "swap between": ({"between": swap}, [IN_ORDER, SWAPPED, SWAPPED]),
    "flip first": ({"first": flip}, [FLIPPED] * 3),
    "both": ({"first": flip, "between": flip}, [FLIPPED, IN_ORDER, IN_ORDER]),
    "mean": ({"between": lambda x: x + x.mean(1, keepdim=True)}, [IN_ORDER] * 3),
}


@torch.no_grad()
@pytest.mark.parametrize("has_ids", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("options", "orders"), MOVES.values(), ids=MOVES)
def test_all_layers_name_tokens_as_the_model_is_given_them(options, orders, batch, has_ids):
    model, x = Model(**options, has_ids=has_ids).eval(), given(has_ids, batch)
    with gattn.capturing(model, keep=gattn.All()) as run:
        model(x)
    for element, trace in enumerate(run.traces):
        for number, order in enumerate(orders):
            wanted = placed(model.layers[number].shown[element], order)
            np.testing.assert_allclose(trace[number, 0].to_dense(), wanted, atol=1e-6)


@torch.no_grad()
def test_an_edit_after_a_flip_changes_the_tokens_that_it_names():
    model, x = Model(between=flip).eval(), given(False)
    with gattn.edited(model, gattn.Cut(layer=1, query=1, key=4)):
        found = model(x)
    model.layers[1].cut = FLIPPED[1], FLIPPED[4]
    torch.testing.assert_close(found, model(x))


@torch.no_grad()
@pytest.mark.parametrize("has_ids", [False, True])
def test_tokens_that_are_read_one_place_late(has_ids):
    """The first slot stands for no token, and the last token is not there."""
    model, x = Model(first=late, has_ids=has_ids).eval(), given(has_ids, 1)
    with gattn.capturing(model, keep=gattn.All()) as run:
        model(x)
    for number, layer in enumerate(model.layers):
        wanted = placed(layer.shown[0], [TOKENS, *IN_ORDER[:-1]], TOKENS + 1)
        np.testing.assert_allclose(run.trace[number, 0].to_dense(), wanted, atol=1e-6)


@torch.no_grad()
def test_a_grid_that_is_transposed_between_layers():
    """Many tokens are compared by two halves of them first."""

    def transposed(x):
        return x.unflatten(1, (4, 6)).transpose(1, 2).flatten(1, 2)

    model, x = Model(between=transposed).eval(), torch.randn(1, 24, WIDTH, generator=GENERATOR)
    with gattn.capturing(model, keep=gattn.All()) as run:
        model(x)
    order = torch.arange(24).reshape(4, 6).T.flatten().tolist()
    for number, at in enumerate((list(range(24)), order, order)):
        wanted = placed(model.layers[number].shown[0], at, 24)
        np.testing.assert_allclose(run.trace[number, 0].to_dense(), wanted, atol=1e-6)


class Convolved(nn.Module):
    def __init__(self, then):
        super().__init__()
        self.inner, self.then = nn.Conv1d(WIDTH, WIDTH, 3, padding=1), then

    def forward(self, x):
        return self.then(self.inner(x.mT).mT)


@torch.no_grad()
@pytest.mark.parametrize("where", ["first", "between", "within"])
def test_tokens_that_are_mixed_and_moved_are_refused(where):
    x = given(False)
    model = Model(**{where: Convolved(flip)}).eval()
    with pytest.raises(CaptureError, match="cannot be told"), gattn.capturing(model):
        model(x)
    model = Model(**{where: Convolved(lambda x: x)}).eval()
    with gattn.capturing(model, keep=gattn.All()) as run:
        model(x)
    for number, layer in enumerate(model.layers):
        np.testing.assert_allclose(run.traces[1][number, 0].to_dense(), layer.shown[1], atol=1e-6)


class Ordered(Model):
    def forward(self, x, order):
        self.between = lambda x: x[:, order]
        return super().forward(x)


@torch.no_grad()
def test_an_order_between_layers_that_is_given_is_proved_each_time():
    model, x = Ordered(), given(False, 1)
    model.eval()
    for shift in (0, 1, 3):
        order = torch.arange(TOKENS).roll(shift)
        with gattn.capturing(model, keep=gattn.All()) as run:
            model(x, order)
        wanted = placed(model.layers[2].shown[0], order.tolist())
        np.testing.assert_allclose(run.trace[2, 0].to_dense(), wanted, atol=1e-6)


class Streams(nn.Module):
    """Two streams, one of which reads backwards."""

    def __init__(self):
        super().__init__()
        self.forth, self.back = Head(), Head()

    def forward(self, x):
        return self.forth(x) + self.back(x.flip(1)).flip(1)


@torch.no_grad()
def test_a_stream_that_reads_backwards():
    model, x = Streams().eval(), given(False, 1)
    with gattn.capturing(model, keep=gattn.All()) as run:
        model(x)
    for name, order in (("forth", IN_ORDER), ("back", FLIPPED)):
        wanted = placed(getattr(model, name).shown[0], order)
        np.testing.assert_allclose(run.trace[name][0, 0].to_dense(), wanted, atol=1e-6)


class Reading(nn.Module):
    """A text that reads another one, as long as it, from its end."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.own, self.other = nn.Embedding(20, WIDTH), Head(), Reader()

    def forward(self, ids, other):
        x, y = self.embedding(ids), self.embedding(other)
        return self.other(x + self.own(x), y.flip(1))


class Reader(Head):
    def forward(self, x, y):
        self.shown = (self.query(x) @ self.key(y).mT / WIDTH**0.5).softmax(-1)
        return self.shown @ self.value(y)


@torch.no_grad()
def test_another_text_that_is_read_from_its_end():
    model = Reading().eval()
    with gattn.capturing(model, keep=gattn.All()) as run:
        model(given(True, 1), given(True, 1))
    wanted = model.other.shown[0].flip(1)
    np.testing.assert_allclose(run.trace["other"][0, 0].to_dense(), wanted, atol=1e-6)
    np.testing.assert_allclose(run.trace["own"][0, 0].to_dense(), model.own.shown[0], atol=1e-6)


class MaskFirst(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, mask, x):
        scores = self.query(x) @ self.key(x).mT / WIDTH**0.5
        self.shown = (scores + mask).softmax(-1)
        return self.shown @ self.value(x)


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("lead", [(), (1,)])
def test_a_mask_that_is_given_before_the_tokens(lead, batch):
    model, x = MaskFirst().eval(), given(False, batch)
    mask = torch.full((*lead, TOKENS, TOKENS), -torch.inf).triu(1)
    with gattn.capturing(model, keep=gattn.All()) as run:
        model(mask, x)
    assert len(run.traces) == batch
    for element, trace in enumerate(run.traces):
        np.testing.assert_allclose(trace[0, 0].to_dense(), model.shown[element], atol=1e-6)


@torch.no_grad()
def test_what_torch_functions_do_after_runs_that_were_ended_early():
    model, x = Model(between=flip).eval(), given(False)
    before = _get_current_function_mode_stack()
    with gattn.capturing(model):
        model(x)
    assert _get_current_function_mode_stack() == before
    normed = nn.functional.group_norm(x, 1)
    np.testing.assert_allclose(normed.mean((1, 2)), 0, atol=1e-6)
    np.testing.assert_allclose(normed.var((1, 2), correction=0), 1, atol=1e-3)


class Axial(nn.Module):
    """Rows, then columns of a grid (batch, rows, columns, WIDTH), each of them an element."""

    def __init__(self, make=Head, *, has_all=False):
        super().__init__()
        torch.manual_seed(0)
        self.rows, self.columns = make(), make()
        self.all = make() if has_all else None

    def forward(self, x):
        batch, rows, columns, _ = x.shape
        x = x + self.rows(x.flatten(0, 1)).view(x.shape)
        y = self.columns(x.transpose(1, 2).flatten(0, 1))
        x = x + y.view(batch, columns, rows, WIDTH).transpose(1, 2)
        return x if self.all is None else x + self.all(x.flatten(1, 2)).view(x.shape)


class Torchs(nn.MultiheadAttention):
    def __init__(self):
        super().__init__(WIDTH, 1, batch_first=True)

    def forward(self, x):
        return super().forward(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize(
    ("size", "batch"), [((3, 4), 1), ((3, 4), 2), ((4, 3), 1), ((4, 3), 2), ((3, 3), 2)]
)
@torch.no_grad()
def test_rows_and_then_columns_of_a_grid(size, batch):
    model, (rows, columns) = Axial().eval(), size
    x = torch.randn(batch, rows, columns, WIDTH, generator=GENERATOR)
    with gattn.capturing(model, keep=gattn.All()) as run:
        model(x)
    numbers = torch.arange(rows * columns).view(size)
    assert len(run.traces) == batch
    for n, trace in enumerate(run.traces):
        for name, layer, groups in (
            ("rows", model.rows, numbers),
            ("columns", model.columns, numbers.T),
        ):
            wanted = torch.zeros(rows * columns, rows * columns)
            shown = layer.shown.unflatten(0, (batch, -1))[n]
            for group, attention in zip(groups, shown, strict=True):
                wanted[group[:, None], group] = attention
            np.testing.assert_allclose(trace[name][0, 0].to_dense(), wanted, atol=1e-6)


@torch.no_grad()
def test_rows_of_torchs_own_modules_are_no_texts():
    model, x = Axial(Torchs, has_all=True).eval(), torch.randn(1, 3, 4, WIDTH, generator=GENERATOR)
    with pytest.raises(CaptureError, match="cannot be matched"), gattn.capturing(model):
        model(x)


class DenseGraphAttention(nn.Module):
    """One head of a graph attention layer over an adjacency matrix (Veličković et al. 2018)."""

    def __init__(self, width, size):
        super().__init__()
        self.of, self.query, self.key = (
            nn.Linear(*sizes, bias=False) for sizes in ((width, size), (size, 1), (size, 1))
        )

    def forward(self, x, adjacency):
        h = self.of(x)
        scores = nn.functional.leaky_relu(self.query(h) + self.key(h).T, 0.2)
        self.shown = torch.where(adjacency > 0, scores, -9e15).softmax(-1)
        return nn.functional.elu(self.shown @ h)


class TwoGraphLayers(nn.Module):
    """Heads as modules of their own, and no residual stream, which would carry positions."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([DenseGraphAttention(5, 4) for _ in range(2)])
        self.out = DenseGraphAttention(8, 3)

    def forward(self, x, adjacency):
        return self.out(torch.cat([head(x, adjacency) for head in self.heads], 1), adjacency)


@pytest.mark.parametrize("share", [0.15, 0.4, 1.0])
def test_nodes_with_few_neighbours_keep_their_numbers(share):
    torch.manual_seed(1)
    model = TwoGraphLayers().double().eval()
    adjacency = ((torch.rand(6, 6) < share) | torch.eye(6, dtype=torch.bool)).double()
    with torch.no_grad(), capturing(model) as run:
        model(torch.randn(6, 5, dtype=torch.float64), adjacency)
    made = [*model.heads, model.out]
    for head, layer in zip(run.trace.heads(), made, strict=True):
        torch.testing.assert_close(torch.from_numpy(head.to_dense()).double(), layer.shown)
