"""The page's script: its own unit tests, run by the node that playwright brings along."""

import re
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "gattn" / "drawing" / "page"
HERE = Path(__file__).parent


def node():
    driver = pytest.importorskip("playwright._impl._driver", reason="no playwright, so no node")
    return driver.compute_driver_executable()[0]


def test_the_unit_tests_of_the_script_pass():
    files = sorted(map(str, HERE.glob("*.test.mjs")))
    assert files
    found = subprocess.run([node(), "--test", *files], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-4000:]


@pytest.mark.parametrize(
    "way",
    [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "DOMParser",
        "eval(",
        "new Function",
        "srcdoc",
        "fetch(",
        "XMLHttpRequest",
        "WebSocket",
        "import(",
        "window.open",
        "sendBeacon",
        "location.assign",
        "location.replace",
        "http:",
        "https:",
        "</script",
        "<!--",
    ],
)
def test_the_script_has_no_way_to_insert_markup_or_reach_the_network(way):
    text = (PAGE / "viewer.js").read_text(encoding="utf-8")
    assert way not in text.replace("http://www.w3.org/2000/svg", "")


def test_the_script_never_leaves_the_page():
    """The policy would not hold it back: it forbids requests, not to go elsewhere."""
    text = (PAGE / "viewer.js").read_text(encoding="utf-8")
    leaves = re.compile(r"\blocation(\.\w+)?\s*=[^=]")
    assert leaves.search("window.location.href = there")
    assert leaves.search("location=there")
    assert not leaves.search(text)


def test_the_style_and_the_markup_load_and_run_nothing():
    style, markup = ((PAGE / name).read_text("utf-8") for name in ("viewer.css", "skeleton.html"))
    assert not re.findall(r"url\(|@import|http|</style", style)
    assert not re.findall(r"\s(?:on\w+|src|href|style|action)=(?!\"#)", markup)
    assert not re.findall(r"<(?:script|link|style|iframe|object|base)", markup)
