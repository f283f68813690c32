"""gattn survey."""

import json
import os
import pty
import re
import subprocess
import sys
import termios
from typing import ClassVar

import pandas as pd
import pyarrow.parquet as pq
import pytest
from runs import stopped

import gattn
from gattn.cli import main
from gattn.cli.commands import surveying
from gattn.surveys.ask.reading import open_survey
from gattn.surveys.run import analyses, running

TEXTS = [f"The dog number {n} chased the cat." for n in range(10)]


def run(*arguments):
    return main(["survey", *map(str, arguments)])


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(json.dumps({"text": text, "body": "x"}) for text in TEXTS))
    return path


def test_survey_writes_a_folder_and_says_what_is_in_it(corpus, tmp_path, capsys):
    long = [{"text": "word " * length} for length in (3000, 3200)]
    bad = [*long, {"text": ""}, {"text": ""}, {"text": ""}, {"no": 1}, {"no": 2}]
    corpus.write_text("\n".join([corpus.read_text(), *map(json.dumps, bad)]))
    out = tmp_path / "my survey"
    assert run(corpus, "-o", out) == 0
    survey = open_survey(out)
    said, errors = capsys.readouterr()
    lines = said.splitlines()
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    edges = survey.texts["num_edges"].sum()
    start = f"{out}: 10 texts, {edges:,} edges, {size / 1e6:.1f} MB, "
    assert re.fullmatch(re.escape(start) + r"\d+ s", lines[0])
    assert lines[1] == "7 texts failed:"
    assert lines[2] == "  3 x The text is empty: expected at least one token."
    assert lines[3].startswith(f"  2 x {corpus}, line 16: it has no 'text'")
    assert re.match(r"  2 x The text has 3\d+ tokens, but the model takes at most 1024", lines[4])
    assert lines[5].startswith(f"next: gattn query '{out}' \"select ")
    assert (len(lines), errors) == (6, "")


def test_survey_takes_what_the_function_takes(corpus, tmp_path):
    chosen = ("--keep", "topk:2", "--layers", "0,2-3", "--heads", 1, "--scores")
    further = ("--contributions", "output", "--analyses", "heads,mixing", "--limit", 8)
    drawn = ("--sample", 3, "--seed", 4, "--most-tokens", 9, "--column", "body")
    edits = ("--cut", "1.1:*<-0", "--scale", "0.5:2", "--swap", "alibi@0", "--normalizer", "relu@3")
    out = tmp_path / "survey"
    assert run(corpus, *chosen, *further, *drawn, *edits, "-o", out) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    expected = {
        "keep": "TopK(2)",
        "layers": [0, 2, 3],
        "heads": [1],
        "scores": True,
        "contributions": True,
        "analyses": ["gattn.analysis.head_table", "gattn.surveys.run.analyses.mixing_table"],
        "edits": [
            "Cut(layer=1, head=1, key=0)",
            "Scale(factor=0.5, layer=2)",
            "Swap(layer=0, weight=ModelScore() + ALiBi(4))",
            "Swap(layer=3, normalizer=ReLU())",
        ],
        "limit": 8,
        "sample": 3,
        "seed": 4,
        "most_tokens": 9,
        "column": "body",
        "num_texts": 3,
    }
    # What is not in the words of a swap, such as its parameters, is told apart by a digest.
    manifest["edits"] = [edit.partition(" #")[0] for edit in manifest["edits"]]
    assert {name: manifest[name] for name in expected} == expected
    assert set(open_survey(out).texts["text"]) == {"x"}
    heads = open_survey(out).heads
    assert set(zip(heads["layer"], heads["head"], strict=True)) == {(0, 1), (2, 1), (3, 1)}
    assert {"induction", "relaxation_time"} <= set(heads)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--analyses", "heads,foo"], "--analyses takes heads, mixing, ranks, spectral"),
        (["--layers", "1-"], "--layers takes numbers and ranges, as in 0,2-4, not '1-'"),
        (["--layers", "9"], "9"),
        (["--keep", "some"], "--keep is one of all, threshold:T"),
        (["--restrict", "window:3"], "--restrict needs the number of tokens"),
        (["--cut", "x"], "--cut takes "),
        (["--workers", "2"], "--workers and --num-gpus need a Ray cluster"),
        (["--model", "/nowhere"], "The model '/nowhere' could not be loaded"),
        (["--column", "missing"], "missing"),
        (["--limit", "0"], "limit must be a whole number ≥ 1, not 0"),
    ],
)
def test_survey_refuses_in_one_line(arguments, said, corpus, tmp_path, capsys):
    assert run(corpus, *arguments, "-o", tmp_path / "survey") == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.startswith("gattn: ")
    assert said in errors
    assert errors.count("\n") == 1


def test_survey_without_files_and_on_a_foreign_folder_is_refused(corpus, tmp_path, capsys):
    assert run(tmp_path / "none.jsonl", "-o", tmp_path / "survey") == 2
    assert "none.jsonl: expected a file or folder" in capsys.readouterr().err
    assert run(corpus, "-o", tmp_path) == 2
    assert "is neither empty nor a survey" in capsys.readouterr().err


def test_survey_that_is_stopped_says_how_far_it_is(
    corpus, tmp_path, monkeypatch, capsys, small_parts
):
    out = tmp_path / "survey"
    with stopped():
        assert run(corpus, "-o", out) == 130
    said = f"gattn: stopped; {out} holds 8 of 10 texts; run the same command to resume\n"
    assert capsys.readouterr().err == said
    assert run(corpus, "-o", out) == 0
    assert f"{out}: 10 texts" in capsys.readouterr().out


def test_survey_stopped_before_it_began_says_so(corpus, tmp_path, monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(running.queue, "fill", stop)
    assert run(corpus, "-o", tmp_path / "survey") == 130
    assert "stopped; none texts" not in (said := capsys.readouterr().err)
    assert "holds no texts yet" in said


@pytest.mark.slow
def test_survey_shows_its_progress_on_a_terminal_alone(corpus, tmp_path):
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (24, 100))
    command = [sys.executable, "-m", "gattn", "survey", str(corpus), "-o"]
    with subprocess.Popen(
        [*command, str(tmp_path / "one")], stderr=theirs, stdout=subprocess.PIPE
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # A terminal's end, once nobody writes to it.
                break
        assert process.wait() == 0
    os.close(ours)
    assert re.search(rb"100%.*10/10 \[.*text/s", shown)
    plain = subprocess.run(
        [*command, str(tmp_path / "two")], capture_output=True, text=True, check=True
    )
    assert plain.stderr == ""
    assert plain.stdout.startswith(f"{tmp_path / 'two'}: 10 texts")


def test_the_command_knows_all_analyses():
    assert tuple(analyses.ANALYSES) == surveying.ANALYSES


@pytest.mark.parametrize("name", surveying.ANALYSES)
@pytest.mark.parametrize("architecture", ["gpt2", "bert", "t5"])
def test_an_analysis_has_a_row_for_each_head_of_self_attention(name, architecture, tiny):
    ids = {"input_ids": [[5, 6, 7, 8, 9, 7, 5]], "decoder_input_ids": [[3, 4, 5, 6]]}
    if architecture != "t5":
        del ids["decoder_input_ids"]
    trace = gattn.capture(ids, tiny(architecture))
    table = analyses.ANALYSES[name](trace)
    stacks = [name for name in trace.stacks if name != "cross"] if name != "heads" else trace.stacks
    expected = {(stack, *place) for stack in stacks for place in trace.stacks[stack]}
    assert table.index.names == ["stack", "layer", "head"]
    assert set(table.index) == expected
    assert len(table) == len(expected)
    assert all(isinstance(column, str) for column in table.columns)


def test_analyses_by_name_have_different_columns(tmp_path, embedded):
    every = list(analyses.ANALYSES.values())
    survey = running.survey(TEXTS[:2], embedded, out=tmp_path, analyses=every, progress=False)
    trace = gattn.capture(TEXTS[0], embedded)
    columns = [name for analysis in analyses.ANALYSES.values() for name in analysis(trace).columns]
    assert len(set(columns)) == len(columns)
    stored = pq.read_schema(tmp_path / "heads" / "000000000.parquet").names
    assert set(columns) <= set(stored)
    first = survey.heads.query("text_id == 0 and layer == 2").reset_index(drop=True)
    for name in ("betti1_0.1", "effective_rank", "fiedler", "second_eigenvalue", "template_self"):
        table = next(t for f in analyses.ANALYSES.values() if name in (t := f(trace)).columns)
        expected = table.xs(2, level="layer")[name].to_numpy()
        assert first[name].to_numpy() == pytest.approx(expected, abs=1e-5, nan_ok=True)


def test_reasons_that_are_not_listed_are_counted(tmp_path, capsys):
    class Stub:
        manifest: ClassVar = {"num_texts": 17}

        def __len__(self):
            return 2

        def sql(self, query):
            if "edges" in query:
                return pd.DataFrame({"edges": [9]})
            return pd.DataFrame({"reason": list("abcde"), "failed": [5, 4, 3, 2, 1]})

    surveying._print_survey(Stub(), tmp_path, 0, 1.0)
    printed = capsys.readouterr().out
    assert "15 texts failed" in printed
    assert "3 x c\n  and 2 more reasons, in the table failures\n" in printed


def test_a_survey_that_is_complete_does_not_say_that_it_ran(corpus, tmp_path, capsys):
    out = tmp_path / "survey"
    for limit, said in ((4, r"4 texts, .* MB, \d+ s$"), (4, "nothing was run$")):
        assert run(corpus, "-o", out, "--limit", limit, "--keep", "topk:1") == 0
        first = capsys.readouterr().out.splitlines()[0]
        assert re.search(said, first), first
        assert first.startswith(f"{out}: 4 texts, ")


def test_a_survey_that_was_resumed_says_how_many_texts_it_ran(tmp_path, capsys):
    class Stub:
        manifest: ClassVar = {"num_texts": 10}

        def __len__(self):
            return 10

        def sql(self, query):
            return pd.DataFrame({"edges": [9]}) if "edges" in query else pd.DataFrame()

    surveying._print_survey(Stub(), tmp_path, 8, 3.0)
    assert "10 texts, 9 edges, 0.0 MB, 2 of them in 3 s now" in capsys.readouterr().out
