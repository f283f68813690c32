"""Progress bars, and lines above them."""

import time

from gattn.progress import announce, bar


def test_a_line_above_a_bar_does_not_show_it_before_its_second(capsys):
    with bar(desc="circuit", unit="run") as shown:
        announce("circuit", "run", 10, 1.0, "pass seconds=")
        shown.update()
    said = capsys.readouterr().err
    assert "about 10 s" in said
    assert "circuit: " not in said.replace("circuit: 10 x", "")


def test_after_its_second_a_bar_is_shown_and_stays_below_the_line(capsys):
    with bar(desc="circuit", unit="run") as shown:
        time.sleep(1.1)
        shown.update()
        announce("circuit", "run", 10, 1.0, "pass seconds=")
    said = capsys.readouterr().err
    assert said.index("about 10 s") < said.rindex("circuit: 1 run")
