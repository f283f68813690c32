"""A real browser: what a page asks for, complains of or is forbidden fails the test."""

import os
import shutil

import pytest

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", event => {
  window.violations.push(`${event.violatedDirective}: ${event.blockedURI}`);
});
"""


def executable():
    return os.environ.get("GATTN_CHROMIUM") or shutil.which("chromium")


@pytest.fixture(scope="session")
def browser():
    found = executable()
    if not found:
        reason = "no chromium: install Debian's, or name one in GATTN_CHROMIUM"
        if os.environ.get("CI"):
            pytest.fail(f"{reason}; .ci/run needs it")
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """Open files; in the end there were no requests but for them, no errors and no violations."""
    contexts, requests, complaints = [], [], []

    def open_file(path, *, fragment="", **options):
        options = {"viewport": {"width": 1280, "height": 800}} | options
        context = browser.new_context(**options)
        contexts.append(context)
        context.add_init_script(WATCH)
        page = context.new_page()
        url = path.absolute().as_uri() + fragment
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complain(message.type, message.text))
        page.on("pageerror", lambda error: complain("error", str(error)))
        page.goto(url)
        requests.remove(url)
        return page

    def complain(kind, text):
        if kind in ("error", "warning"):
            complaints.append(f"{kind}: {text}")

    open_file.complaints = complaints
    yield open_file
    for context in contexts:
        for page in context.pages:
            complaints += page.evaluate("window.violations")
        context.close()
    assert not complaints
    assert not [url for url in requests if not url.startswith(("data:", "blob:"))]
