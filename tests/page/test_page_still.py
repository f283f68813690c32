"""The picture on a page, for readers that run no script."""

import re

import matplotlib.pyplot as plt
import pytest
from looking import LAMP
from playwright.sync_api import expect
from samples import HOSTILE, signed, trace_of, words

import gattn
from gattn.drawing.page import to_html
from gattn.drawing.page.still import still


@pytest.fixture(scope="module")
def lamp():
    return gattn.capture(LAMP)


def test_without_a_script_there_is_a_picture_and_no_dead_control(visit, lamp, tmp_path):
    lamp.to_html(tmp_path / "page.html")
    page = visit(tmp_path / "page.html", java_script_enabled=False)
    picture = page.get_by_role("img", name=LAMP)
    expect(picture).to_be_visible()
    assert picture.bounding_box()["width"] > 400
    expect(page.locator("h1")).to_contain_text(LAMP)
    expect(page.locator("noscript p")).to_contain_text("in a browser that runs JavaScript")
    assert page.locator("button, select, input").filter(visible=True).count() == 0


def test_once_the_script_has_run_the_picture_is_gone(look_at, lamp):
    page = look_at(lamp)
    expect(page.locator("#main")).to_be_visible()
    assert page.locator("#still, img").count() == 0


def test_what_mail_leaves_of_a_page_is_the_picture(lamp):
    """Style and scripts are removed, as mail programs do."""
    text = re.sub(r"<(script|style)\b.*?</\1>", "", lamp.to_html(), flags=re.DOTALL)
    assert re.search(r'<img alt="The river[^"]*" src="data:image/png;base64,[\w+/=]+">', text)
    assert '<main id="main" hidden>' in text
    assert re.search('id="tools"[^>]* hidden>', text)


def test_the_picture_stays_small_however_many_heads_there_are():
    assert len(still([trace_of(words(30), layers=12, heads=12)], None)) < 500_000


@pytest.mark.parametrize("kind", ["one head", "two runs", "signed runs", "circuit"])
def test_everything_that_has_a_page_has_a_picture(kind, lamp, tmp_path, request):
    plt.close("all")
    if kind == "one head":
        text = lamp[2, 1].to_html()
    elif kind == "circuit":
        text = request.getfixturevalue("heads").to_html()
    else:
        trace = lamp if kind == "two runs" else signed()
        text = trace.to_html(other=trace)
    assert not plt.get_fignums()  # or a notebook would show them below the cell
    assert len(re.search('src="data:image/png;base64,([^"]+)"', text)[1]) > 4000


def test_of_several_texts_each_has_a_picture_and_a_name(visit, lamp, tmp_path):
    dog = gattn.capture("The dog chased the cat")
    to_html({"lamp": lamp, "<b>head": dog[1, 1]}, tmp_path / "page.html")
    page = visit(tmp_path / "page.html", java_script_enabled=False)
    expect(page.locator("h1")).to_have_text("2 texts: lamp; <b>head")
    names = [
        f"text 1 of 2 · lamp · {LAMP} · embedded",
        "text 2 of 2 · <b>head · The dog chased the cat · embedded",
    ]
    assert page.locator("figcaption").all_text_contents() == names
    for name, trace in zip(names, (lamp, dog[1, 1]), strict=True):
        figure = page.get_by_role("img", name=name)
        alone = re.search('src="(data:image/png[^"]+)"', trace.to_html())[1]
        assert figure.get_attribute("src") == alone


def test_of_many_texts_the_last_are_named_alone():
    text = to_html([trace_of(words(4), layers=1, heads=1)] * 10)
    assert text.count('src="data:image/png') == 8
    captions = re.findall("<figcaption>(.*?)</figcaption>", text)
    assert [caption.split(" · ")[0] for caption in captions] == [
        f"text {n} of 10" for n in range(1, 11)
    ]


def test_hostile_titles_stay_text(visit, tmp_path):
    trace_of(HOSTILE, heads=1, layers=1).to_html(tmp_path / "page.html")
    page = visit(tmp_path / "page.html", java_script_enabled=False)
    assert page.locator("h1 *, body > script:not([id^=gattn]):not([type=module])").count() == 0
    assert not re.search("[\0\u202e\u2066\u2028]", page.locator("h1").text_content())


def test_a_notebook_holds_the_picture_once(lamp):
    assert lamp._repr_html_().count("data:image/png") == 0


def test_a_script_that_reads_another_format_leaves_the_picture(visit, lamp, tmp_path):
    text = lamp.to_html().replace('{"format":1,', '{"format":99,')
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    page = visit(tmp_path / "page.html")
    expect(page.locator("#problem")).to_contain_text("format 99")
    expect(page.get_by_role("img", name=LAMP)).to_be_visible()
