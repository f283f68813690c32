from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gattn.names.pieces import first_whole, from_bytes, joined, spelled


@given(st.text(st.characters(exclude_characters="<> ", exclude_categories=["Cs"])), st.data())
def test_characters_cut_into_tokens_come_together_again(text, data):
    whole = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=6)))
    ends = [0, *cuts, len(whole)]
    tokens = [from_bytes(whole[a:b]) for a, b in pairwise(ends)]
    assert joined(tokens, ()) == text


def test_parts_of_characters_show_their_bytes():
    assert from_bytes("ï".encode()[:1]) == "<0xC3>"
    assert from_bytes(b"na\xc3") == "na<0xC3>"
    assert joined(["<0xE7><0x8C>", "<0xAB>"], ()) == "猫"
    assert joined(["<0xE7>", "x"], ()) == "<0xE7>x"


@pytest.mark.parametrize(
    ("tokens", "words", "text"),
    [
        (["un", "common", "dog"], [0, 0, 1], "uncommon dog"),
        (["The", "dog"], [], "Thedog"),
        (["[CLS]", "a"], [None, 0], "[CLS] a"),
        ([], [], ""),
        ([" "], [0], " "),
    ],
)
def test_words_are_joined_with_a_space(tokens, words, text):
    assert joined(tokens, words) == text


def test_marks_of_continued_pieces_go() -> None:
    assert joined(["walk", "##ed", "##", "#"], [0, 0, 1, 2]) == "walked ## #"
    assert joined(["a", "##b"], [0, 1]) == "a ##b"


def test_tokens_that_share_a_character_name_it_and_their_part_of_it():
    assert spelled(["F", "<0xC3>", "<0xBC>", "n"]) == ["F", "ü 1/2", "ü 2/2", "n"]
    assert spelled([" <0xF0><0x9F>", "<0x99><0x82>", "!"]) == ["  🙂 1/2", "🙂 2/2", "!"]
    assert spelled(["<0xE4>", "<0xBD>", "<0xA0><0xE5>", "<0xA5><0xBD>"]) == [
        "你 1/3", "你 2/3", "你 3/3 好 1/2", "好 2/2",
    ]  # fmt: skip
    assert spelled(["<0xC3>", "<0xC3>", "a"]) == ["<0xC3>", "<0xC3>", "a"]
    assert spelled(["<0xC3>", "a"]) == ["<0xC3>", "a"]
    assert spelled(["caf", "<0xC3>", "<0xA9>"], first_whole) == ["caf", "é", "·"]
