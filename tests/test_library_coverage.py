"""The coverage of other libraries: its oracle is right, and what is wrong is found."""

import json
from datetime import date

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from benchmarks.coverage.apart import each_apart
from benchmarks.coverage.libraries import results
from benchmarks.coverage.libraries.case import Case
from benchmarks.coverage.libraries.checks import examine
from benchmarks.coverage.libraries.layouts import layout
from benchmarks.coverage.libraries.mixtures import mixture_error
from benchmarks.coverage.libraries.softmaxes import Softmax, joined, softmaxes
from benchmarks.coverage.libraries.verdict import (
    CAPTURED,
    EXACT,
    NO_ATTENTION,
    REFUSED,
    WRONG,
    Verdict,
)
from benchmarks.coverage.page import with_libraries
from benchmarks.zoo.libraries import FILES, NOTES, PACKAGES
from benchmarks.zoo.libraries.randomizing import largest_score
from benchmarks.zoo.libraries.torch_modules import build


class Layer(nn.Module):
    def __init__(self, kind="kernel"):
        super().__init__()
        self.qkv, self.kind = nn.Linear(8, 24), kind

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        if self.kind == "kernel":
            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return ((q @ k.mT).sigmoid() @ v).transpose(1, 2).flatten(2)


class Mixing(Layer):
    """Shows its attention after mixing its heads, as talking heads do."""

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        attention = (q @ k.mT).softmax(-1).movedim(1, -1)
        self.shown = (attention @ torch.tensor([[1.0, 2.0], [3.0, -1.0]]) + 0.1).movedim(-1, 1)
        return (self.shown @ v).transpose(1, 2).flatten(2)


class Sinking(Layer):
    """Each query may give its attention to a sink, which has no value."""

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT
        self.shown = torch.cat((torch.ones_like(scores[..., :1]), scores), -1).softmax(-1)
        return (self.shown[..., 1:] @ v).transpose(1, 2).flatten(2)


def a_case(kind="kernel", **settings):
    torch.manual_seed(0)
    return Case("a layer", Layer(kind).eval(), (torch.randn(2, 5, 8),), **settings)


def attention_of(case):
    q, k, _ = case.model.qkv(case.args[0]).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    return (q @ k.mT / 2).softmax(-1).detach()


def flatter(attention):
    return attention.sqrt() / attention.sqrt().sum(-1, keepdim=True)


def test_the_kernel_is_seen_as_a_softmax_that_weighs_values():
    case = a_case()
    with softmaxes(case.model) as kernels:
        case.run()
    (found,) = kernels.softmaxes
    torch.testing.assert_close(found.attention, attention_of(case))
    assert (found.kind, found.weighs) == ("Layer", True)


class Sliced(Layer):
    """Attends for one sequence and head after the other."""

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4).flatten(1, 2)
        found = torch.zeros_like(q)
        for n in range(len(q)):
            found[n : n + 1] = (q[n : n + 1] @ k[n : n + 1].mT / 2).softmax(-1) @ v[n : n + 1]
        return found.unflatten(0, (len(x), 2)).transpose(1, 2).flatten(2)


def test_slices_of_one_module_are_joined_and_changed_as_one():
    case = a_case(in_slices=True)
    case.model.__class__ = Sliced
    with softmaxes(case.model) as kernels:
        case.run()
    (found,) = joined(kernels.softmaxes)
    torch.testing.assert_close(found.attention, attention_of(case).flatten(0, 1))
    keep = torch.tensor([0.0, 2, 0, 0])[:, None, None]
    with softmaxes(case.model, found.changes(lambda attention: attention * keep)):
        only = case.run().unflatten(-1, (2, 4))
    expected = 2 * a_case().run().unflatten(-1, (2, 4))
    torch.testing.assert_close(only[0, :, 1], expected[0, :, 1])
    assert not only[1].any()
    assert not only[0, :, 0].any()
    assert examine(case).verdict == EXACT


def test_a_changed_softmax_changes_the_output():
    case = a_case()
    with softmaxes(case.model, {0: torch.zeros_like}):
        assert not case.run().any()


@pytest.mark.parametrize("order", ["bhqk", "hbqk"])
def test_heads_and_sequences_are_found_in_either_order(order):
    attention = attention_of(a_case()).double()
    own = attention if order == "bhqk" else attention.transpose(0, 1)
    found = layout(Softmax(0, "", "", own.flatten(0, 1)), [x.numpy() for x in attention])
    assert found is not None
    assert found.error == 0
    cut = found.without_edge(1, 3, 2)(own.flatten(0, 1)).reshape(own.shape)
    expected = attention.clone()
    expected[:, 1, 3, 2] = 0
    expected[:, 1, 3] /= expected[:, 1, 3].sum(-1, keepdim=True)
    torch.testing.assert_close(cut, expected if order == "bhqk" else expected.transpose(0, 1))


def test_windows_are_found_among_the_tokens():
    torch.manual_seed(0)
    windows, tokens = torch.rand(2, 1, 3, 3).double(), torch.tensor([[4, 1, 0], [2, 5, 3]])
    whole = torch.zeros(1, 6, 6).double()
    for window, members in zip(windows, tokens, strict=True):
        whole[:, members[:, None], members] = window
    found = layout(Softmax(0, "", "", windows), [whole.numpy()])
    assert found is not None
    assert found.error == 0
    assert found.queries[0].tolist() == found.keys[0].tolist() == tokens.tolist()


def test_another_attention_is_not_found():
    attention = attention_of(a_case())
    other = layout(Softmax(0, "", "", flatter(attention)), [x.numpy() for x in attention])
    assert other is not None
    assert other.error > 0.05


@pytest.mark.parametrize(
    "name",
    [
        "MultiheadAttention/batch-first/self/plain/causal/padded/weights",
        "MultiheadAttention/batch-first/self/bias-kv+zero-attn/bool-mask/padded/no-weights",
        "TransformerEncoder-post-norm-causal-all-real-batch-first",
    ],
)
def test_modules_of_torch_are_exact(name):
    found = examine(build(name))
    assert (found.verdict, found.reason) == (EXACT, "")
    assert found.shown == found.attentions > 0
    assert found.edits > 0


def test_what_the_library_shows_must_be_among_what_is_captured():
    found = examine(a_case(own=lambda case: [flatter(attention_of(case))]))
    assert found.verdict == WRONG
    assert "the library shows an attention" in found.reason


def test_what_is_no_attention_must_not_be_captured():
    found = examine(a_case(not_tokens={"Layer": "channels"}))
    assert (found.verdict, "attends over channels" in found.reason) == (WRONG, True)


def test_a_model_without_a_softmax_has_no_attention():
    assert examine(a_case("sigmoid")).verdict == NO_ATTENTION


def test_each_library_has_a_file_a_note_and_packages():
    assert FILES.keys() == NOTES.keys() == PACKAGES.keys()


def test_verdicts_are_kept_and_told_on_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "PATH", tmp_path / "results.json")
    verdicts = [Verdict("a", EXACT, attentions=3, edits=2), Verdict("b", REFUSED, "since | it is")]
    results.put("nn", verdicts)
    assert json.loads(results.PATH.read_text())["nn"][0]["name"] == "a"
    page = with_libraries("## transformers\n\nkept\n\n<!-- other libraries -->\n\ngone\n")
    assert "| nn | 1 | 0 | 1 | 0 | 0 | 0 | 0 |" in page
    assert "Exact (1 models, 3 layers, 2 edits):" in page
    assert "| b | since / it is |" in page
    assert f"Measured on {date.today().isoformat()} with torch {results._version('torch')}." in page
    assert "kept" in page
    assert "gone" not in page
    assert with_libraries(page) == page


def test_models_measured_again_replace_only_their_own_verdicts(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "PATH", tmp_path / "results.json")
    monkeypatch.setattr(results, "_version", lambda package: "1.0")
    results.put("nn", [Verdict(name, REFUSED, "so") for name in "abc"])
    monkeypatch.setattr(results, "_version", lambda package: "2.0")
    results.put("nn", [Verdict("b", EXACT)])
    found = {one["name"]: one["verdict"] for one in results.read()["nn"]}
    assert found == {"a": REFUSED, "b": EXACT, "c": REFUSED}
    today = date.today().isoformat()
    assert f"Measured on {today} with torch 1.0; b on {today} with torch 2.0.\n" in results.parts()
    results.keep_only("nn", ["b", "d", "a"])
    assert [one["name"] for one in results.read()["nn"]] == ["b", "a"]


def test_what_is_shown_after_mixing_heads_is_a_mixture_of_what_is_captured():
    torch.manual_seed(0)
    model, x = Mixing(), torch.randn(2, 5, 8)
    with torch.no_grad(), softmaxes(model) as kernels:
        model(x)
    (softmax,) = kernels.softmaxes
    captured = {("", 0): [one.numpy() for one in softmax.attention]}
    assert mixture_error(model.shown, captured, {("", 0): softmax}) < 1e-6
    assert mixture_error(model.shown**2, captured, {("", 0): softmax}) > 1e-3
    assert mixture_error(model.shown[:, :, :4], captured, {("", 0): softmax}) == torch.inf
    assert largest_score(model, x) > 0


@pytest.mark.filterwarnings("ignore:.*is edited where its attention meets the values")
def test_a_sink_is_a_column_that_no_product_takes():
    case = a_case(own=lambda case: [case.model.shown])
    case.model.__class__ = Sinking
    found = examine(case)
    assert (found.verdict, found.attentions, found.shown) == (EXACT, 1, 1)
    case.run()
    attention = case.model.shown.detach()
    heads = list(attention[..., 1:].numpy())
    assert layout(Softmax(0, "", "", attention, width=5), heads).error < 1e-6
    assert layout(Softmax(0, "", "", attention), heads) is None


class Twice(nn.Module):
    """Attends, and again with the output, whose tokens are mixed by then."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Layer(), Mixed()

    def forward(self, x):
        return self.second(self.first(x))


class Mixed(nn.Module):
    """Weighs values by scores that tell no tokens apart."""

    def forward(self, x):
        scores = x.mean(1, keepdim=True).expand_as(x) @ x.sum(1, keepdim=True).expand_as(x).mT
        self.shown = scores.softmax(-1)
        return self.shown @ x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("own", [None, lambda case: [case.model.second.shown]])
def test_what_gattn_says_that_it_leaves_out_is_not_missed(own):
    torch.manual_seed(0)
    found = examine(Case("twice", Twice().eval(), (torch.randn(2, 5, 8),), own=own))
    assert found.verdict == CAPTURED
    assert "may be attention, but was not proved" in found.reason
    assert (found.attentions, found.edits > 0) == (1, True)


def test_a_process_that_computes_too_long_is_stopped():
    def judge(name):
        while name == "endless":
            pass
        return "done"

    found = dict(each_apart(["endless", "short"], judge, workers=1, seconds=1))
    assert found == {"endless": "took too long", "short": "done"}
