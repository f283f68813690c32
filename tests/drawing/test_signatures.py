"""What `help` shows of the method that draws a result."""

import ast
import inspect
import re
from importlib import import_module

import numpy as np
import pytest

import gattn
from gattn import TokenGraph
from gattn.analysis.circuits.found import Circuit
from gattn.drawing.pictures import PICTURES, picture_of

CLASSES = {
    "TokenGraph": "gattn.graph.token_graph",
    "Effects": "gattn.models.effects.effect_tables",
    "Array": "gattn.analysis.reading.results",
    "Table": "gattn.analysis.reading.results",
    "HeadMap": "gattn.analysis.heads.head_groups",
    "Circuit": "gattn.analysis.circuits.found",
    "Circuits": "gattn.analysis.circuits.several",
    "Routes": "gattn.analysis.vectors.route_graphs",
    "Unrolled": "gattn.analysis.propagation.unrolled",
    "SharedSubspace": "gattn.analysis.subspaces.subspace",
    "BestEdges": "gattn.analysis.syntax.trees",
}


@pytest.mark.parametrize("name", CLASSES)
def test_a_result_draws_with_the_signature_of_its_picture(name):
    assert name in PICTURES
    kind = getattr(import_module(CLASSES[name]), name)
    picture = picture_of(kind)
    _, *wanted = inspect.signature(picture).parameters
    own, *found = inspect.signature(kind.draw).parameters
    assert own == "self"
    assert [one for one in found if one != "figsize"] == [one for one in wanted if one != "figsize"]
    assert {"figsize", "ax"} <= set(found)
    assert kind.draw.__doc__ == picture.__doc__
    assert kind.draw.__qualname__ == f"{name}.draw"


MANY = {"Array", "Table", "HeadMap", "BestEdges"}  # whose subclasses have pictures of their own
TYPED = {name: module for name, module in CLASSES.items() if name not in MANY}
TYPED["PathCircuit"] = "gattn.analysis.circuits.paths.path_circuits"


@pytest.mark.parametrize("name", TYPED)
def test_type_checkers_read_the_signature_that_help_shows(name):
    module = import_module(TYPED[name])
    (kind,) = (
        one
        for one in ast.parse(inspect.getsource(module)).body
        if isinstance(one, ast.ClassDef) and one.name == name
    )
    blocks = [one for one in kind.body if isinstance(one, ast.If)]
    (written,) = (
        one for block in blocks for one in block.body if getattr(one, "name", "") == "draw"
    )
    said = f"({ast.unparse(written.args)}) -> {ast.unparse(written.returns)}"
    shown = str(inspect.signature(getattr(module, name).draw))
    assert re.sub("['\" ]", "", said) == re.sub("['\" ]", "", shown)


def test_a_result_draws_by_its_method_and_a_subclass_by_its_own_picture():
    ax = TokenGraph.window(6, 2).draw("arcs", figsize=(4, 3))
    np.testing.assert_allclose(ax.figure.get_size_inches(), (4, 3))
    found = gattn.analysis.head_distances(gattn.capture("The dog chased the cat"), progress=False)
    assert list(inspect.signature(found.draw).parameters)[:2] == ["figsize", "ax"]
    assert found.draw().get_title() == "distance"


@pytest.mark.parametrize(
    ("place", "picture"),
    [
        ("gattn.analysis.syntax.trees.Tree.draw", "gattn.drawing.draw_head"),
        ("gattn.heads.trace.AttentionTrace.to_html", "gattn.drawing.page.to_html"),
        ("gattn.heads.head.AttentionGraph.to_html", "gattn.drawing.page.to_html"),
        ("gattn.analysis.circuits.found.Circuit.to_html", "gattn.drawing.page.to_html"),
    ],
)
def test_methods_name_all_options_of_what_they_call(place, picture):
    *module, kind, name = place.split(".")
    method = getattr(getattr(import_module(".".join(module)), kind), name)
    *home, function = picture.split(".")
    wanted = inspect.signature(getattr(import_module(".".join(home)), function)).parameters
    found = inspect.signature(method).parameters
    assert not [one for one in found.values() if one.kind is one.VAR_KEYWORD]
    assert list(found)[1:] == list(wanted)[1:]
    assert [found[one].default for one in list(found)[2:]] == [
        wanted[one].default for one in list(found)[2:]
    ]


def test_a_result_over_texts_draws_as_its_mean_does():
    trace = gattn.capture("The dog chased the cat")
    found = gattn.analysis.over_texts([gattn.analysis.head_table(trace, progress=False)] * 2)
    assert inspect.signature(found.draw) == inspect.signature(found.mean.draw)
    assert found.draw(columns=["entropy"], figsize=(4, 3)).get_xlabel() is not None
    why = gattn.why("The dog chased the cat", layer=1, head=1, query=-1, key=0)
    parameters = inspect.signature(why.draw).parameters
    assert {"contrast", "most", "title", "pool", "figsize", "ax", "cmap"} == set(parameters)


@pytest.mark.parametrize("kind", [gattn.AttentionTrace, gattn.AttentionGraph, Circuit])
def test_help_of_a_page_explains_each_option(kind):
    text = inspect.getdoc(kind.to_html)
    for name in inspect.signature(kind.to_html).parameters:
        if name != "self":
            assert re.search(rf"^{name} : \S.*\n    \S", text, re.MULTILINE), name
