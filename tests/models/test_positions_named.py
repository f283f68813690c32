"""Positions by the texts that tokens= gives, in whatever measures a model's answer."""

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

import gattn
from gattn.errors import CaptureError, SelectionError

IDS = [2, 10, 11, 4, 12, 13, 3]
NAMES = ["[CLS]", "a", "b", "[MASK]", "c", "d", "[SEP]"]
BATCH = torch.tensor([IDS])
GOAL = {"target": 20, "other": 21}
NAMED, NUMBERED = ({"position": one, **GOAL} for one in ("[MASK]", 3))


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return BertForMaskedLM(BertConfig(vocab_size=40, intermediate_size=32, **sizes)).eval()


WAYS = {
    "ids": lambda model: IDS,
    "mapping": lambda model: {"input_ids": BATCH},
    "output": lambda model: lambda: model(BATCH),
    "rows": lambda model: lambda: model(BATCH).logits[0],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tokens", [NAMES, {"encoder": NAMES}, [NAMES]])
def test_tokens_name_the_position_of_an_effect(bert, way, tokens):
    cuts = [gattn.Cut(layer=0, head=0)]
    how = {"metric": "logit_difference", "tokens": tokens, "progress": False}
    named, numbered = (
        gattn.effect(WAYS[way](bert), cuts, bert, **how, **goal) for goal in (NAMED, NUMBERED)
    )
    with torch.no_grad():
        row = bert(BATCH).logits[0, 3]
    assert named["plain"][0] == pytest.approx(float(row[20] - row[21]), rel=1e-6)
    assert named["effect"][0] == numbered["effect"][0] != 0
    assert named.attrs["tokens"] == NAMES


def _estimate(bert, goal):
    return gattn.estimate(IDS, bert, sample=0, tokens=NAMES, progress=False, **goal)["estimate"]


def _circuit(bert, goal):
    found = gattn.circuit(IDS, bert, tokens=NAMES, progress=False, random=0, **goal)
    return torch.tensor([found.graph["full"], found.graph["empty"]])


def _curve(name):
    def measured(bert, goal):
        ranking = gattn.capture(IDS, bert, tokens=NAMES)
        how = {"metric": "logit_difference", "tokens": NAMES, "progress": False}
        some = {"sample": 3} if name == "rank_agreement" else {"random": 0}
        found = getattr(gattn.analysis, name)(ranking, IDS, bert, **how, **some, **goal)
        return torch.tensor(found.select_dtypes("number").to_numpy())

    return measured


def _rollout(bert, goal):
    found = gattn.analysis.gradient_rollout(
        IDS, bert, metric="logit_difference", tokens=NAMES, **goal
    )
    return found.values


@pytest.mark.parametrize(
    "measured",
    [
        _estimate,
        _circuit,
        _rollout,
        *map(_curve, ("deletion_curve", "insertion_curve", "rank_agreement")),
    ],
)
def test_tokens_name_the_position_of_whatever_measures_an_answer(bert, measured):
    named, numbered = (torch.as_tensor(measured(bert, goal)) for goal in (NAMED, NUMBERED))
    assert torch.equal(named.nan_to_num(), numbered.nan_to_num())
    assert named.nan_to_num().any()


def test_an_estimate_draws_its_axis_with_the_names(bert):
    found = gattn.estimate(IDS, bert, sample=0, tokens=NAMES, **NUMBERED)
    assert found.attrs["tokens"] == NAMES


def test_a_text_that_no_row_is_known_by_is_refused(bert):
    cuts, how = [gattn.Cut(layer=0, head=0)], {"tokens": NAMES, "progress": False}
    with pytest.raises(SelectionError, match=r"No position 'z'.*'\[CLS\]'"):
        gattn.effect(IDS, cuts, bert, position="z", **how)
    with pytest.raises(SelectionError, match="one of 7 tokens by its text, but there are 6 rows"):
        gattn.effect(lambda: bert(BATCH).logits[0, 1:], cuts, bert, position="[MASK]", **how)
    with pytest.raises(CaptureError, match="tokens= gives 6 texts, but there are 7 tokens"):
        gattn.effect(IDS, cuts, bert, position="a", tokens=NAMES[:6])
