"""The texts in which a head has the most of a score: in Python, on a page, as a command."""

import json
import re

import pandas as pd
import pytest

import gattn
from gattn.cli import main
from gattn.errors import SelectionError

TEXTS = [
    "The dog chased the cat",
    "red green lamp red green lamp red green",
    "one",
    "<script>window.pwned=1</script> and the dog and the dog and the dog",
]


@pytest.fixture(scope="module")
def survey(tmp_path_factory):
    out = tmp_path_factory.mktemp("surveys") / "survey"
    return gattn.survey(TEXTS, out=out, keep=gattn.TopK(3), progress=False)


def best(survey, score, layer, head):
    """The same, from the whole table."""
    heads = survey.heads[(survey.heads["layer"] == layer) & (survey.heads["head"] == head)]
    return heads.dropna(subset=[score]).sort_values([score, "text_id"], ascending=[False, True])


@pytest.mark.parametrize("score", ["induction", "previous_token", "num_edges"])
@pytest.mark.parametrize("head", ["2.1", (2, 1)])
def test_examples_are_the_texts_with_the_largest_scores(survey, score, head):
    found, known = survey.examples(score, head, most=3), best(survey, score, 2, 1)[:3]
    assert found["text_id"].tolist() == known["text_id"].tolist()
    assert found["score"].tolist() == known[score].tolist()
    assert found["text"].tolist() == [TEXTS[n] for n in found["text_id"]]
    assert set(found["layer"]) == {2}
    assert set(found["head"]) == {1}
    assert found.computed_from.startswith("head 2.1 in 4 texts, ")


def test_texts_without_the_score_are_left_out(survey):
    known = best(survey, "induction", 2, 1)
    assert len(known) < len(TEXTS)  # nothing repeats
    assert len(survey.examples("induction", "2.1")) == len(known)


def test_their_page_has_the_head_in_each_text(survey, tmp_path):
    found = survey.examples("previous_token", "1.0")
    found.to_html(tmp_path / "examples.html")
    page = (tmp_path / "examples.html").read_text()
    header = json.loads(re.search(r'id="gattn-header">(.*?)</script>', page)[1])
    texts = [header, *header["others"]]
    assert len(texts) == len(found) > 1
    for one, row in zip(texts, found.itertuples(), strict=True):
        assert one["name"] == f"previous token {row.score:.3g}, text {row.text_id}"
        (stack,) = one["traces"][0]["stacks"]
        head = survey.graph(row.text_id, 1, 0)
        assert stack["keys"]["tokens"] == list(head.tokens)
        (graph,) = stack["graphs"]
        assert (graph["layer"], graph["head"], graph["edges"]) == (1, 0, head.graph.num_edges)
    assert "<script>window.pwned" not in page


def test_their_page_shows_what_the_model_predicts_if_it_is_given(survey):
    found = survey.examples("previous_token", "1.0")
    page = found.to_html(model="embedded")
    header = json.loads(re.search(r'id="gattn-header">(.*?)</script>', page)[1])
    for one, text in zip([header, *header["others"]], found["text"], strict=True):
        (stack,) = one["traces"][0]["stacks"]
        told = gattn.capture(text).predictions
        assert stack["text"] == text
        known = [p for p in stack["predictions"]["probability"] if p is not None]
        assert known == pytest.approx(told.probability[1:].tolist(), rel=1e-3)
        assert [names[0][0] for names in stack["predictions"]["likeliest"]] == [
            some[0][0] for some in told.likeliest(1)
        ]


def test_another_model_is_refused(survey, tmp_path):
    found = survey.examples("previous_token", "1.0", most=1)
    model, tokenizer = gattn.load_model()
    other = type(model)(model.config).eval()
    with pytest.raises(SelectionError, match="other attention of"):
        found.to_html(model=other, tokenizer=tokenizer)
    with (
        gattn.edited(model, gattn.Cut(layer=0, head=0)),
        pytest.raises(SelectionError, match="other edits of"),
    ):
        found.to_html(model=model, tokenizer=tokenizer)
    ids = gattn.survey([[5, 6, 7, 8]], out=tmp_path / "ids", progress=False)
    with pytest.raises(SelectionError, match="given as token ids"):
        ids.examples("previous_token", "1.0").to_html(model="embedded")


@pytest.mark.parametrize(
    ("score", "head", "words"),
    [
        ("charm", "2.1", "No score 'charm'"),
        ("weight_function", "2.1", "No score 'weight_function'"),
        ("induction", "99.0", "No text has a head 99.0"),
        ("induction", "encoder:2.1", "in a stack 'encoder'; it is in decoder"),
        ("induction", "2.0,2.1", "must be one head"),
        ("induction", "two", "must be one head"),
        ("induction", 2, "must be one head"),
    ],
)
def test_what_is_not_there_is_refused(survey, score, head, words):
    with pytest.raises(SelectionError, match=re.escape(words)):
        survey.examples(score, head)


def test_the_command_prints_them_and_writes_their_page(survey, capsys, tmp_path):
    page, table = tmp_path / "examples.html", tmp_path / "examples.csv"
    command = ["examples", str(survey.folder), "2.1", "previous_token", "--most", "2"]
    assert main([*command, "-o", str(page)]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = survey.examples("previous_token", "2.1", most=2)
    assert lines[0] == f"previous_token: {found.computed_from}"
    assert [line.split()[0] for line in lines[2:4]] == [str(n) for n in found["text_id"]]
    assert lines[-1] == f"{page}: 2 texts"
    assert page.stat().st_size > 10_000
    assert main([*command, "--model", "embedded", "-o", str(page)]) == 0
    assert page.read_text().count('"likeliest"') == 2
    capsys.readouterr()
    assert main([*command, "-o", str(table)]) == 0
    assert pd.read_csv(table)["text_id"].tolist() == found["text_id"].tolist()
    assert main(["examples", str(survey.folder), "two", "previous_token"]) == 2
    assert "must be one head" in capsys.readouterr().err
