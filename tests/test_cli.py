import io
import os
import subprocess
import sys
import time

import networkx as nx
import pytest

import gattn
from gattn import Threshold, TopK, TopMass
from gattn.cli import _keep, main
from gattn.errors import GattnError

TEXT = "The dog chased the cat, and the cat chased the dog"


def run(*arguments):
    return main([str(argument) for argument in arguments])


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_draw_writes_all_heads(suffix, tmp_path, capsys):
    path = tmp_path / f"attention.{suffix}"
    assert run("draw", TEXT, "-o", path) == 0
    magic = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(magic)
    assert str(path) in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("layout", ["arcs", "columns", "circle", "matrix"])
def test_draw_writes_one_head_with_its_tokens(layout, tmp_path):
    path = tmp_path / "head.svg"
    assert run("draw", TEXT, "--layer", 1, "--head", 0, "--layout", layout, "-o", path) == 0
    text = path.read_text()
    assert text.count("chased") >= 2
    assert "layer 1 · head 0" in text


def test_heads_prints_the_table(capsys):
    assert run("heads", TEXT) == 0
    lines = capsys.readouterr().out.splitlines()
    trace = gattn.capture(TEXT)
    assert lines[0].split() == ["layer", "head", *trace.summary().columns]
    assert len(lines) == 1 + len(trace.only_stack)
    assert float(lines[1].split()[2]) == pytest.approx(trace.summary().entropy.iloc[0], abs=1e-3)


def test_export_writes_what_capture_gives(tmp_path):
    trace = gattn.capture(TEXT)
    run("export", TEXT, "-o", tmp_path / "all.gattn")
    again = gattn.load(tmp_path / "all.gattn")
    assert all((again[p].to_dense() == h.to_dense()).all() for p, h in trace.only_stack.items())
    run("export", TEXT, "--layer", 1, "--head", 2, "--keep", "topk:2", "-o", tmp_path / "h.graphml")
    kept = trace[1, 2].keep(TopK(2))
    network = nx.read_graphml(tmp_path / "h.graphml")
    assert network.number_of_edges() == kept.graph.num_edges
    assert (gattn.load(tmp_path / "h.graphml").to_dense() == kept.to_dense()).all()


def test_models_lists_the_embedded_one(capsys):
    assert run("models") == 0
    assert capsys.readouterr().out.splitlines()[0] == "embedded"


def test_text_comes_from_standard_input(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("word " * 2000))
    assert run("heads", "-", "--keep", "all") == 2
    assert "at most" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["draw", ""], "The text is empty"),
        (["draw", TEXT, "-o", "picture.gif"], "one of .svg, .png, .pdf"),
        (["draw", TEXT, "-o", "no/such/folder/a.svg"], "there is no folder"),
        (["draw", TEXT, "--layout", "circle"], "--layer and --head"),
        (["draw", TEXT, "--layer", "40"], "the model has layers 0 .."),
        (["draw", TEXT, "--head", "40"], "has heads 0 .. 3"),
        (["heads", TEXT, "--model", "./no/such/model"], "could not be loaded"),
        (["heads", TEXT, "--keep", "best:3"], "threshold:T"),
        (["heads", TEXT, "--keep", "topk:0"], "k >= 1"),
        (["heads", TEXT, "--keep", "topk:two"], "topk:K"),
        (["export", TEXT, "-o", "head.graphml"], "--layer and --head"),
        (["export", TEXT, "-o", "head.xlsx"], "one of .gattn"),
    ],
)
def test_errors_are_one_line_with_the_remedy(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("gattn: ")
    assert said in error
    assert "\n" not in error
    assert not list(tmp_path.iterdir())


def in_a_process(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "gattn.cli", *arguments],
        stderr=subprocess.PIPE,
        timeout=120,
        **options,
    )


def test_a_hub_that_does_not_answer_is_one_line_and_quick():
    """On a port of this machine where nobody listens."""
    environment = os.environ | {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    start = time.monotonic()
    done = in_a_process("heads", "a b", "--model", "nosuch/model", env=environment)
    assert time.monotonic() - start < 20
    assert done.returncode == 2
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("gattn: The model 'nosuch/model' could not be loaded")
    assert "the hub does not answer" in line


def test_a_reader_that_stops_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    done = in_a_process("models", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("place", ["argument", "standard input"])
def test_text_that_is_not_utf8_is_one_line(place):
    text = b"\xff\xfe abc"
    if place == "argument":
        done = in_a_process("heads", text)
    else:
        done = in_a_process("heads", "-", input=text)
    assert done.returncode == 2
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("gattn: ")
    assert "not valid" in line


def test_an_error_clears_the_line_of_progress(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert run("heads", TEXT, "--layer", "40") == 2
    *_, line = capsys.readouterr().err.split("\r\033[K")
    assert line.startswith("gattn: No layer 40")


def test_keep_rules_are_named():
    assert _keep("threshold:0.02") == Threshold(0.02)
    assert _keep("topmass:0.9") == TopMass(0.9)
    with pytest.raises(GattnError):
        _keep("all:3")


def test_help_loads_no_library():
    code = (
        "import sys\nfrom gattn.cli import main\n"
        "try: main(['draw', '--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'matplotlib', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
