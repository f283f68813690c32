"""Circuits of several texts, and the roles of their edges."""

import pickle

import numpy as np
import pandas as pd
import pytest
from circuits_by_hand import QUIET, edges_of

import gattn
from gattn.analysis.circuits.several import _role
from gattn.errors import CaptureError, SelectionError

TEXTS = ["tall green lamp tall green", "a dog cat tree a dog", "red green lamp red green"]


@pytest.fixture(scope="module")
def several(embedded):
    goals = [" lamp", " cat", " lamp"]
    return gattn.circuit(TEXTS, *embedded, target=goals, random=2, keep=0.7, **QUIET)


def test_several_texts_have_a_circuit_each(several, embedded):
    alone = gattn.circuit(TEXTS[1], *embedded, target=" cat", random=2, keep=0.7, **QUIET)
    assert len(several) == 3
    assert edges_of(several[1]) == edges_of(alone)
    assert [one.graph["all_edges"] for one in several] == several.table()["all_edges"].tolist()
    statistics = several.statistics()
    values = [one.faithfulness for one in several]
    assert statistics.loc["faithfulness", "mean"] == pytest.approx(np.mean(values))
    # Of 27 samples of three texts, one is the least text alone, and one the best: over 2.5 %.
    assert statistics.loc["faithfulness", "low"] == pytest.approx(min(values))
    assert statistics.loc["faithfulness", "high"] == pytest.approx(max(values))
    with pytest.raises(SelectionError, match="target= has 2 entries for 3 texts"):
        gattn.circuit(TEXTS, *embedded, target=[" lamp", " cat"], **QUIET)
    with pytest.raises(SelectionError, match="list of texts is empty"):
        gattn.circuit([], *embedded, **QUIET)


@pytest.mark.parametrize("listed", [np.array, pd.Series])
def test_texts_come_in_arrays_too(listed, several, embedded):
    found = gattn.circuit(
        listed(TEXTS[1:2]), *embedded, target=np.array([" cat"]), random=2, keep=0.7, **QUIET
    )
    assert len(found) == 1
    assert edges_of(found[0]) == edges_of(several[1])
    with pytest.raises(CaptureError, match="Expected a text, token ids or a mapping"):
        gattn.circuit(listed([[1], "a"]) if listed is pd.Series else np.array([TEXTS]), *embedded)


def test_what_one_circuit_has_is_asked_of_one(several):
    with pytest.raises(AttributeError, match=r"as in several\[0\]\.to_html"):
        several.to_html()
    with pytest.raises(AttributeError, match=r"have no 'to_htm'$"):
        several.to_htm()
    copied = pickle.loads(pickle.dumps(several[:1]))
    assert edges_of(copied[0]) == edges_of(several[0])


def test_edges_of_texts_of_several_lengths_are_compared_by_their_roles(several):
    def roles(text):
        found = set()
        for row in several[text].table().itertuples():
            tokens = several[text].tokens
            head = row.stack, row.layer, row.head
            is_next = row.key > 0 and tokens[row.key - 1] == tokens[row.query]
            if row.query == row.key:
                found.add((*head, "itself"))
            elif row.key == row.query - 1:
                found.add((*head, "previous"))
            elif is_next:
                found.add((*head, "after same token"))
            elif tokens[row.query] == tokens[row.key]:
                found.add((*head, "same token"))
            else:
                found.add((*head, "other" if row.key else "first"))
        return found

    every = [roles(text) for text in range(3)]
    assert ("decoder", 2, 1, "after same token") in every[0]
    named = ["stack", "layer", "head", "role"]
    table = several.roles()
    found = table.set_index(named)["share"].to_dict()
    assert set(found) == set.union(*every)
    for role, share in found.items():
        assert share == pytest.approx(np.mean([role in some for some in every]))
    both = several.intersection()[named].itertuples(index=False, name=None)
    assert set(both) == set.intersection(*every)
    overlaps = [
        len(a & b) / len(a | b)
        for a, b in ((every[i], every[j]) for i, j in [(0, 1), (0, 2), (1, 2)])
    ]
    assert several.stability == pytest.approx(np.mean(overlaps))
    assert (table["low"] <= table["share"]).all()
    assert (table["share"] <= table["high"]).all()
    assert len(several[1:]) == 2


@pytest.mark.parametrize(
    ("query", "key", "role"),
    [
        (1, 1, "itself"),
        (1, 0, "previous"),
        (1, 2, "next"),
        (5, 2, "after same token"),
        (1, 6, "other"),
        (1, 5, "same token"),
        (3, 0, "first"),
        (3, 1, "other"),
    ],
)
def test_roles_are_told_in_models_that_read_both_ways(query, key, role):
    tokens = list("xabcdaf")
    assert _role((tokens, tokens), query, key, "token", is_self=True) == role


@pytest.mark.parametrize("key", [0, 1, 2])
def test_in_cross_attention_only_the_same_token_and_the_first_are_told(key):
    roles = ["first", "other", "same token"]
    assert _role((["a", "b"], ["x", "y", "b"]), 1, key, "token", is_self=False) == roles[key]


def test_no_circuits_have_no_roles_and_one_is_of_one_text(several):
    none, one = several[len(several) :], several[:1]
    assert len(none.roles()) == len(none.intersection()) == len(none.table()) == 0
    assert none.draw().get_title() == "circuits of 0 texts"
    assert one.draw().get_title() == "circuits of 1 text"
    assert repr(one) == "Circuits(1 text)"
