"""Cross-attention to patches: the words of a caption, or learned queries, read an image."""

import pytest
import torch
from torch import Tensor, nn

import gattn
from gattn.errors import ShapeError
from tests.models.test_patches import (
    _COLUMNS,
    _PATCHES,
    _ROWS,
    _SHUFFLED,
    ViT,
    cells_by_gradient,
    image_of,
)

_WORDS = torch.randint(20, (2, 4))


class Captioner(ViT):
    """Words that read the patches of an image, which an encoder may have read before."""

    def __init__(self, *args: object, has_encoder: bool = True, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        if not has_encoder:
            self.blocks = nn.Identity()
        self.words = nn.Embedding(20, 16)
        layer = nn.TransformerDecoderLayer(16, 2, 32, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 2)

    def forward(self, image: Tensor, words: Tensor) -> Tensor:
        return self.decoder(self.words(words), self.blocks(self.tokens(image)))


class Teller(ViT):
    """A recurrent decoder in the module that attends."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.words = nn.Embedding(20, 16)
        self.cell = nn.GRUCell(32, 16)

    def forward(self, image: Tensor, words: Tensor) -> Tensor:
        keys = self.tokens(image)
        state, rows = keys.mean(1), []
        for word in self.words(words).unbind(1):
            weights = torch.softmax(keys @ state[..., None], 1)
            state = self.cell(torch.cat([word, (weights.mT @ keys)[:, 0]], -1), state)
            rows.append(state)
        return torch.stack(rows, 1)


def cross_of(model, image, **options):
    """Return the cross-attention of the first image."""
    with torch.no_grad(), gattn.capturing(model.eval(), **options) as run:
        model(image, _WORDS)
    return next(
        one for one in reversed(run.traces[0].stacks.values()) if one[0, 0].graph.is_bipartite
    )


@pytest.mark.parametrize("make", [Captioner, lambda *a: Captioner(*a, has_encoder=False), Teller])
@pytest.mark.parametrize("order", [None, _SHUFFLED], ids=["rows", "shuffled"])
@pytest.mark.parametrize("prefix", [0, 2])
def test_keys_lie_where_their_pixels_are(make, order, prefix):
    model, image = make(order, prefix), image_of(2)
    for head in cross_of(model, image).values():
        assert head.geometry.cells.tolist() == cells_by_gradient(model, image)
        assert head.query_geometry is None


def test_edits_and_pictures_find_the_patches_that_words_read():
    model, image = Captioner(_SHUFFLED, 1), image_of(2)
    stack = cross_of(model, image)
    stack[1, 0].draw_image(image[0], query=2)
    cells = cells_by_gradient(model, image)
    row, column = divmod(cells[4], _COLUMNS)
    by_name = gattn.Cut(layer=1, key=f"{row},{column}", stack=stack.name)
    outputs = []
    for cut in (by_name, gattn.Cut(layer=1, key=4, stack=stack.name)):
        with torch.no_grad(), gattn.edited(model, cut):
            outputs.append(model(image, _WORDS))
    assert torch.equal(*outputs)
    assert not torch.equal(outputs[0], model(image, _WORDS))


def test_words_have_their_names_and_patches_theirs():
    model, words = Captioner(None, 0), list("abcd")
    stack = cross_of(model, image_of(2), tokens={"decoder.layers.multihead_attn": {"query": words}})
    assert stack[0, 0].query_tokens == tuple(words)
    assert stack[0, 0].tokens[:2] == ("0,0", "0,1")


def test_keys_whose_pixels_overlap_are_on_no_grid():
    stack = cross_of(Captioner(None, 0, 6), image_of(2))
    assert stack[0, 0].graph.num_keys == _PATCHES
    with pytest.raises(ShapeError, match="not known which patches the keys are"):
        stack[0, 0].draw_image(image_of()[0], query=0)
    given = cross_of(Captioner(None, 0, 6), image_of(2), grid=(_ROWS, _COLUMNS))
    given[0, 0].draw_image(image_of()[0], query=0)


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(memory).mT / 3
        return x + scores.softmax(-1) @ self.value(memory)


class Alternating(nn.Module):
    """One list of layers, of which each second one reads other tokens, of which there are as many.

    Learned queries read them; or they read themselves.
    """

    def __init__(self, second: str, *, is_cross: bool) -> None:
        super().__init__()
        self.second, self.is_cross = second, is_cross
        self.patch, self.words = nn.Conv2d(3, 8, 4, 4), nn.Embedding(20, 8)
        self.learned = nn.Parameter(torch.randn(3, 8))
        self.layers = nn.ModuleList(Reads() for _ in range(4))
        self.eval()

    def forward(self, image: Tensor, words: Tensor) -> tuple[Tensor, ...]:
        whole = self.patch(image)
        patches = whole.flatten(2).mT
        others = {
            "patches": patches,
            "words": self.words(words),
            "flipped": patches.flip(1),
            "by columns": whole.mT.flatten(2).mT,
        }
        memories = [patches, others[self.second]]
        x = self.learned.expand(len(image), -1, -1)
        for n, layer in enumerate(self.layers):
            if self.is_cross:
                x = layer(x, memories[n % 2])
            else:
                memories[n % 2] = layer(memories[n % 2], memories[n % 2])
        return x, *memories


@pytest.mark.parametrize("is_cross", [False, True])
@pytest.mark.parametrize("second", ["patches", "words", "flipped", "by columns"])
def test_layers_of_one_list_that_read_other_tokens_have_no_grid(second, is_cross):
    model = Alternating(second, is_cross=is_cross)
    with torch.no_grad(), gattn.capturing(model) as run:
        model(torch.randn(2, 3, 16, 16), torch.randint(20, (2, 16)))
    for trace in run.traces:
        ((_, stack),) = trace.stacks.items()
        is_named = second == "patches"
        assert (stack[0, 0].tokens[:2] == ("0,0", "0,1")) == is_named
        assert (stack[1, 0].geometry is not None) == is_named
