"""Patches have one name everywhere: the one that traces show, such as "2,4" or "class"."""

import inspect
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import gattn
from gattn.errors import CaptureError, EditError, SelectionError
from tests.models.test_patches import _COLUMNS, _SHUFFLED, ViT, cells_by_gradient, image_of

_GRID = 3, _COLUMNS


class Classifier(ViT):
    """Gives logits."""

    def forward(self, image):
        return super().forward(image).mean(1)


def built(*shape, kind=Classifier, **options):
    torch.manual_seed(0)
    model, image = kind(*shape, **options).double().eval(), image_of().double()
    return model, image, lambda: model(image)[0]


def outputs(model, image, edit, **names):
    with torch.no_grad(), gattn.edited(model, edit, **names):
        return model(image)


@pytest.mark.parametrize("prefix", [0, 1, 3])
@pytest.mark.parametrize("order", [None, _SHUFFLED], ids=["rows", "shuffled"])
def test_an_edit_finds_a_patch_by_its_name(order, prefix):
    model, image, _ = built(order, prefix)
    cells = cells_by_gradient(model.float(), image.float())
    model.double()
    for cell in (0, 7, 14):
        name = ",".join(map(str, divmod(cell, _COLUMNS)))
        found = outputs(model, image, gattn.Cut(layer=1, key=name))
        expected = outputs(model, image, gattn.Cut(layer=1, key=cells.index(cell)))
        other = outputs(model, image, gattn.Cut(layer=1, key=cells.index(cell) - 1))
        assert torch.equal(found, expected)
        assert not torch.equal(found, other)
        spaced = outputs(model, image, gattn.Cut(layer=1, key=name.replace(",", ", ")))
        assert torch.equal(spaced, expected)
    if prefix == 1:
        by_name = outputs(model, image, gattn.Cut(layer=0, query="class", key=["0,1", -1]))
        expected = gattn.Cut(layer=0, query=0, key=[cells.index(1), _SHUFFLED.numel()])
        assert torch.equal(by_name, outputs(model, image, expected))


@pytest.mark.parametrize("order", [None, _SHUFFLED], ids=["rows", "shuffled"])
def test_class_and_register_tokens_are_named_by_themselves(order):
    model, image, _ = built(order, 3)
    names = ["class", "register 0", "register 1"]
    with torch.no_grad(), gattn.capturing(model) as plain:
        model(image)
    labels = plain.trace[0, 0].labels()
    wanted = [*names, *labels[3:]]
    for options in (
        {"tokens": names},
        {"tokens": {"blocks.layers.self_attn": names}, "grid": _GRID},
    ):
        with torch.no_grad(), gattn.capturing(model, **options) as run:
            model(image)
        assert list(run.trace[0, 0].labels()) == wanted
        assert (run.trace[0, 0].geometry.cells == plain.trace[0, 0].geometry.cells).all()
        edit = gattn.Cut(layer=1, key=["register 1", labels[5]])
        by_number = outputs(model, image, gattn.Cut(layer=1, key=[2, 5]))
        assert torch.equal(outputs(model, image, edit, **options), by_number)
    with (
        pytest.raises(CaptureError, match="gives 2 texts"),
        gattn.capturing(model, tokens=["a", "b"]),
    ):
        model(image)


def test_tables_and_circuits_name_patches_alike():
    model, image, run = built(_SHUFFLED)
    cells = cells_by_gradient(model.float(), image.float())
    model.double()
    names = ["class" if n < 0 else ",".join(map(str, divmod(n, _COLUMNS))) for n in cells]
    cut = gattn.Cut(layer=0, head=1, query=3, key=5)
    table = gattn.effect(run, [cut], model, target=1, metric="probability", progress=False)
    guessed = gattn.estimate(run, model, target=1, other=0, sample=0, progress=False)
    found = gattn.circuit(run, model, target=1, other=0, progress=False, random=0)
    assert table.attrs["tokens"] == guessed.attrs["tokens"] == list(found.tokens) == names
    assert [names[n] for n in guessed["key"]] == guessed["key_token"].tolist()
    assert [names[n] for n in guessed["query"]] == guessed["query_token"].tolist()
    assert gattn.analysis.contributions(run, model, progress=False).key_token.values.tolist() == (
        names
    )


def test_a_grid_that_is_given_names_patches_that_overlap():
    model, image, run = built(kernel=6)
    edits = gattn.Cut(layer=1, key="1,2"), gattn.Cut(layer=1, key=1 + _COLUMNS + 2)
    with pytest.raises(EditError, match="the grid= of patches"):
        outputs(model, image, edits[0])
    by_name, by_place = (outputs(model, image, edit, grid=_GRID) for edit in edits)
    assert torch.equal(by_name, by_place)
    table = gattn.effect(run, edits, model, grid=_GRID, progress=False)
    assert table["edited"].nunique() == 1
    assert table.attrs["tokens"][:3] == ["class", "0,0", "0,1"]
    with pytest.raises(EditError, match="grid= gives 4 × 5 patches, which are not the 16 keys"):
        outputs(model, image, edits[0], grid=(4, 5))


def test_patches_of_transformers_models_are_named_by_a_grid():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=4,
    )
    model = transformers.ViTModel(config).eval()
    image = torch.randn(1, 3, 16, 16)
    edits = gattn.Cut(layer=1, key="1,2"), gattn.Cut(layer=1, key=1 + 4 + 2)
    with torch.no_grad():
        found = []
        for edit in edits:
            with gattn.edited(model, edit, grid=(4, 4)):
                found.append(model(image).last_hidden_state)
    assert torch.equal(*found)
    with pytest.raises(EditError, match="the grid= of patches"), gattn.edited(model, edits[0]):
        model(image)


class Late(nn.Module):
    """A layer, before which a class token comes."""

    def __init__(self, has_class):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.first = nn.Parameter(torch.randn(1, 1, 16)) if has_class else None

    def forward(self, x):
        return self.layer(x if self.first is None else torch.cat([self.first, x], 1))


class Growing(nn.Module):
    """A class token comes in between two layers of the same stack."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.layers = nn.Sequential(Late(False), Late(True))

    def forward(self, image):
        return self.layers(self.patches(image).flatten(2).mT).mean(1)


@pytest.mark.parametrize("grid", [None, _GRID], ids=["proved", "given"])
def test_each_layer_has_its_own_places_of_patches(grid):
    model, image, _ = built(kind=Growing)
    both = outputs(model, image, gattn.Cut(key="1,1"), grid=grid)
    cell = _COLUMNS + 1
    first, second = gattn.Cut(layer=0, key=cell), gattn.Cut(layer=1, key=1 + cell)
    with torch.no_grad(), gattn.edited(model, first, second):
        assert torch.equal(both, model(image))


class Sorting(ViT):
    """Sorts the tokens by their length before the second layer."""

    def forward(self, image):
        x = self.blocks.layers[0](self.tokens(image))
        order = x.norm(dim=-1).argsort(1)[..., None].expand_as(x)
        return self.blocks.layers[1](x.gather(1, order)).mean(1)


@pytest.mark.filterwarnings("ignore:.*picks or orders tokens")
def test_tokens_that_values_order_are_no_patches():
    model, image, _ = built(prefix=0, kind=Sorting)
    with torch.no_grad(), gattn.capturing(model) as run:
        model(image)
    for head in run.trace.heads():
        assert head.geometry is None
        assert not head.tokens
    with pytest.raises(EditError, match="moved, picked or mixed"):
        outputs(model, image, gattn.Cut(layer=1, key="0,0"))


@pytest.mark.parametrize("side", ["query", "key"])
@pytest.mark.parametrize("tokens", [None, [f"w{n}" for n in range(16)]])
def test_a_tuple_of_two_numbers_is_refused_where_tokens_lie_on_a_grid(side, tokens):
    """In pictures it is a patch, in edits it would be two tokens."""
    model, image, run = built()
    says = rf'{side}="2,4" for the patch.* {side}=\[2, 4\] for the tokens 2 and 4'
    for kind in (gattn.Cut, partial(gattn.Scale, 0.5)):
        with pytest.raises(EditError, match=says):
            outputs(model, image, kind(layer=1, **{side: (2, np.int64(4))}), tokens=tokens)
    with pytest.raises(EditError, match=says):
        gattn.effect(run, [gattn.Cut(layer=1, **{side: (2, 4)})], model=model, tokens=tokens)
    with pytest.raises(SelectionError, match=says):
        gattn.why(run, model, layer=1, head=0, **{side: (2, 4)}, tokens=tokens)
    whole = gattn.capture(run, model)[1, 0].labels()
    number = whole.index("2,4")
    named, counted = (gattn.Cut(layer=1, **{side: one}) for one in ("2,4", number))
    assert torch.equal(*(outputs(model, image, edit) for edit in (named, counted)))


def test_other_tuples_are_tokens_and_nested_ones_are_patches():
    model, image, _ = built()
    for pair in ((2, -1), (2,), (2, 4, 5), ("2,4", 3)):
        one, each = (gattn.Cut(layer=1, key=kind(pair)) for kind in (tuple, list))
        assert torch.equal(*(outputs(model, image, edit) for edit in (one, each)))
    for some in ([(2, 4)], ((2, 4), (1, 3)), [(2, 4), "class", 3]):
        texts = ["2,4" if one == (2, 4) else "1,3" if one == (1, 3) else one for one in some]
        one, each = (gattn.Cut(layer=1, key=which) for which in (some, texts))
        assert one.record == each.record
        assert torch.equal(*(outputs(model, image, edit) for edit in (one, each)))
    with pytest.raises(SelectionError, match='its row and column, such as "2,4"'):
        gattn.Cut(layer=1, key=[(2, 4, 5)])


def test_a_tuple_of_two_numbers_is_two_tokens_of_a_text():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1).eval()
    x = torch.randn(1, 6, 8)
    pair, each = (gattn.Cut(layer=0, key=kind((2, 4))) for kind in (tuple, list))
    assert torch.equal(*(outputs(encoder, x, edit) for edit in (pair, each)))
    with pytest.raises(EditError, match='key="2,4" for the patch'):
        outputs(encoder, x, pair, grid=(2, 3))


@pytest.mark.parametrize("side", ["query", "key"])
@pytest.mark.parametrize("kind", [list, tuple])
def test_a_row_and_a_column_name_no_word(side, kind):
    """A word may read like a patch."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1).eval()
    x, words = torch.randn(1, 6, 8), ["0,0", "0,1", "1,0", "1,1", "2,0", "2,1"]
    edit = gattn.Cut(layer=0, **{side: kind([(0, 1)])})
    says = r"\(0, 1\), the patch in row 0 and column 1, but tokens are not known to be patches"
    for names in ({"tokens": words}, {}):
        with pytest.raises(EditError, match=says):
            outputs(encoder, x, edit, **names)
        with pytest.raises(EditError, match=says):
            gattn.effect(lambda: encoder(x)[0, :1], [edit], model=encoder, **names)
    word, number = (gattn.Cut(layer=0, **{side: [one]}) for one in ("0,1", 1))
    assert torch.equal(*(outputs(encoder, x, edit, tokens=words) for edit in (word, number)))
    on_grid = outputs(encoder, x, edit, grid=(3, 2), tokens=list("abcdef"))
    assert torch.equal(on_grid, outputs(encoder, x, number))


def test_an_edit_of_a_patch_that_is_not_there_says_which_rows_and_columns_are():
    model, image, _ = built(prefix=1)
    rows = rf"rows 0 \.\. 2 and columns 0 \.\. {_COLUMNS - 1}\. A"
    for name in (f"3,{_COLUMNS}", "9,9", [(3, 0)], [(0, _COLUMNS)]):
        with pytest.raises(EditError, match=rows):
            outputs(model, image, gattn.Cut(layer=1, key=name))


_OF_TEXTS = {"shared_subspace": "it runs several texts, and labels their tokens itself"}


def test_what_runs_a_model_takes_names_of_tokens():
    """Whatever takes a function that runs a model takes names for what that runs on."""
    spaces = (gattn, gattn.analysis)
    functions = {n: getattr(space, n) for space in spaces for n in space.__all__}
    runs = {
        name: inspect.signature(one).parameters
        for name, one in functions.items()
        if inspect.isfunction(one) and "Runnable" in str(inspect.signature(one))
    }
    assert len(runs) > 10
    for name, takes in runs.items():
        known = "options" in takes or {"tokens", "grid"} <= takes.keys()
        assert known == (name not in _OF_TEXTS), name


_WORDS = [f"w{n}" for n in range(16)]


def test_analyses_take_names_of_tokens():
    model, _, run = built()
    known = {"model": model, "progress": False, "tokens": _WORDS}
    found = gattn.analysis.routes(run, position="w3", **known)
    assert found.graph["position"] == 3
    for name in ("contributions", "residual_shares", "route_importances", "alti", "value_zeroing"):
        array = getattr(gattn.analysis, name)(run, **known)
        assert array.query_token.values.tolist() == _WORDS, name
    with pytest.raises(CaptureError, match="tokens= gives 3 texts, but the stack"):
        gattn.analysis.routes(run, model=model, tokens=["a", "b", "c"], progress=False)


def test_a_grid_of_another_form_than_the_proved_one_is_refused():
    model, image, run = built()
    other = _COLUMNS, 3
    with pytest.raises(CaptureError, match=r"grid=\(5, 3\) is not how the patches lie"):
        gattn.capture(run, model, grid=other)
    with pytest.raises(CaptureError, match=r"grid=\(5, 3\) is not how the patches lie"):
        outputs(model, image, gattn.Cut(layer=1, key="1,2"), grid=other)
    with pytest.raises(CaptureError, match=r"grid=\(4, 4\) is not how the patches lie"):
        gattn.capture(run, model, grid=(4, 4))  # As many as patches and the class token.
    assert gattn.capture(run, model, grid=_GRID)[1, 0].labels()[-1] == "2,4"


@pytest.mark.parametrize("grid", [8, "2x4", (2,), (0, 4), (2.0, 4)])
def test_what_is_no_grid_is_refused(grid):
    model, _, run = built()
    with pytest.raises(CaptureError, match="numbers of rows and of columns"):
        gattn.capture(run, model, grid=grid)


def test_tokens_may_be_ids_as_tensors():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1).eval()
    with torch.no_grad(), gattn.capturing(encoder, tokens=torch.tensor([6, 1, 4])) as run:
        encoder(torch.randn(1, 3, 8))
    assert run.trace[0, 0].tokens == ("6", "1", "4")


@pytest.mark.parametrize("prefix", [0, 1, 3])
@pytest.mark.parametrize("order", [None, _SHUFFLED], ids=["rows", "shuffled"])
def test_the_form_of_a_grid_does_not_say_in_what_order_patches_come(order, prefix):
    model, image, _ = built(order, prefix)
    cells = cells_by_gradient(model.float(), image.float())
    model.double()
    with torch.no_grad(), gattn.capturing(model, grid=_GRID) as run:
        model(image)
    assert run.trace[0, 0].geometry.cells.tolist() == cells
    name = ",".join(map(str, divmod(7, _COLUMNS)))
    found = outputs(model, image, gattn.Cut(layer=1, key=name), grid=_GRID)
    expected = outputs(model, image, gattn.Cut(layer=1, key=cells.index(7)))
    assert torch.equal(found, expected)
