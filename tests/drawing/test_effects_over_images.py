"""Effects and estimates of edits of patches, over the picture that the model read."""

import numpy as np
import pytest
from scenes import landscape
from seen import caption

import gattn
from gattn.edit_records import to_text
from gattn.errors import SelectionError, ShapeError
from gattn.models.effects.effect_tables import Effects

ROWS, COLUMNS = 4, 6
CUT, SCALE = gattn.Cut(layer=1, key=3), gattn.Scale(5.0, layer=0, key=9)
TOKENS = ["class", *(f"{row},{column}" for row in range(ROWS) for column in range(COLUMNS))]


def table(rows, column="effect"):
    found = Effects(rows).astype(dict.fromkeys(("layer", "head", "query", "key"), "Int64"))
    found["effect"] = np.random.default_rng(0).normal(size=len(rows))
    if column == "estimate":
        found["estimate"], found["effect"] = found["effect"], np.nan
    found.attrs = {"metric": "probability of class 1", "tokens": TOKENS}
    return found


def edits(queries, keys, heads=((1, 0),), **options):
    rows = [
        {"kind": "Cut", "stack": "blocks", "layer": layer, "head": head, "query": query, "key": key}
        for layer, head in heads
        for query in queries
        for key in keys
    ]
    return table(rows, **options)


def patches(ax):
    """Return which patches have a colour, and the sign of each by it."""
    (image,) = (image for image in ax.images if image.get_gid() == "gattn-patches")
    pixels = np.asarray(image.get_array())
    down, across = (
        size // count for size, count in zip(pixels.shape, (ROWS, COLUMNS), strict=False)
    )
    red, _, blue, opacity = np.moveaxis(pixels[::down, ::across], -1, 0)
    return opacity > 0, np.sign(np.round(blue - red, 6))


def test_each_patch_has_the_effect_of_its_own_edit():
    places = [0, 1, 8, 24]
    found = edits([None], places, heads=[(1, None)])
    ax = found.draw_image(landscape())
    has, sign = patches(ax)
    wanted = np.zeros(len(TOKENS))
    wanted[places] = np.sign(found["effect"])
    assert np.array_equal(has.ravel(), wanted[1:] != 0)
    assert np.array_equal(sign[has], wanted[1:][has.ravel()])
    assert any("change in probability of class 1" in one.get_ylabel() for one in ax.child_axes)


@pytest.mark.parametrize("column", ["effect", "estimate"])
def test_edges_are_those_of_one_query_or_of_one_key(column):
    found = edits([2, 9], range(25), column=column)
    number = found.set_index(["query", "key"])[column]
    ax = found.draw_image(landscape(), query=(0, 1))
    assert np.array_equal(patches(ax)[1].ravel(), np.sign(number.loc[2].to_numpy()[1:]))
    assert "edges to patch (row 0, column 1)" in caption(ax)
    assert ax.get_title() == "blocks · layer 1 · head 0 · cutting edges"
    ax = found.draw_image(landscape(), key="class")
    has, sign = patches(ax)
    assert np.argwhere(has.ravel()).ravel().tolist() == [1, 8]
    assert np.array_equal(sign[has], np.sign(number.xs(0, level="key").to_numpy()))
    assert "edges from key 0 “class”" in caption(ax)
    alone = found[found["query"] == 9].draw_image(landscape())
    assert "edges to patch (row 1, column 2)" in caption(alone)


def test_titles_and_captions_over_images_name_places_kinds_and_what_is_no_patch():
    ax = edits([None], [3, 9], heads=[(1, None)]).draw_image(landscape())
    assert ax.get_title() == "blocks · layer 1 · cutting edges from tokens"
    assert "layers" not in caption(ax)
    assert "no patch" not in caption(ax)
    ax = edits([None], [0, 9], heads=[(1, 0)]).draw_image(landscape())
    assert ax.get_title() == "blocks · layer 1 · head 0 · cutting edges from tokens"
    assert "1 of 2 edits is of no patch" in caption(ax)
    apart = edits([None], [3, 9], heads=[(1, None)])
    apart.loc[1, "layer"] = 0
    apart["edit"] = [str(one) for one in (CUT, SCALE)]
    apart["record"] = [to_text([one]) for one in (CUT, SCALE)]
    apart["kind"] = ["Cut", "Scale"]
    ax = apart.draw_image(landscape())
    assert ax.get_title() == "blocks · edits of edges from tokens"
    assert "edits of several kinds: Cut, Scale (factor 5.0)" in caption(ax)
    assert "edits of several heads or layers: layer 1, layer 0" in caption(ax)


def test_what_has_no_one_number_per_patch_is_refused():
    several = edits([2, 9], range(25), heads=[(1, 0), (1, 1)])
    for found, options, said in (
        (several, {"query": (0, 1)}, "several edits are of the same one"),
        (several, {}, "pass query="),
        (edits([2], [3]), {"query": 5}, "no edits of edges to patch"),
        (edits([2], [3]), {"query": [1, 2]}, "of one query, not 2"),
        (edits([2], [3]), {"query": 1, "key": 2}, "Give a query or a key, not both"),
        (edits([None], [3]), {"key": 3}, "edits of all edges of a token: leave out key="),
        (edits([None], [None]), {}, "edits of one token or one edge each"),
    ):
        with pytest.raises(SelectionError, match=said):
            found.draw_image(landscape(), **options)
    words = edits([2], [3])
    words.attrs["tokens"] = [f"word{n}" for n in range(25)]
    with pytest.raises(ShapeError, match="does not say which patches its tokens are"):
        words.draw_image(landscape())
    assert words.draw_image(landscape(), grid=(ROWS, COLUMNS)).images
