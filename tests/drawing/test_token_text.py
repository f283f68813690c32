import io
import itertools
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.text import Text
from meeting import problems
from sample_heads import causal_head, small_trace
from scenes import attention
from seen import caption

import gattn
from gattn.drawing.canvas.fonts import families, has_glyph
from gattn.drawing.canvas.labels import fit, font_size, shortened, width_of
from gattn.names.text import quoted, visible, width, wrapped


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("the", "the"),
        (" the", "the"),
        ("", '""'),
        ("  ", "␣␣"),
        ("\n", "↵"),
        ("a\nb\tc", "a↵b\\tc"),
        ("\0\x1b", "\\x00\\x1b"),
        ("$x_1$", "$x_1$"),
        ("a b", "a b"),
        ("a\u00a0b", "a U+00A0 b"),
        ("\u202eevil", "U+202E evil"),
        ("\ud800", "U+D800"),
        ("e\u0301", "e\u0301"),
        ("\u0301", "\u25cc\u0301"),
    ],
)
def test_nothing_of_a_token_stays_invisible(token, shown):
    assert visible(token) == shown


def test_titles_and_captions_of_ones_own_fit_into_every_file():
    own = {"title": "a\0\u202eb\nc $x^{", "caption": "\x1b\ud800 e\u200dm \uffff"}
    for figure in (causal_head(4).draw(**own).figure, small_trace().draw(**own)):
        file = io.BytesIO()
        figure.savefig(file, format="svg")
        ET.fromstring(file.getvalue())
        text = " ".join(text.get_text() for text in figure.findobj(Text))
        for shown in ("a\\x00U+202Eb\nc $x^{", "\\x1bU+D800 e\u200dm U+FFFF"):
            assert shown in text


def test_missing_characters_are_escapes_and_never_cut():
    shown = visible("日本語の文字列", has_glyph=str.isascii)
    assert shown == "U+65E5 U+672C…"
    assert visible("日", has_glyph=str.isascii) == "U+65E5"


def test_long_tokens_end_in_an_ellipsis():
    assert visible("a" * 16) == "a" * 16
    assert visible("a" * 17) == "a" * 15 + "…"
    assert len(visible("\0" * 50)) <= 17
    assert visible("x" * 30, limit=40) == "x" * 30


def test_width_counts_wide_and_combining_characters():
    assert width("日本") == 2
    assert width("e\u0301") == width("e")


def test_wrapping_keeps_the_words():
    text = "attention at least a tenth of the mass"
    lines = wrapped(text, 8).split("\n")
    assert len(lines) > 1
    assert " ".join(lines) == text
    assert all(width(line) <= 8 for line in lines if " " in line)


def ways(words):
    """List all ways of breaking words into lines."""
    for breaks in itertools.product([" ", "\n"], repeat=len(words) - 1):
        yield "".join(itertools.chain(*zip(words, [*breaks, ""], strict=True))).split("\n")


@pytest.mark.parametrize("limit", [8, 11, 14, 20, 40])
def test_lines_are_as_few_as_can_be_and_the_longest_is_as_short_as_can_be(limit):
    words = [
        "13",
        "tokens;",
        "each",
        "column",
        "on",
        "a",
        "scale",
        "of",
        "its",
        "own,",
        "shares",
        "from",
        "0",
        "to",
        "1",
    ]
    fitting = [lines for lines in ways(words) if max(map(width, lines)) <= limit]
    fewest = min(map(len, fitting))
    least = min(max(map(width, lines)) for lines in fitting if len(lines) == fewest)
    found = wrapped(" ".join(words), limit).split("\n")
    assert len(found) == fewest
    assert max(map(width, found)) == pytest.approx(least, abs=0.5)
    assert fewest == 1 or len(found[-1]) > 2


def test_words_longer_than_a_line_stay_whole():
    assert wrapped("a antidisestablishmentarianism b", 4).split("\n") == [
        "a", "antidisestablishmentarianism", "b",
    ]  # fmt: skip


@pytest.mark.parametrize("pitch", [8, 12, 30])
@pytest.mark.parametrize("reach", [25, 50, 100])
def test_long_tokens_that_end_in_numbers_read_differently_where_few_letters_are_left(pitch, reach):
    tokens = {n: f"antidisestablishmentarianism{n}" for n in range(13)}
    found = fit(tokens, pitch, rotations=[0, 45, 90], reach=reach).texts
    for n, text in enumerate(found):
        assert not text or (text.endswith(f"…{n}") and text.count("…") == 1)


def test_numbers_stay_with_the_word_before_them():
    for limit in range(6, 40):
        lines = wrapped("mean of heads, residual 0.5; all at least 0.25", limit).split("\n")
        assert not any(line[0].isdigit() for line in lines)


def test_names_of_special_tokens_keep_their_closing_bracket():
    special = ["<|endoftext|>", "<|im_start|>", "[unused12]", "[unused13]", "12 <|endoftext|>"]
    found = shortened(special, 5)
    assert all(width_of(text) <= 5 for text in found)
    assert [text[-2:] for text in found] == ["|>", "|>", "2]", "3]", "|>"]
    assert len(set(found)) == len(found)
    assert shortened(["a <b> and more"], 5)[0].endswith("…")
    assert shortened(["<|endoftext|>"], 2.5)[0].startswith("<|")


def test_fonts_know_what_they_lack():
    assert has_glyph("a")
    assert has_glyph("\u2423")
    assert not has_glyph("\U0010fffd")


def test_families_start_with_the_users_own_and_end_with_one_that_always_is_there():
    import matplotlib as mpl

    with mpl.rc_context({"font.family": "DejaVu Serif"}):
        assert families(["abc"]) == ["DejaVu Serif", "DejaVu Sans"]


@pytest.mark.parametrize(("token", "weight"), [("lamp", "bold"), ("𝒙 lamp", "normal")])
def test_what_bold_fonts_lack_is_written_in_regular_ones(token, weight):
    """matplotlib warns of a missing glyph, which fails a test."""
    words = ["a", "b", token]
    attention = np.full((1, 2, 3, 3), 1 / 3)
    trace = gattn.AttentionTrace.from_arrays(attention, tokens=words)
    ax = trace.unroll().rollout(query=-1).draw()
    ax.figure.savefig(io.BytesIO())
    (name,) = (text for text in ax.texts if text.get_text() == token)
    assert name.get_fontweight() == weight


def test_names_of_places_have_no_position_before_them():
    shown = fit({n: f"{0.5 * n:g} s" for n in range(100)}, 2.0, rotations=(90,)).texts
    assert [text for text in shown if text][:2] == ["0 s", "2.5 s"]
    shown = fit({n: f"{n // 10},{n % 10}" for n in range(100)}, 2.0, rotations=(90,)).texts
    assert [text for text in shown if text][:2] == ["0,0", "1,0"]
    shown = fit({n: ["lamp", "s"][n % 2] for n in range(100)}, 2.0, rotations=(90,)).texts
    assert [text for text in shown if text][:2] == ["0 lamp", "5 s"]


def test_another_installed_font_helps_out():
    only_in_stix = "\u214a"
    assert has_glyph(only_in_stix)
    assert "STIXGeneral" in families([only_in_stix])


def test_a_number_is_not_broken_from_the_name_before_it():
    assert wrapped("previous token, 0.43", 9).split("\n") == ["previous", "token, 0.43"]


@pytest.mark.parametrize(
    ("tokens", "end"),
    [
        ("a b .", "2 “.”"),
        ("a b ,", "2 “,”"),
        (["a", "b", "  "], "2 “␣␣”"),
        (["a", "b", "\n"], "2 “↵”"),
        (["a", "b", ""], '2 “""”'),
        (["a", "b", " the"], "2 “the”"),
        (None, "2"),
    ],
)
def test_tokens_in_titles_and_captions_are_told_from_the_sentence(tokens, end):
    words = tokens.split() if isinstance(tokens, str) else tokens
    array = np.tril(np.full((2, 1, 3, 3), 1 / 3))
    trace = gattn.AttentionTrace.from_arrays(array, tokens=words or ())
    unrolled, head = trace.unroll(), trace[1, 0]
    for layout in ("layered", "ribbons"):
        assert unrolled.rollout(query=2).draw(layout).get_title() == f"rollout to {end}"
    start = "0 “a”" if tokens else "0"
    title = unrolled.flow(key=0, query=2).draw().get_title().replace("\n", " ")
    assert title.startswith(f"flow from {start} to {end}: 0.")
    assert caption(head.draw_text(query=2)).startswith(f"query {end} reads: ")
    assert caption(head.draw_text(key=2)).startswith(f"what reads key {end}: ")
    assert caption(head.draw(query=2)).startswith(f"what query {end} reads: ")


def test_one_other_token_of_ribbons_is_in_the_singular():
    array = np.tril(np.full((1, 1, 9, 9), 1 / 9))
    array[0, 0, 8] = [0.001, *[0.999 / 8] * 8]
    rolled = gattn.AttentionTrace.from_arrays(array).unroll(residual=0).rollout(query=8)
    assert caption(rolled.draw("ribbons")).endswith("1 other has at most 0.1 %")


def test_parts_of_characters_have_the_name_of_their_label_in_titles_and_captions():
    tokens = ["caf", "<0xC3>", "<0xA9>"]
    array = np.tril(np.full((2, 1, 3, 3), 1 / 3))
    trace = gattn.AttentionTrace.from_arrays(array, tokens=tokens)
    head, end = trace[1, 0], "2 “é 2/2”"
    assert trace.unroll().rollout(query=2).draw().get_title() == f"rollout to {end}"
    assert caption(head.draw_text(query=2)).startswith(f"query {end} reads: ")
    assert caption(head.draw_text(key=2)).startswith(f"what reads key {end}: ")
    assert caption(head.draw(query=2)).startswith(f"what query {end} reads: ")
    spread = gattn.analysis.oversquashing(trace, query=2)
    assert f"influence on the output at position {end}" in str(spread.attrs)


def test_shortened_texts_that_would_read_alike_keep_what_tells_them_apart():
    room = width_of("componen")
    found = shortened([*(f"component {n}" for n in range(12)), "rest"], room)
    assert len(set(found)) == 13
    assert found[0].startswith("com")
    assert found[0].endswith("…0")
    assert found[11].endswith("…11")
    assert found[-1] == "rest"
    assert all(width_of(text) <= room for text in found)
    assert shortened(["an unlikely token", "rest"], room)[0].endswith("…")
    assert shortened(2 * ["an unlikely token"], room)[0].endswith("…")


@pytest.mark.parametrize("room", [6.0, 7.0, 9.0])
def test_shortened_names_of_modules_keep_the_part_that_differs(room):
    stacks = [
        "encoder.layers.self_attn",
        "decoder.layers.self_attn",
        "decoder.layers.multihead_attn",
    ]
    first, *decoders = shortened(stacks, room)
    assert first.startswith("enc")
    assert [name.partition("…")[2][:4] for name in decoders] == ["self", "mult"]
    assert all(width_of(name) <= room for name in (first, *decoders))
    parts = [f"model.{part}.layers.attention" for part in ("text", "vision")]
    assert len(set(shortened(parts, room))) == 2


def test_long_tokens_that_begin_alike_have_labels_of_their_own():
    tokens = [f"atom of the ring {n}" for n in range(6)]
    for pitch in (20.0, 60.0, 200.0):
        texts = fit(dict(enumerate(tokens)), pitch, rotations=[0, 45, 90]).texts
        assert [text[-1] for text in texts] == list("012345")


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (" lamp", "“␣lamp”"),
        ("lamp", "“lamp”"),
        ("  lamp ", "“␣␣lamp”"),
        ("   ", "“␣␣␣”"),
        ("", '“""”'),
        (" a\nb", "“␣a↵b”"),
    ],
)
def test_entries_of_a_vocabulary_keep_the_space_before_them(token, shown):
    assert quoted(token, is_entry=True) == shown


@pytest.mark.parametrize(("layout", "count"), [("arcs", 25), ("arcs", 36), ("matrix", 25)])
def test_single_characters_stay_upright_where_they_fit(layout, count):
    letters = list("First Citizen:\nBefore we proceed any further"[:count])
    head = gattn.AttentionGraph.from_dense(attention(count, count), tokens=letters)
    with gattn.style("paper"):
        ax = head.draw(layout, figsize=(3.3, 2.4))
    shown = ax.texts if layout == "arcs" else ax.get_xticklabels()
    upright = [t for t in shown if t.get_text() in {*letters, "␣", "↵"}]
    assert len(upright) == count
    assert {text.get_rotation() for text in upright} == {0}
    assert not problems(ax.figure)


def test_wide_characters_turn_where_they_would_meet():
    size = 0.9 * font_size()
    turned = fit(dict(enumerate("WWW")), size, rotations=[0, 90])
    assert (turned.rotation, turned.texts) == (90, ["W", "W", "W"])
    assert fit(dict(enumerate("WWW")), 1.3 * size, rotations=[0, 90]).rotation == 0
