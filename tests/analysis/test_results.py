import io
from contextlib import redirect_stderr
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import gattn.analysis
from gattn.analysis.reading.results import Array, Table, array
from gattn.errors import SelectionError
from gattn.progress import walk

TOKENS = ["$a_1$", "b\n", "c" * 50]


@pytest.fixture
def values():
    numbers = np.arange(18.0).reshape(2, 3, 3)
    axes = {"layer": [0, 1], "query": [0, 1, 2], "key": [0, 1, 2]}
    return array(
        numbers,
        axes,
        name="rollout",
        computed_from="a toy",
        notes=["mind the gap"],
        tokens={"query": TOKENS, "key": TOKENS},
    )


@pytest.fixture
def heads():
    rows = {
        "layer": [0, 0, 1],
        "head": [0, 1, 0],
        "entropy": [0.5, np.nan, 2],
        "label": list("abc"),
    }
    return Table.of(
        rows, name="heads", computed_from="a toy", notes=["mind"], index=["layer", "head"]
    )


def test_an_array_keeps_what_it_is_through_selection_and_means(values):
    for part in (values.sel(layer=1), values.mean("layer"), values.isel(query=[0, 1])):
        assert isinstance(part, Array)
        assert part.computed_from == "a toy"
        assert part.notes == ["mind the gap"]
    assert float(values.sel(layer=1, query=2, key=0)) == 15
    assert list(values.to_dataframe()["key_token"].unique()) == TOKENS


def test_a_table_keeps_what_it_is_through_selection(heads):
    for part in (heads.loc[[0]], heads[["entropy"]], heads.sort_values("entropy")):
        assert isinstance(part, Table)
        assert part.computed_from == "a toy"
        assert part.notes == ["mind"]
    assert heads.loc[(1, 0), "entropy"] == 2


def test_a_line_has_a_point_for_each_value(values):
    ax = values.sel(layer=0, query=1).draw()
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), [3, 4, 5])
    ax.figure.savefig(io.BytesIO())
    assert ax.get_title().startswith("rollout")
    assert ax.get_ylabel() == "rollout"


def test_a_matrix_shows_its_numbers_and_the_last_layer_is_named(values):
    ax = values.draw()
    np.testing.assert_array_equal(ax.images[0].get_array(), values[1])
    assert ax.get_title() == "rollout · layer 1"
    assert any("a toy; mind the gap" in text.get_text() for text in ax.texts)
    assert next(label.get_text() for label in ax.get_yticklabels()) == "$a_1$"
    ax.figure.savefig(io.BytesIO())
    mine = plt.figure().add_subplot()
    assert values.sel(layer=0).draw(ax=mine) is mine
    plt.close("all")


def test_negative_numbers_are_drawn_around_zero(values):
    norm = (values - 4).sel(layer=0).draw().images[0].norm
    assert (norm.vmin, norm.vmax) == (-4, 4)


def test_a_table_writes_its_numbers(heads):
    ax = heads.draw()
    written = [text.get_text() for text in ax.texts]
    assert {"0.50", "2.00"} <= set(written)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0.0", "0.1", "1.0"]
    ax.figure.savefig(io.BytesIO())


def test_nothing_is_no_picture(values, heads):
    for empty in (values[:0], heads[["label"]], heads.iloc[:0]):
        with pytest.raises(SelectionError, match="nothing to draw"):
            empty.draw()


def test_every_analysis_is_there_and_none_has_the_name_of_a_folder():
    folders = {path.parent.name for path in Path(gattn.analysis.__file__).parent.glob("*/*.py")}
    for name in gattn.analysis.__all__:
        assert callable(getattr(gattn.analysis, name)), name
        assert name not in folders
    assert not hasattr(gattn.analysis, "clairvoyance")


def test_walking_says_first_what_it_will_take(monkeypatch):
    clock = iter([0.0, 2.0])
    monkeypatch.setattr("gattn.progress.time.perf_counter", lambda: next(clock))
    stream = io.StringIO()
    with redirect_stderr(stream):
        assert list(walk(range(30), "flow", "target", fewer="choose some")) == list(range(30))
    assert "flow: 30 x target, about 60 s; choose some" in stream.getvalue()


def test_quick_walks_are_silent(capsys):
    assert list(walk([1, 2], "flow", "target", fewer="choose some")) == [1, 2]
    assert list(walk([], "flow", "target")) == []
    assert capsys.readouterr().err == ""


def test_a_table_is_a_data_frame(heads):
    assert isinstance(heads, pd.DataFrame)
    assert heads["entropy"].mean() == 1.25


def test_a_title_of_ones_own_takes_the_place_of_notes(values):
    ax = values.draw(title="mine")
    assert ax.get_title() == "mine"
    assert not any(text.get_text() for text in ax.texts)


def test_a_place_is_drawn_by_name(values):
    ax = values.draw(layer=0, query=1)
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), [3, 4, 5])
    assert "layer 0" in values.draw(layer=0).get_title()
    with pytest.raises(SelectionError, match=r"no \{'layer': 7\}"):
        values.draw(layer=7)


def test_the_example_of_a_new_analysis_runs():
    lines = gattn.analysis.__doc__.partition("::\n")[2].splitlines()
    example = "\n".join(line.removeprefix("    ") for line in lines if line.startswith("    "))
    names = {}
    exec(example, names)
    attention = np.array([[1.0, 0], [0.5, 0.5]])
    found = names["received"](attention)
    np.testing.assert_array_equal(found, [[[1.5, 0.5]]])
    assert found.computed_from == "an array of layer 0, head 0, 2 tokens"
