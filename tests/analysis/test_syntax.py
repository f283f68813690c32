"""Syntax: CoNLL-U, words, best edges, arborescences, and how heads match dependency trees."""

import io
from collections import Counter
from itertools import product

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gattn
from gattn.analysis import arborescence, best_edges, dependency_alignment, read_conllu
from gattn.analysis.syntax.conllu import Sentence
from gattn.analysis.syntax.trees import tree_heads
from gattn.errors import FileError, SelectionError, ShapeError
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack


def conllu(rows, text=None):
    """Write rows of (id, form, head, relation[, misc])."""
    lines = [] if text is None else [f"# text = {text}"]
    for place, form, head, relation, *misc in rows:
        lines.append("\t".join([place, form, *"____", head, relation, "_", *(misc or ["_"])]))
    return "\n".join(lines) + "\n\n"


DOG = conllu(
    [
        ("1", "The", "2", "det"),
        ("2", "dog", "5", "nsubj"),
        ("3-4", "didn't", "_", "_"),
        ("3", "did", "5", "aux"),
        ("4", "n't", "5", "advmod"),
        ("5", "see", "0", "root"),
        ("5.1", "see", "_", "_"),
        ("6", "it", "5", "obj", "SpaceAfter=No"),
        ("7", ".", "5", "punct"),
    ]
)
ALL = "all relations"
WALK = conllu(
    [
        ("1", "the", "2", "det"),
        ("2", "cat", "3", "nsubj"),
        ("3", "walked", "0", "root"),
        ("4", "and", "5", "cc"),
        ("5", "chased", "3", "conj"),
        ("6", "a", "7", "det"),
        ("7", "fish", "5", "obj", "SpaceAfter=No"),
        ("8", ".", "3", "punct"),
    ]
)


def test_words_heads_relations_and_characters_are_read():
    (dog,) = read_conllu(DOG)
    assert dog.text == "The dog didn't see it."
    assert dog.words == ("The", "dog", "did", "n't", "see", "it", ".")
    assert dog.heads == (1, 4, 4, 4, None, 4, 4)
    assert dog.relations == ("det", "nsubj", "aux", "advmod", "root", "obj", "punct")
    parts = [dog.text[start:stop] for start, stop in dog.spans]
    assert parts == ["The", "dog", "did", "n't", "see", "it", "."]
    assert len(dog) == 7


def test_words_of_a_contraction_that_is_spelt_otherwise_share_its_characters():
    rows = [
        ("1-2", "zum", "_", "_"),
        ("1", "zu", "3", "case"),
        ("2", "dem", "3", "det"),
        ("3", "Fluss", "0", "root"),
    ]
    (sentence,) = read_conllu(conllu(rows, "zum  Fluss"))
    assert sentence.spans == ((0, 3), (0, 3), (5, 10))


def test_words_that_are_longer_than_their_contraction_stay_in_the_text():
    rows = [("1-2", "Straße", "_", "_"), ("1", "Stra", "0", "root"), ("2", "sse", "1", "x")]
    (sentence,) = read_conllu(conllu(rows))
    assert sentence.spans == ((0, 6), (0, 6))
    rows = [("1-2", "DEL", "_", "_"), ("1", "de", "0", "root"), ("2", "l", "1", "x")]
    (sentence,) = read_conllu(conllu(rows))
    assert sentence.spans == ((0, 2), (2, 3))


@pytest.mark.parametrize("place", [1, 2])
def test_a_multiword_token_stands_before_its_words(place):
    rows = [("1", "a", "0", "root"), ("2", "b", "1", "x")]
    rows.insert(place, ("1-2", "ab", "_", "_"))
    with pytest.raises(FileError, match=f"line {place + 1}: a multiword token covers words that"):
        read_conllu(conllu(rows))


def test_the_mark_of_utf_8_is_no_part_of_a_text():
    assert read_conllu("\ufeff" + DOG) == read_conllu(DOG)


@pytest.mark.parametrize(
    ("source", "message"),
    [(b"1\n", "not bytes"), (None, "not NoneType"), ("a\0b", "'a.x00b' cannot be read")],
)
def test_what_is_no_source_is_refused(source, message):
    with pytest.raises(FileError, match=message):
        read_conllu(source)


def test_a_file_holds_several_sentences(tmp_path):
    path = tmp_path / "trees.conllu"
    content = "\ufeff# newdoc\n" + DOG + "# only = a comment\n\n" + WALK
    path.write_text(content.replace("\n", "\r\n"), encoding="utf-8", newline="")
    for source in (path, str(path)):
        assert [len(sentence) for sentence in read_conllu(source)] == [7, 8]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2\tdog", "3\tdog", "line 2: the word's ID is 3, expected 2"),
        ("2\tdog", "x\tdog", "line 2: a word's ID and its form expected, not 'x' 'dog'"),
        ("_\t5\tnsubj", "_\t9\tnsubj", "line 2: HEAD is a number from 0 to 7, not '9'"),
        ("_\t5\tnsubj", "_\t2\tnsubj", "line 2: HEAD is another word, not 2, the word's own ID"),
        ("_\t5\tnsubj", "_\t_\tnsubj", "line 2: HEAD is a number from 0 to 7, not '_'"),
        ("\tnsubj", " nsubj", "line 2: 10 fields with tabs between them expected, not 9"),
        ("5.1\t", "5.x\t", "line 7: a word's ID and its form expected, not '5.x' 'see'"),
        ("3-4\t", "4-3\t", "line 3: a multiword token covers words that follow it"),
        ("_\t0\troot", "_\t1\troot", "line 1: the heads above 'The' go in a circle"),
    ],
)
def test_a_broken_line_is_named(old, new, message):
    assert old in DOG
    with pytest.raises(FileError, match=f"^the text, {message}"):
        read_conllu(DOG.replace(old, new))


def test_what_is_no_conllu_is_refused(tmp_path):
    with pytest.raises(FileError, match="line 3: the text has 'cat' here, not 'dog'"):
        read_conllu("# text = The cat didn't see it.\n" + DOG)
    with pytest.raises(FileError, match="cannot be read"):
        read_conllu(tmp_path / "missing.conllu")
    with pytest.raises(FileError, match="no sentence"):
        read_conllu("# nothing\n\n")


@st.composite
def trees(draw):
    size = draw(st.integers(1, 8))
    words = draw(st.lists(st.text("aé漢-", min_size=1, max_size=4), min_size=size, max_size=size))
    order = draw(st.permutations(range(size)))
    heads = [None] * size
    for n, word in enumerate(order[1:], start=1):
        heads[word] = order[draw(st.integers(0, n - 1))]
    spaces = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    return words, heads, spaces


@settings(max_examples=60)
@given(trees())
def test_trees_come_back(tree):
    words, heads, spaces = tree
    rows = [
        (str(n + 1), word, str(0 if head is None else head + 1), "x", *([] if space else [MISC]))
        for n, (word, head, space) in enumerate(zip(words, heads, spaces, strict=True))
    ]
    (found,) = read_conllu(conllu(rows))
    assert (found.words, found.heads) == (tuple(words), tuple(heads))
    assert found.text == "".join(w + " " * s for w, s in zip(words, spaces, strict=True)).strip()
    assert [found.text[a:b] for a, b in found.spans] == words


MISC = "Lang=x|SpaceAfter=No"


def random_graph(tokens, words, seed=0, layer=0, head=0, causal=False):
    size = len(tokens)
    matrix = np.random.default_rng(seed).random((size, size))
    matrix = np.tril(matrix) if causal else matrix
    matrix /= matrix.sum(1, keepdims=True)
    return AttentionGraph.from_dense(
        matrix, tokens=tokens, words=tuple(words), layer=layer, head=head
    )


TOKENS = ["[CLS]", "the", "cat", "walk", "ed", "and", "chas", "ed", "a", "fish", ".", "[SEP]"]
WORDS = [None, 0, 1, 2, 2, 3, 4, 4, 5, 6, 7, None]
GROUPS = [[1], [2], [3, 4], [5], [6, 7], [8], [9], [10]]


def by_hand(matrix):
    """Words' attention in plain loops."""
    merged = np.zeros((len(GROUPS), len(GROUPS)))
    for i, queries in enumerate(GROUPS):
        for j, keys in enumerate(GROUPS):
            if i != j:
                merged[i, j] = np.mean([sum(matrix[q, k] for k in keys) for q in queries])
    return merged


@pytest.mark.parametrize("causal", [False, True])
def test_best_edges_are_those_of_merged_words(causal):
    graph = random_graph(TOKENS, WORDS, causal=causal, layer=2, head=3)
    matrix = by_hand(graph.to_dense())
    found = best_edges(graph)
    assert list(found.index) == [(2, 3, n) for n in range(8)]
    merged = graph.merge_words().to_dense()[1:-1, 1:-1]
    np.fill_diagonal(merged, 0)
    np.testing.assert_allclose(matrix, merged)
    assert list(found["token"]) == ["the", "cat", "walked", "and", "chased", "a", "fish", "."]
    for n, row in enumerate(found.itertuples()):
        for side, values in (("key", matrix[n]), ("query", matrix[:, n])):
            if not values.any():
                assert np.isnan(getattr(row, f"{side}_attention"))
                continue
            assert getattr(row, side) == values.argmax()
            assert getattr(row, f"{side}_token") == found["token"].iloc[values.argmax()]
            assert getattr(row, f"{side}_attention") == pytest.approx(values.max())
    assert found["key"].isna().sum() == found["query"].isna().sum() == int(causal)
    assert ("causal: a word reads no later ones" in found.notes) == causal


def test_arrays_have_tokens_as_words():
    matrix = np.random.default_rng(0).random((2, 3, 5, 5))
    found = best_edges(matrix)
    for (layer, head, word), row in found.iterrows():
        without = matrix[layer, head].copy()
        np.fill_diagonal(without, 0)
        assert row["key"] == without[word].argmax()
        assert row["query"] == without[:, word].argmax()
    assert len(found) == 30


def test_only_attention_that_is_square_and_not_negative_has_best_edges():
    with pytest.raises(SelectionError, match="needs self-attention"):
        best_edges(np.ones((2, 3)))
    with pytest.raises(ShapeError, match="negative"):
        best_edges(-np.ones((3, 3)))


def weight_of(matrix, heads):
    return sum(matrix[word, head] for word, head in enumerate(heads) if head >= 0)


def is_tree(heads):
    graph = nx.DiGraph((head, word) for word, head in enumerate(heads) if head >= 0)
    graph.add_nodes_from(range(len(heads)))
    return nx.is_arborescence(graph)


@settings(max_examples=60)
@given(st.integers(2, 5), st.integers(0, 10**6))
def test_arborescences_are_the_best_of_all_trees(size, seed):
    matrix = np.random.default_rng(seed).random((size, size)) + 0.01
    np.fill_diagonal(matrix, 0)
    best = max(
        weight_of(matrix, heads)
        for heads in product(range(-1, size), repeat=size)
        if all(word != head for word, head in enumerate(heads)) and is_tree(heads)
    )
    found = tree_heads(matrix)
    assert is_tree(found)
    assert weight_of(matrix, found) == pytest.approx(best)


@settings(max_examples=40)
@given(hnp.arrays(np.float64, (9, 9), elements=st.floats(0.01, 1)), st.booleans())
def test_best_edges_of_a_causal_head_are_the_tree_of_edmonds(matrix, reverse):
    matrix = np.tril(matrix, -1)
    matrix = matrix.T if reverse else matrix
    graph = nx.DiGraph()
    for word, head in np.argwhere(matrix).tolist():
        graph.add_edge(head, word, weight=matrix[word, head])
    expected = nx.maximum_spanning_arborescence(graph).size("weight")
    found = tree_heads(matrix)
    assert is_tree(found)
    assert weight_of(matrix, found) == pytest.approx(expected)


@pytest.mark.parametrize("direction", ["dependent_to_head", "head_to_dependent"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_tree_has_the_attention_of_its_edges(direction, causal):
    graph = random_graph(TOKENS, WORDS, seed=4, causal=causal)
    matrix = by_hand(graph.to_dense())
    tree = arborescence(graph, direction)
    assert nx.is_arborescence(tree)
    assert [tree.nodes[n]["token"] for n in (0, 2)] == ["the", "walked"]
    for head, word, weight in tree.edges(data="weight"):
        expected = matrix[word, head] if direction == "dependent_to_head" else matrix[head, word]
        assert weight == pytest.approx(expected)
    if causal:
        (root,) = (n for n in tree if not tree.in_degree(n))
        assert root == (0 if direction == "dependent_to_head" else 7)


def test_a_drawn_tree_says_what_its_edges_are():
    graph = random_graph(TOKENS, WORDS, layer=1, head=2)
    for direction, title in {
        "dependent_to_head": "attention\nto its head",
        "head_to_dependent": "attention\nof its head",
    }.items():
        tree = arborescence(graph.keep(gattn.TopK(5)), direction)
        ax = tree.draw()
        texts = [text.get_text().replace("\n", " ") for text in ax.texts]
        assert {"head → dependent", "dependent ← head"} <= set(texts)
        assert not [text for text in texts if "key" in text]
        assert ax.get_legend().get_title().get_text() == title
        assert ax.get_title() == "maximum spanning arborescence"
        assert any(tree.computed_from in text for text in texts)
        assert tree.notes[0].endswith("was not kept")
        assert any(all(note in text for note in tree.notes) for text in texts)
        ax.figure.savefig(io.BytesIO())
    figure, given = plt.subplots()
    assert tree.draw(ax=given, legend=False) is given
    figure.savefig(io.BytesIO())


def test_words_that_nothing_reaches_make_a_forest():
    matrix = np.zeros((5, 5))
    matrix[0, 1] = matrix[1, 0] = matrix[2, 3] = matrix[3, 2] = 1
    tree = arborescence(matrix)
    assert nx.is_branching(tree)
    assert tree.number_of_edges() == 2
    assert tree.notes[-1].startswith("a forest of 3 trees")


def test_arborescence_refuses_several_heads_and_other_directions():
    with pytest.raises(SelectionError, match="takes one head"):
        arborescence(np.ones((2, 3, 3)))
    with pytest.raises(SelectionError, match="direction is one of"):
        arborescence(np.ones((3, 3)), "up")


def test_alignment_counts_as_loops_do():
    (sentence,) = read_conllu(WALK)
    graphs = {
        (n, h): random_graph(TOKENS, WORDS, seed=10 * n + h, layer=n, head=h)
        for n in range(2)
        for h in range(3)
    }
    found = dependency_alignment(Stack("encoder", graphs), sentence, trees=True)
    pairs = [
        (word, head, relation)
        for word, (head, relation) in enumerate(
            zip(sentence.heads, sentence.relations, strict=True)
        )
        if head is not None
    ]
    for (layer, head), graph in graphs.items():
        matrix = by_hand(graph.to_dense())
        tree = arborescence(graph)
        for relation in {*sentence.relations, ALL} - {"root"}:
            some = [(d, h) for d, h, r in pairs if relation in (r, ALL)]
            row = found.loc[layer, head, relation]
            expected = np.mean([matrix[d].argmax() == h for d, h in some])
            assert row["dependent_to_head"] == pytest.approx(expected)
            expected = np.mean([matrix[:, d].argmax() == h for d, h in some])
            assert row["head_to_dependent"] == pytest.approx(expected)
            assert row["tree"] == pytest.approx(np.mean([tree.has_edge(h, d) for d, h in some]))
            offsets = Counter(h - d for d, h in some)
            assert row["offset_accuracy"] == pytest.approx(max(offsets.values()) / len(some))
            assert offsets[int(row["offset"])] == max(offsets.values())
            assert row["number"] == len(some)
    assert len(found) == 6 * 7
    assert found["dependent_to_head"].between(0.1, 0.9).any()


def test_all_relations_are_never_mixed_with_one():
    rows = [("1", "a", "0", "root"), ("2", "b", "1", "all"), ("3", "c", "1", "x")]
    (sentence,) = read_conllu(conllu(rows))
    found = align(sentence, ["a", "b", "c"]).loc[0, 0]["number"]
    assert found.to_dict() == {ALL: 2, "all": 1, "x": 1}
    assert list(found.index) == [ALL, "all", "x"]
    (sentence,) = read_conllu(conllu([*rows[:2], ("3", "c", "1", ALL)]))
    with pytest.raises(SelectionError, match="relation name 'all relations'"):
        align(sentence, ["a", "b", "c"])
    # As many as there are in all, and first in the alphabet.
    (sentence,) = read_conllu(conllu([rows[0], ("2", "b", "1", "acl")]))
    table = align(sentence, ["a", "b"])
    assert [list(table.loc[0, 0].index), list(table.best().index)] == [[ALL, "acl"]] * 2


def syntactic(sentence, tokens, words, groups, layer=0, head=0, *, upwards=True):
    """A head in which each word reads its head most, or each head its dependents."""
    matrix = np.full((len(tokens), len(tokens)), 0.01)
    for word, parent in enumerate(sentence.heads):
        if parent is not None:
            for one in groups[word]:
                for other in groups[parent]:
                    matrix[(one, other) if upwards else (other, one)] = 0.4
    return AttentionGraph.from_dense(
        matrix, tokens=tokens, words=tuple(words), layer=layer, head=head
    )


def test_heads_that_know_the_tree_are_found_in_their_direction():
    (sentence,) = read_conllu(WALK)
    graphs = {
        (0, h): syntactic(sentence, TOKENS, WORDS, GROUPS, head=h, upwards=up)
        for h, up in enumerate([True, False])
    }
    graphs[0, 2] = random_graph(TOKENS, WORDS, head=2)
    found = dependency_alignment(Stack("encoder", graphs), sentence, trees=True)
    assert (found.loc[0, 0][["dependent_to_head", "tree"]] == 1).all(axis=None)
    assert (found.loc[0, 1]["head_to_dependent"] == 1).all()
    best = found.best()
    assert best.index[0] == ALL
    assert (best["accuracy"] == 1).all()
    assert (best["head"] == (best["direction"] == "head_to_dependent")).all()
    assert best.loc[ALL, "number"] == 7
    assert best.loc["det", ["offset", "offset_accuracy"]].tolist() == [1, 1]


def test_sentences_are_pooled():
    sentences = read_conllu(DOG + WALK)
    tokens = ["The", "dog", "did", "n't", "see", "it", "."]
    runs = [
        Stack("x", {(0, 0): random_graph(tokens, range(7), seed=1)}),
        Stack("x", {(0, 0): random_graph(TOKENS, WORDS, seed=2)}),
    ]
    both = dependency_alignment(runs, sentences)
    alone = [
        dependency_alignment(run, one).loc[0, 0] for run, one in zip(runs, sentences, strict=True)
    ]
    for relation, row in both.loc[0, 0].iterrows():
        rows = [one.loc[relation] for one in alone if relation in one.index]
        assert row["number"] == sum(part["number"] for part in rows)
        for column in ("dependent_to_head", "head_to_dependent"):
            hits = sum(part[column] * part["number"] for part in rows)
            assert row[column] * row["number"] == pytest.approx(hits)
    assert both.loc[0, 0].index[0] == ALL
    assert both.computed_from.startswith("2 sentences")


def align(sentence, tokens, words=()):
    return dependency_alignment(
        Stack("x", {(0, 0): random_graph(tokens, words or range(len(tokens)))}), sentence
    )


def test_tokens_across_words_merge_them():
    (dog,) = read_conllu(DOG)
    found = align(dog, ["<s>", "The", "dog", "didn", "'t", "see", "it", "."])
    assert found.loc[0, 0, ALL]["number"] == 6
    assert not found.notes
    one = align(dog, ["<s>", "The", "dog", "did", "n't", "see it", "."])
    assert one.notes == ["left out, as they lie within a token: 1"]
    assert ("obj" in one.loc[0, 0].index, one.loc[0, 0, ALL]["number"]) == (False, 5)


def test_tokens_of_parts_of_characters_and_of_other_case_are_found():
    rows = [("1", "你好", "2", "x"), ("2", "GO", "0", "root")]
    (sentence,) = read_conllu(conllu(rows))
    tokens = ["[CLS]", "<0xE4>", "<0xBD>", "<0xA0>", "好", " ", "\u2581", "go", "</s>"]
    graph = random_graph(tokens, (), seed=3)
    found = dependency_alignment(graph_of(graph), sentence)
    matrix = graph.to_dense()
    assert found.loc[0, 0, ALL]["number"] == 1
    # There is one other word to read.
    assert found.loc[0, 0, "x"][["dependent_to_head", "head_to_dependent"]].tolist() == [1, 1]
    assert matrix[7, 1:5].all()


def graph_of(graph):
    return Stack("x", {(0, 0): graph})


def test_other_texts_are_refused():
    (dog,) = read_conllu(DOG)
    with pytest.raises(
        SelectionError, match="Token 1 of the trace is 'cat', but the sentence continues"
    ):
        align(dog, ["The", "cat"])
    with pytest.raises(SelectionError, match="The trace ends before 'see it"):
        align(dog, ["The", "dog", "didn't"])
    with pytest.raises(SelectionError, match="continues with ''"):
        align(dog, ["The", "dog", "didn't", "see", "it", ".", "No"])
    with pytest.raises(SelectionError, match="1 traces and 2 sentences"):
        dependency_alignment([graph_of(random_graph(TOKENS, WORDS))], [dog, dog])
    (walk,) = read_conllu(WALK)
    runs = [Stack("x", {(n, 0): random_graph(TOKENS, WORDS, layer=n)}) for n in (0, 1)]
    with pytest.raises(SelectionError, match="other layers or heads"):
        dependency_alignment(runs, [walk, walk])
    alone = Sentence("a", ("a",), (None,), ("root",), ((0, 1),))
    with pytest.raises(SelectionError, match="no dependencies"):
        align(alone, ["a"])


@pytest.mark.parametrize(
    "tokens", [["\u2581I", "\u2581know"], ["i", "k", "##now"], ["[UNK]", "know"], ["I", "[UNK]"]]
)
def test_names_that_are_not_characters_of_the_text_are_told(tokens):
    rows = [("1", "I", "2", "nsubj"), ("2", "know", "0", "root")]
    (sentence,) = read_conllu(conllu(rows))
    with pytest.raises(SelectionError, match="tokens are compared with the characters of sentence"):
        align(sentence, tokens)
    found = align(sentence, ["i", "k", "now"]).loc[0, 0, ALL]
    assert found["number"] == 1


def test_captured_traces_go_with_sentences(tiny, tokenizer):
    (sentence,) = read_conllu(WALK)
    trace = gattn.capture(sentence.text, tiny("bert"), tokenizer)
    assert trace.tokens[0] == "[CLS]"
    assert trace.tokens[3:5] == ["walk", "ed"]
    found = dependency_alignment(trace, sentence)
    groups = [[1], [2], [3, 4], [5], [6], [7], [8], [9]]
    for head in trace.heads():
        dense = head.to_dense()
        merged = np.array([[dense[q][:, k].sum(1).mean() for k in groups] for q in groups])
        np.fill_diagonal(merged, 0)
        hits = [merged[d].argmax() == h for d, h in enumerate(sentence.heads) if h is not None]
        expected = found.loc[head.layer, head.head, ALL]["dependent_to_head"]
        assert np.mean(hits) == pytest.approx(expected)
    assert not found.notes


def test_causal_and_dropped_attention_are_noted(tiny):
    (dog,) = read_conllu(DOG)
    found = dependency_alignment(gattn.capture(dog.text, keep=gattn.TopK(1)), dog)
    assert found.notes[0] == "causal: dependent_to_head can find the 33 % of heads in front"
    assert found.notes[1].endswith("of the attention was not kept")


def test_alignments_draw_themselves():
    (sentence,) = read_conllu(WALK)
    found = dependency_alignment(graph_of(random_graph(TOKENS, WORDS)), sentence)
    for table in (found, found.best()):
        ax = table.draw()
        assert [bar.get_width() for bar in ax.patches] == list(found.best()["accuracy"])
        (marks,) = ax.get_lines()
        np.testing.assert_allclose(marks.get_xdata(), found.best()["offset_accuracy"])
        assert ax.get_yticklabels()[0].get_text() == "all relations (7)"
        ax.figure.savefig(io.BytesIO())
    best_edges(random_graph(TOKENS, WORDS)).draw()
    with pytest.raises(SelectionError, match="nothing to draw"):
        found.iloc[:0].draw()
    plt.close("all")
