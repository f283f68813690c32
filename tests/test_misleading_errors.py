"""Slips that everybody makes end in errors that say what to write instead."""

import copy
import inspect
import pickle
import sys

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import gattn
from gattn import GraphAttention, ScaledDotProduct, TokenGraph, graph_attention
from gattn.analysis.circuits.several import Circuits
from gattn.errors import (
    CaptureError,
    ContractError,
    EditError,
    GraphError,
    OptionError,
    SelectionError,
)
from gattn.heads.head import AttentionGraph
from gattn.testing import check_weight_function
from gattn.weights.base import WeightFunction


@pytest.fixture(scope="module")
def trace():
    return gattn.capture("The dog chased the cat")


def two(query, key):
    return (query * key).sum(-1)


class Module(nn.Module):
    def forward(self, query, key):
        return two(query, key)


TAKE_WEIGHTS = {
    "graph_attention": lambda weight: graph_attention(
        *[torch.ones(1, 4, 2)] * 3, TokenGraph.causal(4), weight=weight
    ),
    "GraphAttention": lambda weight: GraphAttention(4, 4, weight=weight),
    "sum": lambda weight: ScaledDotProduct() + weight,
    "Swap": lambda weight: gattn.Swap(weight=weight),
    "check": check_weight_function,
}


@pytest.mark.parametrize("place", TAKE_WEIGHTS)
@pytest.mark.parametrize("weight", [two, lambda q, k: two(q, k), Module()])
def test_weight_functions_of_two_arguments_are_refused(place, weight):
    with pytest.raises(ContractError, match=r"\(query, key, pairs\), but .* takes \("):
        TAKE_WEIGHTS[place](weight)


def test_classes_of_weight_functions_of_two_arguments_are_refused():
    with pytest.raises(ContractError, match=r"but OfTwo takes \(query\)"):

        class OfTwo(WeightFunction):
            def forward(self, query):
                return query


def test_weight_functions_whose_arguments_fit_are_taken():
    for weight in (
        lambda query, key, pairs: two(query, key),
        lambda *tensors: two(*tensors[:2]),
        lambda query, key, pairs=None, scale=2.0: scale * two(query, key),
    ):
        assert TAKE_WEIGHTS["graph_attention"](weight).shape == (1, 4, 2)


@pytest.mark.parametrize(
    "inputs",
    [{"text": "The dog"}, {"text": ["The dog"]}, {"input_ids": torch.ones(1, 2), "t": "a"}],
)
def test_a_mapping_of_texts_is_refused(inputs):
    for run in (gattn.capture, gattn.analysis.contributions, gattn.analysis.value_zeroing):
        with pytest.raises(CaptureError, match="holds text: pass the text itself"):
            run(inputs)


def test_an_empty_mapping_is_refused():
    with pytest.raises(CaptureError, match="mapping is empty"):
        gattn.capture({})


@pytest.mark.parametrize(
    "spans",
    [[1, 2], (1, 3), [(1,)], [(1, 2, 3)], ["12"], "12", 5, [("a", "b")], [(1.0, 2.0)], [None],
     [(True, 2)], None],
)  # fmt: skip
def test_spans_that_are_no_pairs_are_refused(spans):
    head = AttentionGraph.from_dense(torch.eye(4), tokens=tuple("abcd"))
    with pytest.raises(SelectionError, match=r"as in merge\(\[\(1, 3\)\]\)"):
        head.merge(spans)
    cross = AttentionGraph.from_dense(torch.ones(4, 4), TokenGraph.bipartite(4, 4))
    with pytest.raises(SelectionError, match=r"as in merge\(\[\(1, 3\)\]\)"):
        cross.merge([(0, 2)], spans)


# Tokens, options and keeps


def test_one_token_is_left_out_as_several_are(trace):
    for one in (3, np.int64(3), -2):
        expected = gattn.analysis.without_tokens(trace, [int(one)])
        left = gattn.analysis.without_tokens(trace, one)
        assert left.tokens == expected.tokens
        np.testing.assert_array_equal(left[1, 0].to_dense(), expected[1, 0].to_dense())
    for wrong in (None, 2.5, {1: 2}):
        with pytest.raises(SelectionError, match=r"which names tokens .* as in 6 or \[0, ','\]"):
            gattn.analysis.without_tokens(trace, wrong)
    with pytest.raises(SelectionError, match="or its text, not True"):
        gattn.analysis.without_tokens(trace, True)


def test_zeroed_names_tokens():
    for wrong in (2.5, {1: 2}):
        with pytest.raises(SelectionError, match="zeroed names tokens by position or text"):
            gattn.analysis.value_zeroing("The dog", zeroed=wrong, progress=False)


def test_an_option_that_a_picture_does_not_have_is_named_with_those_it_has(trace):
    head = trace[0, 1]
    for call, message in (
        (
            lambda: head.draw(foo=2),
            r"AttentionGraph.draw\(\) has no option foo=: it has layout, query, key",
        ),
        (lambda: head.draw("matrix", treshold=2), r"treshold=; did you mean threshold=\?"),
        (lambda: trace.draw(foo=2), r"AttentionTrace.draw\(\) has no option foo=.* heads, stack"),
        (lambda: trace.draw(other=trace, label_=2), r"label_=; did you mean label=\?"),
        (lambda: trace.only_stack.draw(foo=2), r"Stack.draw\(\) has no option foo="),
        (lambda: head.graph.draw(foo=2), r"TokenGraph.draw\(\) has no option foo="),
        (lambda: trace.unroll().draw(foo=2), r"Unrolled.draw\(\) has no option foo="),
        (lambda: head.draw_text(foo=2), r"draw_text\(\) has no option foo=: it has query, key"),
        (lambda: trace.to_html(keeps=2), r"to_html\(\) has no option keeps=; did you mean keep=\?"),
    ):
        with pytest.raises(OptionError, match=message) as raised:
            call()
        assert isinstance(raised.value, TypeError)


def test_a_threshold_that_keeps_nothing_of_a_softmax_warns(trace):
    said = r"Threshold\(2.0\) keeps no edge of a softmax.* For 2 % write Threshold\(0.02\)"
    with pytest.warns(UserWarning, match=said):
        assert trace[0, 0].keep(gattn.Threshold(2)).graph.num_edges == 0
    with pytest.warns(UserWarning, match=said):
        gattn.capture("The dog", keep=gattn.Threshold(2))
    assert trace[0, 0].keep(gattn.Threshold(1)).graph.num_edges >= 1  # the first token
    for wrong in ("2", None, [1]):
        with pytest.raises(GraphError, match=r"Threshold\(t\) takes a number"):
            gattn.Threshold(wrong)
        with pytest.raises(GraphError, match=r"TopMass\(p\) takes a share"):
            gattn.TopMass(wrong)


def test_several_texts_go_to_capture_many():
    for several in (["a", "b"], ("a", "b"), np.array(["a", "b"]), [[1, 2], [3, 4]]):
        with pytest.raises(CaptureError, match=r"gattn\.capture_many takes several texts"):
            gattn.capture(several)
    with pytest.raises(CaptureError, match=r"not list \[None\]\.$"):
        gattn.capture([None])


def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 1).eval()


def test_arguments_of_effect_in_another_order_are_refused():
    model, cuts = encoder(), [gattn.Cut(layer=0)]
    with pytest.raises(EditError, match="a text or function, then a list of edits"):
        gattn.effect(lambda: model(torch.randn(1, 3, 8))[0, 0, 0], model, cuts)


def test_numbers_of_tokens_and_of_keys_exclude_each_other():
    with pytest.raises(GraphError, match="num_tokens=5 is the number of both"):
        TokenGraph.from_edge_index(torch.tensor([[0], [1]]), 5, num_keys=6)


def test_texts_by_stack_and_sequence_are_mappings_by_sequence():
    torch.manual_seed(0)
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True).eval()
    words = {"encoder.layers.self_attn": [list("abc"), list("def")]}
    with (
        pytest.raises(CaptureError, match="one mapping per sequence"),
        torch.no_grad(),
        gattn.capturing(model, tokens=words),
    ):
        model(torch.randn(2, 3, 8), torch.randn(2, 4, 8))


def test_a_result_is_asked_for_what_another_has(trace):
    head = trace[0, 0]
    for asked, message in (
        (lambda: trace.draw(ax=None), r"no option ax=: it makes a figure.*trace\[0, 0\].draw"),
        (lambda: trace.draw(layers=2), r"no option layers=: heads= chooses heads"),
        (lambda: trace.draw(key=2), r"no option key=: take one head"),
        (lambda: head.draw_graph(key=2), r"no option key=: it shows all edges .*head.draw\(key="),
        (lambda: trace.draw_graph(key=2), r"no option key=: it shows all edges"),
        (lambda: head.draw(layuot="arcs"), r"no option layuot=; did you mean layout=\?"),
        (lambda: head.draw_image(None, qurey=2), r"no option qurey=; did you mean query=\?"),
        (lambda: trace.unroll().draw(layuot=1), r"no option layuot=; did you mean layout=\?"),
        (lambda: trace.to_html(pth="a"), r"no option pth=; did you mean path=\?"),
    ):
        with pytest.raises(OptionError, match=message):
            asked()


def test_edits_name_their_fields():
    for asked, message in (
        (lambda: gattn.Cut(layers=2), r"Cut\(\) has no option layers=; did you mean layer="),
        (lambda: gattn.Scale(0.5, heads=2), r"Scale\(\) has no option heads=; did you mean head="),
        (lambda: gattn.Only([], x=2), r"Only\(\) has no option x=: it has edges"),
        (lambda: gattn.Swap(weights=None), r"Swap\(\) has no option weights=; did you mean weight"),
        (lambda: gattn.Restrict("causal"), r"such as TokenGraph.window\(.*, not 'causal'"),
        (lambda: gattn.Use("causal"), r"Use\(\) needs layer first"),
        (lambda: gattn.Scale(), r"Scale\(\) needs factor first"),
        (lambda: gattn.Use(1, 2, 3, 4, 5), r"Use\(\) takes graph, .* a name: 5 is one arg"),
        (lambda: gattn.Use("causal", 0, 0), r"such as the head trace\[2, 1\] .*, not 'causal'"),
    ):
        with pytest.raises((TypeError, EditError), match=message):
            asked()
    assert list(inspect.signature(gattn.Cut).parameters)[:2] == ["layer", "head"]
    assert copy.copy(gattn.Cut(layer=1)) == pickle.loads(pickle.dumps(gattn.Cut(layer=1)))


def test_what_is_given_in_place_of_an_object_is_told():
    tensors = [torch.ones(1, 4, 2)] * 3
    graph = TokenGraph.causal(4)
    for asked, message in (
        (
            lambda: graph_attention(*tensors, "causal"),
            r"TokenGraph.causal\(num.*, not str 'causal'",
        ),
        (lambda: graph_attention(*tensors, None), "not NoneType"),
        (lambda: graph_attention(*tensors, graph, weight="cosine"), r"Cosine\(\).*not 'cosine'"),
        (lambda: graph_attention(np.ones((1, 4, 2)), *tensors[1:], graph), "torch.as_tensor"),
        (lambda: TokenGraph.causal("6"), "num_queries must be a whole number ≥ 0, not '6'"),
        (lambda: gattn.load_model(3), "takes the name or the folder of a model.* not int"),
        (lambda: gattn.why("The dog", layer=0, head="x"), "head must be a whole number ≥ 0"),
    ):
        with pytest.raises(gattn.errors.GattnError, match=message):
            asked()


def test_a_name_of_another_module_is_told():
    with pytest.raises(AttributeError, match=r"gattn has no 'rollout': it is gattn.analysis.roll"):
        _ = gattn.rollout
    with pytest.raises(AttributeError, match=r"gattn has no 'rolout': see dir\(gattn\)"):
        _ = gattn.rolout
    assert not hasattr(gattn, "__wrapped__")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("compare", "gattn has no 'compare': it is gattn.analysis.compare"),
        ("captur", "gattn has no 'captur': see dir(gattn). Did you mean: 'capture'?"),
    ],
)
def test_what_python_prints_of_a_missing_name_is_one_advice(name, said, capsys):
    with pytest.raises(AttributeError) as raised:
        getattr(gattn, name)
    sys.__excepthook__(raised.type, raised.value, None)
    assert capsys.readouterr().err.endswith(f"\nAttributeError: {said}\n")


def test_what_python_prints_of_several_circuits_has_single_stops(capsys):
    several = object.__new__(Circuits)
    with pytest.raises(AttributeError) as raised:
        _ = several.tabl
    sys.__excepthook__(raised.type, raised.value, None)
    assert capsys.readouterr().err.endswith("have no 'tabl'. Did you mean: 'table'?\n")


def test_an_error_inside_a_module_is_not_taken_for_a_wrong_name(monkeypatch):
    def broken(name):
        raise AttributeError("module 'torch' has no attribute 'new'")

    monkeypatch.setattr(gattn, "_get", broken)
    with pytest.raises(AttributeError, match="'torch' has no attribute 'new'"):
        gattn.__getattr__("capture")


def test_a_label_that_a_classifier_does_not_have_lists_those_it_has():
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8, "vocab_size": 9}
    config = transformers.BertConfig(**sizes, intermediate_size=8, num_labels=30)
    model = transformers.BertForSequenceClassification(config).eval()
    with pytest.raises(SelectionError, match=r"No target 'LABEL_77': the 30 labels are 'LABEL_0'"):
        gattn.effect([1, 2, 3], [gattn.Cut(layer=0)], model, target="LABEL_77")


def test_texts_listed_by_graph_of_a_batch_are_asked_for_in_one_list():
    from torch_geometric.nn import GATConv

    layer = GATConv(4, 3, heads=2).eval()
    x, edges = torch.randn(7, 4), torch.tensor([[0, 1, 3, 4], [1, 2, 5, 5]])
    with (
        pytest.raises(CaptureError, match="one flat list for all graphs of the batch"),
        gattn.capturing(layer, tokens=[list("abc"), list("defg")]),
    ):
        layer(x, edges)
    with gattn.capturing(layer, tokens=list("abcdefg")) as run:
        layer(x, edges)
    assert run.trace[0, 0].tokens == tuple("abcdefg")
