import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

import check_site

SOUND = '<h1 id="here">x</h1><a href="#here">y</a><a href="https://example.org">z</a>'
FAULTS = {
    '<script src="https://example.org/x.js"></script>': "loads from the network",
    '<img src="//example.org/x.png">': "loads from the network",
    '<link rel="stylesheet" href="http://example.org/x.css">': "loads from the network",
    '<a href="nowhere.html">y</a>': "broken link",
    '<a href="#nowhere">y</a>': "broken link",
    '<img src="nothing.png">': "broken link",
}


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
