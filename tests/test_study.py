"""The study of rankings: what it publishes can be computed again."""

import json
from pathlib import Path

import numpy as np
import pytest

import gattn
from benchmarks.estimates.sets import along_the_cut
from benchmarks.faithfulness import page, study, texts

RESULTS = json.loads(
    (Path(__file__).parents[1] / "benchmarks/faithfulness/results.json").read_text()
)


def test_texts_are_the_same_on_each_machine():
    for kind in ("repeated words", "sentences"):
        made = texts.KINDS[kind](17)
        assert len(set(made)) == 17
        assert made == texts.KINDS[kind](20)[:17]
    words = texts.repeated_words(1)[0].lower().split()
    assert words[:5] == words[5:10]
    assert words[10:] == words[:3]


def test_means_and_intervals_are_over_texts():
    some = [
        {"model": "m", "unit": "edge", "ranking": "r", "correlation": x, "seconds": 1.0}
        | {"deletion": 1.0, "insertion": 2.0}
        for x in (0.1, 0.2, 0.6)
    ]
    (row,) = study.summed_up(some).to_dict("records")
    assert row["texts"] == 3
    assert row["correlation"] == pytest.approx(0.3)
    assert 0.1 <= row["correlation_low"] < 0.3 < row["correlation_high"] <= 0.6
    assert row["deletion_low"] == row["deletion_high"] == 1.0


def test_the_page_shows_what_was_measured():
    published = (Path(__file__).parents[1] / "docs/faithfulness.md").read_text(encoding="utf-8")
    table = study.summed_up(RESULTS)
    assert len(table) > 45
    made = page.page(table, "machine")
    numbers = [line for line in made.splitlines() if line.startswith("| ")]
    assert len(numbers) > 45
    assert [line for line in numbers if line not in published] == []


@pytest.mark.slow
def test_a_part_of_the_study_comes_out_again():
    known = [
        row
        for row in RESULTS
        if (row["model"], row["kind"]) == ("embedded", "repeated words") and row["text"] < 2
    ]
    found = list(study.study(["embedded"], 2, ["repeated words"]))
    assert [(x["unit"], x["ranking"]) for x in found] == [(x["unit"], x["ranking"]) for x in known]
    for one, other in zip(found, known, strict=True):
        for name in ("correlation", "deletion", "insertion"):
            if other.get(name) is not None:
                np.testing.assert_allclose(one[name], other[name], atol=0.02, err_msg=str(other))


@pytest.mark.slow
def test_an_integral_along_the_way_to_a_cut_is_its_effect():
    model, tokenizer = gattn.load_model()
    given = "red green lamp red green", model.double(), tokenizer
    ratios = along_the_cut(given, {"metric": "probability", "target": " lamp"}, [15])
    found = [ratio for name, ratio in ratios.items() if name.endswith("15 points")]
    assert len(found) == 3
    # Gauss and Legendre's rule is exact up to the 30th order: these are smooth functions.
    assert found == pytest.approx([1, 1, 1], abs=1e-3)
