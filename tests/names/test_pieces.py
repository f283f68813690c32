from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gattn.names.pieces import from_bytes, joined


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
