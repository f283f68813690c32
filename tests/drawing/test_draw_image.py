"""Attention over the image that a model read."""

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from meeting import problems
from scenes import attention, cross_head, landscape, picture_trace
from seen import axes, bars, caption, words

import gattn
from gattn import AttentionGraph, AttentionTrace
from gattn.analysis import rollout
from gattn.analysis.reading.results import array
from gattn.drawing import draw_image
from gattn.errors import SelectionError, ShapeError
from gattn.heads.geometry import Grid
from gattn.heads.stack import Stack

HEAD = picture_trace()[1, 2]
DENSE = HEAD.to_dense()


def painted(ax, rows=4, columns=6):
    """The numbers of the patches, as far as their opacity tells them, and where they are seen."""
    (image,) = [one for one in ax.images if one.get_gid() == "gattn-patches"]
    pixels = np.asarray(image.get_array())
    step = pixels.shape[0] // rows
    opacity = pixels[step // 2 :: step, step // 2 :: step, 3]
    low, top = bars(ax)[0].get_ylim()
    low = max(low, 0.0)  # The other side of signed numbers looks alike.
    assert opacity.shape == (rows, columns)
    return np.where(opacity == 0, np.nan, low + (opacity - 0.25) / 0.65 * (top - low))


def boxes(ax):
    return [patch.get_xy() for patch in ax.patches if patch.get_gid() == "gattn-outline"]


def assert_shows(ax, numbers, **shape):
    numbers = np.asarray(numbers)
    atol = np.nanmax(np.abs(numbers)) / 250
    np.testing.assert_allclose(painted(ax, **shape), numbers, atol=atol)


@pytest.mark.parametrize(
    ("least", "begins", "ends", "says"),
    [
        (0.4, 0.0, 1.0, ""),
        (0.55, 0.55, 1.0, "colours run from 0.55 to 1, not from 0"),
        (0.98, 0.98, 1.0, "colours run from 0.98 to 1, not from 0"),
        (0.995, 0.0, 2.0, ""),
        (1.0, 0.0, 2.0, ""),
    ],
)
def test_colours_of_an_even_map_begin_at_its_least_number(least, begins, ends, says):
    numbers = np.linspace(least, 1, 24).reshape(4, 6)
    ax = draw_image(numbers, landscape())
    assert bars(ax)[0].get_ylim() == pytest.approx((begins, ends))
    assert_shows(ax, numbers)
    assert says in words(ax)
    assert ("colours run" in words(ax)) == bool(says)
    given = draw_image(numbers, landscape(), vmax=3.0)
    assert bars(given)[0].get_ylim() == (0, 3)


@pytest.mark.parametrize("sign", [1, -1])
def test_an_even_map_does_not_hide_the_image_and_a_few_equal_numbers_are_strong(sign):
    numbers = np.full((4, 6), sign * 0.3)
    (shown,) = (image for image in draw_image(numbers, landscape()).images if image.get_gid())
    np.testing.assert_allclose(shown.get_array()[..., 3], 0.575, atol=0.002)
    numbers[0, 0] *= -1
    assert bars(draw_image(numbers, landscape()))[0].get_ylim() == (-0.3, 0.3)
    numbers[0, 0] *= -1
    numbers[1:] = np.nan
    (shown,) = (image for image in draw_image(numbers, landscape()).images if image.get_gid())
    np.testing.assert_allclose(shown.get_array()[0, :, 3], 0.9)


@pytest.mark.parametrize(
    ("query", "row", "box"),
    [
        ((2, 4), 1 + 2 * 6 + 4, [(4, 2)]),
        ([2, 4], None, [(3, 0), (1, 0)]),
        (7, 7, [(0, 1)]),
        (-1, 24, [(5, 3)]),
        ("class", 0, []),
        ("3,5", 24, [(5, 3)]),
        (None, 0, []),
    ],
)
def test_each_patch_has_the_attention_that_the_query_gives_it(query, row, box):
    ax = HEAD.draw_image(landscape(), query)
    expected = DENSE[[2, 4]].mean(0) if row is None else DENSE[row]
    assert_shows(ax, expected[1:].reshape(4, 6))
    assert set(boxes(ax)) == set(box)


def test_the_caption_says_which_query_and_how_much_lies_on_the_image():
    ax = HEAD.draw_image(landscape(), (2, 4))
    row = DENSE[17]
    assert ax.get_title() == "layer 1 · head 2"
    expected = f"{100 * row[1:].sum():.0f} % on the image, {100 * row[0]:.1f} % on “class”"
    assert row[0] < 0.0095  # less than 1 % has a digit more
    assert caption(ax) == f"what patch (row 2, column 4) reads: {expected}"


def test_edges_that_were_not_kept_have_no_colour_and_are_counted():
    head = HEAD.keep(gattn.TopK(5))
    ax = head.draw_image(landscape(), (2, 4))
    dense = head.to_dense()[17]
    assert_shows(ax, np.where(dense > 0, dense, np.nan)[1:].reshape(4, 6))
    missing = 100 * (1 - dense.sum())
    assert f"{missing:.0f} % on edges not kept; TopK(5)" in caption(ax)


def test_what_a_sink_takes_is_said():
    rows = len(HEAD.total_mass)
    head = replace(HEAD, sink=np.full(rows, 1.0))
    assert "50 % on the sink" in caption(head.draw_image(landscape(), 3))


def test_by_key_each_patch_has_what_it_gives():
    ax = HEAD.draw_image(landscape(), key=(2, 4))
    assert_shows(ax, DENSE[1:, 17].reshape(4, 6))
    assert caption(ax) == "who reads patch (row 2, column 4)"
    ax = HEAD.draw_image(landscape(), key=0)
    assert_shows(ax, DENSE[1:, 0].reshape(4, 6))


def test_of_several_heads_the_mean_is_shown():
    trace = picture_trace()
    ax = draw_image([trace[0, 1], trace[1, 2]], landscape(), (0, 0))
    mean = (trace[0, 1].to_dense() + trace[1, 2].to_dense())[1] / 2
    assert_shows(ax, mean[1:].reshape(4, 6))
    assert ax.get_title() == "mean of 2 heads"


def test_without_a_class_token_the_mean_of_all_queries_is_shown():
    head = AttentionGraph.from_dense(attention(24, 24)).on_grid(4, 6)
    ax = head.draw_image(landscape())
    assert_shows(ax, head.to_dense().mean(0).reshape(4, 6))
    assert caption(ax).startswith("what all 24 queries read, on average")
    assert not boxes(ax)


def test_text_reads_patches_and_patches_read_text():
    head = cross_head(5, 24).on_grid(4, 6)
    ax = head.draw_image(landscape(), "house")
    assert_shows(ax, head.to_dense()[2].reshape(4, 6))
    assert caption(ax) == "what query 2 “house” reads: 100 % on the image"
    with pytest.raises(SelectionError, match="queries are not patches of a picture"):
        head.draw_image(landscape(), (2, 3))
    turned = AttentionGraph.from_dense(
        attention(24, 5), gattn.TokenGraph.bipartite(24, 5), tokens=list("abcde")
    ).on_grid(4, 6)
    assert_shows(turned.draw_image(landscape(), key="c"), turned.to_dense()[:, 2].reshape(4, 6))
    with pytest.raises(ShapeError, match=r"keys are not patches here, .*draw_image\(image, key="):
        turned.draw_image(landscape(), (2, 3))


def test_windows_lie_where_their_cells_say():
    cells = np.random.default_rng(3).permutation(24)
    head = AttentionGraph.from_dense(attention(24, 24)).on_grid(4, 6, cells=cells)
    expected = np.empty(24)
    expected[cells] = head.to_dense()[int(np.flatnonzero(cells == 8)[0])]
    ax = head.draw_image(landscape(), (1, 2))
    assert_shows(ax, expected.reshape(4, 6))
    assert set(boxes(ax)) == {(2, 1)}


def test_patches_lie_where_the_image_has_them():
    head = AttentionGraph.from_dense(attention(6, 6)).on_grid(
        2, 3, image_size=(32, 48), patch_size=(12, 15)
    )
    ax = head.draw_image(landscape(), 0)
    ground, patches = ax.images
    # In units of patches, the image is 48 / 15 wide and 32 / 12 high; a pixel is square.
    np.testing.assert_allclose(ground.get_extent(), [0, 48 / 15, 32 / 12, 0])
    np.testing.assert_allclose(patches.get_extent(), [0, 3, 2, 0])
    assert ax.get_aspect() == pytest.approx(12 / 15)


def test_rollouts_and_other_results_know_the_grid():
    rolled = rollout(picture_trace())
    ax = rolled.draw_image(landscape(), (1, 3))
    assert_shows(ax, rolled.sel(layer=1, query=10).to_numpy()[1:].reshape(4, 6))
    assert set(boxes(ax)) == {(3, 1)}
    assert caption(ax).startswith("of patch (row 1, column 3); attention stack")
    ax = rolled.sel(layer=0, query=5).draw_image(landscape())
    assert_shows(ax, rolled.sel(layer=0, query=5).to_numpy()[1:].reshape(4, 6))
    some = rolled.isel(key=slice(3, 15))
    expected = np.full(24, np.nan)
    expected[2:14] = some.sel(layer=1, query=0).to_numpy()
    assert_shows(some.draw_image(landscape()), expected.reshape(4, 6))
    ranks = gattn.analysis.pagerank(picture_trace())
    assert_shows(ranks.draw_image(landscape()), ranks.to_numpy()[1, 2, 1:].reshape(4, 6))


def test_results_of_results_know_the_grid():
    rolled = rollout(picture_trace(layers=1), residual=0)
    again = rollout(np.asarray(rolled))
    with pytest.raises(ShapeError, match="does not say which patches"):
        again.draw_image(landscape())
    again = gattn.analysis.pagerank(rolled)
    assert_shows(again.draw_image(landscape()), again.to_numpy()[0, 0, 1:].reshape(4, 6))


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_arrays_take_a_grid(kind):
    numbers = np.arange(24.0).reshape(4, 6)
    assert_shows(draw_image(kind(numbers), landscape()), numbers)
    tokens = np.concatenate([[9.0], numbers.ravel()])
    assert_shows(draw_image(kind(tokens), landscape(), grid=(4, 6)), numbers)
    matrix = attention(25, 25)
    ax = draw_image(kind(matrix), landscape(), (0, 2), grid=(4, 6))
    assert_shows(ax, matrix[3, 1:].reshape(4, 6))


def test_negative_numbers_have_colours_around_zero():
    numbers = np.linspace(-2, 1, 24).reshape(4, 6)
    ax = draw_image(numbers, landscape())
    assert bars(ax)[0].get_ylim() == (-2, 2)
    np.testing.assert_allclose(painted(ax), np.abs(numbers), atol=2 / 120)


def test_colours_end_where_told_and_the_caption_counts_what_is_beyond():
    ax = HEAD.draw_image(landscape(), 3, vmax=float(np.sort(DENSE[3, 1:])[-3]))
    assert "2 patches are above" in caption(ax)
    with pytest.raises(SelectionError, match="vmax is the end of the scale"):
        HEAD.draw_image(landscape(), 3, vmax=0)


def test_smoothed_negative_numbers_are_within_dashed_lines_in_place_of_marked_blocks():
    values = np.full((4, 6), 1.0)
    values[1:3, 1:5] = -1.0
    grid = Grid.regular(4, 6, 24)
    signed = array(
        values.ravel(), {"token": range(24)}, name="effect", computed_from="",
        geometry={"token": grid},
    )  # fmt: skip
    ax = signed.draw_image(landscape(), smooth=True)
    assert "within dashed lines: negative, below −0.05" in caption(ax)
    assert "marked" not in caption(ax)
    lines = [one for one in ax.collections if one.get_gid() == "gattn-negative"]
    assert len(lines) == 2
    for x, y in lines[0].get_paths()[0].vertices:  # where numbers between middles cross the level
        inside = min(x - 1.5, 4.5 - x) if 1.5 < y < 2.5 else min(y - 1.5, 2.5 - y)
        assert -1.0 <= inside <= 0.6
    marked = signed.draw_image(landscape())
    assert "marked −: below" in caption(marked)


def test_smoothing_keeps_the_numbers_in_the_middle_of_patches_and_is_said():
    ax = HEAD.draw_image(landscape(), 3, smooth=True)
    assert caption(ax).endswith("smoothed")
    assert_shows(ax, DENSE[3, 1:].reshape(4, 6))


def test_other_numbers_of_edges_are_drawn():
    head = AttentionGraph.from_dense(attention(24, 24)).on_grid(4, 6)
    head = replace(head, score=np.log(head.attention) + 20)
    ax = head.draw_image(landscape(), 3, values="score")
    assert_shows(ax, np.log(head.to_dense()[3]).reshape(4, 6) + 20)
    assert caption(ax).startswith("what patch (row 0, column 3) reads; colours run from 12 to ")
    with pytest.raises(SelectionError, match="no contribution"):
        head.draw_image(landscape(), 3, values="contribution")


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"query": (4, 0)}, SelectionError, "rows are 0 .. 3, columns 0 .. 5"),
        ({"query": (0, -1)}, SelectionError, "is no patch"),
        ({"query": 25}, SelectionError, "0 .. 24"),
        ({"query": "sky"}, SelectionError, "No query 'sky'"),
        ({"query": []}, SelectionError, "list is empty"),
        ({"query": 0, "key": 0}, SelectionError, "not both"),
        ({"query": 1.5}, SelectionError, "position"),
        ({"grid": (3, 3)}, ShapeError, "9 or 10 tokens, but there are 25"),
        ({"grid": 5}, ShapeError, "grid is .rows, columns."),
        ({"cmap": "nice"}, SelectionError, "No colours 'nice'"),
        ({"fit": "squeeze"}, ShapeError, "fit is 'stretch' or 'crop'"),
        ({"values": "weight"}, SelectionError, "values is one of"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, error, said):
    with pytest.raises(error, match=said):
        HEAD.draw_image(landscape(), **options)


def test_large_images_are_refused_by_their_own_size_and_drawn_with_fewer_pixels():
    with pytest.raises(ShapeError, match="1500 × 3000 pixels"):
        HEAD.draw_image(np.zeros((1500, 3000)), 3)
    ax = HEAD.draw_image(np.zeros((1500, 2250)), 3)
    assert max(ax.images[0].get_array().shape) <= 1024
    assert_shows(ax, DENSE[3, 1:].reshape(4, 6))


def test_heads_that_do_not_know_their_patches_say_how_to_tell_them():
    head = AttentionGraph.from_dense(attention(25, 25))
    with pytest.raises(ShapeError, match=r"head.on_grid\(14, 14, prefix=1\)"):
        head.draw_image(landscape())
    assert_shows(
        head.draw_image(landscape(), (0, 0), grid=(4, 6)), head.to_dense()[1, 1:].reshape(4, 6)
    )
    with pytest.raises(SelectionError, match="different tokens"):
        draw_image([head, HEAD], landscape(), grid=(4, 6))
    with pytest.raises(SelectionError, match="one number per token"):
        draw_image("head", landscape())


def panels(figure):
    """The painted parts of a sheet, by their place."""
    (sheet,) = [ax for ax in figure.axes if ax.get_gid() == "gattn-sheet"]
    shown = [image for image in sheet.images if np.asarray(image.get_array()).shape[-1] == 4]
    return [(image.get_extent(), np.asarray(image.get_array())) for image in shown]


def numbers_of(pixels, top):
    step = pixels.shape[0] // 4
    opacity = pixels[step // 2 :: step, step // 2 :: step, 3]
    return (opacity - 0.25) / 0.65 * top


def words_of(figure):
    return [text.get_text() for ax in figure.axes for text in ax.texts]


def test_all_heads_stand_in_layers_and_share_their_colours():
    trace = picture_trace()
    figure = trace.draw_image(landscape(), (2, 4))
    found = panels(figure)
    dense = np.array([[trace[n, h].to_dense()[17, 1:] for h in range(3)] for n in range(2)])
    for (_, pixels), expected in zip(found, dense.reshape(6, 4, 6), strict=True):
        np.testing.assert_allclose(
            numbers_of(pixels, dense.max()), expected, atol=dense.max() / 250
        )
    assert {extent[0] for extent, _ in found} == {extent[0] for extent, _ in found[:3]}
    said = words_of(figure)
    assert {"head 0", "head 2", "layer 0", "layer 1"} <= set(said)
    shares = 100 * dense.sum(-1)
    expected = f"what patch (row 2, column 4) reads; {shares.min():.0f} % to {shares.max():.0f} %"
    assert any(text.replace("\n", " ").startswith(expected) for text in said)


@pytest.mark.parametrize("size", [(32, 200), (200, 32), (32, 32)])
def test_panels_have_the_shape_of_the_image_on_any_figure(size):
    trace = picture_trace().on_grid(4, 6, prefix=1)
    for figure in (None, Figure(figsize=(6, 6))):
        figure = trace.draw_image(landscape(*size), fit="stretch", figure=figure)
        for (left, right, low, high), _ in panels(figure):
            assert (high - low) / (right - left) == pytest.approx(size[0] / size[1])


@pytest.mark.parametrize(("strong", "is_pale"), [(0.9, True), (0.1, False)])
def test_a_strong_patch_that_pales_the_other_heads_is_told_and_how_to_see_them(strong, is_pale):
    """One head reads one patch; each of the others reads all evenly, 0.04 of each of 25."""
    found = np.full((2, 3, 25, 25), 1 / 25)
    found[0, 0] = (1 - strong) / 24
    found[0, 0, :, 7] = strong
    trace = AttentionTrace.from_arrays(found).on_grid(4, 6, image_size=(32, 48))
    said = " ".join(words_of(trace.draw_image(landscape(), query=(1, 2))))
    said = " ".join(said.split())
    assert ("no patch above 0.04: see them with vmax=0.04" in said) == is_pale
    bright = trace.draw_image(landscape(), query=(1, 2), vmax=0.04)
    assert "pale" not in " ".join(words_of(bright))


def test_chosen_heads_stand_after_the_image():
    figure = picture_trace().draw_image(landscape(), heads="1.2,0.1")
    (sheet,) = [ax for ax in figure.axes if ax.get_gid() == "gattn-sheet"]
    np.testing.assert_allclose(sheet.images[0].get_array(), landscape())
    assert {"image", "layer 1 · head 2", "layer 0 · head 1"} <= {
        text.replace("\n", " ") for text in words_of(figure)
    }


def test_several_queries_have_a_column_each():
    trace = picture_trace()
    figure = trace.draw_image(landscape(), [(2, 4), "class", 3], heads="1.2,0.1")
    found = panels(figure)
    assert len(found) == 6
    rows = [trace[place].to_dense()[q, 1:] for place in ((1, 2), (0, 1)) for q in (17, 0, 3)]
    for (_, pixels), row in zip(found, rows, strict=True):
        expected = row.reshape(4, 6)
        np.testing.assert_allclose(
            numbers_of(pixels, np.max(rows)), expected, atol=np.max(rows) / 250
        )
    assert {"(2, 4)", "class", "(0, 2)", "1.2", "0.1"} <= set(words_of(figure))


def test_of_a_trace_with_several_stacks_the_one_on_a_grid_is_drawn():
    trace = picture_trace()
    other = Stack("text", {(0, 0): AttentionGraph.from_dense(attention(3, 3))})
    both = AttentionTrace({"text": other, "vision": trace.only_stack})
    assert len(panels(both.draw_image(landscape()))) == 6
    with pytest.raises(ShapeError, match="not known which patches"):
        both.draw_image(landscape(), stack="text")


class Block(torch.nn.Module):
    """Attention of two heads over patches, as a vision transformer has it."""

    def __init__(self) -> None:
        super().__init__()
        self.query_key_value = torch.nn.Linear(8, 24)

    def parts(self, tokens):
        return self.query_key_value(tokens).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)

    def forward(self, tokens):
        mixed = torch.nn.functional.scaled_dot_product_attention(*self.parts(tokens))
        return tokens + mixed.transpose(1, 2).flatten(2)


def test_a_vision_transformer_is_drawn_over_the_image_that_it_read():
    torch.manual_seed(0)
    embed, block = torch.nn.Conv2d(3, 8, 8, 8), Block()
    model = torch.nn.Sequential(embed, torch.nn.Flatten(2), Swapped(), block).eval()
    image = torch.tensor(landscape()).permute(2, 0, 1)[None].float()
    with gattn.capturing(model, grid=(4, 6)) as run:
        model(image)
    with torch.no_grad():
        query, key, _ = block.parts(embed(image).flatten(2).transpose(1, 2))
        expected = (query @ key.transpose(-1, -2) / 2).softmax(-1)[0, 1, 2 * 6 + 4]
    ax = run.trace[0, 1].draw_image(image, (2, 4))
    assert_shows(ax, expected.reshape(4, 6))
    assert set(boxes(ax)) == {(4, 2)}


def in_reading_order(figure):
    return sorted(panels(figure), key=lambda one: (-round(one[0][3], 3), one[0][0]))


@pytest.mark.parametrize(("inches", "columns"), [((3.3, 3.3), 3), ((6.75, 2.0), 6), (None, 6)])
def test_queries_of_one_head_follow_one_another_in_rows(inches, columns):
    trace, asked = picture_trace(), list(range(12))
    with plt.rc_context({"font.size": 7}):
        figure = trace.draw_image(landscape(), asked, heads="1.2", figsize=inches)
    found, rows = in_reading_order(figure), trace[1, 2].to_dense()[:12, 1:]
    for (_, pixels), row in zip(found, rows, strict=True):
        expected = row.reshape(4, 6)
        np.testing.assert_allclose(numbers_of(pixels, rows.max()), expected, atol=rows.max() / 250)
    assert len({round(extent[0], 3) for extent, _ in found}) == columns
    assert min(right - left for (left, right, _, _), _ in found) > 0.75
    assert not problems(figure)
    plt.close(figure)


@pytest.mark.parametrize(("inches", "are_rows"), [((3.3, 3.3), True), ((6.75, 3.0), False)])
def test_queries_are_rows_where_images_are_larger_so(inches, are_rows):
    trace, asked, places = picture_trace(), [0, 4, 9, 17, 23], [(0, 1), (1, 2), (1, 0)]
    figure = trace.draw_image(landscape(), asked, heads=places, figsize=inches)
    rows = np.array([[trace[place].to_dense()[q, 1:] for q in asked] for place in places])
    rows = rows.swapaxes(0, 1) if are_rows else rows
    for (_, pixels), row in zip(in_reading_order(figure), rows.reshape(15, 4, 6), strict=True):
        np.testing.assert_allclose(numbers_of(pixels, rows.max()), row, atol=rows.max() / 250)
    (sheet,) = [ax for ax in figure.axes if ax.get_gid() == "gattn-sheet"]
    aside = {text.get_text() for text in sheet.texts if text.get_ha() == "right"}
    named = {"class", "(0, 3)", "(1, 2)", "(2, 4)", "(3, 4)"}
    assert aside == (named if are_rows else {"0.1", "1.2", "1.0"})
    plt.close(figure)


class Swapped(torch.nn.Module):
    def forward(self, tokens):
        return tokens.transpose(1, 2)


def test_too_many_panels_or_too_small_a_figure_are_refused():
    trace = picture_trace()
    with pytest.raises(SelectionError, match="612 panels are too many"):
        trace.draw_image(landscape(), [0] * 102)
    with pytest.raises(ShapeError, match="no room"):
        trace.draw_image(landscape(), figure=Figure(figsize=(1.2, 1)))
    with pytest.raises(SelectionError, match="list is empty"):
        trace.draw_image(landscape(), [])


def test_texts_stay_on_small_figures():
    with plt.rc_context({"font.size": 7}):
        figure = Figure(figsize=(3.3, 2.6))
        picture_trace().draw_image(landscape(), (2, 4), figure=figure)
        figure.draw_without_rendering()
        page = figure.bbox
        for ax in figure.axes:
            for text in ax.texts:
                box = text.get_window_extent()
                assert page.x0 <= box.x0 <= box.x1 <= page.x1, text.get_text()
                assert page.y0 <= box.y0 <= box.y1 <= page.y1, text.get_text()


def test_it_is_drawn_on_axes_of_ones_own():
    ax = axes()
    assert HEAD.draw_image(landscape(), ax=ax, legend=False) is ax
    assert not bars(ax)


def test_panels_of_several_queries_say_what_they_show():
    said = [
        words(picture_trace().draw_image(landscape(), **asked).axes[0])
        for asked in ({"query": [(1, 2), (2, 3)]}, {"key": [(1, 2), (2, 3)]}, {"query": (1, 2)})
    ]
    assert "what each query reads; " in said[0]
    assert "who reads each key" in said[1]
    assert "what patch (row 1, column 2) reads; " in said[2]


def test_the_heads_of_one_layer_fill_a_figure_in_rows():
    one = picture_trace(layers=1, heads=4)
    figure = one.draw_image(landscape(), figsize=(3.3, 3))
    wide = [image.get_extent()[1] - image.get_extent()[0] for image in figure.axes[0].images]
    assert min(wide) > 0.9
    assert {f"head {n}" for n in range(4)} <= {text.get_text() for text in figure.axes[0].texts}


def test_144_heads_have_room_over_an_image_in_a_column_of_a_paper():
    with gattn.style("paper"):
        heads = picture_trace(layers=12, heads=12)
        figure = heads.draw_image(landscape(), figsize=(3.3, 3.3))
        assert not problems(figure)
        assert {"head", "11", "layer 11"} <= {text.get_text() for text in figure.axes[0].texts}
        with pytest.raises(ShapeError, match=r"give one of about \d\.\d × \d\.\d") as told:
            heads.draw_image(landscape(), figsize=(2, 2))
        size = [
            float(side) for side in str(told.value).split("about ")[1].split(",")[0].split(" × ")
        ]
        heads.draw_image(landscape(), figsize=[side + 0.1 for side in size])


@pytest.mark.parametrize("layout", ["matrix", "arcs", "circle"])
def test_captions_say_what_the_numbers_in_names_of_patches_are(layout):
    trace, said = picture_trace(), "patches are named row,column"
    head = trace[1, 2]
    assert "1,3" in head.labels()
    assert said in caption(head.draw(layout, figsize=(8, 6)))
    assert "named" not in caption(head.draw(layout, figsize=(8, 6), labels=False))
    renamed = replace(head, tokens=tuple(f"t{n}" for n in range(25)))
    assert "named" not in caption(renamed.draw(layout, figsize=(8, 6)))
    strip = trace.draw(heads=[(1, 2)], figsize=(8, 6))
    (below,) = [t for t in strip.axes[0].texts if t.get_gid() == "gattn-caption"]
    assert said in " ".join(below.get_text().split())
    plt.close("all")
