"""The benchmark of surveys lists its measurements, and makes one of them."""

import json
from functools import partial

import pytest
from processes import printed_by

benchmark = partial(printed_by, "benchmarks.surveys")


@pytest.mark.slow
def test_it_lists_its_measurements():
    listed = benchmark("--list")
    for name in ("docstrings/local", "gpt2-shape/packed", "scaling/3", "size/all", "reading"):
        assert name in listed
    assert "docstrings/local" not in benchmark("--list", "--only", "scaling")


@pytest.mark.slow
def test_one_measurement_from_end_to_end(tmp_path):
    path = tmp_path / "found.json"
    printed = benchmark("--quick", "--only", "docstrings/local", "--json", path)
    (row,) = json.loads(path.read_text())["rows"]
    assert "failed" not in row
    assert row["name"] == "docstrings/local"
    assert row["name"] in printed
    assert row["failures"] == 0
    assert row["texts"] == 24
    assert row["texts_a_second"] > 0
    assert row["edges_a_second"] > row["tokens_a_second"] > row["texts_a_second"]
    assert row["disk_bytes"] > row["texts"]
    assert row["mib"] > 50
    page = path.with_suffix(".md").read_text()
    assert "Compared with saving" in page
    assert "survey, head_table" in page
    assert "Where the time goes" not in page  # It was not measured.
    for picture in (path.with_suffix(".svg"), path.with_suffix(".png")):
        assert picture.stat().st_size > 1000


def test_what_fails_is_told_on_the_page(tmp_path):
    from benchmarks import report
    from benchmarks.surveys import command

    results = {"machine": command.machine(), "rows": []}
    report.put(results, {"name": "reading", "failed": "no disk", "others": 0.5, "date": "today"})
    path = tmp_path / "found.json"
    command.publish(results, path, in_docs=False)
    page = path.with_suffix(".md").read_text()
    assert "`reading`: no disk" in page
    assert "50%" in page
    assert "survey.trace" not in page
