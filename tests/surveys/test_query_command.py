"""`gattn query` and `gattn statistics`."""

import json
import shutil

import pandas as pd
import pytest

import gattn
from gattn.cli import main

TEXTS = ["The dog chased the cat", "\x1b[31mred \u202e\nline", "the cat and the dog and the cat"]


@pytest.fixture(scope="module")
def survey(tmp_path_factory):
    out = tmp_path_factory.mktemp("surveys") / "survey"
    return gattn.survey(TEXTS, out=out, keep=gattn.TopK(3), progress=False)


def test_a_query_prints_its_table(survey, capsys):
    query = "select layer, head, avg(induction) x from heads group by all order by all limit 2"
    assert main(["query", str(survey.folder), query]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["layer", "head", "x"]
    expected = survey.heads.groupby(["layer", "head"])["induction"].mean().iloc[:2]
    for line, (place, value) in zip([first, second], expected.items(), strict=True):
        assert line.split() == [*map(str, place), f"{value:.4g}"]


def test_of_many_rows_the_first_are_printed(survey, capsys):
    assert main(["query", str(survey.folder), "from heads"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 42
    assert lines[-1] == "and 8 more rows, which -o includes"
    assert main(["query", str(survey.folder), "from failures"]) == 0
    assert capsys.readouterr().out == "no rows\n"


def test_a_terminal_has_the_columns_that_fit(survey, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "70")
    assert main(["query", str(survey.folder), "from heads limit 3"]) == 0
    *rows, rest = capsys.readouterr().out.splitlines()
    assert len(rows) == 4
    assert max(map(len, rows)) <= 70
    shown = rows[0].split()
    assert rest == f"columns not shown: {', '.join(survey.heads.columns[len(shown) :])}"
    assert shown == list(survey.heads.columns[: len(shown)])
    assert main(["query", str(survey.folder), "select repeat('x', 99) a, repeat('y', 19) b"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "columns not shown: b"


def test_nothing_in_a_cell_acts_on_the_terminal(survey, capsys):
    query = 'select text, [text] as list, text_id as "a\x1b[0m", null as n from texts'
    assert main(["query", str(survey.folder), query]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert len(out.splitlines()) == 1 + len(TEXTS)
    assert "red" in out
    assert "NULL" in out


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".json"])
def test_all_rows_are_written(survey, tmp_path, capsys, suffix):
    path = tmp_path / f"out{suffix}"
    query = "select text_id, layer, head, entropy, label from heads order by all"
    assert main(["query", str(survey.folder), query, "-o", str(path)]) == 0
    assert f"{path}: 48 rows" in capsys.readouterr().out
    if suffix == ".json":
        found = pd.DataFrame(json.loads(path.read_text()))
    else:
        found = pd.read_csv(path) if suffix == ".csv" else pd.read_parquet(path)
    pd.testing.assert_frame_equal(found, survey.sql(query), check_dtype=False)


def test_errors_are_one_line(survey, tmp_path, capsys):
    for arguments in (
        ["query", str(survey.folder), "select nothing from heads"],
        ["query", str(survey.folder), "copy (select 1) to 'x.csv'"],
        ["query", str(tmp_path), "from heads"],
        ["query", str(survey.folder), "from heads", "-o", str(tmp_path / "out.xlsx")],
        ["statistics", str(survey.folder), "nothing"],
        ["statistics", str(survey.folder), "entropy", "--with", str(tmp_path)],
    ):
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("gattn: ")
        assert err.count("\n") == 1


def test_statistics_are_printed_and_written(survey, tmp_path, capsys):
    path = tmp_path / "induction.csv"
    assert main(["statistics", str(survey.folder), "induction", "-o", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("induction: 3 texts\n")
    assert "95 % interval" in out
    found = pd.read_csv(path).set_index(["stack", "layer", "head"])
    pd.testing.assert_frame_equal(found, pd.DataFrame(survey.statistics("induction")))
    picture = tmp_path / "induction.svg"
    assert main(["statistics", str(survey.folder), "induction", "-o", str(picture)]) == 0
    assert picture.read_text().startswith("<?xml")


def test_two_surveys_are_compared(survey, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(survey.folder, other)
    folders = [str(survey.folder), "entropy", "--with", str(other)]
    assert main(["statistics", *folders]) == 0
    out = capsys.readouterr().out
    assert "after − before, 3 texts" in out
    assert "p_corrected" in out
