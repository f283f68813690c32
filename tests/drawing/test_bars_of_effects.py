"""Bars of what edits change: how they are named, and the numbers below them."""

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from meeting import problems
from seen import caption

import gattn
from gattn.models.effects.effect_tables import Effects

SOURCE, TARGET = ["le", "chat", "noir", "dort"], ["the", "black", "cat"]
PLACES = ("stack", "layer", "head", "query", "key")


def table(edits, tokens=(), **places):
    """A row per edit, with the columns that `gattn.effect` gives it."""
    rows = [
        {"edit": str(edit), "kind": type(edit).__name__}
        | {name: _single(getattr(edit, name, None)) for name in PLACES}
        | {"stack": edit.stack}
        for edit in edits
    ]
    found = Effects(rows).astype(dict.fromkeys(PLACES[1:], "Int64")).assign(**places)
    found["effect"] = np.linspace(-0.5, 0.25, len(rows))
    found.attrs = {"metric": "probability of 'cat'", "tokens": tokens}
    return found


def _single(value):
    return value if isinstance(value, int) else None


def named(found, size=(6.75, 4), **options):
    ax = found.draw("edits", ax=Figure(size).add_subplot(), **options)
    assert not problems(ax.figure)
    return ax.get_title(), [label.get_text() for label in ax.get_yticklabels()], caption(ax)


@pytest.mark.parametrize("layout", [None, "constrained"])
@pytest.mark.parametrize("font", [7, 10])
@pytest.mark.parametrize("size", [(3.3, 2.3), (6.75, 3)])
@pytest.mark.parametrize("ends", [(-0.0042, 0.0117), (-0.068, 0.005), (-11.3, 0.2), (0, 1e-6)])
def test_numbers_below_bars_do_not_meet(ends, size, font, layout):
    found = table([gattn.Cut(layer=2, head=0, query=11, key=key) for key in range(6)])
    found["effect"] = np.linspace(*ends, 6)
    with mpl.rc_context({"font.size": font}):
        ax = found.draw("edits", ax=Figure(size, layout=layout).add_subplot())
        assert not problems(ax.figure)
        ticks = [at for at in ax.get_xticks() if ax.get_xlim()[0] <= at <= ax.get_xlim()[1]]
    assert len(ticks) >= 2


def test_bars_of_edges_name_their_tokens_from_key_to_query():
    edges = [gattn.Cut(layer=0, head=1, query=q, key=k) for q in range(3) for k in (1, 2)]
    found = table(edges, {"cross": {"query": TARGET, "key": SOURCE}}, stack="cross")
    title, names, said = named(found)
    assert title == "cross · layer 0 · head 1 · cutting edges"
    assert names == [f"{SOURCE[k]} → {TARGET[q]}" for q in range(3) for k in (1, 2)]
    assert "edit" not in said


def test_tokens_that_repeat_have_their_positions():
    tokens = ["the", "river", "tall", "river"]
    edges = [gattn.Cut(layer=n, head=0, query=3, key=1) for n in range(2)]
    title, names, _ = named(table(edges, tokens))
    assert (title, names) == ("cutting edges", ["0.0: 1 river → 3 river", "1.0: 1 river → 3 river"])


def test_an_end_that_all_edges_share_is_said_below_where_names_are_long():
    tokens = [f"{word}-and-another-word" for word in ("one", "two", "three", "four")]
    edges = [gattn.Cut(layer=0, head=1, query=3, key=k) for k in range(3)]
    _, names, said = named(table(edges, tokens), (3.3, 2.3))
    assert [name.split("-")[0] for name in names] == ["one", "two", "three"]
    assert "each edge to four-and-another-word" in said


def test_edits_of_one_side_say_from_or_to_which_token():
    keys = [gattn.Cut(layer=1, key=k) for k in range(2)]
    title, names, _ = named(table(keys, SOURCE))
    assert (title, names) == ("layer 1 · cutting edges from tokens", ["from le", "from chat"])
    title, names, _ = named(table([gattn.Cut(layer=1, query=0)], SOURCE))
    assert (title, names) == ("layer 1 · cutting edges to tokens", ["to le"])


def test_names_have_no_quotes_and_say_what_differs():
    edits = [
        gattn.Cut(layer=2, head=0, key=" lamp"),
        gattn.Cut(layer=1),
        gattn.Ablate("zero", layer=2, head=3),
        gattn.Scale(layer=1, head=0, factor=0.5),
    ]
    title, names, _ = named(table(edits))
    assert title == "edits"
    assert names == [
        "2.0: from lamp · Cut",
        "layer 1 · Cut",
        "2.3 · Ablate, by zero",
        "1.0 · Scale, factor 0.5",
    ]
    title, names, said = named(table([gattn.Scale(layer=1, head=h, factor=0.5) for h in range(2)]))
    assert (title, names) == ("edits of heads", ["1.0", "1.1"])
    assert "each: Scale, factor 0.5" in said


def test_bars_of_several_stacks_name_them_and_the_tokens_of_each():
    tokens = {"encoder": SOURCE, "cross": {"query": TARGET, "key": SOURCE}}
    edges = [gattn.Cut(layer=0, head=1, query=2, key=1, stack=stack) for stack in tokens]
    title, names, _ = named(table(edges, tokens))
    assert title == "cutting edges"
    assert names == ["encoder 0.1: chat → noir", "cross 0.1: chat → cat"]


def test_estimates_are_named_though_they_have_no_text():
    found = table([gattn.Cut(layer=0, head=1, query=2, key=k) for k in range(2)], SOURCE)
    found = found.drop(columns="edit").assign(estimate=found["effect"])
    assert named(found)[1] == ["le → noir", "chat → noir"]
