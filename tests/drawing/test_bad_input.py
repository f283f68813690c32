"""What no picture can be drawn or saved with is refused, and nothing is left half written."""

from inspect import signature

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image as Pil
from sample_heads import causal_head, small_trace
from scenes import landscape, picture_trace

import gattn
from gattn.errors import FileError, OptionError, SelectionError, ShapeError

NO_SIZES = [np.inf, np.nan, 0, -1.5, "1", True, [], 10**400, 1e308, 1e-320]
DRAW = {
    "arcs": lambda **options: causal_head(5).draw("arcs", **options),
    "circle": lambda **options: causal_head(5).draw("circle", **options),
    "matrix": lambda **options: causal_head(5).draw("matrix", **options),
    "overlay": lambda **options: small_trace().draw_overlay(heads="0.1,2.3", **options),
}
DRAW_BY_SCALE = DRAW | {
    "all heads": small_trace().draw,
    "image": lambda **options: picture_trace()[0, 0].draw_image(landscape(), **options),
    "images": lambda **options: picture_trace().draw_image(landscape(), **options),
    "time": lambda **options: times().draw_time(**options),
}


def times():
    return gattn.AttentionTrace.from_arrays(np.full((1, 1, 4, 4), 0.25)).at_times(0.1)[0, 0]


@pytest.mark.parametrize("size", NO_SIZES, ids=lambda size: f"{size!r:.9}")
@pytest.mark.parametrize("draw", DRAW_BY_SCALE)
def test_the_end_of_a_scale_is_a_number_above_0(draw, size):
    with pytest.raises(SelectionError, match=r"vmax is the end of the scale, a number above 0"):
        DRAW_BY_SCALE[draw](vmax=size)


@pytest.mark.parametrize("size", NO_SIZES, ids=lambda size: f"{size!r:.9}")
@pytest.mark.parametrize("draw", sorted({*DRAW} - {"matrix"}))
def test_a_line_has_a_width_above_0(draw, size):
    with pytest.raises(SelectionError, match=r"linewidth is the width .*, a number above 0"):
        DRAW[draw](linewidth=size)


@pytest.mark.parametrize("size", [1e-20, 1e20])
@pytest.mark.parametrize(
    ("draw", "name"),
    [(draw, name) for draw in DRAW for name in ("vmax", "linewidth")[: 1 + (draw != "matrix")]],
)
def test_the_least_and_largest_sizes_are_drawn(tmp_path, draw, name, size):
    DRAW[draw](**{name: size}).figure.savefig(tmp_path / "head.png")


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("none/head.pdf", r"Cannot write head\.pdf: the folder .*none does not exist\. Make the"),
        ("head.xyz", r"head\.xyz: matplotlib writes no files of the kind 'xyz'; name it \.pdf"),
        ("folder.pdf", r"Cannot write folder\.pdf: .*folder\.pdf is a folder\. Save elsewhere"),
        ("head\0.pdf", "it contains a NUL"),
    ],
)
@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_a_figure_is_saved_to_no_such_file(tmp_path, name, match, kind):
    (tmp_path / "folder.pdf").mkdir()
    figure = causal_head(3).draw().figure
    with pytest.raises(FileError, match=match):
        figure.savefig(kind(tmp_path / name))
    assert [path.name for path in tmp_path.iterdir()] == ["folder.pdf"]


def test_a_figure_that_cannot_be_drawn_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    figure = causal_head(3).draw().figure
    (tmp_path / "head.pdf").write_text("before")
    ax = figure.axes[0]
    monkeypatch.setattr(ax.texts[-1], "draw", lambda renderer: [][0])
    for name in ("head.pdf", "head.svg"):
        with pytest.raises(IndexError):
            figure.savefig(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["head.pdf"]
    assert (tmp_path / "head.pdf").read_text() == "before"


@pytest.mark.parametrize(
    ("name", "options", "found", "begins"),
    [
        ("head", {}, "head.png", b"\x89PNG"),
        ("head.", {}, "head.png", b"\x89PNG"),
        ("head.PDF", {}, "head.PDF", b"%PDF"),
        ("head.png", {"format": "pdf"}, "head.png", b"%PDF"),
        ("head", {"format": "pdf"}, "head", b"%PDF"),
    ],
)
def test_files_have_the_names_that_matplotlib_gives(tmp_path, name, options, found, begins):
    plain = plt.figure()
    for folder, figure in (("gattn", causal_head(3).draw().figure), ("plain", plain)):
        (tmp_path / folder).mkdir()
        figure.savefig(f"{tmp_path / folder}/{name}", **options)
        assert [path.name for path in (tmp_path / folder).iterdir()] == [found]
        assert (tmp_path / folder / found).read_bytes().startswith(begins)


def test_a_file_that_is_no_image(tmp_path):
    Pil.effect_noise((60, 40), 50).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:500])
    (tmp_path / "text.png").write_text("text")
    said = {
        "none.png": "No such file or directory",
        "text.png": "it is of no format that PIL knows",
        "cut.png": "file is truncated",
        "": "Is a directory",
        "a\0.png": "null byte",
    }
    for name, reason in said.items():
        way_out = r"Pass the path of an image, such as a PNG or JPEG file, or its pixels"
        with pytest.raises(FileError, match=rf"cannot be read as an image: .*{reason}\. {way_out}"):
            picture_trace()[0, 0].draw_image(tmp_path / name if name else str(tmp_path))


@pytest.mark.parametrize(
    ("image", "kind"), [(None, "NoneType"), ({}, "dict"), (5, "int"), (b"bytes", "bytes")]
)
def test_what_is_no_image_is_named_by_its_type(image, kind):
    with pytest.raises(ShapeError, match=rf"image must be a PIL image, .* or a path, not {kind}\."):
        picture_trace()[0, 0].draw_image(image)


@pytest.mark.parametrize("draw", [*DRAW.values(), gattn.TokenGraph.causal(4).draw])
@pytest.mark.parametrize("name", ["title", "caption", "ax", "self_loops", "labels", "legend"])
def test_options_of_another_type_are_refused(draw, name):
    value = {"title": 3, "caption": ["a"], "ax": plt.figure()}.get(name, "no")
    with pytest.raises((OptionError, SelectionError), match=f"{name}( is .*, not |=)"):
        draw(**{name: value})


NAMES = [name for name in gattn.drawing.__all__ if name.startswith("draw_")]
"""All functions that draw, which methods call."""
TYPED = [
    (name, option)
    for name in NAMES
    for option in ("title", "ax", "figure", "labels", "legend")
    if option in signature(getattr(gattn.drawing, name)).parameters
]


@pytest.mark.parametrize(("name", "option"), TYPED)
def test_functions_refuse_options_of_another_type_before_all_else(name, option):
    with pytest.raises(SelectionError, match=f"^{option} is .*, not "):
        getattr(gattn.drawing, name)(None, **{option: object()})


def test_each_function_has_an_option_with_a_type():
    assert {name for name, _ in TYPED} == set(NAMES)


def test_a_figure_for_many_heads_is_no_axes():
    with pytest.raises(SelectionError, match="figure is matplotlib's figure"):
        small_trace().draw(figure=plt.subplots()[1])


def test_places_that_are_no_numbers_are_named():
    with pytest.raises(SelectionError, match="two finite numbers, not 'ab'"):
        causal_head(5).draw(dict.fromkeys(range(5), "ab"))
