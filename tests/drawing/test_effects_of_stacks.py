"""Pictures of what edits change in a model of several stacks."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from seen import caption
from torch import nn

import gattn
from gattn.errors import CaptureError, SelectionError, ShapeError

SOURCE = ["le", "chat", "noir", "dort", "."]
TARGET = ["<s>", "the", "cat"]
ENCODER, DECODER = "encoder.layers.self_attn", "decoder.layers.self_attn"
CROSS = "decoder.layers.multihead_attn"
TOKENS = {ENCODER: SOURCE, DECODER: TARGET, CROSS: {"query": TARGET, "key": SOURCE}}
NUMBERS = [str(n) for n in range(5)]


@pytest.fixture(scope="module")
def asked():
    torch.manual_seed(0)
    model = nn.Transformer(16, 2, 1, 2, 24, batch_first=True).eval()
    source, target, way = torch.randn(1, 5, 16), torch.randn(1, 3, 16), torch.randn(16)
    return {"text": lambda: model(source, target)[0, -1] @ way, "model": model, "progress": False}


@pytest.fixture(scope="module")
def guessed(asked):
    return gattn.estimate(**asked, tokens=TOKENS, sample=0)


def rows(table, stack, layer=None):
    of_layer = (table["layer"] == layer) & (table["head"] == 0)
    return table[(table["stack"] == stack) & (of_layer if layer is not None else True)]


def ticks(ax, side="x"):
    ax.figure.draw_without_rendering()
    labels = ax.get_xticklabels() if side == "x" else ax.get_yticklabels()
    return [label.get_text() for label in labels]


@pytest.mark.parametrize("stack", [ENCODER, DECODER])
def test_each_stack_has_the_names_of_its_own_tokens(guessed, stack):
    own = TOKENS[stack]
    assert guessed.attrs["tokens"] == TOKENS
    assert ticks(rows(guessed, stack, 0).draw("arcs")) == own
    ax = rows(guessed, stack, 0).draw("matrix")
    assert ticks(ax) == ticks(ax, "y") == own


def test_a_matrix_of_cross_attention_has_its_queries_as_rows_and_its_keys_as_columns(guessed):
    table = rows(guessed, CROSS, 1)
    ax = table.draw("matrix")
    assert (ticks(ax), ticks(ax, "y")) == (SOURCE, TARGET)
    shown = ax.images[0].get_array()
    assert shown.shape == (3, 5)
    for row in table.itertuples():
        assert shown[row.query, row.key] == pytest.approx(row.estimate)
    assert not any("hatched" in text.get_text() for text in ax.texts)


def test_keys_of_cross_attention_are_left_of_its_queries(guessed):
    table = rows(guessed, CROSS, 1)
    ax = table.draw("arcs")
    assert ticks(ax) == [*SOURCE, *TARGET]
    assert "keys on the left" in ax.get_xlabel()
    (lines,) = (c for c in ax.collections if c.get_gid() == "gattn-edges")
    found = {tuple(map(round, path.vertices[[0, -1], 0])) for path in lines.get_paths()}
    assert found == {(row.key, 6 + row.query) for row in table[table["estimate"] != 0].itertuples()}


def test_layers_of_cross_attention_are_not_unrolled(guessed):
    table = rows(guessed, CROSS)
    ax = table.draw()
    assert ticks(ax) == [*SOURCE, *TARGET]
    (lines,) = (c for c in ax.collections if c.get_gid() == "gattn-edges")
    found = {tuple(map(round, path.vertices[[0, -1]].ravel())) for path in lines.get_paths()}
    assert found == {
        (row.key, row.layer, 6 + row.query, row.layer + 1)
        for row in table[table["estimate"] != 0].itertuples()
    }
    assert len(found) == 20
    assert {text.get_text() for text in ax.texts} >= {"keys", "queries"}


def test_layers_are_numbered_from_the_first_that_is_drawn(guessed):
    table = rows(guessed, CROSS)
    labels = ticks(table[table["layer"] == 1].draw("layered"), "y")
    assert [label.split(" · ")[-1] for label in labels] == ["1"]


def test_equally_many_queries_and_keys_do_not_share_names():
    torch.manual_seed(1)
    model = nn.Transformer(16, 2, 1, 1, 24, batch_first=True).eval()
    source, target = torch.randn(1, 3, 16), torch.randn(1, 3, 16)
    names = {CROSS: {"query": TARGET, "key": SOURCE[:3]}}

    def run():
        return model(source, target)[0, -1].square().sum()

    found = gattn.estimate(run, model=model, tokens=names, sample=0, progress=False)
    ax = rows(found, CROSS, 0).draw("matrix")
    assert (ticks(ax), ticks(ax, "y")) == (SOURCE[:3], TARGET)
    unnamed = gattn.estimate(run, model=model, sample=0, progress=False)
    assert ticks(rows(unnamed, CROSS, 0).draw("arcs")) == NUMBERS[:3] * 2


@pytest.mark.parametrize("stack", [DECODER, CROSS])
@pytest.mark.parametrize("tokens", [TOKENS, None])
def test_measured_effects_have_the_names_that_estimates_have(asked, guessed, stack, tokens):
    cuts = [gattn.Cut(0, 0, 2, key, stack=stack) for key in range(2)]
    found = gattn.effect(edits=cuts, **asked, tokens=tokens)
    if tokens is None:
        guessed = gattn.estimate(**asked, sample=0)
    assert found.attrs["tokens"] == guessed.attrs["tokens"]
    pictures = [ticks(some.draw("arcs")) for some in (found, rows(guessed, stack, 0))]
    assert pictures[0] == pictures[1]


def test_an_edit_without_a_stack_is_of_the_one_that_it_edits_among_several():
    torch.manual_seed(1)
    model = nn.Transformer(16, 2, 2, 1, 24, batch_first=True).eval()
    source, target = torch.randn(1, 5, 16), torch.randn(1, 3, 16)
    found = gattn.effect(
        lambda: model(source, target)[0, -1, 0],
        [gattn.Cut(1, 0, 2, 4), gattn.Cut(layer=0, head=0, query=2, key=1, stack=DECODER)],
        model=model,
        tokens=TOKENS,
        progress=False,
    )
    assert found["stack"].tolist() == [ENCODER, DECODER]
    assert ticks(found[:1].draw("arcs")) == SOURCE


def test_tokens_without_names_are_numbered(guessed):
    for told in ({}, {"tokens": []}):
        bare = rows(guessed, CROSS, 0).drop(columns=["query_token", "key_token"])
        bare.attrs = told
        assert ticks(bare.draw("arcs")) == NUMBERS
        joined = pd.concat([rows(guessed, CROSS, 0)])
        joined.attrs = told
        assert ticks(joined.draw("arcs")) == [*SOURCE, *TARGET]


def test_texts_of_a_stack_are_as_many_as_its_tokens(asked):
    cut = gattn.Cut(0, 0, 2, 1, stack=CROSS)
    with pytest.raises(CaptureError, match=r"gives 4 texts.* has 5 keys: give one"):
        gattn.effect(edits=[cut], **asked, tokens={CROSS: {"key": SOURCE[:4]}})


def test_sequences_that_differ_in_length_have_no_names_but_keys_of_their_own():
    torch.manual_seed(3)
    model = nn.Transformer(16, 2, 1, 1, 24, batch_first=True).eval()
    source, target = torch.randn(2, 5, 16), torch.randn(2, 3, 16)
    cuts = [gattn.Cut(0, 0, 2, key, stack=CROSS) for key in range(5)]

    def twice():
        return model(source[:1, :4], target[:1, :2])[0, -1, 0] + model(source, target)[0, -1, 0]

    found = gattn.effect(twice, cuts, model, tokens=TOKENS, progress=False)
    assert found.attrs["tokens"] == {ENCODER: [], DECODER: [], CROSS: {"query": [], "key": []}}
    assert ticks(found.draw("arcs")) == [*NUMBERS, "2"]
    with pytest.raises(SelectionError, match="differ in their number of keys: measure effects on"):
        found.draw_image(np.zeros((20, 30, 3)), grid=(1, 5))


def test_sequences_keep_the_names_that_all_have():
    torch.manual_seed(3)
    model = nn.Transformer(16, 2, 1, 1, 24, batch_first=True).eval()
    source, target = torch.randn(2, 6, 16), torch.randn(2, 3, 16)
    patches = [f"{row},{column}" for row in range(2) for column in range(3)]
    words = [TARGET, ["<s>", "two", "dogs"]]
    named = [{CROSS: {"query": some, "key": patches}} for some in words]
    cuts = [gattn.Cut(0, 0, 2, key, stack=CROSS) for key in range(6)]
    image = np.zeros((20, 30, 3))

    def together():
        return model(source, target)[:, -1, 0].sum()

    def in_turn():
        return sum(model(source[n:][:1], target[n:][:1])[0, -1, 0] for n in range(2))

    for run, names in ((together, named), (in_turn, named[0])):
        found = gattn.effect(run, cuts, model, tokens=names, progress=False)
        queries = NUMBERS[:3] if names is named else TARGET
        assert found.attrs["tokens"][CROSS] == {"query": queries, "key": patches}
        ax = found.draw_image(image)
        (drawn,) = (one for one in ax.images if one.get_gid() == "gattn-patches")
        pixels = np.asarray(drawn.get_array())
        down, across = pixels.shape[0] // 2, pixels.shape[1] // 3
        red, _, blue, _ = np.moveaxis(pixels[::down, ::across], -1, 0)
        np.testing.assert_array_equal(np.sign(blue - red).ravel(), np.sign(found["effect"]))
    bare = gattn.effect(together, cuts, model, progress=False)
    with pytest.raises(ShapeError, match=r"which patches its tokens are: pass grid=\(rows"):
        bare.draw_image(image)
    assert "edges to query 2" in caption(bare.draw_image(image, query=2, grid=(2, 3)))
    plt.close("all")


def test_patches_of_cross_attention_are_its_keys():
    torch.manual_seed(2)
    model = nn.Transformer(16, 2, 1, 1, 24, batch_first=True).eval()
    source, target = torch.randn(1, 6, 16), torch.randn(1, 3, 16)
    patches = [f"{row},{column}" for row in range(2) for column in range(3)]
    table = gattn.estimate(
        lambda: model(source, target)[0, -1].square().sum(),
        model=model,
        tokens={CROSS: {"query": TARGET, "key": patches}},
        sample=0,
        progress=False,
    )
    image = np.zeros((20, 30, 3))
    found = rows(table, CROSS, 0)
    ax = found.draw_image(image, query="cat")
    (drawn,) = (one for one in ax.images if one.get_gid() == "gattn-patches")
    pixels = np.asarray(drawn.get_array())
    down, across = pixels.shape[0] // 2, pixels.shape[1] // 3
    red, _, blue, _ = np.moveaxis(pixels[::down, ::across], -1, 0)
    expected = found[found["query"] == 2].sort_values("key")["estimate"]
    assert len(expected) == 6
    np.testing.assert_array_equal(np.sign(blue - red).ravel(), np.sign(expected))
    assert "edges to query 2 “cat”" in caption(ax)
    with pytest.raises(SelectionError, match="one stack, but there are"):
        table.draw_image(image)
    plt.close("all")


def test_stacks_are_listed_in_the_order_in_which_they_ran(guessed):
    upside_down = guessed.iloc[::-1]
    for table in (guessed, upside_down):
        with pytest.raises(SelectionError, match=f"there are {ENCODER}, {DECODER}, {CROSS}: "):
            table.draw("layered")


class Captioner(nn.Module):
    """Attends to the patches of an image word by word, all in one module."""

    def __init__(self):
        super().__init__()
        self.see, self.embed = nn.Conv2d(3, 8, 8, 8), nn.Embedding(9, 8)
        self.score, self.cell = nn.Linear(8, 8), nn.GRUCell(16, 8)

    def forward(self, image, words):
        patches = self.see(image).flatten(2).mT
        state, states = patches.mean(1), []
        for word in self.embed(words).unbind(1):
            attention = (self.score(state)[:, None] * patches).sum(-1).softmax(1)
            read = (attention[..., None] * patches).sum(1)
            state = self.cell(torch.cat([word, read], -1), state)
            states.append(state)
        return torch.stack(states, 1)


@pytest.mark.parametrize("layer", [0, "Captioner:0"])
def test_the_only_stack_of_a_run_needs_no_name(layer):
    torch.manual_seed(4)
    model, words = Captioner().eval(), torch.tensor([[0, 3, 5]])
    image, said = torch.rand(1, 3, 16, 24), {"Captioner": {"query": TARGET}}
    cuts = [gattn.Cut(layer, query="cat", key=key) for key in range(6)]
    options = {"model": model, "tokens": said, "grid": (2, 3), "progress": False}
    with torch.no_grad():
        found = gattn.effect(lambda: model(image, words)[0, -1, 0], cuts, **options)
    ax = found.draw_image(image[0].permute(1, 2, 0).numpy())
    assert "edges to query 2 “cat”" in caption(ax)
    (drawn,) = (one for one in ax.images if one.get_gid() == "gattn-patches")
    pixels = np.asarray(drawn.get_array())
    red, _, blue, _ = np.moveaxis(pixels[:: len(pixels) // 2, :: pixels.shape[1] // 3], -1, 0)
    np.testing.assert_array_equal(np.sign(blue - red).ravel(), np.sign(found["effect"]))
    assert set(ticks(found.draw("edits"), "y")) == {f"{n // 3},{n % 3} → cat" for n in range(6)}


def test_rows_of_no_one_stack_among_several_say_so(guessed):
    unnamed = rows(guessed, CROSS, 0)[:5].assign(stack=None)
    with pytest.raises(SelectionError, match=r"do not say which stack.* name one in the edits"):
        unnamed.draw_image(np.zeros((20, 30, 3)), query=0)
