"""axe-core finds nothing on the page, whatever it shows."""

import re

import numpy as np
import pytest
from looking import LAMP, cut_lamp, settle
from playwright.sync_api import expect
from samples import trace_of, words

import gattn
from gattn.drawing import to_payload, write_component
from gattn.drawing.notebooks import notebook_html
from gattn.drawing.page import to_html


@pytest.fixture(scope="module")
def axe():
    """The rules of axe-core, from a package that brings its script along."""
    from axe_playwright_python.sync_playwright import Axe

    return Axe()


@pytest.fixture(scope="module")
def lamp():
    return gattn.capture(LAMP, scores=True)


def patches():
    attention = np.random.default_rng(0).dirichlet(np.ones(25), (2, 2, 25))
    return gattn.AttentionTrace.from_arrays(attention).on_grid(4, 6, image_size=(32, 48))


def pair(**options):
    trace = trace_of(words(12), causal=False)
    return to_html(trace, spans=[(0, 7), (7, 12)], colour={"size": np.arange(12)}, **options)


def graph():
    places = {node: (node % 4, node // 4) for node in range(12)}
    return trace_of(words(12), causal=False)[0, 0].with_layout(places).to_html()


PAGES = {
    "text": (lambda lamp: lamp.to_html(), "layer=2&head=1&token=9"),
    "columns": (lambda lamp: lamp.to_html(), "view=columns&search=lamp"),
    "matrix": (lambda lamp: lamp.to_html(), "view=matrix&weight=score&token=9"),
    "layered": (lambda lamp: lamp.to_html(), "view=layered&token=9"),
    "passage": (lambda lamp: lamp.to_html(), "view=text&token=9"),
    "pinned": (lambda lamp: lamp.to_html(), "pins=1.1-3.0&overlay=1&token=9"),
    "sorted": (lambda _: trace_of(words(20), layers=12, heads=12).to_html(), "sort=induction"),
    "one head": (lambda lamp: lamp.to_html(heads="2.1"), "token=9"),
    "pair": (lambda _: pair(), "queries=0-7&keys=7-12&colour=size"),
    "two runs": (lambda lamp: gattn.capture(LAMP).to_html(other=cut_lamp()), "show=all three"),
    "graph": (lambda _: graph(), "view=places&token=3"),
    "image": (lambda _: patches().to_html(image=np.ones((32, 48, 3))), "view=places&token=3"),
    "texts": (lambda lamp: to_html({"induction 0.54": lamp[2, 1], "other": lamp[2, 0]}), "text=1"),
    "why": (
        lambda lamp: lamp.to_html(why=gattn.why(LAMP, layer=2, head=0)),
        "layer=2&head=0&why=12-9&apart=elements",
    ),
    "circuit": (lambda _: gattn.circuit(LAMP, target=" lamp", progress=False).to_html(), "edge=0"),
}


def checked(axe, page):
    """Run all rules; say what they find."""
    found = axe.run(page, options={"resultTypes": ["violations", "passes"]}).response
    assert len(found["passes"]) > 20, "the rules ran"
    return [
        (rule["id"], node["target"], node["failureSummary"])
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", PAGES)
def test_axe_finds_nothing(kind, scheme, axe, visit, lamp, tmp_path):
    make, fragment = PAGES[kind]
    (tmp_path / "page.html").write_text(make(lamp), encoding="utf-8")
    page = visit(tmp_path / "page.html", fragment=f"#{fragment}", color_scheme=scheme)
    settle(page)
    assert page.locator("html").get_attribute("data-theme") == scheme
    assert checked(axe, page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_what_a_notebook_shows(scheme, axe, visit, lamp, tmp_path):
    things = {
        "a trace": lamp, "a head": lamp[2, 1], "an unrolled graph": lamp.unroll(),
        "a table by head": lamp.summary(),
        "effects": gattn.effect(LAMP, [gattn.Cut(layer=1, head=1)], progress=False),
    }  # fmt: skip
    shown = {name: notebook_html(thing) for name, thing in things.items()}
    cells = "".join(f"<h2>{name}</h2>{html}" for name, html in shown.items() if html)
    text = (
        f'<!DOCTYPE html><html lang="en" style="color-scheme: {scheme}"><meta charset="utf-8">'
        f'<title>a notebook</title><body data-jp-theme-light="{str(scheme == "light").lower()}">'
        f"<main><h1>A notebook</h1>{cells}</main></body></html>"
    )
    (tmp_path / "notebook.html").write_text(text, encoding="utf-8")
    page = visit(tmp_path / "notebook.html", color_scheme=scheme)
    for frame in page.frames[1:]:
        expect(frame.locator("#caption")).not_to_be_empty()
    assert checked(axe, page) == []


def test_axe_finds_nothing_where_no_script_runs(axe, visit, lamp, tmp_path):
    """What is left without the script, seen with the script of axe."""
    text = re.sub("<script.*?</script>|</?noscript>", "", to_html([lamp] * 9), flags=re.DOTALL)
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    page = visit(tmp_path / "page.html", bypass_csp=True)
    expect(page.locator("figure")).to_have_count(9)
    assert checked(axe, page) == []


@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing_in_a_component(width, axe, visit, lamp, tmp_path):
    write_component(tmp_path)
    inner = f'<script type="application/json">{to_payload(lamp)}</script>'
    text = (
        '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>a post</title><body><main>'
        f'<h1>A post</h1><script src="gattn-view.classic.js"></script>'
        f'<gattn-view fragment="token=9">{inner}</gattn-view></main></body></html>'
    )
    (tmp_path / "post.html").write_text(text, encoding="utf-8")
    visit.allowed.add((tmp_path / "gattn-view.classic.js").absolute().as_uri())
    page = visit(tmp_path / "post.html", viewport={"width": width, "height": 800})
    settle(page)
    assert checked(axe, page) == []


def test_axe_finds_what_is_wrong(axe, visit, lamp, tmp_path):
    text = lamp.to_html().replace('aria-label="search a token"', "").replace('lang="en"', "")
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    page = visit(tmp_path / "page.html")
    settle(page)
    assert "html-has-lang" in {rule for rule, *_ in checked(axe, page)}
