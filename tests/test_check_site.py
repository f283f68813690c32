import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

import check_site
import named_parts

SOUND = (
    '<h1 id="here">x</h1><a href="#here">y</a><a href="https://example.org">z</a><a id="x"></a>'
    '<a href="#here"><img src="data:," alt="z"></a><button aria-label="y"><i></i></button>'
    '<summary title="w"></summary><summary><b>w</b></summary>'
    '<iframe title="v" src="data:,"></iframe>'
)
FAULTS = {
    '<script src="https://example.org/x.js"></script>': "loads from the network",
    '<img src="//example.org/x.png">': "loads from the network",
    '<link rel="stylesheet" href="http://example.org/x.css">': "loads from the network",
    '<a href="nowhere.html">y</a>': "broken link",
    '<a href="#nowhere">y</a>': "broken link",
    '<img src="nothing.png">': "broken link",
    '<a href="#here"><i></i></a>': "no name",
    '<a href="#here"><img src="data:," alt=""></a>': "no name",
    "<details><summary> </summary></details>": "no name",
    '<button><span class="x"></span></button>': "no name",
    '<iframe src="data:,"></iframe>': "no name",
    '<img src="data:,">': "no name",
}


@pytest.fixture(autouse=True)
def nothing_searched(monkeypatch):
    monkeypatch.setattr(check_site, "FOUND", {})


def test_a_page_that_is_sound_has_no_faults(tmp_path, capsys):
    (tmp_path / "index.html").write_text(SOUND)
    assert check_site.main(tmp_path) == 0
    assert capsys.readouterr().out == "1 pages, 0 faults\n"


@pytest.mark.parametrize(("text", "what"), FAULTS.items())
def test_each_fault_of_a_page_is_found(text, what, tmp_path, capsys):
    (tmp_path / "index.html").write_text(SOUND + text)
    assert check_site.main(tmp_path) == 1
    assert capsys.readouterr().out.startswith(f"{what}: ")


def test_a_style_that_asks_the_network_is_found(tmp_path):
    (tmp_path / "index.html").write_text(SOUND)
    (tmp_path / "x.css").write_text("p { background: url('https://example.org/x.png') }")
    assert check_site.main(tmp_path) == 1


def test_a_site_without_pages_is_a_fault(tmp_path):
    assert check_site.main(tmp_path) == 1


SEARCH = """
const Search = {_parseQuery: query => [query, new Set()], setIndex(index) { this.index = index },
  _performSearch(query) { return this.index[query].map(name => [name, "", "#x"]) }};
_ready(() => document.getElementById("x").value = "");
"""
"""What there is of Sphinx's own search: the best result is the last."""


@pytest.mark.parametrize(
    ("found", "fault"),
    [(["guide", "start"], None), (["start", "guide"], "guide"), ([], "nothing")],
)
def test_a_search_that_finds_another_page_first_is_a_fault(
    found, fault, tmp_path, monkeypatch, capsys
):
    pytest.importorskip("playwright", reason="no playwright, so no node")
    monkeypatch.setattr(check_site, "FOUND", {"a b": "start"})
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static/language_data.js").write_text('"use strict";')
    (tmp_path / "_static/searchtools.js").write_text(SEARCH)
    (tmp_path / "searchindex.js").write_text(f"Search.setIndex({json.dumps({'a b': found})})")
    (tmp_path / "index.html").write_text(SOUND)
    assert check_site.main(tmp_path) == (fault is not None)
    said = f"search finds first: a b: {fault}, not start\n" if fault else ""
    assert capsys.readouterr().out == f"{said}1 pages, {int(fault is not None)} faults\n"


def test_a_site_without_a_search_is_a_fault(tmp_path, monkeypatch):
    pytest.importorskip("playwright", reason="no playwright, so no node")
    monkeypatch.setattr(check_site, "FOUND", {"a b": "start"})
    (tmp_path / "index.html").write_text(SOUND)
    assert check_site.main(tmp_path) == 1


NAMELESS = {
    '<a class="x" href="#here">API</a><details open="open"><summary><i></i></summary></details>': (
        '<summary aria-label="pages below API">'
    ),
    '<a class="x" href="#here"><span class="doc">Reach</span></a>': (
        '<a aria-label="Reach" class="x" href="#here">'
    ),
    '<button class="search-button-field" aria-label="Search">Search <kbd>K</kbd></button>': (
        'aria-label="Search Ctrl+K">Search'
    ),
    "<dl>\n<dd><em>x</em>,</dd>\n<dd>y</dd>\n</dl>": '<span class="sig-line"><em>x</em>,</span>',
    '<tr><th class="head"><p></p></th></tr>': '<tr><td class="head"></td></tr>',
}
"""What axe-core finds in pages of the theme, of Sphinx and of sphinx-gallery."""


@pytest.mark.parametrize(("found", "mended"), NAMELESS.items())
def test_what_the_theme_leaves_without_a_name_gets_one(found, mended, tmp_path):
    assert mended not in found
    assert mended in named_parts.named(found)
    (tmp_path / "index.html").write_text(SOUND + named_parts.named(found))
    assert check_site.main(tmp_path) == 0


def test_a_link_within_a_link_is_found(tmp_path, capsys):
    (tmp_path / "index.html").write_text(
        SOUND + '<a href="#top">one <a href="#top">another</a></a>', encoding="utf-8"
    )
    assert check_site.main(tmp_path) == 1
    assert "within a link" in capsys.readouterr().out
