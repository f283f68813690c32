"""What a page in a browser shows."""

from playwright.sync_api import expect

import gattn

LAMP = "The river tall green lamp river tall green lamp river tall green"
VIEWS = ["arcs", "columns", "matrix", "layered", "text"]


def settle(page):
    expect(page.locator("#caption")).not_to_be_empty()
    expect(page.locator("#view")).not_to_have_attribute("aria-busy", "true")
    expect(page.locator("#problem")).to_be_hidden()


def wait_until(page, script):
    """Wait until a script is true, evaluated from outside: the page's policy lets no page do so."""
    for _ in range(300):
        if page.evaluate(script):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"{script} is not true after 30 s")


def state(page):
    fragment = page.evaluate("location.hash").removeprefix("#")
    return dict(part.split("=") for part in fragment.split("&") if part)


def readings(page, which):
    """The rows of a table of numbers: {token and place: value}."""
    table = page.locator("#numbers table").filter(has=page.locator("caption", has_text=which))
    cells = table.locator("tr:has(td bdi)").all()
    return {
        row.locator("button").text_content(): row.locator(".value").text_content() for row in cells
    }


def cut_lamp():
    model, tokenizer = gattn.load_model()
    with gattn.edited(model, gattn.Cut(layer=1, head=1)):
        return gattn.capture(LAMP, model, tokenizer)
