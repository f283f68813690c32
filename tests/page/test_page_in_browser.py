"""The page in a real browser: what it shows, how it is used, and that it asks for nothing."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from looking import LAMP, VIEWS, cut_lamp, readings, settle, state
from playwright.sync_api import expect
from samples import HOSTILE, signed, trace_of, words

import gattn
from gattn.drawing.page import payload
from gattn.names.text import visible


@pytest.fixture(scope="module")
def lamp():
    return gattn.capture(LAMP, scores=True, contributions=True)


@pytest.fixture(scope="module")
def cut():
    return cut_lamp()


# It opens, quietly, whatever it holds: `visit` fails on requests, errors and violations


@pytest.mark.parametrize("view", VIEWS)
def test_it_opens_in_every_view(view, look_at, lamp):
    page = look_at(lamp, f"view={view}")
    expect(page.locator(f"#views [value={view}]")).to_have_attribute("aria-checked", "true")
    expect(page).to_have_title(f"{LAMP} · embedded")
    expect(page.locator("#title")).to_have_text(LAMP)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", ["one token", "500 tokens", "half kept", "signed"])
def test_it_opens_with_any_head(kind, view, look_at):
    trace = {
        "one token": lambda: trace_of(["one"]),
        "500 tokens": lambda: trace_of(words(500), causal=False),
        "half kept": lambda: trace_of(words(40), kept=gattn.TopK(3)),
        "signed": signed,
    }[kind]()
    head = trace[0, 0]
    last = head.graph.num_tokens - 1
    page = look_at(trace, f"view={view}&token={last}")
    kept = page.locator("#caption").filter(has_text="TopK(3)")
    expect(kept).to_have_count(int(kind == "half kept"))
    if view == "layered":
        return  # what it says is tested against the analyses
    row = head.to_dense()[last]
    found = [number(written) for written in readings(page, "reads").values()]
    assert len(found) == min(8, np.count_nonzero(row))
    assert found == pytest.approx(sorted(row, key=abs)[: -len(found) - 1 : -1], abs=6e-4, rel=0.006)


def number(written):
    return float(written.replace("−", "-").replace("< 0.001", "0"))


@pytest.mark.parametrize("view", ["arcs", "columns", "matrix"])
def test_it_opens_with_cross_attention(view, look_at, tiny, tokenizer):
    texts = [tokenizer(t, return_tensors="pt").input_ids for t in ("the dog chased", "a cat")]
    inputs = dict(zip(("input_ids", "decoder_input_ids"), texts, strict=True))
    trace = gattn.capture(inputs, tiny("bart"), tokenizer)
    page = look_at(trace, f"stack=cross&view={view}&layer=1&head=2&token=1&side=query")
    found = readings(page, "reads")
    row = trace["cross"][1, 2].to_dense()[1]
    assert len(found) == len(row)
    assert max(found.values()) == f"{row.max():.3f}"


def test_grouped_queries_and_sinks_are_named(look_at, tiny, tokenizer):
    trace = gattn.capture("the dog chased a cat", tiny("gpt-oss", "eager"), tokenizer)
    page = look_at(trace, "layer=1&head=2&token=3")
    expect(page.locator("#head-title")).to_contain_text("key-value head 1")
    sink = next(value for name, value in readings(page, "reads").items() if "sink" in name)
    assert float(sink) == pytest.approx(trace[1, 2].sink[3], abs=6e-4)


def test_generated_tokens_are_told(look_at):
    model, tokenizer = gattn.load_model()
    inputs = tokenizer("The river tall", return_tensors="pt")
    with gattn.capturing(model, tokenizer) as run:
        model.generate(**inputs, max_new_tokens=4, do_sample=False)
    page = look_at(run.trace, "token=6")
    expect(page.locator("#facts")).to_contain_text("the last 3 generated")
    captions = page.locator("#numbers caption")
    expect(captions.first).to_contain_text("generated")
    page.keyboard.press("Escape")
    page.goto(page.url.split("#")[0] + "#token=1")
    expect(captions.first).not_to_contain_text("generated")


# The numbers


@pytest.mark.parametrize(("layer", "head", "token"), [(0, 0, 3), (1, 1, 12), (2, 0, 9), (3, 3, 6)])
def test_its_numbers_are_those_of_the_trace(layer, head, token, look_at, lamp):
    page = look_at(lamp, f"layer={layer}&head={head}&token={token}")
    dense, texts = lamp[layer, head].to_dense(), lamp.tokens
    for which, values in (("reads", dense[token]), ("is read by", dense[token:, token])):
        first = 0 if which == "reads" else token
        found = readings(page, which)
        assert len(found) == min(8, (values > 1e-5).sum())
        for name, value in found.items():
            place, text = name.split(" ", 1)
            assert text.removesuffix(" special") == texts[int(place)]
            expected = values[int(place) - first]
            written = float(value.replace("< 0.001", "0"))
            assert written == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize("name", ["score", "contribution"])
def test_other_weights_are_those_of_the_trace(name, look_at, lamp):
    page = look_at(lamp, f"layer=2&head=1&token=4&weight={name}")
    head = lamp[2, 1]
    expected = sorted(getattr(head, name)[head.query == 4], reverse=True)
    found = [float(x.replace("−", "-")) for x in readings(page, "reads").values()]
    assert found == pytest.approx(expected, rel=0.006, abs=2e-4)


def test_every_number_of_a_large_page_is_within_the_precision_it_states(look_at, monkeypatch):
    monkeypatch.setattr(payload, "_ROOM", 40_000)
    trace = trace_of(words(100), causal=False)
    page = look_at(trace, "layer=1&head=2&token=7")
    said = float(re.search(r"within (0\.0+\d+)", page.locator("#notes").text_content()).group(1))
    assert 1e-5 < said < 2e-4
    found = [float(value) for value in readings(page, "reads").values()]
    expected = np.sort(trace[1, 2].to_dense()[7])[::-1][: len(found)]
    assert found == pytest.approx(expected, abs=said + 5e-4)


# Hostile tokens


@pytest.mark.parametrize("view", VIEWS)
def test_hostile_tokens_are_text_and_nothing_else(view, look_at):
    name = "<b>model</b>\0\u202e</title><script>window.pwned=6</script>"
    trace = trace_of(
        HOSTILE, model=name, weight_function="</script><script>window.pwned=7</script>"
    )
    edits = "<img src=x onerror=window.pwned=8>"
    page = look_at(trace, f"view={view}&token=1", other=trace, edits=edits)
    expect(page.locator("#facts")).to_contain_text(edits)
    page.locator("#search").fill("<script>")
    page.locator("#search").press("Enter")
    assert page.evaluate("window.pwned") is None
    assert (
        page.locator("b, img, iframe, object, embed, link, svg, a:not([href='#view'])").count() == 0
    )
    assert page.locator("script:not([id^=gattn]):not([type=module])").count() == 0
    assert page.locator("script").count() == 2 + 2 * len(list(trace.heads())) + 1
    assert "</title><script>" in page.title()


def test_hostile_tokens_are_shown_escaped(look_at):
    page = look_at(trace_of([*HOSTILE, HOSTILE[0]], heads=1), "view=columns")
    for place, token in enumerate(HOSTILE):
        page.evaluate(f"location.hash = '#view=columns&token={place}'")
        caption = page.locator("#numbers caption").first
        expect(caption).to_contain_text(f" {place} ")
        assert caption.locator("bdi").text_content() == visible(token, limit=49)
    text = page.locator("body").inner_text()
    assert not re.search("[\0\u202e\u2066\u2028]", text.replace("\u2069", ""))


@pytest.mark.parametrize(
    "attempt",
    [
        "fetch('https://example.org')",
        "new Image().src = 'https://example.org/x.png'",
        "new WebSocket('wss://example.org')",
        "navigator.sendBeacon('https://example.org')",
        "document.body.innerHTML = '<p>markup</p>'",
        "document.createElement('script').text = 'window.pwned = 1'",
        "document.body.append(document.createRange().createContextualFragment('<i>x</i>'))",
        "Object.assign(document.createElement('iframe'), {srcdoc: '<p>x</p>'})",
        "setTimeout('window.pwned = 1')",
        "document.body.setAttribute('style', 'color: red')",
    ],
)
def test_even_a_fault_in_the_script_reaches_no_network_and_makes_no_markup(
    attempt, look_at, lamp, visit
):
    page = look_at(lamp)
    before = page.locator("body *").count()
    page.evaluate(f"async () => {{ try {{ await ({attempt}) }} catch {{}} }}")
    page.wait_for_timeout(100)
    assert page.evaluate("window.violations")
    assert page.locator("p:text-is('markup'), i:text-is('x')").count() == 0
    assert page.locator("body *").count() <= before + 1
    assert page.evaluate("window.pwned") is None
    page.evaluate("window.violations = []")
    visit.complaints.clear()


def test_a_hostile_fragment_changes_nothing(look_at, lamp):
    fragment = "view=<script>&layer=1e9&head=-1&token=99999999999&weight=__proto__&sort=constructor"
    page = look_at(lamp, f"{fragment}&stack=toString&threshold=NaN&keys=9-2&search=%E0%A4%A&%%%")
    expect(page.locator("#views [value=arcs]")).to_have_attribute("aria-checked", "true")
    assert page.evaluate("window.pwned") is None


# Use


def test_heads_are_chosen_by_click_and_arrow_keys(look_at, lamp):
    page = look_at(lamp, "layer=0&head=0")
    grid, title = page.locator("#grid canvas"), page.locator("#head-title")
    box = grid.bounding_box()
    grid.click(position={"x": 0.6 * box["width"], "y": 0.45 * box["height"]})
    clicked = state(page)
    expect(title).to_contain_text(f"layer {clicked['layer']} · head {clicked['head']}")
    assert (clicked["layer"], clicked["head"]) != ("0", "0")
    page.locator("#grid").focus()
    page.evaluate("location.hash = '#layer=1&head=1'")
    expect(title).to_contain_text("layer 1 · head 1")
    for key, place in (
        ("ArrowRight", "1 · head 2"),
        ("ArrowDown", "2 · head 2"),
        ("ArrowLeft", "2 · head 1"),
    ):
        page.keyboard.press(key)
        expect(title).to_contain_text(f"layer {place}")
    for _ in range(5):
        page.keyboard.press("ArrowUp")
    expect(title).to_contain_text("layer 0 · head 1")


def test_a_token_is_looked_at_by_pointer_and_by_key(look_at, lamp):
    page = look_at(lamp, "view=columns&layer=2&head=1")
    view, captions = page.locator("#view canvas"), page.locator("#numbers caption")
    box = view.bounding_box()
    for y in np.linspace(0.2, 0.8, 30):
        page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + y * box["height"])
        page.wait_for_timeout(30)
        if captions.count():
            break
    expect(captions.first).to_contain_text("read")
    assert "token" not in state(page)
    page.mouse.move(5, 5)
    expect(captions).to_have_count(0)
    page.locator("#view").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert state(page)["token"] == "2"
    expect(page.locator("#view-option")).to_contain_text("river")
    page.keyboard.press("Escape")
    expect(captions).to_have_count(0)


def test_threshold_and_top_say_how_many_edges_they_leave(look_at, lamp):
    page = look_at(lamp, "view=matrix&layer=3&head=0")

    def shown():
        text = page.locator("#caption").text_content()
        return int(re.search(r"([\d,]+) of 91 edges", text).group(1).replace(",", ""))

    attention = lamp[3, 0].attention
    page.locator("#threshold").fill("50")
    threshold = float(state(page)["threshold"])
    assert shown() == (attention >= threshold - 1e-5).sum()
    page.locator("#automatic").click()
    page.locator("#top").fill("2")
    assert state(page) == {**state(page), "top": "2"}
    assert shown() == 2 * 13 - 1


def test_words_merge_and_special_tokens_hide(look_at, tiny, tokenizer):
    trace = gattn.capture("the dog walked and a cat chased a walking fish", tiny("bert"), tokenizer)
    page = look_at(trace, "layer=1&head=1&token=3")
    merged = trace[1, 1].merge_words()
    page.locator("#words").check()
    rows = readings(page, "reads")
    expect(page.locator("#numbers caption").first).to_contain_text("walked")
    expected = merged.to_dense()[merged.labels().index("walked")]
    assert max(rows.values()) == f"{expected.max():.3f}"
    page.locator("#special").check()
    assert state(page)["special"] == "1"
    assert not [name for name in readings(page, "reads") if "CLS" in name or "SEP" in name]


@pytest.mark.parametrize(("layer", "head", "sinks"), [(1, 1, []), (1, 2, [0, 2]), (2, 1, [0])])
def test_sinks_hide_and_it_is_said(layer, head, sinks, look_at, lamp):
    assert np.flatnonzero(lamp[layer, head].to_dense().mean(0) > 0.3).tolist() == sinks
    page = look_at(lamp, f"layer={layer}&head={head}&token=5")
    before = readings(page, "reads")
    page.locator("#sinks").check()
    settle(page)
    hidden = page.locator("#caption").filter(has_text="hidden: ")
    expect(hidden).to_have_count(int(bool(sinks)))
    gone = {name for name in before if int(name.split()[0]) in sinks}
    assert bool(gone) == bool(sinks)
    assert set(readings(page, "reads")) == set(before) - gone


def test_search_marks_and_steps_through_all_places(look_at, lamp):
    page = look_at(lamp)
    page.keyboard.press("/")
    page.keyboard.type("river")
    expect(page.locator("#found")).to_contain_text("3")
    places = []
    for _ in range(4):
        page.keyboard.press("Enter")
        places.append(state(page)["token"])
    assert places == ["2", "6", "10", "2"]


def test_two_runs_are_compared(look_at, lamp, cut):
    plain = gattn.capture(LAMP)
    page = look_at(plain, "layer=2&head=1&token=12", other=cut, edits="cut 1.1")
    before, after = plain[2, 1].to_dense()[12], cut[2, 1].to_dense()[12]
    expected = {"before": before, "after": after, "difference": after - before}
    for show, values in expected.items():
        page.locator("#show").select_option(show)
        settle(page)
        for name, value in readings(page, "reads").items():
            place = int(re.match(r"\d+", name).group())
            written = float(value.replace("−", "-").replace("< 0.001", "0"))
            assert written == pytest.approx(values[place], abs=1e-3)
    page.locator("#show").select_option("all three")
    expect(page.locator("#caption")).to_contain_text("difference")
    expect(page.locator("#facts")).to_contain_text("cut 1.1")


@pytest.mark.parametrize("view", VIEWS)
def test_two_runs_are_compared_in_every_view(view, look_at, cut):
    page = look_at(gattn.capture(LAMP), f"view={view}&show=all three&token=9", other=cut)
    expect(page.locator("#caption")).to_contain_text("before")


def test_the_fragment_restores_the_view(look_at, lamp):
    page = look_at(lamp)
    page.keyboard.press("3")
    page.locator("#weight").select_option("contribution")
    page.locator("#sort").select_option("induction")
    page.locator("#search").fill("lamp")
    page.locator("#search").press("Enter")
    saved, title = state(page), page.locator("#head-title").text_content()
    assert saved["view"] == "matrix"
    caption = page.locator("#caption").text_content()
    page.reload()
    settle(page)
    assert state(page) == saved
    assert page.locator("#head-title").text_content() == title
    assert page.locator("#caption").text_content() == caption
    assert page.locator("#search").input_value() == "lamp"


@pytest.mark.parametrize("view", VIEWS)
def test_the_view_is_saved_as_svg_with_its_text(view, look_at, tmp_path):
    page = look_at(trace_of(HOSTILE), f"view={view}")
    with page.expect_download() as download:
        page.locator("#save-svg").click()
    path = tmp_path / "saved.svg"
    download.value.save_as(path)
    root = ElementTree.parse(path).getroot()
    texts = " ".join(
        "".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")
    )
    assert "attention" in texts
    assert "sample" in texts
    kinds = {node.tag.rpartition("}")[2] for node in root.iter()}
    assert not kinds & {"script", "foreignObject", "a", "style"}
    assert not [name for node in root.iter() for name in node.attrib if name.startswith("on")]
    if view != "matrix":
        assert "<script>" in texts


def test_the_view_is_saved_as_png(look_at, lamp, tmp_path):
    from matplotlib.image import imread

    page = look_at(lamp, "view=matrix")
    with page.expect_download() as download:
        page.locator("#save-png").click()
    assert re.fullmatch(r"[\w.-]+\.png", download.value.suggested_filename)
    path = tmp_path / "saved.png"
    download.value.save_as(path)
    pixels = imread(path)
    assert min(pixels.shape[:2]) > 800
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 50


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", ["short", "long", "hostile"])
def test_on_a_phone_nothing_is_wider_than_the_screen(view, kind, look_at, lamp):
    trace = {"short": lamp, "long": None, "hostile": trace_of(HOSTILE)}[kind] or trace_of(
        words(300)
    )
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    page = look_at(trace, f"view={view}&token=4", **phone)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    grid, view_ = (page.locator(name).bounding_box() for name in ("#heads", "#view"))
    assert grid["y"] + grid["height"] <= view_["y"]


def test_dark_and_light_follow_the_system_and_the_button(look_at, lamp):
    page = look_at(lamp, color_scheme="dark", reduced_motion="reduce")
    paper = "getComputedStyle(document.querySelector('section')).backgroundColor"
    dark = page.evaluate(paper)
    page.locator("#theme").click()
    light = page.evaluate(paper)
    assert sum(map(int, re.findall(r"\d+", dark)[:3])) < 200
    assert sum(map(int, re.findall(r"\d+", light)[:3])) > 700


def test_everything_is_reached_by_keyboard_and_named(look_at, lamp):
    page = look_at(lamp)
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.id || document.activeElement.parentElement.id")
        )
    wanted = {
        "grid",
        "view",
        "views",
        "threshold",
        "top",
        "search",
        "sort",
        "weight",
        "save-svg",
        "theme",
    }
    assert wanted <= reached
    page.keyboard.press("Escape")
    page.locator("#view").focus()
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()
    controls = page.locator("button, input, select, [role=listbox]").all()
    unnamed = [c.get_attribute("id") for c in controls if c.is_visible() and not named(c)]
    assert not unnamed


def named(control):
    return control.evaluate(
        "node => node.ariaLabel || node.textContent.trim() || node.labels?.[0]?.textContent.trim()"
    )


def test_the_layers_show_the_rollout_of_the_analyses(look_at, lamp):
    page = look_at(lamp, "view=layered&token=9&level=3")
    expected = gattn.analysis.rollout(lamp).to_numpy()[2, 9]
    found = readings(page, "of the input")
    assert len(found) > 4
    for name, value in found.items():
        place = int(re.match(r"\d+", name).group())
        assert float(value.replace("< 0.001", "0")) == pytest.approx(expected[place], abs=1.1e-3)
