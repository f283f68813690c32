"""Calls that differ in some values are named by these."""

import pytest

from gattn import Cut, Scale
from gattn.names.forms import in_form


def filled(form, values):
    """Put values, as they are listed, in place of the ellipses of a form."""
    parts = form.split("…")
    return "".join(a + b for a, b in zip(parts, [*values, ""], strict=True))


def test_edits_are_told_apart_by_their_values_and_the_form_has_the_rest():
    edits = [(layer, head, key) for layer in range(2) for head in range(3) for key in range(2)]
    texts = [repr(Cut(stack="decoder", layer=n, head=h, key=j)) for n, h, j in edits]
    form, values = in_form(texts)
    assert form == "Cut(layer=…, head=…, key=…, stack='decoder')"
    assert [filled(form, one.split(", ")) for one in values] == texts


def test_values_may_hold_commas_and_brackets():
    texts = [repr(Scale(layer=1, head=0, query=query, factor=0.5)) for query in ((7, 9), (3, 1))]
    form, values = in_form(texts)
    assert [filled(form, [one]) for one in values] == texts


def test_several_edits_together_have_one_form():
    pairs = [("Cut(layer=1, head=2)", "Scale(layer=3, factor=2.0)"), ("Cut(layer=1, head=4)",) * 2]
    texts = [f"{pairs[0][0]}, {pairs[0][1]}", f"{pairs[1][0]}, {pairs[0][1]}"]
    assert in_form(texts) == ("Cut(layer=1, head=…), Scale(layer=3, factor=2.0)", ["2", "4"])


@pytest.mark.parametrize(
    "texts", [["Cut(layer=1)", "Scale(layer=1)"], ["one", "two"], ["Cut(layer=1)"] * 2, ["one"]]
)
def test_what_differs_in_more_than_values_stays_whole(texts):
    assert in_form(texts) == ("", texts)
