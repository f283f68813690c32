"""Distances to templates against matrices written out."""

import numpy as np
import pytest
import torch
from attentions import TEXT, random_attention

import gattn
from gattn.analysis import template_distances
from gattn.errors import SelectionError, ShapeError

COLUMNS = ["self", "first", "previous", "next", "punctuation", "uniform"]
TOKENS = ("a", ",", "b", "Ġ.")


def distance(one, other):
    return np.linalg.norm(one - other) / np.sqrt(np.square(one).sum() + np.square(other).sum())


TEMPLATES = {
    "self": [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]],
    "first": [[1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]],
    "previous": [[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]],
    "next": [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]],
}
BOTH_WAYS = {
    "punctuation": [[0, 0.5, 0, 0.5]] * 4,
    "uniform": [[0.25] * 4] * 4,
}
KEEPS = [gattn.Threshold(0.1), gattn.Threshold(1 / 30), gattn.TopK(2), gattn.TopMass(0.7)]
CAUSAL = {
    "punctuation": [[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 0.5, 0, 0.5]],
    "uniform": [[1, 0, 0, 0], [1 / 2] * 2 + [0] * 2, [1 / 3] * 3 + [0], [1 / 4] * 4],
}


@pytest.mark.parametrize("causal", [False, True])
def test_it_is_the_distance_to_each_matrix(causal):
    matrix = random_attention(1, 1, 4, causal)[0, 0]
    head = gattn.AttentionGraph.from_dense(matrix, tokens=TOKENS)
    found = template_distances(head)
    assert list(found.columns) == COLUMNS
    for name, template in (TEMPLATES | (CAUSAL if causal else BOTH_WAYS)).items():
        expected = distance(matrix, np.array(template))
        assert found.loc[(0, 0), name] == pytest.approx(expected, abs=1e-12), name


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_a_template_is_at_distance_zero_of_itself(name):
    found = template_distances(np.array(TEMPLATES[name], float)).loc[(0, 0)]
    assert found[name] == 0
    assert (found.drop([name, "punctuation"]) > 0.4).all()


def test_what_shares_no_edge_is_at_distance_one():
    assert template_distances(np.eye(4)).loc[(0, 0), "next"] == pytest.approx(1)
    assert template_distances(np.zeros((4, 4))).loc[(0, 0), "self"] == pytest.approx(1)


def test_a_text_without_punctuation_has_no_such_template():
    head = gattn.AttentionGraph.from_dense(np.eye(3), tokens=("a", "b", ""))
    assert np.isnan(template_distances(head).loc[(0, 0), "punctuation"])


def test_further_templates_have_a_column_each():
    attention = np.repeat(random_attention(1, 3, 4), 2, axis=0)
    found = template_distances(attention, {"third": attention[0, 2]})
    assert list(found.columns) == [*COLUMNS, "third"]
    for head in range(3):
        expected = distance(attention[0, head], attention[0, 2])
        assert found.loc[(1, head), "third"] == pytest.approx(expected, abs=1e-12)


def test_the_previous_token_head_of_the_embedded_model_is_nearest_to_that_template():
    trace = gattn.capture(TEXT)
    found = template_distances(trace)
    assert found["previous"].idxmin() == (1, 1)
    assert found.loc[(1, 1)].idxmin() == "previous"
    assert "embedded" in found.computed_from
    dense = torch.stack(
        [
            torch.stack([torch.from_numpy(trace[n, h].to_dense()) for h in range(4)])
            for n in range(4)
        ]
    )
    others = [name for name in COLUMNS if name != "punctuation"]
    np.testing.assert_allclose(template_distances(dense)[others], found[others], atol=1e-6)


@pytest.mark.parametrize("keep", KEEPS)
def test_the_error_of_what_was_dropped_is_bounded(keep):
    whole = template_distances(gattn.capture(TEXT))
    kept = template_distances(gattn.capture(TEXT, keep=keep))
    (note,) = [note for note in kept.notes if "off by up to" in note]
    error = (whole - kept).abs().max(axis=None)
    assert 0 < error <= float(note.split()[-1])
    assert not [note for note in whole.notes if "off by" in note]
    assert not [note for note in kept.notes if "later" in note]


def neighbours(size, first=0):
    """Tokens read the one before, themselves, and from `first` on a little of the one after."""
    after = np.diag((np.arange(size - 1) >= first) * 0.01, 1)
    return 0.97 * np.eye(size, k=-1) + 0.02 * np.eye(size) + after


def test_later_tokens_of_which_no_edge_was_kept_are_known_by_the_number_of_edges():
    head = gattn.AttentionGraph.from_dense(neighbours(20))
    whole, kept = template_distances(head), template_distances(head.keep(gattn.Threshold(0.015)))
    (note,) = [note for note in kept.notes if "off by up to" in note]
    error = (whole - kept).abs().max(axis=None)
    assert 0 < error <= float(note.split()[-1]) < 0.05
    assert not [note for note in kept.notes if "up to each query" in note]


def test_where_later_tokens_may_have_been_dropped_the_notes_bound_what_that_changes():
    head = gattn.AttentionGraph.from_dense(neighbours(20, first=2))
    whole, kept = template_distances(head), template_distances(head.keep(gattn.Threshold(0.015)))
    alike, *_, other = [float(n.split()[-1]) for n in kept.notes if "off by up to" in n]
    error = (whole - kept).abs().max()
    assert 0 < error.drop(["uniform", "punctuation"]).max() <= alike
    assert alike < error["uniform"] <= other < 0.5


def test_heads_that_are_causal_and_merged_say_that_they_do_not_know():
    kept = gattn.capture(TEXT, keep=gattn.Threshold(0.1))[1, 1].merge([(0, 2)])
    found = template_distances(kept)
    assert any("if edges to later tokens were not kept" in note for note in found.notes)


@pytest.mark.parametrize(
    ("attention", "templates", "error", "message"),
    [
        (-np.eye(2), {}, ShapeError, ">= 0"),
        (np.eye(3)[:2], {}, SelectionError, "queries and keys"),
        (np.eye(2), {"mine": np.eye(3)}, ShapeError, "'mine' is \\(3, 3\\)"),
        (np.eye(2), {"next": np.eye(2)}, ShapeError, "column 'next' already"),
        (np.eye(2), {"mine": -np.eye(2)}, ShapeError, "'mine' is not attention"),
        (np.eye(2), {"mine": [["a"]]}, ShapeError, "'mine' is not an array of numbers"),
        (np.eye(2), {"head": np.eye(2)}, ShapeError, "column 'head' already"),
    ],
)
def test_what_has_no_distance(attention, templates, error, message):
    with pytest.raises(error, match=message):
        template_distances(attention, templates)


def test_it_draws_itself():
    ax = template_distances(gattn.capture(TEXT)).draw()
    assert ax.has_data()
    assert "previous" in " ".join(label.get_text() for label in ax.get_xticklabels())
