"""What `help` shows of the method that draws a result."""

import inspect
from importlib import import_module

import numpy as np
import pytest

import gattn
from gattn import TokenGraph
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


def test_a_result_draws_by_its_method_and_a_subclass_by_its_own_picture():
    ax = TokenGraph.window(6, 2).draw("arcs", figsize=(4, 3))
    np.testing.assert_allclose(ax.figure.get_size_inches(), (4, 3))
    found = gattn.analysis.head_distances(gattn.capture("The dog chased the cat"), progress=False)
    assert list(inspect.signature(found.draw).parameters)[:2] == ["figsize", "ax"]
    assert found.draw().get_title() == "distance"
