"""gattn view writes a page and opens it."""

import pytest
from decoding import Decoded
from transformers import XLNetConfig, XLNetLMHeadModel

import gattn
from gattn.cli import main
from gattn.cli.arguments import captures
from gattn.cli.commands import drawing

TEXT = "The dog chased the cat, and the cat chased the dog"


@pytest.fixture
def view(tmp_path, monkeypatch):
    """Run the command in a fresh folder; give the page it wrote, and what it opened."""
    opened = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(drawing.webbrowser, "open", opened.append)

    def run(*arguments):
        assert main(["view", *map(str, arguments)]) == 0
        (path,) = tmp_path.glob("*.html")
        return Decoded(path.read_text(encoding="utf-8")), opened

    return run


def values(page):
    (stack,) = page.stacks().values()
    return [set(entry["values"]) for entry in stack["graphs"]]


def test_it_writes_a_page_of_all_heads_and_opens_it(view, tmp_path, capsys):
    page, opened = view(TEXT)
    assert opened == [(tmp_path / "attention.html").as_uri()]
    said = capsys.readouterr().out
    assert said.startswith("attention.html: AttentionTrace(embedded; decoder: 4 layers x 4 heads)")
    assert values(page) == [{"attention", "score", "contribution"}] * 16


def test_it_opens_nothing_where_there_is_no_screen_or_it_is_not_wanted(view, monkeypatch):
    assert view(TEXT, "--no-open")[1] == []
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(drawing.sys, "platform", "linux")
    assert view(TEXT)[1] == []


def test_edits_make_a_page_of_before_and_after(view):
    page, _ = view(TEXT, "--cut", "1.1", "--scale", "2:2.1", "--layer", 2, "-o", "cut.html")
    assert len(page.header["traces"]) == 2
    assert page.header["edits"] == "cut 1.1, scale 2:2.1"
    before, after = (page.head("decoder", 2, 1, number)["attention"] for number in (0, 1))
    assert abs(after - before).max() > 0.01


def test_generated_text_is_told_apart(view):
    page, _ = view("The river tall", "--generate", 4)
    (stack,) = page.stacks().values()
    plain = gattn.capture("The river tall").tokens
    assert len(stack["keys"]["tokens"]) == stack["generatedFrom"] + 4
    assert stack["keys"]["tokens"][: stack["generatedFrom"]] == plain


def test_where_there_is_much_attention_is_shown_alone_and_that_is_said(view, monkeypatch, capsys):
    monkeypatch.setattr(drawing, "_MOST_PAIRS", 100)
    page, _ = view(TEXT, "--keep", "topk:2")
    assert values(page) == [{"attention"}] * 16
    assert "2,704 pairs of tokens" in capsys.readouterr().out


def test_what_a_model_does_not_tell_is_left_out_and_that_is_said(view, tokenizer, tmp_path, capsys):
    sizes = {"vocab_size": 16, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 16}
    XLNetLMHeadModel(XLNetConfig(**sizes)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    page, _ = view("the dog chased a cat", "--model", tmp_path / "model")
    assert all("contribution" not in some for some in values(page))
    assert "contributions" in capsys.readouterr().out


def test_what_a_model_tells_is_found_out_before_anything_long_is_done(
    view, tiny, tokenizer, tmp_path, monkeypatch
):
    tiny("bloom", "eager").save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    runs, run = [], captures._generate
    monkeypatch.setattr(captures, "_generate", lambda *given: runs.append(given[0]) or run(*given))
    long = " ".join(["the dog chased a cat"] * 5)
    view(long, "--model", tmp_path / "model", "--generate", 3)
    assert runs == [long]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--generate", "3", "--cut", "1.1"], "no edits"),
        (["--generate", "0"], "at least 1"),
        (["-o", "page.svg"], "one of .html"),
        (["-o", "no/page.html"], "does not exist"),
        (["--cut", "9.1"], "layer"),
    ],
)
def test_it_refuses_what_cannot_be(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["view", TEXT, "--no-open", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())
