"""Tokens have the same names everywhere: their text, positions, and -1 from the end."""

import numpy as np
import pytest

import gattn
from gattn.analysis import (
    bottlenecks,
    bounces,
    deletion_curve,
    flow,
    head_distances,
    oversquashing,
    rollout,
    routes,
    value_zeroing,
    without_tokens,
)
from gattn.cli.arguments.edits import read_place
from gattn.errors import SelectionError
from gattn.names.text import visible
from gattn.names.tokens import described, find_text, find_token, find_tokens

TEXT = "The dog chased the cat"
TOKENS = ["<|endoftext|>", "The", "dog", "chased", "the", "cat"]


@pytest.fixture(scope="module")
def trace():
    found = gattn.capture(TEXT)
    assert found.tokens == TOKENS
    return found


@pytest.mark.parametrize(
    ("wanted", "tokens", "found"),
    [
        ("dog", ["dog", "cat", "dog"], [0, 2]),
        ("dog", [" dog", "cat", "dog"], [0, 2]),
        (" dog", ["dog", "cat"], [0]),
        (" dog", [" dog", "dog"], [0]),
        ("the", ["The", "the"], [1]),
        ("The", ["The", "the"], [0]),
        ("THE", ["the", "cat"], [0]),
        ("##ing", ["ing", "cat"], [0]),
        ("Ġcat", ["ing", "cat"], [1]),
        ("▁cat", ["ing", "cat"], [1]),
        ("##", ["##", "cat"], [0]),
        ("", ["", "cat"], [0]),
        ("zebra", ["the", "cat"], []),
        ("␣cat", ["the", "cat"], [1]),
        ("␣cat", ["the", " cat"], [1]),
        ("␣cat", ["␣cat", " cat"], [0]),
        ("␣␣", [" ", "  ", "␣"], [1]),
        ("↵", ["\n", "a"], [0]),
        ("a\\tb", ["a\tb", "a"], [0]),
        ("\\x00", ["\x00", "x"], [0]),
        ('""', ["a", ""], [1]),
        ("␣zebra", ["the", "cat"], []),
    ],
)
def test_texts_are_found_as_they_are_shown_then_as_they_are_called(wanted, tokens, found):
    assert find_text(wanted, tokens) == found


def test_what_the_tokenizer_says_settles_which_are_meant():
    tokens, raw = ["dog", "dog", "cat"], ["dog", "Ġdog", "Ġcat"]
    assert find_text("dog", tokens, (raw,)) == [0, 1]
    assert find_text("Ġcat", tokens, (raw,)) == [2]
    with pytest.raises(SelectionError, match="'Ġdog' may mean several tokens, 0 'dog', 1 'dog'"):
        find_text("Ġdog", tokens, (raw,))
    assert find_text("the", ["The", "dog", "THE"], (["the", "dog", "the"],)) == [0, 2]
    with pytest.raises(SelectionError, match="'tHe' may mean several tokens, 0 'The', 2 'THE'"):
        find_text("tHe", ["The", "dog", "THE"])


def test_what_is_shown_leaves_no_doubt_or_is_refused():
    tokens, raw = ["dog", "dog", "cat"], ["dog", "Ġdog", "Ġcat"]
    assert find_text("␣cat", tokens, (raw, [" ", " dog", " cat"])) == [2]
    with pytest.raises(SelectionError, match="' dog' may mean several tokens"):
        find_text("␣dog", tokens, (["dog", " dog", " cat"],))
    with pytest.raises(SelectionError, match="' tHe' may mean several tokens"):
        find_text("␣tHe", ["The", "dog", "THE"])


@pytest.mark.parametrize("token", [" the", "  ", "a\nb", "a\tb", "\x00", "", "\r", "dog"])
def test_every_token_is_found_by_what_pictures_write(token):
    tokens = [token, "other"]
    assert find_text(visible(token), tokens) == [0]


def test_one_token_is_found_by_position_end_or_text():
    positions, tokens = [3, 4, 8], ["a", "b", "a"]
    assert [find_token(n, positions, tokens) for n in (3, 8, -1, -3, "b")] == [0, 2, 2, 0, 1]
    assert find_tokens("a", positions, tokens) == [0, 2]
    with pytest.raises(SelectionError, match="'a' is at the positions 3, 8"):
        find_token("a", positions, tokens)
    for wrong in (0, -4, 1.5, None, True):
        with pytest.raises(SelectionError, match=r"position, here 3 \.\. 8 .-1, -2"):
            find_token(wrong, positions, tokens)
    with pytest.raises(SelectionError, match="No token 'c'; the 3 tokens are 'a', 'b', 'a'"):
        find_token("c", positions, tokens)
    with pytest.raises(SelectionError, match="most similar tokens are 'chased'"):
        find_token("chase", range(6), TOKENS)


@pytest.mark.parametrize("name", ["dog", -4], ids=str)
def test_every_door_takes_the_same_names(trace, name):
    assert trace[0, 0].subgraph([name]).labels() == ["dog"]
    assert without_tokens(trace[0, 0], [name]).labels() == [t for t in TOKENS if t != "dog"]
    flows = flow(trace, queries=-1, keys=name, progress=False)
    assert flows["key"].to_numpy().tolist() == [2]
    known = oversquashing(trace, 2)
    np.testing.assert_array_equal(oversquashing(trace, name)["influence"], known["influence"])
    assert trace.draw_text(name).figure is not None
    assert "query 2" in " ".join(t.get_text() for t in trace.draw_text(name).texts)
    np.testing.assert_array_equal(bounces(trace, name), bounces(trace, 2))
    narrow = bottlenecks(trace, name, -1)
    assert narrow.equals(bottlenecks(trace, 2, -1))
    assert narrow.notes == bottlenecks(trace, 2, -1).notes
    ways = trace.unroll().flow(key=name, query=-1)
    assert ways.end("key") == (0, 2)
    assert ways.graph["key_position"] == 2
    passed = trace.unroll().rollout(query=name)
    assert passed.end("query") == trace.unroll().rollout(query=2).end("query")
    np.testing.assert_array_equal(
        head_distances(trace, queries=name), head_distances(trace, queries=[2])
    )
    asked = {"metric": "probability", "target": " cat", "random": 0, "steps": 2, "progress": False}
    ranking = {"attention": trace}
    by_name = deletion_curve(ranking, TEXT, position=name, **asked)
    assert by_name.equals(deletion_curve(ranking, TEXT, position=2, **asked))
    assert routes(TEXT, position=name, progress=False).graph["position"] == 2
    zeroed = value_zeroing(TEXT, zeroed=[name], progress=False)
    assert zeroed["key"].to_numpy().tolist() == [2]
    cut = gattn.effect(TEXT, [gattn.Cut(0, key=name)], progress=False)["edited"][0]
    assert cut == gattn.effect(TEXT, [gattn.Cut(0, key=2)], progress=False)["edited"][0]


def test_the_ends_of_a_part_are_its_own(trace):
    part = trace[0, 0].subgraph([1, 2, 4])
    assert part.subgraph([-1]).node_positions.tolist() == [4]
    assert rollout(trace)[-1].sel(query=5).shape == (6,)
    assert len(bottlenecks(trace, "dog", -1, cut="edges")) >= 0
    with pytest.raises(SelectionError, match=r"token must be .* not -7"):
        trace[0, 0].subgraph([-7])


def test_places_on_the_command_line_count_from_the_end_too():
    found = {"layer": 5, "head": 1, "query": -1, "key": 0}
    assert read_place("5.1:-1<-0") == found
    assert read_place('*:-2<-"The"') == {"query": -2, "key": "The"}
    for wrong in ("-1.2:3<-4", "5.-1", "5.1:--1<-0", "5.1:-1-3<-0"):
        with pytest.raises(gattn.errors.EditError):
            read_place(wrong)


def test_subgraphs_find_tokens_as_all_else_does():
    head = gattn.AttentionGraph.from_dense(np.eye(3), tokens=("the", " dog", "##s"))
    for wrong in (-0.5, 0.5, True, None, [1], np.bool_(True)):
        with pytest.raises(SelectionError, match="position"):
            head.subgraph([wrong])
    assert head.subgraph([np.int64(1), -1]).node_ids()[0] == [1, 2]
    with pytest.raises(SelectionError, match=r"here 0 \.\. 2"):
        head.subgraph([3])


def test_a_text_in_another_case_names_each_token_of_one_text():
    tokens = ["a", " dog", "b", " dog"]
    assert find_text("DOG", tokens) == [1, 3]
    with pytest.raises(SelectionError, match="may mean several"):
        find_text("DOG", [*tokens, "Dog"])


_PATCHES = ["class", *(f"{row},{column}" for row in range(3) for column in range(12))]


@pytest.mark.parametrize("wanted", ["3,1", "1,12", "2, 14", "(3,4)", "9 9"])
def test_a_patch_that_is_not_there_says_which_rows_and_columns_are(wanted):
    with pytest.raises(SelectionError, match=r"rows 0 \.\. 2 and columns 0 \.\. 11"):
        find_tokens(wanted, range(37), _PATCHES)
    for spelled in ("2,11", "2, 11", "(2, 11)"):
        assert find_tokens(spelled, range(37), _PATCHES) == [36]


def test_only_the_names_of_patches_make_a_grid():
    assert "similar tokens are 'class'" in described(_PATCHES, "clas")
    assert "the 4 tokens are" in described(["In", "3,5", "of", "cases"], "9,9")
    with pytest.raises(SelectionError, match=r"not \(3, 1\); patches are '0,0' \.\. '2,11'"):
        find_tokens((3, 1), range(37), _PATCHES)
