"""What a component cannot show is told in its place, and thrown."""

import json
import re

import pytest
from looking import LAMP
from playwright.sync_api import Error, expect

import gattn
from gattn.drawing import to_payload


@pytest.fixture(scope="module")
def lamp():
    return gattn.capture(LAMP)


GOT = "{header, blocks}, as an object or as JSON, but got"
WRONG = {
    "nothing": ("undefined", f"{GOT} undefined"),
    "a number": ("3", f"{GOT} the number 3"),
    "a list": ("[made]", f"{GOT} an array"),
    "another object": ("({a: 1, b: 2})", f"{GOT} an object with a, b"),
    "blocks alone": ("({blocks: []})", f"{GOT} an object with blocks"),
    "a promise": ("Promise.resolve(made)", "is a promise: await it first"),
    "a response": ("new Response('{}')", "is a response: pass await response.json()"),
    "an empty text": ("' '", "The payload is empty"),
    "a document": ("'<!DOCTYPE html>'", "is no JSON but a document"),
    "cut": ("text.slice(0, 5000)", "of 5000 characters: it may have been cut or changed"),
    "another format": (
        "({...made, header: {...made.header, format: 99, version: '9.1'}})",
        "format 99, but the script reads format 1: write both with one version of gattn. "
        "The payload is of gattn 9.1, this script of ",
    ),
    "no format": ("({...made, header: {}})", "says no format"),
    "no traces": (
        "({...made, header: {...made.header, traces: []}})",
        "header of the payload lacks traces",
    ),
    "no scale": ("(delete made.header.levels, made)", "lacks levels"),
    "a block less": (
        "({...made, blocks: made.blocks.slice(0, 5)})",
        "Block 5 of the payload is",
    ),
    "a broken header": ("({...made, header: {...made.header, traces: [{}]}})", "gattn-view: "),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_payload_is_told_in_the_element_and_thrown(kind, embedded, lamp):
    given, said = WRONG[kind]
    page = embedded('<div id="here"></div><gattn-view></gattn-view>')
    asked = [to_payload(lamp), given]
    thrown = page.evaluate(
        """([text, given]) => {
            const [here, made] = [document.getElementById("here"), JSON.parse(text)];
            gattnView.mount(here, text);
            const wrong = eval(`([made, text]) => ${given}`)([made, text]);
            const told = [];
            const two = document.querySelector("gattn-view");
            const ways = [() => gattnView.mount(here, wrong), () => (two.payload = wrong)];
            for (const show of ways) {
                try { show(); } catch (problem) { told.push(problem.message); }
            }
            return told;
        }""",
        asked,
    )
    assert len(thrown) == 2
    for message, place in zip(thrown, ("#here", "gattn-view"), strict=True):
        assert said.removeprefix("gattn-view: ") in message
        expect(page.locator(place).get_by_role("alert")).to_have_text(f"gattn-view: {message}")
        assert page.locator(place).locator("canvas").count() == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("null, made", "expects an element of the document, but got null: no element matched"),
        ("'#here', made", 'got the text "#here": find it first'),
        ("document, made", "got an object (HTMLDocument): find it first"),
        ("document.createElement('img'), made", "in <img>, which can have no shadow root"),
        ("here, made, 'view=matrix'", "options of mount(element, payload, options) are an object"),
        ("here, made, {view: 'matrix'}", "has no option view: it has fragment"),
        ("here, made, {fragment: 3}", "fragment is text such as"),
    ],
)
def test_other_wrong_arguments_are_told(arguments, said, embedded, lamp):
    page = embedded('<div id="here"></div>')
    call = (
        f"made => {{ const here = document.getElementById('here'); gattnView.mount({arguments}) }}"
    )
    with pytest.raises(Error, match=re.escape(said)):
        page.evaluate(call, to_payload(lamp))
    with pytest.raises(Error, match="fragment is text such as"):
        page.evaluate(
            "made => { gattnView.mount(document.getElementById('here'), made).fragment = null }",
            to_payload(lamp),
        )


def test_a_right_payload_follows_a_wrong_one(embedded, lamp):
    page = embedded("<gattn-view></gattn-view>")
    view = page.locator("gattn-view")
    with pytest.raises(Error, match="is no JSON"):
        view.evaluate("node => { node.payload = '{' }")
    expect(view.get_by_role("alert")).to_contain_text("is no JSON")
    view.evaluate("(node, payload) => { node.payload = payload }", to_payload(lamp))
    expect(view.locator("#head-title")).to_contain_text("layer 2 · head 1")
    view.evaluate("node => { node.payload = null }")
    assert view.evaluate("node => node.shadowRoot.childElementCount") == 0


def test_broken_json_within_an_element_is_told(embedded, visit):
    page = embedded('<gattn-view><script type="application/json">{"header": </script></gattn-view>')
    expect(page.locator("gattn-view").get_by_role("alert")).to_contain_text("no JSON")
    (complaint,) = visit.complaints
    assert "no JSON" in complaint
    visit.complaints.clear()


@pytest.mark.parametrize("broken", ["no deflated data", "too few numbers"])
def test_a_block_that_cannot_be_read_is_told(broken, embedded, lamp):
    made = json.loads(to_payload(lamp))
    short = json.loads(to_payload(gattn.capture("a dog")))
    (stack,) = made["header"]["traces"][0]["stacks"]
    block = next(g["block"] for g in stack["graphs"] if (g["layer"], g["head"]) == (2, 1))
    made["blocks"][block] = "AAAA" if broken == "no deflated data" else short["blocks"][block]
    page = embedded('<div id="here"></div>')
    page.evaluate(
        """made => {
            const here = document.getElementById("here");
            window.told = [];
            here.addEventListener("viewerror", ({ detail }) => told.push(detail.message));
            gattnView.mount(here, made, { fragment: "layer=2&head=1" });
        }""",
        made,
    )
    alert = page.locator("#here #problem")
    expect(alert).to_contain_text("This could not be shown")
    expect(alert).to_contain_text("Write the payload again by gattn.drawing.to_payload")
    assert page.evaluate("told") == [alert.text_content()]
