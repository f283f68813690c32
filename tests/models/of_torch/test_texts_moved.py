"""Texts of a batch that change places between modules: each trace shows its own text."""

import warnings

import pytest
import torch
from torch import nn

from gattn import capturing
from gattn.errors import CaptureError

TOKENS, WIDTH = 5, 8


class Layer(nn.Module):
    """Attention with a residual stream, written out or by torch's kernel."""

    def __init__(self, *, is_kernel: bool) -> None:
        super().__init__()
        self.qkv, self.is_kernel = nn.Linear(WIDTH, 3 * WIDTH), is_kernel

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        self.attention = (q @ k.mT / 2).softmax(-1)
        if self.is_kernel:
            read = nn.functional.scaled_dot_product_attention(q, k, v, scale=0.5)
        else:
            read = self.attention @ v
        return x + read.transpose(1, 2).flatten(2)


class Model(nn.Module):
    """Three layers that are alike: texts move after the first, and may be brought back later."""

    def __init__(self, move, back=None, *, is_kernel: bool = False, is_second: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(is_kernel=is_kernel) for _ in range(3))
        self.move, self.back, self.is_second = move, back, is_second
        self.double().eval()

    def forward(self, x, lengths):
        first, second, third = self.layers
        x = first(x.transpose(0, 1) if self.is_second else x)
        self.before, self.after = x, self.move(x, lengths)
        x = second(self.after)
        return third(x if self.back is None else self.back(x, lengths))


def run(model, texts, lengths=(3, 5, 4)):
    x = torch.randn(texts, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1)).double()
    x = x.transpose(0, 1) if model.is_second else x
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        with capturing(model) as found:
            model(x, torch.tensor(lengths[:texts]))
    return found


def shown(found, layer, texts):
    return [torch.tensor(found.traces[n].only_stack[layer, 1].to_dense()) for n in range(texts)]


def places(model, texts):
    """Find where each text is after the move, by its numbers."""
    are_same = [[torch.equal(x, y) for y in model.after] for x in model.before]
    order = [one.index(True) for one in are_same]
    assert sorted(order) == [*range(texts)]
    return order


def assert_same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=0, atol=1e-12)


MOVES = {
    "flip": lambda x, lengths: x.flip(0),
    "roll": lambda x, lengths: x.roll(1, 0),
    "joined": lambda x, lengths: torch.cat([x[1:], x[:1]]),
    "stacked": lambda x, lengths: torch.stack([*x.unbind(0)][::-1]),
    "matrix": lambda x, lengths: torch.einsum("ab,bnd->and", torch.eye(len(x)).to(x).roll(1, 0), x),
    "lengths": lambda x, lengths: x[lengths.argsort(descending=True)],
    "selected": lambda x, lengths: x.index_select(0, lengths.argsort(descending=True)),
    "values": lambda x, lengths: x[x.mean((1, 2)).argsort(descending=True)],
}


@pytest.mark.parametrize("is_kernel", [False, True])
@pytest.mark.parametrize("texts", [2, 3])
@pytest.mark.parametrize("name", MOVES)
def test_each_trace_shows_its_own_text(name, texts, is_kernel):
    model = Model(MOVES[name], is_kernel=is_kernel)
    found = run(model, texts)
    order = places(model, texts)
    assert order != [*range(texts)]
    assert_same(shown(found, 0, texts), model.layers[0].attention[:, 1])
    for n in (1, 2):
        assert_same(shown(found, n, texts), model.layers[n].attention[order, 1])


def test_texts_that_are_sorted_and_brought_back():
    model = Model(
        lambda x, lengths: x[lengths.argsort(descending=True)],
        lambda x, lengths: x[lengths.argsort(descending=True).argsort()],
    )
    found = run(model, 3)
    assert_same(shown(found, 1, 3), model.layers[1].attention[places(model, 3), 1])
    assert_same(shown(found, 2, 3), model.layers[2].attention[:, 1])


def test_other_lengths_give_another_order():
    model = Model(MOVES["lengths"])
    for lengths in ((3, 5, 4), (5, 4, 3), (4, 3, 5)):
        found = run(model, 3, lengths)
        assert_same(shown(found, 1, 3), model.layers[1].attention[places(model, 3), 1])


def test_texts_along_the_second_dimension():
    model = Model(MOVES["flip"], is_second=True)
    found = run(model, 3)
    assert_same(shown(found, 1, 3), model.layers[1].attention[places(model, 3), 1])


@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize("is_second", [False, True])
def test_many_texts_of_few_tokens(tokens, is_second):
    model = Model(MOVES["flip"], is_second=is_second)
    x = torch.randn(9, tokens, WIDTH, generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad(), capturing(model) as found:
        model(x.transpose(0, 1) if is_second else x, torch.arange(9))
    assert_same(shown(found, 1, 9), model.layers[1].attention.flip(0)[:, 1])


def test_texts_and_their_tokens_moved_at_once():
    model = Model(lambda x, lengths: x.flip(0).flip(1))
    found = run(model, 3)
    assert_same(shown(found, 1, 3), model.layers[1].attention.flip(0, 2, 3)[:, 1])


def test_texts_in_the_place_of_others_are_refused():
    with pytest.raises(CaptureError, match="the model repeats texts of the batch"):
        run(Model(lambda x, lengths: x[[0, 0, 2]]), 3)


class Embedding(nn.Module):
    """Sorts ids before they are looked up, or images, and brings them back at the end."""

    def __init__(self, *, has_images: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Conv2d(3, WIDTH, 2, 2) if has_images else nn.Embedding(20, WIDTH)
        self.layers = nn.ModuleList(Layer(is_kernel=False) for _ in range(3))
        self.has_images = has_images
        self.double().eval()

    def forward(self, x, lengths):
        first, second, third = self.layers
        order = lengths.argsort(descending=True)
        if self.has_images:
            x = first(self.embed(x).flatten(2).mT)[order]
        else:
            x = first(self.embed(x[order]))
        return third(second(x)[order.argsort()])


@pytest.mark.parametrize("has_images", [False, True])
@pytest.mark.parametrize("texts", [2, 3, 9])
def test_ids_and_images_that_are_sorted_and_brought_back(texts, has_images):
    model = Embedding(has_images=has_images)
    random = torch.Generator().manual_seed(1)
    lengths = torch.randperm(texts, generator=random)
    lengths = lengths.roll(1) if lengths.equal(torch.arange(texts).flip(0)) else lengths
    x = torch.randint(20, (texts, TOKENS), generator=random)
    if has_images:
        x = torch.randn(texts, 3, 4, 6, generator=random).double()
    with torch.no_grad(), capturing(model) as found:
        model(x, lengths)
    back = lengths.argsort(descending=True).argsort()
    for n, order in enumerate(([] if has_images else back, back, [])):
        wanted = model.layers[n].attention[:, 1]
        assert_same(shown(found, n, texts), wanted[order] if len(order) else wanted)


class Pairs(nn.Module):
    """Reads other texts twice; before the second time, queries, keys or both are moved."""

    def __init__(self, *, moves_queries: bool, moves_keys: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = Across(), Across()
        self.moves_queries, self.moves_keys = moves_queries, moves_keys
        self.double().eval()

    def forward(self, x, y):
        x = self.first(x, y)
        x = x.roll(1, 0) if self.moves_queries else x
        return self.second(x, y.roll(1, 0) if self.moves_keys else y)


class Across(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.keys = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x, y):
        k, v = self.keys(y).chunk(2, -1)
        self.attention = (self.query(x) @ k.mT / 2).softmax(-1)
        return x + self.attention @ v


def given(texts=3):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(texts, n, WIDTH, generator=generator).double() for n in (TOKENS, 4)]


@torch.no_grad()
@pytest.mark.parametrize("moves", [False, True])
def test_cross_attention_is_of_the_text_that_both_its_sides_are(moves):
    model = Pairs(moves_queries=moves, moves_keys=moves)
    with warnings.catch_warnings(), capturing(model) as found:
        warnings.simplefilter("error")
        model(*given())
    for name, order in (("first", [0, 1, 2]), ("second", [1, 2, 0] if moves else [0, 1, 2])):
        wanted = model.get_submodule(name).attention[order]
        heads = [torch.tensor(trace.stacks[name][0, 0].to_dense()) for trace in found.traces]
        assert_same(heads, wanted)


@torch.no_grad()
@pytest.mark.parametrize("moves_queries", [False, True])
def test_texts_that_read_those_of_others_are_refused_in_a_batch(moves_queries):
    model = Pairs(moves_queries=moves_queries, moves_keys=not moves_queries)
    says = "queries of one sequence attend to keys of another"
    with pytest.raises(CaptureError, match=says), capturing(model):
        model(*given())
    with capturing(model) as found:
        model(*given(texts=1))
    shown = torch.tensor(found.trace.stacks["second"][0, 0].to_dense())
    assert_same([shown], model.second.attention)
