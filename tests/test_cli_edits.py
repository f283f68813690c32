import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gattn
from gattn.cli.arguments.edits import GRAPHS, NORMALIZERS, WEIGHTS, read_edit, read_place
from gattn.errors import EditError, GattnError


@st.composite
def numbers(draw):
    """Numbers as they are written, and as an edit takes them."""
    kind = draw(st.sampled_from(["all", "one", "several"]))
    if kind == "all":
        return "*", None
    if kind == "one":
        number = draw(st.integers(0, 999))
        return str(number), number
    firsts = draw(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 5)), min_size=1))
    parts = [f"{n}-{n + more}" for n, more in firsts]
    listed = [n + step for n, more in firsts for step in range(more + 1)]
    if draw(st.booleans()):
        last = draw(st.integers(0, 99))
        return ",".join([*parts, str(last)]), [*listed, last]
    return ",".join(parts), listed


words = st.text(min_size=1).filter(lambda word: '"' not in word)
tokens = st.one_of(numbers(), words.map(lambda word: (f'"{word}"', word)))
stacks = st.none() | st.sampled_from(["encoder", "decoder", "cross"])


@given(stacks, numbers(), st.none() | numbers(), st.none() | st.tuples(tokens, tokens))
def test_what_is_written_is_read(stack, layer, head, edge):
    text = f"{stack}:" if stack else ""
    text += layer[0] + (f".{head[0]}" if head else "")
    text += f":{edge[0][0]}<-{edge[1][0]}" if edge else ""
    query, key = edge or (("", None), ("", None))
    expected = {
        "stack": stack,
        "layer": layer[1],
        "head": head[1] if head else None,
        "query": query[1],
        "key": key[1],
    }
    assert read_place(text) == {n: value for n, value in expected.items() if value is not None}


def fields(edit):
    return {n: value for n, value in vars(edit).items() if value is not None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5.1:9<-4", {"layer": 5, "head": 1, "query": 9, "key": 4}),
        ("5.1", {"layer": 5, "head": 1}),
        ("*:*<-4", {"key": 4}),
        ("cross:0.2:3<-*", {"stack": "cross", "layer": 0, "head": 2, "query": 3}),
        ("cross:1.0-1,2.0:3<-4", {"stack": "cross", "layer": ((1, 0), (1, 1), (2, 0))}
         | {"query": 3, "key": 4}),
        ('0-2,5.1:"the cat"<-"a:b<-c"', {"layer": [0, 1, 2, 5], "head": 1}
         | {"query": "the cat", "key": "a:b<-c"}),
    ],
)  # fmt: skip
def test_a_cut(text, expected):
    cut = read_edit("--cut", text)(4, 9)
    assert isinstance(cut, gattn.Cut)
    assert fields(cut) == expected | {"renormalize": True}
    assert not read_edit("--cut", text, renormalize=False)(4, 9).renormalize


def test_a_scale_has_its_factor_before_the_edges():
    scale = read_edit("--scale", "-0.5:cross:5.1:9<-4")(4, 9)
    assert isinstance(scale, gattn.Scale)
    assert fields(scale) == {"factor": -0.5, "stack": "cross", "layer": 5} | {
        "head": 1,
        "query": 9,
        "key": 4,
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("alibi", "ModelScore() + ALiBi(6)"),
        ("cosine", "Cosine(tau=1.0)"),
        ("cosine:8@2", "Cosine(tau=8)"),
        ("dot", "Dot()"),
        ("l1-distance:2", "L1Distance(c=2)"),
        ("polynomial:3", "Polynomial(3)"),
        ("scaled:0.5@2.1", "0.5 * ModelScore()"),
        ("softcap:2.5", "Softcap(ModelScore(), 2.5)"),
        ("squared-distance", "SquaredDistance(c=1.0)"),
    ],
)
def test_weight_functions_by_name(text, shown):
    swap = read_edit("--swap", text)(6, 9)
    assert isinstance(swap, gattn.Swap)
    assert repr(swap.weight) == shown
    assert swap.normalizer is None
    _, _, place = text.partition("@")
    assert fields(swap) == (read_place(place) if place else {}) | {"weight": swap.weight}


@pytest.mark.parametrize(
    ("name", "normalizer"),
    [
        ("entmax15", gattn.Entmax15()),
        ("relu", gattn.ReLU()),
        ("sigmoid", gattn.Sigmoid()),
        ("softmax", gattn.Softmax()),
        ("sparsemax", gattn.Sparsemax()),
        ("topk:4", gattn.TopKSoftmax(4)),
    ],
)
def test_normalizers_by_name(name, normalizer):
    swap = read_edit("--normalizer", f"{name}@3")(4, 9)
    assert repr(swap.normalizer) == repr(normalizer)
    assert type(swap.normalizer) is type(normalizer)
    assert (swap.layer, swap.head, swap.weight) == (3, None, None)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("window:1", lambda i, j: i == j),
        ("window:3", lambda i, j: abs(i - j) < 3),
        ("longformer:1", lambda i, j: (abs(i - j) <= 1) | (i == 0) | (j == 0)),
        ("self-loops", lambda i, j: i == j),
    ],
)
def test_graphs_by_name(name, allowed):
    restrict = read_edit("--restrict", f"{name}@1-2.0")(4, 7)
    assert isinstance(restrict, gattn.Restrict)
    assert (restrict.layer, restrict.head) == ([1, 2], 0)
    np.testing.assert_array_equal(
        restrict.graph.mask().numpy(), np.fromfunction(allowed, (7, 7), dtype=int)
    )


def test_every_name_is_tested_above():
    marks = {
        test: [case[0].partition("@")[0].partition(":")[0] for case in test.pytestmark[0].args[1]]
        for test in (test_weight_functions_by_name, test_normalizers_by_name, test_graphs_by_name)
    }
    for names, forms in zip(marks.values(), (WEIGHTS, NORMALIZERS, GRAPHS), strict=True):
        assert set(names) == {form.replace("[", ":").partition(":")[0] for form in forms}


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("--cut", "", "5.1:9<-4"),
        ("--cut", "five", "5.1:9<-4"),
        ("--cut", "5.1:9", "5.1:9<-4"),
        ("--cut", "5.1:9->4", "5.1:9<-4"),
        ("--cut", "5.1:cat<-4", "5.1:9<-4"),
        ("--cut", "-1", "5.1:9<-4"),
        ("--cut", "-1.1", "each a number from 0"),
        ("--cut", "-1.1", "a token, but no layer or head, can also be -1 for the last"),
        ("--cut", "1,,2", "5.1:9<-4"),
        ("--cut", "4-2", "4-2 is empty"),
        ("--cut", "²", "5.1:9<-4"),
        ("--scale", "5.1", "FACTOR:EDIT such as 0.5:5.1"),
        ("--scale", "half:5.1", "FACTOR:EDIT such as 0.5:5.1"),
        ("--scale", "0.5:x", "5.1:9<-4"),
        ("--swap", "near", "squared-distance[:C]"),
        ("--swap", "scaled", "scaled:FACTOR"),
        ("--swap", "dot:2", "cosine[:TAU], dot,"),
        ("--swap", "cosine:warm", "cosine[:TAU]"),
        ("--swap", "dot@1.1:2<-3", "without edges"),
        ("--swap", "dot@", "without edges"),
        ("--normalizer", "topk", "topk:K"),
        ("--restrict", "window", "window:N"),
        ("--restrict", "window:0", "N of at least 1, such as window:8; not 'window:0'"),
        ("--restrict", "window:-3", "window:N with a whole number N of at least 1"),
        ("--restrict", "window:2.5@1", "window:N with a whole number N of at least 1"),
        ("--restrict", "longformer:0", "longformer:N with a whole number N of at least 1"),
    ],
)
def test_errors_say_what_is_expected(option, text, said):
    with pytest.raises(EditError) as error:
        read_edit(option, text)
    assert said in str(error.value)
    assert str(error.value).startswith(f"{option} takes ")


def test_numbers_out_of_range_are_refused_by_what_is_named():
    with pytest.raises(EditError, match="--normalizer topk:0: k must be a whole number ≥ 1"):
        read_edit("--normalizer", "topk:0")(4, 9)
    with pytest.raises(EditError, match="--swap softcap:0: cap must be above 0, not 0"):
        read_edit("--swap", "softcap:0")(4, 9)
    with pytest.raises(GattnError, match="factor"):
        read_edit("--scale", "nan:1")(4, 9)
