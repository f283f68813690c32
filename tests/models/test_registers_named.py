"""Class and register tokens are named alone, without patches, in all that takes tokens=."""

from functools import partial

import pytest
import torch
from torch import nn

import gattn
from gattn.errors import CaptureError, EditError, GattnError
from tests.models.test_patches import _COLUMNS, _ROWS, _SHUFFLED, ViT, cells_by_gradient, image_of

_NAMES = ["class", "reg 0", "reg 1"]
_GRID = _ROWS, _COLUMNS
_STACK = "blocks.layers.self_attn"


class Classifier(ViT):
    """Has a class and two register tokens, and gives the class token's logits."""

    def __init__(self, order=None, has_stem=False):
        super().__init__(order, 3)
        if has_stem:  # Each patch is then made of pixels of others.
            self.patches = nn.Sequential(
                nn.Conv2d(3, 4, 3, 1, 1), nn.GELU(), nn.Conv2d(4, 16, 4, 4)
            )

    def forward(self, image):
        return super().forward(image)[:, 0]


def by_row(cells):
    """Name tokens by their cells."""
    names = iter(_NAMES)
    return [next(names) if n < 0 else ",".join(map(str, divmod(n, _COLUMNS))) for n in cells]


def built(kind):
    torch.manual_seed(0)
    order = _SHUFFLED if kind == "shuffled" else None
    model, image = Classifier(order, kind == "stem").eval(), image_of()
    wanted = by_row([-1] * 3 + list(range(15)))
    if kind == "shuffled":
        wanted = by_row(cells_by_gradient(model, image))
    return model.double(), image.double(), wanted


_GIVEN = {
    "rows": {"tokens": _NAMES},
    "shuffled": {"tokens": {_STACK: _NAMES}, "grid": _GRID},
    "stem": {"tokens": _NAMES, "grid": _GRID},
}
_ARRAYS = "contributions", "residual_shares", "route_importances", "alti", "value_zeroing"


@pytest.mark.parametrize("kind", _GIVEN)
def test_all_that_runs_a_model_takes_names_of_registers_alone(kind):
    model, image, wanted = built(kind)
    known = {"model": model, **_GIVEN[kind]}
    quiet = {**known, "progress": False}

    def run():
        return model(image)[0]

    assert list(gattn.capture(run, **known)[1, 0].labels()) == wanted
    by_name = gattn.Cut(layer=0, query="class", key=[wanted[7], "reg 1"])
    by_number = gattn.Cut(layer=0, query=0, key=[7, 2])
    table = gattn.effect(run, [by_name, by_number], target=1, metric="probability", **quiet)
    assert table["edited"].nunique() == 1
    assert table["effect"].all()
    assert list(table.attrs["tokens"]) == wanted
    guessed = gattn.estimate(lambda: model(image)[0, 1], **quiet, sample=0)
    assert [wanted[n] for n in guessed["key"]] == guessed["key_token"].tolist()
    assert list(guessed.attrs["tokens"]) == wanted
    assert list(gattn.circuit(run, **quiet, target=1, other=0, random=0).tokens) == wanted
    why = gattn.why(run, **known, layer=1, head=0, query="reg 0", key=wanted[9])
    number = gattn.why(run, model=model, layer=1, head=0, query=1, key=9)
    assert (list(why.query), list(why.key)) == (list(number.query), list(number.key))
    assert why.scores == pytest.approx(number.scores)
    assert gattn.analysis.routes(run, **quiet, position="reg 1").graph["position"] == 2
    for name in _ARRAYS:
        found = getattr(gattn.analysis, name)(run, **quiet)
        assert found.query_token.values.tolist() == wanted, name


def all_that_run(model, image, key="2,4", **given):
    """Run whatever takes names of tokens, each as a function of nothing."""

    def run():
        return model(image)[0]

    known = {"model": model, **given}
    quiet = {**known, "progress": False}
    cut = gattn.Cut(layer=0, key=key)
    yield lambda: gattn.capture(run, **known)
    yield lambda: outputs(model, image, cut, **given)
    yield lambda: gattn.effect(run, [cut], target=1, **quiet)
    yield lambda: gattn.estimate(run, target=1, **quiet)
    yield lambda: gattn.circuit(run, target=1, **quiet)
    yield lambda: gattn.why(run, layer=1, head=0, query=0, **known)
    for name in ("routes", *_ARRAYS):
        yield partial(getattr(gattn.analysis, name), run, **quiet)


def outputs(model, image, edit, **given):
    with torch.no_grad(), gattn.edited(model, edit, **given):
        return model(image)


@pytest.mark.parametrize("kind", _GIVEN)
@pytest.mark.parametrize("names", [["class", "register"], ["a", "b", "c", "d"]])
def test_too_few_names_are_refused_and_told_how_many_are_enough(kind, names):
    model, image, _ = built(kind)
    tokens = {_STACK: names} if kind == "shuffled" else names
    given = {**_GIVEN[kind], "tokens": tokens}
    says = rf"gives {len(names)} texts, (but|and) .* has 18 \w+: give one text per token \(3, for"
    for run in all_that_run(model, image, names[1], **given):
        with pytest.raises(GattnError, match=says) as told:
            run()
        assert isinstance(told.value, CaptureError | EditError)


def test_a_grid_that_leaves_tokens_over_says_to_name_these():
    model, image, _ = built("stem")
    says = "if the first 3 are no patches, name these, by tokens= with 3 texts"
    for run in all_that_run(model, image, grid=_GRID):
        with pytest.raises(GattnError, match=says) as told:
            run()
        assert isinstance(told.value, CaptureError | EditError)
    says = "give the rows and columns of its patches, or tokens="
    for run in all_that_run(model, image, grid=(4, 6)):
        with pytest.raises(GattnError, match=says):
            run()


def test_names_of_registers_do_not_hide_that_a_grid_is_of_another_form():
    model, image, _ = built("rows")
    for run in all_that_run(model, image, tokens=_NAMES, grid=(_COLUMNS, _ROWS)):
        with pytest.raises(GattnError, match="is not how the patches lie"):
            run()


class Reading(nn.Module):
    """As many words as tokens of an image read it."""

    def __init__(self):
        super().__init__()
        self.image = ViT(prefix=3)
        self.cross = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, image, words):
        seen = self.image(image)
        return self.cross(words, seen, seen)[0].mean(1)


def test_queries_that_read_patches_are_none_themselves():
    model, given = Reading().eval(), (image_of(), torch.randn(1, 18, 16))
    with gattn.capturing(model, tokens={"cross": {"key": _NAMES}}) as run, torch.no_grad():
        model(*given)
    (head, *_) = run.trace["cross"].values()
    assert list(head.labels()) == by_row([-1] * 3 + list(range(15)))
    assert list(head.query_labels()) == list(map(str, range(18)))
    names = {"cross": {"query": _NAMES}}
    says = r"gives 3 texts, (but|and) the stack 'cross' has 18 queries: give one text per token[,.]"
    cut = gattn.Cut(stack="cross", query="class")
    with torch.no_grad():
        with pytest.raises(CaptureError, match=says), gattn.capturing(model, tokens=names):
            model(*given)
        with pytest.raises(EditError, match=says), gattn.edited(model, cut, tokens=names):
            model(*given)
    with pytest.raises(CaptureError, match=says):
        gattn.effect(lambda: model(*given)[0], [cut], model, target=1, tokens=names, progress=False)


class Beside(nn.Module):
    """Reads a text beside an image with a class token and a register."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.image, self.embed = ViT(None, 2), nn.Embedding(9, 16)
        layer = nn.TransformerEncoderLayer(16, 2, batch_first=True)
        self.words = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, image, ids):
        return self.words(self.embed(ids)).mean(1) + self.image(image)[:, 0]


def test_texts_of_as_many_words_do_not_name_class_and_register_tokens():
    model, names = Beside().eval(), ["two", "words"]
    given = image_of(), torch.tensor([[3, 4]])
    with torch.no_grad(), gattn.capturing(model, tokens=names) as run:
        model(*given)
    found = {name: stack[0, 0].tokens for name, stack in run.trace.stacks.items()}
    words, image = (f"{name}.layers.self_attn" for name in ("words", "image.blocks"))
    assert found[words] == ("two", "words")
    assert not {"two", "words"} & set(found[image])
    cut = gattn.Cut(key="two", stack=image)
    said = pytest.raises(EditError, match="Say whose they are")
    with torch.no_grad(), said, gattn.edited(model, cut, tokens=names):
        model(*given)
    with torch.no_grad(), gattn.edited(model, cut, tokens={image: names}):
        model(*given)


class BesideText(nn.Module):
    """A stem with overlapping patches, registers after them, and a text of as many tokens."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.GELU(), nn.Conv2d(8, 8, 2, 2))
        self.registers = nn.Parameter(torch.randn(1, 2, 8))
        self.image, self.text = (nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))

    def forward(self, image, words):
        patches = self.stem(image).flatten(2).mT
        tokens = torch.cat([patches, self.registers.expand(len(patches), -1, -1)], 1)
        return self.image(tokens, tokens, tokens)[0], self.text(words, words, words)[0]


@pytest.mark.parametrize(
    ("tokens", "error"),
    [
        ({"text": ["a", "cat"]}, "grid= gives 3 × 4 patches, which are not the 14 tokens"),
        (["a", "cat"], "as many as the stack 'text' has tokens, and as 'image' has beside"),
    ],
)
def test_names_of_another_stack_put_no_tokens_before_patches(tokens, error):
    torch.manual_seed(0)
    model = BesideText().eval()
    given = torch.randn(1, 3, 6, 8), torch.randn(1, 2, 8)
    capturing = gattn.capturing(model, tokens=tokens, grid=(3, 4))
    with pytest.raises(CaptureError, match=error), torch.no_grad(), capturing:
        model(*given)
    cut = gattn.edited(model, gattn.Cut("image:0.0", query="0,0"), tokens=tokens, grid=(3, 4))
    with pytest.raises(EditError), torch.no_grad(), cut:
        model(*given)
