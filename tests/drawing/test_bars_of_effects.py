"""Bars of what edits change: how they are named, and the numbers below them."""

import json

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from meeting import problems
from seen import caption

import gattn
from gattn.edit_records import to_text
from gattn.models.effects.effect_tables import Effects

LONG = ["The", *3 * ["river", "tall", "green", "lamp"]]
SOURCE, TARGET = ["le", "chat", "noir", "dort"], ["the", "black", "cat"]
PLACES = ("stack", "layer", "head", "query", "key")


def table(edits, tokens=(), **places):
    """A row per edit, with the columns that `gattn.effect` gives it."""
    rows = [
        {"edit": ", ".join(map(str, some)), "kind": type(some[0]).__name__}
        | {name: _single(getattr(some[0], name, None), len(some)) for name in PLACES}
        | {"stack": some[0].stack if len(some) == 1 else None}
        | {"record": to_text(some)}
        for some in (edit if isinstance(edit, list) else [edit] for edit in edits)
    ]
    found = Effects(rows).astype(dict.fromkeys(PLACES[1:], "Int64")).assign(**places)
    found["effect"] = np.linspace(-0.5, 0.25, len(rows))
    found.attrs = {"metric": "probability of 'cat'", "tokens": tokens}
    return found


def _single(value, edits):
    return value if isinstance(value, int) and edits == 1 else None


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


def test_the_largest_of_bars_without_room_for_all_names_are_named_and_the_caption_says_so():
    found = table([gattn.Cut(layer=2, head=0, query=40, key=key) for key in range(40)])
    found["effect"] = np.random.default_rng(0).permutation(40) - 20.0
    with mpl.rc_context({"font.size": 7}):
        ax = found.draw("edits", ax=Figure((3.3, 2.4)).add_subplot())
        assert not problems(ax.figure)
    places = [int(place) for place in ax.get_yticks()]
    assert 8 < len(places) < 40
    assert abs(found["effect"]).idxmax() in places
    apart = np.diff(places).min()
    for place in set(range(40)) - set(places):  # what is larger stands too near
        beside = [other for other in places if abs(other - place) < apart]
        assert max(abs(found["effect"][beside])) >= abs(found["effect"][place])
    assert caption(ax).startswith(f"{len(places)} of 40 bars are named, the largest that have room")
    few = found[:6].draw("edits", ax=Figure((3.3, 2.4)).add_subplot())
    assert "bars are named" not in caption(few)


@pytest.mark.parametrize("size", [(3.3, 2.6), (3.3, 3.4)])
def test_lines_of_one_name_stand_closer_than_names_of_two_bars(size):
    edits = [gattn.Cut(layer=2, head=0, query=12, key=key) for key in range(9)]
    found = table([*edits, gattn.Scale(0.5, layer=1, head=1)], ("<|endoftext|>", *LONG))
    with mpl.rc_context({"font.size": 7}):
        ax = found.draw("edits", ax=Figure(size).add_subplot())
        assert not problems(ax.figure)
    boxes = [
        (text.get_text().count("\n"), text.get_window_extent()) for text in ax.get_yticklabels()
    ]
    one = min(box.height for lines, box in boxes if not lines)
    lines, within = max((lines, (box.height - one) / lines) for lines, box in boxes if lines)
    assert lines == 1
    between = abs(np.diff([box.y0 + box.y1 for lines, box in boxes if lines])).min() / 2 - within
    assert between > 1.2 * within


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


def test_the_record_of_edits_survives_what_pandas_does_and_files(tmp_path):
    scales = [gattn.Scale(layer=n, head=n, factor=f) for n in range(2) for f in (0.5, 2.0)]
    found = gattn.effect("The dog chased the cat", scales, progress=False)
    assert json.loads(found["record"][1]) == [
        {"text": str(scales[1]), "kind": "Scale", "layer": 0, "head": 0, "others": {"factor": 2.0}}
    ]
    names = [f"{n}.{n} · factor {f}" for n in range(2) for f in (0.5, 2.0)]
    assert named(found)[1] == names
    last = found.sort_values(["layer", "edited"], ascending=False)[:2]
    factors = [scales[n].factor for n in last.index]
    assert named(last)[1] == [f"factor {factor}" for factor in factors]
    assert named(pd.concat([found[2:], found[:2]]))[1] == names[2:] + names[:2]
    found.to_csv(tmp_path / "table.csv", index=False)
    read = Effects(pd.read_csv(tmp_path / "table.csv"))
    assert named(read)[1] == names
    found.to_parquet(tmp_path / "table.parquet")
    assert named(Effects(pd.read_parquet(tmp_path / "table.parquet")))[1] == names


def test_names_that_a_user_gives_edits_are_those_of_the_bars():
    found = table([gattn.Cut(layer=0, head=head) for head in range(3)])
    found["edit"] = ["my head", "Cut(layer=0, head=1)", "another"]
    assert named(found)[1] == ["my head", "0.1", "another"]


@pytest.mark.parametrize("stack", [None, "model.decoder.layers.encoder_attn"])
def test_forty_bars_are_told_apart_in_a_column(stack):
    edits = [
        gattn.Cut(stack=stack, layer=n, head=h, query=12, key=key)
        for n in range(2) for h in range(4) for key in range(5)
    ]  # fmt: skip
    with mpl.rc_context({"font.size": 7}):
        title, names, said = named(table(edits), (3.3, 4.5))
    assert len(set(names)) == 40
    assert names[:6] == [f"0.0: {key} → 12" for key in range(5)] + ["0.1: 0 → 12"]
    assert title.count("…") == 0
    assert "rows in the table" not in said


def test_edits_that_differ_in_more_than_places_are_named_in_words():
    edits = [
        gattn.Without("0.1", side="query", layer=2, head=0),
        gattn.Without(["0.1", "mlp 0"], side="value", layer=2, head=[0, 1]),
        gattn.Cut(layer=[1, 2], query=slice(2, 4), renormalize=False),
        gattn.Cut(layer=[(1, 0), (2, 3)], renormalize=False),
        gattn.Cut(key=[0, 2], renormalize=False),
        gattn.Cut(renormalize=False),
        gattn.Patch("le chat", layer=1, head=0, what="outputs"),
    ]
    title, names, said = named(table(edits, SOURCE))
    assert title == "edits"
    # A line that breaks at "·" goes without it.
    assert [" ".join(name.replace("·", " ").split()) for name in names] == [
        "2.0 Without, 0.1, query side",
        "layer 2, heads 0, 1 Without, 0.1, mlp 0, value side",
        "layers 1, 2: to 2:4 Cut",
        "1.0, 2.3 Cut",
        "from le, noir Cut",
        "all heads Cut",
        "1.0 Patch, from le chat, outputs",
    ]
    assert "each Cut: not renormalized" in said


def _mixed(kind, share, *others):
    """Bars of two edits of a kind that share a value, beside others without it."""
    return pytest.param([*kind, *others], share, id=share)


@pytest.mark.parametrize(
    ("edits", "share"),
    [
        _mixed([gattn.Scale(0.5, (1, 1), key=k) for k in (3, 4)], "Scale: factor 0.5",
               gattn.Cut(layer=2, head=0, query=12, key=5)),
        _mixed([gattn.Ablate("mean", (2, h)) for h in range(2)], "Ablate: by mean",
               gattn.Cut((2, 1))),
        _mixed([gattn.Patch("le chat", (2, h)) for h in range(2)], "Patch: from le chat",
               gattn.Ablate("mean", (2, 1))),
        _mixed([[gattn.Cut((2, h)), gattn.Scale(0.5, (1, 1))] for h in range(2)],
               "Scale: factor 0.5", gattn.Cut((1, 1))),
    ],
)  # fmt: skip
def test_what_some_bars_share_is_not_said_of_all(edits, share):
    kind = share.split(":")[0]
    _, names, said = named(table(edits))
    assert [kind in name for name in names] == [True, True, False]
    assert said == f"each {share}"


def test_a_kind_is_not_said_of_bars_that_a_user_named():
    found = table([gattn.Scale(0.5, (0, head)) for head in range(3)])
    found["edit"] = ["what I did", *found["edit"][1:]]
    _, names, said = named(found)
    assert names == ["what I did", "0.1 · Scale", "0.2 · Scale"]
    assert said == "each Scale: factor 0.5"


def test_edits_of_several_kinds_are_bars_or_the_caption_names_the_kinds():
    edits = [gattn.Cut((2, 0)), gattn.Scale(0.5, (1, 1)), gattn.Scale(0.7, (2, 1))]
    found = table(edits)
    assert found.draw().get_yticklabels()[0].get_text() == "2.0 · Cut"
    said = "edits of several kinds: Cut, Scale (factor 0.5), Scale (factor 0.7)"
    assert caption(found.draw("heads")) == said
    alike = table([gattn.Scale(0.5, (n, 0)) for n in range(2)]).draw()
    assert alike.get_xlabel() == "head"
    assert caption(alike) == "each: Scale (factor 0.5)"
    edges = table([gattn.Cut((0, 0), query=2, key=1), gattn.Scale(2.0, (0, 0), query=2, key=0)])
    for layout in ("matrix", "arcs"):
        assert "kinds: Cut, Scale (factor 2.0)" in caption(edges.draw(layout))
    cuts = table([gattn.Cut((n, 0)) for n in range(2)])
    assert "Cut" not in caption(cuts.draw("heads"))


def test_what_edits_share_is_said_once_even_of_cuts():
    cuts = [gattn.Cut(layer=1, head=head, renormalize=False) for head in range(3)]
    title, names, said = named(table(cuts))
    assert (title, names) == ("cutting heads", ["1.0", "1.1", "1.2"])
    assert "each: Cut, not renormalized" in said


def test_one_place_is_in_the_title_if_values_tell_edits_apart():
    edits = [gattn.Ablate(by, layer=2, head=1) for by in ("zero", "mean")]
    title, names, said = named(table(edits))
    assert (title, names) == ("layer 2 · head 1 · edits of heads", ["by zero", "by mean"])
    assert "each: Ablate" in said


def test_several_edits_in_a_row_are_named_without_those_that_all_rows_have():
    scale = gattn.Scale(layer=2, head=0, factor=0.5)
    pairs = [[scale, gattn.Cut(layer=n, head=0), gattn.Cut(layer=n, head=1)] for n in range(3)]
    title, names, said = named(table(pairs))
    assert names == [f"{n}.0 + {n}.1" for n in range(3)]
    assert "all with 2.0 · Scale, factor 0.5" in said
    assert title == "edits"


@pytest.mark.parametrize("size", [(3.3, 2.4), (6.75, 3)])
def test_bars_of_several_stacks_do_not_show_calls(size):
    stacks = ["model.encoder.layers.self_attn", "model.decoder.layers.encoder_attn"]
    edits = [
        gattn.Ablate(by, stack=stack, layer=n, head=0)
        for stack in stacks for n in range(2) for by in ("zero", "mean")
    ]  # fmt: skip
    with gattn.style("paper"):
        _, names, said = named(table(edits), size)
    assert len(set(names)) == 8
    assert not any("(" in name or "=" in name for name in names)
    assert "rows in the table" not in said
