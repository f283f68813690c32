"""What no page can be made of is refused: the error says what to give."""

import numpy as np
import pytest
from samples import trace_of, words

import gattn
from gattn.drawing import page_bytes, to_payload, write_component
from gattn.drawing.page import to_html
from gattn.errors import FileError, SelectionError, ShapeError

NO_PATHS = [3, True, b"page.html", ["page.html"], {}]


@pytest.fixture(scope="module")
def trace():
    return trace_of(words(5))


@pytest.mark.parametrize("path", NO_PATHS, ids=repr)
def test_a_path_is_text_or_a_path(path, trace):
    said = r"A path must be a str or a pathlib.Path, such as '{}', not "
    ways = {
        "attention.html": [trace.to_html, trace[0, 1].to_html, lambda path: to_html([trace], path)],
        "attention.json": [lambda path: to_payload(trace, path)],
        "gattn-view": [write_component],
        "lamp.gattn": [trace.save, trace[0, 1].save, gattn.load],
        "survey": [gattn.open_survey],
    }
    for example, several in ways.items():
        for write in several:
            with pytest.raises(FileError, match=said.format(example)):
                write(path)


def test_a_path_is_looked_at_before_a_page_is_made(trace, monkeypatch):
    from gattn.drawing.page import page

    monkeypatch.setattr(page, "_packed", lambda *_, **__: pytest.fail("it was made"))
    with pytest.raises(FileError, match="A path must be"):
        trace.to_html(3)


def test_a_survey_is_written_to_a_path():
    with pytest.raises(FileError, match="such as 'survey', not 3"):
        gattn.survey(["a b a"], out=3, progress=False)


@pytest.mark.parametrize("first", ["page.html", None])
def test_a_trace_for_a_path_is_told_where_it_goes(first, trace):
    with pytest.raises(SelectionError, match="pass a second run as other=, or several runs as"):
        to_html(trace if first is None else first, trace)


@pytest.mark.parametrize("given", [3, None, "text", iter([])])
def test_a_page_is_of_traces_and_heads(given, trace):
    with pytest.raises(SelectionError, match="shows a trace or a head, or several in a list"):
        to_html(given)
    if given is not None:
        with pytest.raises(SelectionError, match="other= is a second run on the same tokens"):
            trace.to_html(other=given)


WRONG = {
    "edits": (3, "edits= says in words what was edited, .* not 3: leave it out"),
    "fit": ("crop", "fit='crop' says how an image became .*: pass image="),
    "why": ([3], "why= takes what gattn.why returns, .* not 3"),
    "spans": ([3], r"as in spans=\[\(0, 5\), \(5, 9\)\], not 3"),
    "colour": ({"a": 3}, r"several such arrays by name, not \(\) as 'a'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_option_of_the_wrong_type_is_told_what_it_is(name, trace):
    given, said = WRONG[name]
    with pytest.raises((SelectionError, ShapeError), match=said):
        trace.to_html(**{name: given})
    with pytest.raises((SelectionError, ShapeError), match=said):
        to_payload(trace, **{name: given})


def test_other_wrong_arguments(trace, tmp_path):
    with pytest.raises(ShapeError, match="not 'x' as 'colour'"):
        trace.to_html(colour="x")
    with pytest.raises(SelectionError, match="spans= are 1 to 26"):
        trace.to_html(spans=np.empty((0, 2), dtype=int))
    with pytest.raises(SelectionError, match=r"page_bytes\(\) takes what gattn.why returns"):
        page_bytes(trace)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"file cannot be made a folder: File exists"):
        write_component(tmp_path / "file")
    with pytest.raises(FileError, match=r"cannot be made a folder: Not a directory"):
        write_component(tmp_path / "file" / "folder")
