"""Pictures that name patches say in their captions what the two numbers of a name are."""

import matplotlib.pyplot as plt
import pytest
from scenes import picture_trace
from seen import caption

import gattn
from gattn.drawing.canvas.labels import fit
from tests.models.test_patches_named import built

SAID = "patches are named row,column"
QUIET = {"progress": False}


def vit():
    return built(None, 1)


def circuit(units):
    model, _, run = vit()
    return gattn.circuit(run, model, target=1, other=0, random=0, units=units, **QUIET)


def effects(**where):
    model, _, run = vit()
    cuts = [gattn.Cut(layer=0, head=1, key=key, **where) for key in range(3)]
    return gattn.effect(run, cuts, model, target=1, **QUIET)


def routes():
    model, _, run = vit()
    return gattn.analysis.routes(run, model, position=0, **QUIET)


def contributions():
    model, _, run = vit()
    return gattn.analysis.contributions(run, model, **QUIET)


def why():
    model, _, run = vit()
    return gattn.why(run, model, layer=1, head=0, query=0, key=9)


PICTURES = {
    "unrolled": lambda: picture_trace().unroll().draw(),
    "rollout": lambda: picture_trace().unroll().rollout(query=0).draw(),
    "flow": lambda: picture_trace().unroll().flow(key=5, query=0).draw(),
    "ribbons": lambda: picture_trace().unroll().rollout(query=0).draw("ribbons"),
    "array": lambda: gattn.analysis.rollout(picture_trace()).draw(),
    "best edges": lambda: gattn.analysis.best_edges(picture_trace(), **QUIET).draw(),
    "text": lambda: picture_trace()[0, 1].draw_text(),
    "bottlenecks": lambda: gattn.analysis.bottlenecks(picture_trace(), 3, 12).draw(),
    "overlay": lambda: gattn.drawing.draw_overlay(list(picture_trace().heads())[:2], "arcs"),
    "routes": lambda: routes().draw(),
    "circuit": lambda: circuit("edges").draw(),
    "circuit of tokens": lambda: circuit("tokens").by_token().draw(),
    "why": lambda: gattn.drawing.draw_why(why()),
    "contributions": lambda: contributions().draw(),
    "bars of edges": lambda: effects(query=3).draw("edits"),
    "bars of keys": lambda: effects().draw("edits"),
    "arcs of edges": lambda: effects(query=3).draw("arcs"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_names_of_patches_are_explained_once(name):
    ax = PICTURES[name]()
    assert caption(ax).count(SAID) == 1
    plt.close(ax.figure)


def test_pictures_without_names_of_patches_explain_none():
    trace = picture_trace()
    model, _, run = vit()
    cuts = [gattn.Cut(layer=0, head=head) for head in range(2)]
    drawn = [
        trace.unroll().draw(labels=False),
        circuit("edges").draw(labels=False),
        gattn.analysis.head_table(trace, **QUIET).draw(),
        gattn.effect(run, cuts, model, target=1, **QUIET).draw("edits"),
        gattn.capture("a b 1,000 b a").unroll().draw(),
    ]
    for ax in drawn:
        assert "named" not in caption(ax)
    plt.close("all")


def test_of_many_patches_those_that_start_rows_are_named():
    patches = {n: f"{n // 34},{n % 34}" for n in range(25 * 34)}
    for pitch, every in ((0.3, 1), (0.14, 2), (0.05, 5)):
        named = [text for text in fit(patches, pitch, rotations=(90,)).texts if text]
        assert named == [f"{row},0" for row in range(0, 25, every)]
    few = {n: f"{n // 200},{n % 200}" for n in range(400)}
    assert len([text for text in fit(few, 0.5, rotations=(90,)).texts if text]) > 10
