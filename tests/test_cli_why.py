"""`gattn why` prints what `gattn.why` finds."""

import re

import pandas as pd
import pytest

import gattn
from gattn.cli import main

TEXT = "The river tall green lamp river tall green lamp river tall green"
WHY = ["why", TEXT, "--layer", "2", "--head", "0"]
EDGE = [*WHY, "--query", "-1", "--key", "9"]


@pytest.fixture(scope="module")
def found():
    return gattn.why(TEXT, layer=2, head=0, query=-1, key=9)


def rows_of(table, most):
    """Write a table as it is to be printed: names, and three digits."""
    numbers = table.head(most).to_numpy().tolist()
    return [" ".join(x if isinstance(x, str) else f"{x:.3f}" for x in row) for row in numbers]


def words_of(lines):
    return [" ".join(line.split()) for line in lines]


def test_why_says_what_several_edges_give(found, capsys):
    asked = [x for n in (5, 9) for x in ("--key", str(n))]
    assert main([*EDGE[: EDGE.index("--key")], *asked]) == 0
    lines = capsys.readouterr().out.splitlines()
    mean = float(found.scores[12, [5, 9]].mean())
    assert lines[1] == f"mean score of 2 edges {mean:.4g}, the sum over these pairs of parts:"
    heading = (
        "attention of these edges (the sum over keys, a mean over queries) without a part of the"
    )
    assert [line for line in lines if line.startswith("attention")] == [
        f"{heading} keys:",
        f"{heading} queries:",
    ]
    row = lines[lines.index(f"{heading} keys:") + 2].split()
    trace = gattn.capture(TEXT)
    total = trace[2, 0].to_dense()[12, [5, 9]].sum()
    assert float(row[-4]) == pytest.approx(total, abs=6e-4)


def test_why_prints_pairs_and_what_the_attention_would_be(found, capsys):
    assert main(EDGE) == 0
    asked, score, columns, *lines = capsys.readouterr().out.splitlines()
    assert asked == ("embedded, decoder stack, 13 tokens, head 2.0, query 12 “green”, key 9 “lamp”")
    assert score == "score 5.628, the sum over these pairs of parts:"
    assert float(found.scores[12, 9]) == pytest.approx(5.628, abs=1e-3)
    assert columns.split() == ["query_part", "key_part", "score", "share"]
    assert words_of(lines[:20]) == rows_of(found.table(), 20)
    more, blank, heading, columns, *lines = lines[20:]
    assert (more, blank) == ("and 176 more, which gattn.why(...) lists", "")
    assert heading == "attention without a part of the keys:"
    assert columns.split() == ["part", "attention", "without", "change", "first_order"]
    assert words_of(lines[:10]) == rows_of(found.without("key"), 10)
    more, _, heading, _, *lines = lines[10:]
    assert more == "and 4 more, which gattn.why(...) lists"
    assert heading == "attention without a part of the queries:"
    assert words_of(lines[:10]) == rows_of(found.without("query"), 10)
    assert lines[11:] == ["norms are held as they are in this run"]


def test_why_writes_tables_and_pictures(found, tmp_path, capsys):
    path = tmp_path / "why.csv"
    assert main([*EDGE, "--contrast", "2", "-o", str(path)]) == 0
    written = pd.read_csv(path)
    expected = found.table(2)
    assert written.shape == expected.shape == (196, 4)
    assert written["query_part"].tolist() == expected["query_part"].tolist()
    assert written["score"].to_numpy() == pytest.approx(expected["score"].to_numpy())
    said = capsys.readouterr().out
    assert "key 9 “lamp”, less that of key 2 “river”" in said
    assert f"{path}: 196 pairs" in said
    assert main([*EDGE, "--contrast", "mean", "-o", str(tmp_path / "why.svg")]) == 0
    drawn = " ".join(re.sub(r"<[^>]*>", "", (tmp_path / "why.svg").read_text()).split())
    for text in ("score · layer 2 · head 0", "mlp 1", "1.1", "less that of the mean key"):
        assert text in drawn


def test_why_draws_paths_in_the_text(tmp_path):
    assert main([*EDGE, "--paths", "-o", str(tmp_path / "why.SVG")]) == 0
    drawn = (tmp_path / "why.SVG").read_text()
    for text in ("why head 2.0 attends", "mlp 1", "1.1", "lamp", "2.94"):
        assert text in drawn


def test_why_splits_heads_by_what_they_read(capsys):
    assert main([*EDGE, "--split", "1.1"]) == 0
    first = capsys.readouterr().out.splitlines()[3]
    assert first.split() == ["mlp", "1", "1.1", "from", "'green'", "(8)", "2.947", "0.524"]


def test_why_writes_a_page_and_says_how_large_it_is(tmp_path, capsys):
    path = tmp_path / "why.html"
    assert main([*EDGE, "-o", str(path)]) == 0
    *_, parts, said = capsys.readouterr().out.splitlines()
    size = gattn.drawing.page_bytes(gattn.why(TEXT, layer=2, head=0, query=12))
    assert parts == f"the parts of head 2.0: {size / 1e3:,.0f} kB"
    assert said == f"{path}#why=12-9: {path.stat().st_size / 1e6:.1f} MB"
    text = path.read_text(encoding="utf-8")
    assert '"queries":[12],"keys":[0,1,2,3,4,5,6,7,8,9,10,11,12]' in text


def test_why_of_a_row_and_of_several_tokens(capsys):
    assert main([*WHY, "--query", "-1", "--stack", "decoder"]) == 0
    said = capsys.readouterr().out
    total = gattn.why(TEXT, layer=2, head=0, query=-1).table().attrs["total"]
    assert f"score {total:.4g}, " in said
    assert "attention without" not in said
    assert "less the mean over all keys" in said
    assert main([*WHY, "--query", "8", "--query", "12", "--key", " lamp"]) == 0
    assert "queries 8 “green”, 12 “green”, keys 5 “lamp”, 9 “lamp”" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (WHY[:4], "required: --head. See gattn why --help."),
        ([*WHY[:-1], "2.0"], "head 0 of layer 2 is --layer 2 --head 0. See gattn why --help"),
        ([*WHY[:-1], "9"], "No head 9; layer 2 has 0 .. 3."),
        ([*WHY[:3], "9", "--head", "0"], "No layer 9; the model has layers 0 .. 3."),
        ([*WHY, "--query", "3", "--key", "12"], "has no edge from the key 12 “green” to"),
        ([*WHY, "--key", "zebra"], "No key 'zebra'"),
        (
            [*WHY, "--key", "9", "--key", "9"],
            "key names at least one token, and each once, not [9, 9]",
        ),
        ([*WHY, "--query", "99"], "query must be a token's position, here 0 .. 12"),
        ([*WHY, "--contrast", "mean"], "is what is asked about where no --key is"),
        ([*EDGE, "--contrast", "lamp"], "'lamp' is at the positions 5, 9"),
        ([*WHY, "--stack", "encoder"], "no self-attention in 'encoder'"),
        ([*EDGE, "--paths"], "--paths draws scores in the text: expected -o FILE with one of .svg"),
        ([*EDGE, "--paths", "--contrast", "mean", "-o", "why.svg"], "and no --contrast"),
        ([*EDGE, "-o", "why.json"], "one of .csv, .svg"),
    ],
)
def test_errors_are_one_line(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("gattn: ")
    assert "\n" not in error
    assert said in error
    assert not list(tmp_path.iterdir())
