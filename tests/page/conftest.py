"""A real browser: what a page asks for, complains of or is forbidden fails the test."""

import os
import shutil

import pytest
import torch

import gattn

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
OWN = ("data:", "blob:")
CSP = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", event => {
  window.violations.push(`${event.violatedDirective}: ${event.blockedURI}`);
});
"""


def executable():
    return os.environ.get("GATTN_CHROMIUM") or shutil.which("chromium")


@pytest.fixture(scope="module")
def browser():
    """Start a browser, whose event loop other modules' tests must not meet."""
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


@pytest.fixture(scope="module")
def dark_browser(browser):
    """Start a browser on a system that is dark."""
    flags = [*FLAGS, "--force-dark-mode"]
    dark = browser.browser_type.launch(executable_path=executable(), args=flags)
    yield dark
    dark.close()


@pytest.fixture
def visit(browser):
    """Open files; in the end there were no requests but for them, no errors and no violations."""
    contexts, visited, requests, complaints, allowed = [], set(), [], [], set()

    def open_file(path, *, fragment="", **options):
        options = {"viewport": {"width": 1280, "height": 800}} | options
        context = browser.new_context(**options)
        contexts.append(context)
        context.add_init_script(WATCH)
        page = context.new_page()
        visited.add(path.absolute().as_uri())
        page.on("request", lambda request: requests.append(request.url))
        page.on("requestfailed", forbidden)
        page.on("console", lambda message: complain(message.type, message.text))
        page.on("pageerror", lambda error: complain("error", str(error)))
        page.goto(path.absolute().as_uri() + fragment)
        return page

    def forbidden(request):
        if request.failure == "csp":  # it never left the browser, and is a violation
            requests.remove(request.url)

    def complain(kind, text):
        if kind in ("error", "warning"):
            complaints.append(f"{kind}: {text}")

    open_file.complaints, open_file.allowed = complaints, allowed
    yield open_file
    for context in contexts:
        for page in context.pages:
            complaints += page.evaluate("window.violations")
        context.close()
    assert not complaints
    assert visited <= set(requests)
    known = visited | allowed
    assert not [url for url in requests if url not in known and not url.startswith(OWN)]


@pytest.fixture
def look_at(visit, tmp_path):
    """Open the page of a trace, and wait until a head is shown."""
    from looking import settle

    def open_page(trace, fragment="", *, other=None, edits="", **options):
        path = tmp_path / "page.html"
        trace.to_html(path, other=other, edits=edits)
        page = visit(path, fragment=f"#{fragment}" if fragment else "", **options)
        settle(page)
        return page

    return open_page


@pytest.fixture(scope="session")
def lamp():
    """A circuit of edges."""
    from looking import LAMP

    return gattn.circuit(LAMP, target=" lamp", progress=False, random=2)


@pytest.fixture(scope="session")
def heads():
    """A circuit of heads."""
    text = "red green lamp red green"
    return gattn.circuit(text, units="heads", keep=0.5, progress=False, random=2)


@pytest.fixture(scope="session")
def several():
    """A circuit in an encoder and its decoder."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).double().eval()
    given = {"input_ids": [3, 4, 5, 6], "decoder_input_ids": [0, 7, 8]}
    return gattn.circuit(given, model, keep=0.7, progress=False, random=2)


@pytest.fixture
def look_at_circuit(visit, tmp_path):
    """Open the page of a circuit."""
    from looking import settle

    def open_page(found, fragment="", **options):
        path = tmp_path / "circuit.html"
        found.to_html(path)
        page = visit(path, fragment=f"#{fragment}" if fragment else "", **options)
        settle(page)
        return page

    return open_page


@pytest.fixture
def embedded(visit, tmp_path):
    """Open a page, opened from a file, with components in its body."""
    gattn.drawing.write_component(tmp_path)

    def open_page(body, **options):
        text = (
            f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>a post</title>'
            f'<meta http-equiv="Content-Security-Policy" content="{CSP}">'
            f'<body><script src="gattn-view.classic.js"></script>{body}</body></html>'
        )
        (tmp_path / "post.html").write_text(text, encoding="utf-8")
        return visit(tmp_path / "post.html", **options)

    visit.allowed.add((tmp_path / "gattn-view.classic.js").absolute().as_uri())
    return open_page
