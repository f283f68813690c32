import gc
import io
import os
import re
import runpy
import subprocess
import sys

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch

import gattn
from gattn import Threshold, TopK, TopMass
from gattn.analysis import flow, rollout
from gattn.analysis.heads.compare import compare
from gattn.cli import main
from gattn.cli.arguments.captures import read_keep
from gattn.errors import GattnError
from gattn.models.load import loading

ROUNDING = {"rtol": 1e-5, "atol": 1e-6}
TEXT = "The dog chased the cat, and the cat chased the dog"


def run(*arguments):
    return main([str(argument) for argument in arguments])


def test_the_package_is_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gattn", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("gattn", run_name="__main__")
    assert ended.value.code in (None, 0)
    assert gattn.__version__ in capsys.readouterr().out


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


def test_draw_overlays_heads_in_a_style(tmp_path):
    path = tmp_path / "heads.pdf"
    arguments = ["--heads", "1.1,2.0", "--layout", "columns", "--style", "paper"]
    assert run("draw", TEXT, *arguments, "-o", path) == 0
    assert b"/CIDFontType2" in path.read_bytes()
    assert b"/Type3" not in path.read_bytes()


def test_a_picture_has_the_size_that_is_asked_for(tmp_path):
    from matplotlib.image import imread

    edits = ["--cut", "1.1"]
    for command in (["draw"], ["draw", "--layer", 1, "--head", 0], ["compare", *edits]):
        path = tmp_path / "heads.png"
        assert run(*command, TEXT, "--figsize", "6.75x4", "--style", "paper", "-o", path) == 0
        assert imread(path).shape[:2] == (1200, 2025)


def test_draw_sorts_labels_and_chooses_heads(tmp_path):
    path = tmp_path / "heads.svg"
    assert run("draw", TEXT, "--sort", "first_token", "--label", "label", "-o", path) == 0
    texts = " ".join(re.findall(r">([^<>]+)</t", path.read_text()))
    assert "sorted by first token from the largest on; above each head its label" in texts
    assert "1.1: previous token, " in texts
    assert run("draw", TEXT, "--heads", "decoder:1.1, 2.0", "--label", "entropy", "-o", path) == 0
    text = path.read_text()
    assert re.search(r"layer 1 · head 1: entropy 0\.\d\d", text)
    assert "layer 2 · head 0" in text
    assert text.count(">chased<") == 2 + 2 * 2


def test_compare_sorts_and_chooses_heads(tmp_path):
    path = tmp_path / "heads.svg"
    chosen = ("--heads", "2.0,1.1,2.1", "--sort", "distance")
    assert run("compare", PROMPT, "--cut", "1.1", *chosen, "-o", path) == 0
    texts = re.findall(r">([^<>]+)</t", path.read_text())
    named = [text for text in texts if "distance" in text and text.startswith("layer")]
    assert named[0].startswith("layer 1 · head 1: distance 0.83")
    assert len(named) == 3


def test_heads_prints_the_table(capsys):
    assert run("heads", TEXT) == 0
    lines = capsys.readouterr().out.splitlines()
    table = gattn.capture(TEXT).summary()
    assert lines[0].split()[:4] == ["layer", "head", "entropy", "mean_distance"]
    assert len(lines) == 1 + len(table)
    assert max(map(len, lines)) <= 120
    for line, (_, row) in zip(lines[1:], table.iterrows(), strict=True):
        assert float(line.split()[2]) == pytest.approx(row.entropy, abs=1e-3)
        assert line.endswith(row.label)
    assert run("heads", TEXT, "--all") == 0
    assert capsys.readouterr().out.split("\n")[0].split() == ["layer", "head", *table.columns]


def test_heads_says_what_was_not_kept_and_writes_files(capsys, tmp_path):
    path = tmp_path / "heads.csv"
    assert run("heads", TEXT, "--keep", "topk:2", "-o", path) == 0
    *_, note, said = capsys.readouterr().out.splitlines()
    assert "of the attention was not kept" in note
    assert said == f"{path}: 16 heads, 27 columns"
    table = gattn.capture(TEXT, keep=TopK(2)).summary()
    found = pd.read_csv(path, index_col=["stack", "layer", "head"])
    pd.testing.assert_frame_equal(found, pd.DataFrame(table), check_dtype=False, rtol=1e-6)
    picture = tmp_path / "heads.svg"
    assert run("heads", TEXT, "-o", picture) == 0
    assert "previous" in picture.read_text()


def test_export_writes_what_capture_gives(tmp_path):
    trace = gattn.capture(TEXT)
    run("export", TEXT, "-o", tmp_path / "all.gattn")
    again = gattn.load(tmp_path / "all.gattn")
    for place, head in trace.only_stack.items():
        np.testing.assert_allclose(again[place].to_dense(), head.to_dense(), **ROUNDING)
    run("export", TEXT, "--layer", 1, "--head", 2, "--keep", "topk:2", "-o", tmp_path / "h.graphml")
    kept = trace[1, 2].keep(TopK(2))
    network = nx.read_graphml(tmp_path / "h.graphml")
    assert network.number_of_edges() == kept.graph.num_edges
    again = gattn.load(tmp_path / "h.graphml")
    np.testing.assert_allclose(again.to_dense(), kept.to_dense(), **ROUNDING)


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
        (["draw", TEXT, "-o", "no/such/folder/a.svg"], "does not exist"),
        (["draw", TEXT, "--layout", "circle"], "--layer and --head"),
        (
            ["draw", TEXT, "--layout", "arcs", "--heads", "1.1,2.0", "--sort", "induction"],
            "side by",
        ),
        (["draw", TEXT, "--layout", "matrix", "--heads", "1.1,2.0"], "A matrix shows one head"),
        (["draw", TEXT, "--heads", "1,9"], "No head 0.9; there are layers [0, 1, 2, 3]"),
        (["draw", TEXT, "--heads", "one"], "numbers, as in 0,2, or LAYER.HEAD"),
        (["draw", TEXT, "--heads", "1.1,9.0"], "No head 9.0; there are layers [0, 1, 2, 3]"),
        (["draw", TEXT, "--heads", "cross:1.1"], "No stack 'cross'"),
        (["compare", TEXT, "--with", "gpt2", "--sort", "distance"], "before and after edits"),
        (["draw", TEXT, "--sort", "beauty"], "no head score 'beauty'; there are entropy"),
        (["draw", TEXT, "--layer", "1", "--head", "1", "--sort", "entropy"], "use --heads 1.1"),
        (["draw", TEXT, "--layer", "40"], "the model has layers 0 .."),
        (["draw", TEXT, "--head", "40"], "has heads 0 .. 3"),
        (["heads", TEXT, "--model", "./no/such/model"], "could not be loaded"),
        (["heads", TEXT, "--keep", "best:3"], "threshold:T"),
        (["heads", TEXT, "--keep", "topk:0"], "whole number ≥ 1"),
        (["heads", TEXT, "--keep", "topk:two"], "topk:K"),
        (["heads", TEXT, "-o", "heads.xlsx"], "one of .csv, .svg"),
        (["export", TEXT, "-o", "head.graphml"], "--layer and --head"),
        (["export", TEXT, "-o", "head.xlsx"], "one of .gattn"),
    ],
)
def test_errors_are_one_line_with_the_remedy(arguments, said, refused):
    assert said in refused(arguments)


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Run a command that is refused in one line, and writes nothing; give the line."""
    monkeypatch.chdir(tmp_path)

    def refused(arguments):
        assert main(arguments) == 2
        error = capsys.readouterr().err.strip()
        assert error.startswith("gattn: ")
        assert "\n" not in error
        assert not list(tmp_path.iterdir())
        return error

    return refused


def in_a_process(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "gattn", *arguments],
        stderr=subprocess.PIPE,
        timeout=600,
        **options,
    )


@pytest.mark.slow
def test_a_hub_that_does_not_answer_is_one_line():
    """On a port of this machine where nobody listens."""
    environment = os.environ | {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    done = in_a_process("heads", "a b", "--model", "nosuch/model", env=environment)
    assert done.returncode == 2
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("gattn: The model 'nosuch/model' could not be loaded")
    assert "the hub does not answer" in line


@pytest.mark.slow
def test_a_reader_that_stops_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    done = in_a_process("models", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.slow
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
    assert read_keep("threshold:0.02") == Threshold(0.02)
    assert read_keep("topmass:0.9") == TopMass(0.9)
    with pytest.raises(GattnError):
        read_keep("all:3")


def test_help_loads_no_library():
    code = (
        "import sys\nfrom gattn.cli import main\n"
        "for command in ('draw', 'effect', 'compare'):\n"
        "  try: main([command, '--help'])\n  except SystemExit: pass\n"
        "main(['effect', 'a b', '--cut', 'wrong'])\n"
        "print(sorted({'torch', 'numpy', 'matplotlib', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_commands_load_only_what_they_use(tmp_path):
    """Each library that is not used would make a command a second slower."""
    gattn.survey(["the dog and the cat"], out=tmp_path / "survey", progress=False)
    heavy = {"torch", "transformers", "torch_geometric", "matplotlib", "scipy", "networkx"}
    libraries = {"torch_geometric", "pyarrow.parquet", "duckdb", "pandas", "xarray", "networkx"}
    drawing = libraries | {"gattn.analysis.circuits.found", "gattn.models.doors.proof.plans"}
    nothing = ["survey", str(tmp_path / "no.jsonl"), "-o", str(tmp_path / "new")]
    for words, absent in (
        (["models"], heavy | {"pandas"}),
        (nothing, heavy | {"duckdb"}),
        (["query", str(tmp_path / "survey"), "select count(*) from edges"], heavy | {"xarray"}),
        (["draw", "the dog", "-o", str(tmp_path / "x.png")], drawing),
        (["draw", "the dog", "--layer=1", "--head=2", "-o", str(tmp_path / "x.png")], drawing),
    ):
        code = (
            "import sys\nfrom gattn.cli import main\n"
            f"assert main({words!r}) == {2 if words is nothing else 0}\n"
            f"print(sorted({absent!r} & set(sys.modules)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == "[]", words


def test_garbage_is_collected_once_a_model_is_loaded(monkeypatch, tmp_path):
    from gattn.cli.commands import drawing

    seen = []
    gc.enable()
    read = loading.load_model
    monkeypatch.setattr(
        loading, "load_model", lambda name: seen.append(gc.isenabled()) or read(name)
    )
    shown = drawing.chosen
    monkeypatch.setattr(
        drawing, "chosen", lambda options: (shown(options), seen.append(gc.isenabled()))[0]
    )
    assert main(["draw", "the dog", "-o", str(tmp_path / "x.png")]) == 0
    assert seen == [False, True]
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    gc.disable()
    try:
        assert main(["models"]) == 0
        assert not gc.isenabled()
    finally:
        gc.enable()


PROMPT = "The dog chased the cat, and the cat chased the"


@pytest.fixture(scope="module")
def embedded():
    return gattn.load_model()


def rows_of(output):
    return [line.split() for line in output.splitlines()]


def next_token(model, tokenizer, *edits):
    """The distribution of the next token, from the model itself."""
    inputs = tokenizer(PROMPT, return_tensors="pt")
    with torch.no_grad():
        if not edits:
            return model(**inputs).logits[0, -1].double().softmax(-1)
        with gattn.edited(model, *edits, tokenizer=tokenizer):
            return model(**inputs).logits[0, -1].double().softmax(-1)


def divergence(p, q):
    return float((p * (p.log() - q.log())).sum())


def test_effect_prints_a_row_an_edit(capsys, tmp_path, embedded):
    path = tmp_path / "effects.csv"
    cuts = ["1.1", '2:*<-"dog"', "0-1.2,3:9<-4"]
    assert run("effect", PROMPT, *(x for cut in cuts for x in ("--cut", cut)), "-o", path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["edit", "plain", "edited", "effect"]
    edits = [
        gattn.Cut(1, 1),
        gattn.Cut(2, key="dog"),
        gattn.Cut([0, 1], [2, 3], query=9, key=4),
    ]
    plain = next_token(*embedded)
    for line, text, edit in zip(lines[1:], cuts, edits, strict=True):
        assert line.strip().startswith(f"cut {text} ")
        expected = divergence(plain, next_token(*embedded, edit))
        assert float(line.split()[-1]) == pytest.approx(expected, rel=1e-2, abs=1e-7)
    table = pd.read_csv(path)
    assert list(table["edit"]) == [f"cut {text}" for text in cuts]
    expected = divergence(plain, next_token(*embedded, edits[0]))
    assert table.effect[0] == pytest.approx(expected, rel=1e-4)


def test_estimate_prints_the_edges_that_matter_most(capsys, tmp_path, embedded):
    path = tmp_path / "estimates.csv"
    arguments = ["--target", " dog", "--other", " cat", "--sample", 9]
    assert run("estimate", PROMPT, *arguments, "-o", path) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = gattn.estimate(
        PROMPT, *embedded, target=" dog", other=" cat", sample=9, progress=False
    )
    assert lines[0] == f"what cutting an edge adds to the {expected.attrs['metric']}"
    largest = expected.loc[expected.estimate.abs().idxmax()]
    place = [str(largest[name]) for name in ("layer", "head", "query", "key")]
    assert lines[2].split()[:4] == place
    assert f"and {len(expected) - 20:,} more, which -o estimates.csv includes" in lines
    table = pd.read_csv(path, keep_default_na=False, na_values=[""])
    np.testing.assert_allclose(table.estimate, expected.estimate, **ROUNDING)
    assert (table.effect.notna() == expected.effect.notna()).all()


def test_estimate_draws_one_head_and_cuts_without_renormalizing(capsys, tmp_path, embedded):
    path = tmp_path / "estimates.png"
    arguments = ["--target", " dog", "--layer", 1, "--head", 1, "--keep", "topk:1"]
    options = ["--no-renormalize", "--sample", 0, "--figsize", "6x4"]
    assert run("estimate", PROMPT, *arguments, *options, "-o", path) == 0
    said = capsys.readouterr().out
    assert "correlation" not in said
    rows = rows_of(said)[2:14]
    with torch.enable_grad():
        expected = gattn.estimate(
            PROMPT,
            *embedded,
            target=" dog",
            layers=[1],
            heads=[1],
            keep=TopK(1),
            renormalize=False,
            sample=0,
            progress=False,
        )
    assert len(expected) == len(rows)
    found = {(int(row[2]), int(row[3])): float(row[-1]) for row in rows}
    for row in expected.itertuples():
        assert found[row.query, row.key] == pytest.approx(row.estimate, rel=1e-2, abs=1e-9)
    assert path.exists()


def test_edits_together_are_one_row(capsys, embedded):
    edits = ("--cut", "1.1", "--scale", "0.5:2", "--swap", "cosine:4@3.1", "--restrict", "window:9")
    assert run("effect", PROMPT, *edits, "--normalizer", "sparsemax@0.2", "--together") == 0
    _, line = capsys.readouterr().out.splitlines()
    size = len(embedded[1](PROMPT).input_ids)
    expected = next_token(
        *embedded,
        gattn.Cut(1, 1),
        gattn.Scale(0.5, 2),
        gattn.Swap(3, 1, weight=gattn.Cosine(4)),
        gattn.Restrict(gattn.TokenGraph.window(size, 8, causal=False)),
        gattn.Swap(0, 2, normalizer=gattn.Sparsemax()),
    )
    found = float(line.split()[-1])
    assert found == pytest.approx(divergence(next_token(*embedded), expected), rel=1e-2)
    assert "cut 1.1, scale 0.5:2, swap cosine:4@3.1, restrict window:9, normalizer" in line


def test_effects_draw_themselves_to_files(tmp_path):
    assert run("effect", PROMPT, "--each-head", "-o", tmp_path / "heads.svg") == 0
    written = (tmp_path / "heads.svg").read_text()
    assert "cutting heads" in written
    assert "change in KL" in written
    assert run("effect", PROMPT, "--cut", "1.1", "--cut", "2", "-o", tmp_path / "cuts.svg") == 0
    assert "cut 1.1" in (tmp_path / "cuts.svg").read_text()


def test_each_head_is_cut_by_itself(capsys, embedded):
    model, tokenizer = embedded
    dog = tokenizer(" dog", add_special_tokens=False).input_ids[0]
    arguments = ("--each-head", "--metric", "probability", "--target", " dog")
    assert run("effect", PROMPT, *arguments) == 0
    _, *rows = rows_of(capsys.readouterr().out)
    assert [row[1] for row in rows] == [f"{n}.{h}" for n in range(4) for h in range(4)]
    for row in rows[::5]:
        layer, head = map(int, row[1].split("."))
        expected = next_token(model, tokenizer, gattn.Cut(layer, head))[dog]
        assert float(row[3]) == pytest.approx(float(expected), rel=1e-2)


def test_a_cut_without_renormalizing(capsys, embedded):
    assert run("effect", PROMPT, "--cut", "*:*<-4", "--no-renormalize") == 0
    line = capsys.readouterr().out.splitlines()[1]
    edited = next_token(*embedded, gattn.Cut(key=4, renormalize=False))
    expected = divergence(next_token(*embedded), edited)
    assert float(line.split()[-1]) == pytest.approx(expected, rel=1e-2)
    assert "without renormalizing" in line


def test_compare_prints_heads_and_the_prediction_and_draws(capsys, tmp_path, embedded):
    path = tmp_path / "compare.svg"
    assert run("compare", PROMPT, "--swap", "squared-distance@2.1", "-o", path) == 0
    lines = capsys.readouterr().out.splitlines()
    before = gattn.capture(PROMPT, *embedded)
    edit = gattn.Swap(2, 1, weight=gattn.SquaredDistance())
    with gattn.edited(embedded[0], edit):
        after = gattn.capture(PROMPT, *embedded)
    table = compare(before, after)
    assert lines[0].split() == ["layer", "head", *table.columns]
    for line, (_, layer, head), row in zip(
        lines[1:17], table.index, table.itertuples(), strict=True
    ):
        words = line.split()
        assert words[:2] == [str(layer), str(head)]
        numbers = [row.distance, row.entropy_before, row.entropy_after, row.edge_change]
        assert [float(word) for word in words[2:6]] == pytest.approx(numbers, abs=6e-4)
        changed = [] if pd.isna(row.query) else [str(row.query), str(row.key)]
        assert words[6:8] == changed
    assert "Jensen-Shannon, base e" in lines[17]
    plain, edited = next_token(*embedded), next_token(*embedded, edit)
    assert float(lines[18].split()[-2]) == pytest.approx(divergence(plain, edited), rel=1e-2)
    for line, chances in zip(lines[19:21], (plain, edited), strict=True):
        for token, chance in re.findall(r"“(.+?)” ([\d.]+)", line):
            number = embedded[1](token.replace("␣", " "), add_special_tokens=False).input_ids[0]
            assert number in chances.topk(3).indices
            assert float(chance) == pytest.approx(float(chances[number]), abs=6e-4)
    assert len(re.findall(r"” [\d.]+", lines[20])) == 3
    text = path.read_text()
    assert "swap squared-distance@2.1" in text
    assert text.count("layer ") == 4


def test_compare_matches_the_heads_of_two_models(capsys, tmp_path, embedded):
    model, tokenizer = gattn.load_model()
    heads = torch.tensor([2, 0, 3, 1])
    attention = model.model.layers[1].self_attn  # its heads in another order
    with torch.no_grad():
        for part in (attention.q_proj, attention.k_proj, attention.v_proj):
            part.weight.copy_(part.weight.unflatten(0, (4, 32))[heads].flatten(0, 1))
            part.bias.copy_(part.bias.unflatten(0, (4, 32))[heads].flatten(0, 1))
        output = attention.o_proj.weight
        output.copy_(output.unflatten(1, (4, 32))[:, heads].flatten(1))
    model.save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    path = tmp_path / "match.svg"
    assert run("compare", PROMPT, "--with", tmp_path / "other", "-o", path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["head", "nearest", "distance", "label", "nearest_label"]
    found = dict(row[:2] for row in rows_of("\n".join(lines[1:17])))
    moved = {f"1.{head}": f"1.{place}" for place, head in enumerate(heads.tolist())}
    assert found == {name: moved.get(name, name) for name in found}
    assert all(float(line.split()[2]) < 1e-2 for line in lines[1:17])
    assert "3.3" in path.read_text()


def test_compare_draws_one_head_with_its_tokens(capsys, tmp_path):
    path = tmp_path / "head.svg"
    place = ("--layer", 2, "--head", 1, "--keep", "topk:3")
    assert run("compare", PROMPT, "--cut", '1.1:*<-"cat"', *place, "-o", path) == 0
    output = capsys.readouterr().out
    assert len([row for row in rows_of(output) if row[:2] == ["2", "1"]]) == 1
    assert "computed from the edges kept by topk:3" in output
    text = path.read_text()
    assert "layer 2 · head 1" in text
    assert text.count("chased") >= 4
    for name in ("before", "after", "after − before", 'cut 1.1:*&lt;-"cat"', "change in attention"):
        assert name in text


def test_a_model_that_does_not_go_on_with_texts_has_no_next_token(
    tmp_path, tiny, tokenizer, capsys
):
    tiny("bert").save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    path = tmp_path / "compare.png"
    arguments = ("--cut", "0.1", "--model", tmp_path / "bert", "-o", path)
    assert run("compare", "the dog chased a cat", *arguments) == 0
    assert "next token: none, BertModel does not predict one" in capsys.readouterr().out
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "query", "heads"),
    [
        ([], 11, "mean"),
        (["--query", "and"], 7, "mean"),
        (["--query", "-2", "--heads", "2"], 10, 2),
    ],
)
def test_flow_ranks_tokens_by_what_comes_from_them(options, query, heads, capsys):
    assert run("flow", PROMPT, "--residual", 0.3, *options) == 0
    first, names, *lines = capsys.readouterr().out.splitlines()
    trace = gattn.capture(PROMPT)
    assert first == f"to {query} “{trace.tokens[query].strip()}”, through 4 layers"
    assert names.split() == ["position", "token", "flow", "share", "rollout", "attention"]
    how = ({"reduce": heads} if heads == "mean" else {"heads": heads}) | {"residual": 0.3}
    flows = flow(trace, queries=query, **how)[0]
    rolled = rollout(trace, **how).sel(layer=3, query=query)
    last = torch.stack([torch.from_numpy(trace[3, head].to_dense()) for head in range(4)])
    last = (last.mean(0) if heads == "mean" else last[heads])[query]
    rows = [line.split() for line in lines[: query + 1]]
    ranked = [float(row[2]) for row in rows]
    assert ranked == sorted(ranked, reverse=True)
    assert {int(row[0]) for row in rows} == set(range(query + 1))
    for position, token, *numbers in rows:
        place = int(position)
        assert token == trace.tokens[place]
        expected = [flows[place], flows[place] / flows.sum(), rolled[place], last[place]]
        assert [float(x) for x in numbers] == pytest.approx([float(x) for x in expected], abs=6e-4)
    assert lines[query + 1].startswith("flow: the maximum flow")
    assert "flows lack at most" in lines[query + 2]


def test_flow_reads_heads_of_a_stack(capsys):
    assert run("flow", PROMPT, "--heads", "1.1,2.0") == 0
    plain = capsys.readouterr().out
    assert run("flow", PROMPT, "--heads", "decoder:1.1,2.0") == 0
    assert capsys.readouterr().out == plain


def test_flow_writes_tables_and_pictures(tmp_path, capsys):
    text = "the dog chased the cat and " * 5
    assert run("flow", text, "-o", tmp_path / "flow.csv") == 0
    table = pd.read_csv(tmp_path / "flow.csv")
    assert len(table) == len(gattn.capture(text).tokens)
    assert f"and {len(table) - 20} more" in capsys.readouterr().out
    assert run("flow", PROMPT, "-o", tmp_path / "flow.svg") == 0
    assert "to 11 “the”" in (tmp_path / "flow.svg").read_text()


def test_tokens_lists_positions(capsys):
    assert run("tokens", TEXT) == 0
    rows = [line.split(" ", 1) for line in capsys.readouterr().out.splitlines()]
    tokens = gattn.capture(TEXT).tokens
    assert rows == [[str(position), token] for position, token in enumerate(tokens)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["effect", TEXT], "--cut 5.1"),
        (["effect", TEXT, "--cut", "1.1", "--each-head"], "or --each-head, which"),
        (["effect", TEXT, "--cut", "one"], "5.1:9<-4"),
        (["effect", TEXT, "--cut", "9.1"], "had nothing to edit"),
        (["effect", TEXT, "--cut", "1.9"], "the heads are 0 .. 3"),
        (["effect", TEXT, "--cut", '1:"zebra"<-*'], "had nothing to edit"),
        (["effect", TEXT, "--cut", "1", "--other", " dog"], "does not take other"),
        (["effect", TEXT, "--cut", "1", "--metric", "probability"], "takes target"),
        (["effect", TEXT, "--cut", "1", "--position", "99"], "No position 99"),
        (["effect", TEXT, "--cut", "1", "-o", "table.xlsx"], "one of .csv"),
        (
            ["effect", TEXT, "--cut", "1", "--metric", "probability", "--target", " zebras"],
            "must be one token",
        ),
        (["estimate", TEXT], "pass --target"),
        (["estimate", TEXT, "--target", " dog", "--figsize", "3"], "such as 3.3x2.4, not '3'"),
        (["estimate", TEXT, "--target", " dog", "--figsize", "0x3"], "such as 3.3x2.4"),
        (["draw", TEXT, "--figsize", "3x2x1"], "such as 3.3x2.4, not '3x2x1'"),
        (["draw", TEXT, "--figsize", "1e5x3"], "each at most 100, such as 3.3x2.4"),
        (["estimate", TEXT, "--target", " dog", "-o", "estimates.html"], "one of .csv"),
        (["compare", TEXT], "--swap cosine"),
        (["compare", TEXT, "--cut", "1.1", "--with", "other"], "or another model"),
        (["compare", TEXT, "--cut", "1.1", "-o", "picture.gif"], "one of .svg"),
        (["compare", TEXT, "--swap", "nearness"], "squared-distance[:C]"),
        (["compare", TEXT, "--normalizer", "topk:0"], "k must be"),
        (["compare", TEXT, "--restrict", "window"], "window:N"),
        (["compare", TEXT, "--cut", "1.1", "--layer", "9"], "the model has layers 0 .. 3"),
        (["flow", TEXT, "--query", "zebra"], "No query 'zebra'"),
        (["flow", TEXT, "--query", "99"], "here 0 .. 12"),
        (["flow", TEXT, "--heads", "9"], "No head 9"),
        (["flow", TEXT, "--heads", "cross:1.1"], "No stack 'cross'; there are ['decoder']"),
        (["flow", TEXT, "--heads", "mean"], "--reduce says how heads are combined"),
        (["flow", TEXT, "--reduce", "median"], "choose from"),
        (["flow", TEXT, "--residual", "2"], "share from 0 to 1"),
        (["flow", TEXT, "-o", "flow.graphml"], "one of .svg"),
    ],
)
def test_errors_of_edits_are_one_line(arguments, said, refused):
    assert said in refused(arguments)


def test_routes_prints_paths_and_edges_and_writes_pictures_and_graphs(tmp_path, capsys):
    text = "The river tall green lamp river tall green lamp river tall green"
    found = gattn.analysis.routes(text, progress=False)
    assert run("routes", text, "-o", tmp_path / "routes.graphml") == 0
    said = capsys.readouterr().out
    assert "position 12 “green” predicts “␣lamp”" in said
    for path in found.paths(10)["path"]:
        assert path in said
    assert "2.0  5 lamp → 12 green" in said
    again = gattn.load(tmp_path / "routes.graphml")
    assert set(again.edges) == set(found.edges)
    assert again.nodes[found.end]["strength"] == 1
    assert run("routes", text, "-o", tmp_path / "routes.json") == 0
    assert set(gattn.load(tmp_path / "routes.json")) == set(found)
    for suffix in ("gexf", "dot", "csv"):
        assert run("routes", text, "-o", tmp_path / f"routes.{suffix}") == 0
        assert (tmp_path / f"routes.{suffix}").stat().st_size > 1000
    assert run("routes", text, "-o", tmp_path / "routes.svg") == 0
    assert "→ lamp" in (tmp_path / "routes.svg").read_text()
    capsys.readouterr()
    assert run("routes", text, "--position", 3, "--threshold", 0.5) == 0
    assert "position 3 “tall” predicts" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong", [["--position", 40], ["--threshold", 2], ["-o", "routes.txt"], ["-o", "no/routes.svg"]]
)
def test_routes_refuses_what_cannot_be(wrong, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("routes", TEXT, *wrong) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_circuit_prints_what_it_found_and_writes_pictures_and_graphs(tmp_path, capsys):
    text = "The river tall green lamp river tall green lamp river tall green"
    found = gattn.circuit(text, target=" lamp", progress=False)
    given = ["circuit", text, "--target", " lamp"]
    assert run(*given, "-o", tmp_path / "circuit.graphml") == 0
    said = capsys.readouterr().out
    assert str(found) in said
    assert "5 lamp → 12 green" in said
    again = gattn.load(tmp_path / "circuit.graphml")
    assert set(again.edges) == set(found.edges)
    assert again.faithfulness == found.faithfulness
    assert again.table().equals(found.table())
    assert run(*given, "-o", tmp_path / "circuit.html") == 0
    assert (tmp_path / "circuit.html").read_text("utf-8") == found.to_html()
    for suffix in ("json", "gexf", "dot", "csv", "svg"):
        assert run(*given, "--max-edges", 3, "-o", tmp_path / f"circuit.{suffix}") == 0
        assert (tmp_path / f"circuit.{suffix}").stat().st_size > 100
    assert "not 0.9, with at most 3 edges" in capsys.readouterr().out


def test_circuit_finds_paths(tmp_path, capsys):
    text = "The river tall green lamp river tall green"
    given = ["circuit", text, "--target", " lamp", "--units", "paths", "--keep", 0.5]
    assert run(*given, "-o", tmp_path / "paths.graphml") == 0
    said = capsys.readouterr().out
    again = gattn.load(tmp_path / "paths.graphml")
    assert str(again) in said
    assert "of 288 paths keep" in said
    assert f"{len(again.table())} paths" in said.splitlines()[-1]
    for suffix in ("csv", "svg"):
        assert run(*given, "--seconds", 1, "-o", tmp_path / f"paths.{suffix}") == 0
        assert (tmp_path / f"paths.{suffix}").stat().st_size > 100
    assert run(*given, "-o", tmp_path / "paths.html") == 2
    assert "-o circuit.svg" in capsys.readouterr().err


@pytest.mark.parametrize("ablation", ["mean", "red green dog red red"])
def test_circuit_puts_in_what_is_asked_for_in_place_of_messages(ablation, capsys):
    text = "red green lamp red green"
    found = gattn.circuit(text, target=" lamp", ablation=ablation, keep=0.5, progress=False)
    assert (
        found.graph["empty"] != gattn.circuit(text, target=" lamp", progress=False).graph["empty"]
    )
    given = ["circuit", text, "--target", " lamp", "--keep", 0.5]
    assert run(*given, "--ablation", ablation) == 0
    assert str(found) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--ablation", "a dog"], "as many"),
        (["--keep", 2], "keep is a number above 0"),
        (["--target", " cat and dog"], "must be one token"),
        (["--other", " lamp"], "--metric"),
        (["--units", "words"], "choose from"),
    ],
)
def test_circuit_refuses_what_cannot_be(wrong, said, refused):
    assert said in refused(["circuit", TEXT, *map(str, wrong)])


def test_effect_measures_the_loss_and_several_targets(capsys):
    assert run("effect", PROMPT, "--cut", "1.1", "--metric", "loss") == 0
    loss = gattn.effect(PROMPT, [gattn.Cut(1, 1)], metric="loss", progress=False)
    assert f"{loss['edited'][0]:.4g}" in capsys.readouterr().out
    targets = "--target", " dog", "--target", " cat", "--position", "3"
    assert run("effect", PROMPT, "--cut", "1.1", "--metric", "probability", *targets) == 0
    both = gattn.effect(
        PROMPT,
        [gattn.Cut(1, 1)],
        metric="probability",
        target=[" dog", " cat"],
        position=3,
        progress=False,
    )
    assert f"{both['plain'][0]:.4g}" in capsys.readouterr().out
