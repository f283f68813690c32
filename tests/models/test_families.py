"""Some model families, held to their own eager attention; `benchmarks.coverage` has them all."""

import numpy as np
import pytest
import torch

import gattn
from benchmarks import zoo
from benchmarks.coverage import checks, compared, oracle, verdicts
from gattn.errors import CaptureError

ROUTED = [
    *(
        "bert",
        "roberta",
        "albert",
        "modernbert",
        "gpt2",
        "opt",
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
    ),
    *(
        "gemma2",
        "gemma3_text",
        "gpt_oss",
        "phi",
        "deepseek_v3",
        "deepseek_v32",
        "t5",
        "bart",
        "whisper",
    ),
    *("vit", "clip", "llava", "qwen2_vl", "swin", "beit"),
]
QUICK = ["bert", "gpt2", "llama", "gpt_oss", "t5", "bart", "vit", "bloom", "gptj"]
BY_SOFTMAX = ["bloom", "gptj", "gpt_neo", "deberta-v2", "blip", "layoutlmv3"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "family",
    [
        family if family in QUICK else pytest.param(family, marks=pytest.mark.slow)
        for family in (*ROUTED, *BY_SOFTMAX)
    ],
)
def test_it_is_captured_and_edited(family, monkeypatch):
    # Layers with large scales amplify float32's rounding; a wrong reading is off by 1e-2 or more.
    monkeypatch.setattr(compared, "TOLERANCE", 1e-4)
    verdict = verdicts.judge(family)
    assert (verdict.verdict, verdict.reason) == ("captured and edited", "")
    assert verdict.routed == (family in ROUTED)
    assert verdict.attentions >= 2
    assert verdict.error < 1e-4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["diffllama", "longformer", "prophetnet", "lilt"])
def test_what_cannot_be_read_is_refused(family):
    assert verdicts.judge(family).verdict == "refused"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["diffllama", "lilt"])
def test_what_cannot_be_captured_is_not_edited(family):
    specimen = zoo.specimen(family).eager()
    plain = specimen.run()
    for edit in (gattn.Scale(0.5), gattn.Cut(layer=1, head=0)):
        with (
            pytest.raises(CaptureError, match="several softmaxes"),
            gattn.edited(specimen.model, edit),
        ):
            specimen.run()
    assert checks.same(plain, specimen.run())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["falcon", "squeezebert", "wavlm", "lxmert"])
def test_models_that_return_other_numbers_or_need_more_than_a_small_input(family):
    """Falcon runs torch's kernel; the next return scores, and means over heads."""
    verdict = verdicts.judge(family)
    assert verdict.verdict in ("captured and edited", "captured")
    assert verdict.attentions >= 2
    assert verdict.implementation == ""


# The checks themselves can fail.


@pytest.fixture(scope="module")
def bert():
    specimen = zoo.specimen("bert")
    given, calls = oracle.own_attention(specimen, specimen.eager())
    assert calls == len(given) == 2
    return specimen, given


def test_attention_differs_clearly_from_pair_to_pair(bert):
    _, (first, _) = bert
    assert np.std(first) > 0.1


def test_other_attention_is_noticed(bert):
    specimen, (first, second) = bert
    wrong = first.copy()
    wrong[1, 3, 2, :2] = wrong[1, 3, 2, 1::-1]  # Two keys of one row are mixed up.
    with pytest.raises(compared.WrongError, match="not among those captured"):
        checks.check_capture(specimen, [wrong, second])


def test_a_missing_layer_is_noticed(bert):
    specimen, given = bert
    with pytest.raises(compared.WrongError, match="2 layers were captured, and the model has 1"):
        checks.check_capture(specimen, given[:1])


def test_a_token_that_is_lost_is_noticed(bert):
    specimen, (first, _) = bert
    seen = [first[0, :, :7, :7], first[1, :, :5, :5]]
    assert compared.error_of(seen, first, specimen.inputs) == float("inf")
    seen[0] = first[0]
    assert compared.error_of(seen, first, specimen.inputs) < 1e-9


def test_an_edit_that_does_nothing_is_noticed(bert, monkeypatch):
    specimen, given = bert
    captured, _ = checks.check_capture(specimen, given)
    checks.check_edits(specimen, captured)
    monkeypatch.setattr(gattn, "Cut", lambda **where: gattn.Scale(1.0, **where))
    with pytest.raises(compared.WrongError, match="gives another attention"):
        checks.check_edits(specimen, captured)


def test_an_output_that_changes_is_noticed(bert):
    specimen, _ = bert
    plain = specimen.run()
    assert checks.same(plain, specimen.run())
    with torch.no_grad():
        next(specimen.model.parameters()).add_(1e-6)
    assert not checks.same(plain, specimen.run())
