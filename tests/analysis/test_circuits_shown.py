"""Circuits as pictures, graphs, text and files."""

import re
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from circuits_by_hand import EDGE, QUIET, TEXT
from made_circuits import made
from matplotlib.figure import Figure

import gattn
from gattn.analysis.circuits.finding import beyond
from gattn.analysis.circuits.measuring.measured import percent
from gattn.analysis.circuits.measuring.runs import Runs
from gattn.analysis.circuits.measuring.testing import Proof
from gattn.drawing.canvas.labels import with_powers
from gattn.errors import EditError, FileError, SelectionError
from gattn.files import digraphs


def test_the_documentation_tells_what_is_found(river):
    page = Path(__file__).parents[2] / "docs/analyses/circuits.md"
    assert f"# {river}\n" in page.read_text(encoding="utf-8")


def test_rows_of_a_table_are_edges_and_what_else_there_is_says_so(river):
    rows = gattn.Only(river.table()[EDGE].to_numpy())
    assert torch.equal(rows.edges, river.only().edges["decoder"])
    for given, said in (
        (river, "a Circuit, which makes its own"),
        (river.table(), "a Table: pass"),
    ):
        with pytest.raises(EditError, match=said):
            gattn.Only(given)


@pytest.mark.parametrize(("ablation", "is_told"), [("mean", True), (["A dog sat."], False)])
def test_a_mean_over_tokens_to_be_predicted_is_told(embedded, ablation, is_told):
    found = gattn.circuit(
        "red green lamp red", *embedded, metric="loss", ablation=ablation, random=0, **QUIET
    )
    assert any("later tokens" in note for note in found.notes) == is_told


def test_time_is_estimated_once_units_and_their_cost_are_known(embedded, monkeypatch, capsys):
    def clock():
        return now[0]

    def slow(runs, weights):
        now[0] += 50 if runs.count == 0 else 1 + 0.1 * len(weights)
        return answers(runs, weights)

    now, answers = [0.0], Runs._answers
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(Runs, "_answers", slow)
    text = "red green lamp red green"
    gattn.circuit(text, *embedded, target=" lamp", random=3)
    said = re.findall(r"circuit, (.*): (\d+) x run, about (\d+) s", capsys.readouterr().err)
    ((what, count, seconds),) = said
    assert what == "each round of leaving out units"
    assert 0 < int(count) < 336
    # A batch of at most 32 runs takes 1 s and 0.1 s for each.
    assert (1 / 32 + 0.1) * int(count) - 1 <= int(seconds) <= (1 / 8 + 0.1) * int(count) + 1
    gattn.circuit(text, *embedded, target=" lamp", random=3, **QUIET)
    assert not capsys.readouterr().err


def test_where_shares_say_little_the_metric_itself_is_told(embedded, river):
    text = "red green lamp red green"
    found = gattn.circuit(text, *embedded, target=" lamp", random=0, **QUIET)
    assert found.faithfulness > 2
    (note,) = (note for note in found.notes if "shares say little" in note)
    told = [float(word.rstrip(",")) for word in note.split() if word[0].isdigit()]
    (alone,) = gattn.effect(text, [found.only()], *embedded, target=" lamp", metric="probability",
                            **QUIET)["edited"]  # fmt: skip
    assert told == pytest.approx([found.graph["full"], found.graph["empty"], alone], rel=6e-3)
    assert not river.notes


def test_zero_has_no_sign(river):
    found = river.copy()
    found.graph.update(faithfulness=-1e-5, completeness=1.0002)
    assert "edges keep 0.0 % of" in str(found)
    assert str(found).endswith("without them 0.0 % is left")
    assert [percent(share, 0) for share in (-0.004, -1.336, 0.95)] == ["0 %", "−134 %", "95 %"]


@pytest.mark.parametrize(("kind", "what"), [("edges", "attention"), ("paths", "paths")])
def test_less_than_nothing_is_said_to_be_less_than_with_all_ablated(river, kind, what):
    found = river.copy()
    found.graph.update(completeness=1.049, kind=kind)
    assert f"without them −4.9 % is left, less than with all {what} ablated" in str(found)
    if kind == "edges":
        (below,) = [t for t in found.draw().texts if t.get_gid() == "gattn-caption"]
        said = below.get_text().replace("\n", " ")
        assert "−4.9 % is left, less than with all attention ablated" in said
    assert "less than" not in str(river)


def test_predicted_tokens_are_written_alike_in_circuits_and_routes(river, embedded):
    routes = gattn.analysis.routes(TEXT, *embedded, progress=False)
    assert "which predicts “␣lamp”" in repr(routes)
    assert "of probability of “␣lamp”" in str(river)
    assert routes.draw().get_title() == "routes to “␣lamp”"


def test_of_a_divergence_it_is_said_what_the_share_is_of(river):
    found = river.copy()
    found.graph.update(metric="KL divergence in nats", empty=1.934, full=0.0, faithfulness=0.904)
    found.graph.update(completeness=0.525)
    change = "the change in KL divergence in nats from 1.93 with no edge to 0 with all"
    assert f"keep 90.4 % of {change}; without them 47.5 % is left" in str(found)
    (below,) = [t for t in found.draw().texts if t.get_gid() == "gattn-caption"]
    assert f"47.5 % is left of {change}" in below.get_text().replace("\n", " ")


def test_its_picture_has_a_line_for_each_edge_as_wide_as_what_is_lost_without_it(river):
    ax = river.draw()
    (lines,) = (c for c in ax.collections if c.get_gid() == "gattn-edges")
    assert len(lines.get_paths()) == river.number_of_edges()
    curves = pd.DataFrame(river.table()).groupby(["layer", "query", "key"])
    losses = sorted(curves["loss"].max())
    widths = np.sort(lines.get_linewidths())[-len(losses) :]
    np.testing.assert_allclose(widths / widths[-1], np.array(losses) / losses[-1], atol=0.1)
    assert {text.get_text() for text in ax.texts if text.get_gid() == "gattn-heads"} == {
        "0.1",
        "1.1",
        "2.0,2.1",
    }
    assert [text.get_text() for text in ax.get_xticklabels()][12] == "green"


def test_an_edge_of_the_graph_has_only_losses_that_were_measured(embedded, river):
    losses = river.table().set_index(EDGE)["loss"].to_dict()
    found = {
        (source[0], head, target[1], source[1]): facts[f"loss_{head}"]
        for source, target, facts in river.edges(data=True)
        for head in range(4)
        if f"loss_{head}" in facts
    }
    assert found == losses
    assert not any("loss" in facts for *_, facts in river.edges(data=True))
    heads = gattn.circuit(
        "red green lamp red green", *embedded, units="heads", keep=0.5, random=0, **QUIET
    )
    assert not any("loss" in name for *_, facts in heads.edges(data=True) for name in facts)


def test_circuits_that_tests_make_hold_what_found_ones_do(river):
    found = made(
        [((0, 1), (1, 2), 0, 0, 1.0)], stacks={"decoder": [list("abc")] * 2}, layers={"decoder": 1}
    )
    assert set(found.graph) == set(river.graph)
    assert {name: type(value) for name, value in found.graph.items()} == {
        name: type(value) for name, value in river.graph.items()
    }


def test_each_curve_has_a_name_even_where_two_cross_in_their_middles():
    rows = [((0, 9), (1, 11), 0, 0, 1.0), ((0, 10), (1, 10), 0, 1, 1.0)]
    found = made(rows, stacks={"decoder": [list("abcdefghijkl")] * 2}, layers={"decoder": 4})
    for inches in ((3.3, 2.6), (8, 5)):
        figure = Figure(inches)
        ax = found.draw(ax=figure.add_subplot())
        names = [text for text in ax.texts if text.get_gid() == "gattn-heads"]
        assert {text.get_text() for text in names} == {"0.0", "0.1"}
        first, second = (text.get_window_extent() for text in names)
        assert not first.overlaps(second)
        assert all(text.get_bbox_patch().get_alpha() is None for text in names)


def test_it_comes_back_from_a_file(river, tmp_path):
    gattn.save(river, tmp_path / "circuit.json")
    again = gattn.load(tmp_path / "circuit.json")
    assert dict(again.edges) == dict(river.edges)
    assert again.units().equals(river.units())
    assert again.only().record == river.only().record


@pytest.mark.parametrize("suffix", ["json", "graphml"])
def test_what_an_older_gattn_wrote_is_refused(river, tmp_path, suffix, monkeypatch):
    path = tmp_path / f"circuit.{suffix}"
    monkeypatch.setitem(digraphs._SCHEMAS, "Circuit", 1)
    gattn.save(river, path)
    assert gattn.load(path).depth == 4
    monkeypatch.setitem(digraphs._SCHEMAS, "Circuit", 2)
    with pytest.raises(FileError, match="schema '1', but this gattn reads schema 2: an older"):
        gattn.load(path)
    monkeypatch.setitem(digraphs._SCHEMAS, "Circuit", 0)
    with pytest.raises(FileError, match="a newer gattn"):
        gattn.load(path)


def test_what_a_graph_cannot_hold_is_not_made_up(embedded):
    given = embedded[1](TEXT, return_tensors="pt")["input_ids"].flip(1)
    found = gattn.circuit(
        TEXT, *embedded, target=" lamp", ablation={"input_ids": given}, random=0, **QUIET
    )
    with pytest.raises(SelectionError, match="make the edit yourself"):
        found.only()


def test_parts_that_cancel_are_told_wherever_a_circuit_is(embedded, river):
    found = gattn.circuit("red green lamp red green", *embedded, target=" lamp", random=0, **QUIET)
    assert found.faithfulness > 2
    assert found.caveat.startswith("parts cancel, so shares say little: the metric is ")
    assert found.notes[0] == found.caveat
    assert repr(found) == f"Circuit({found}; {found.caveat})"
    (below,) = [t for t in found.draw().texts if t.get_gid() == "gattn-caption"]
    assert below.get_text().replace("\n", " ").count(with_powers(found.caveat)) == 1
    assert found.to_html().count(found.caveat) == 1
    assert river.caveat == ""
    assert repr(river) == f"Circuit({river})"
    other = river.copy()
    for kept, left, is_far in (
        (1.4, 0.0, False),
        (10.33, 0.0, True),
        (0.9, -3.0, True),
        (np.nan, np.nan, False),
    ):
        other.graph.update(faithfulness=kept, completeness=1 - left)
        assert bool(other.caveat) == is_far


@pytest.mark.parametrize(
    ("kept", "completeness", "random", "said"),
    [
        (0.9, 1.0, [], []),
        (1.0004, 1.0004, [-0.0004], []),
        (1.1, 1.0, [], ["more than all"]),
        (0.9, 1.05, [], ["below 0"]),
        (0.9, 0.95, [-0.3, 0.1], ["below 0"]),
        (0.9, 0.95, [-0.1, 0.3], []),
        (-0.2, 0.5, [], ["below 0"]),
        (1.1, 1.2, [], ["more than all", "below 0"]),
    ],
)
def test_shares_beyond_all_and_below_nothing_are_explained(kept, completeness, random, said):
    nothing = np.zeros(0)
    proof = Proof(kept, completeness, nothing, nothing, np.array(random), nothing)
    notes = beyond(proof, 1e-3, "attention")
    assert len(notes) == len(said)
    assert all(one in note for one, note in zip(said, notes, strict=True))
