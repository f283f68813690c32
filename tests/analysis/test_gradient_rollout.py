import numpy as np
import pytest
import torch

import gattn
from gattn.analysis import gradient_rollout
from gattn.errors import EditError, SelectionError

IDS = [5, 9, 13, 9, 5, 21, 9, 13]


def by_autograd(model, inputs, metric, field="attentions"):
    """Differentiate the model's own eager attention, and roll out in plain loops."""
    model.set_attn_implementation("eager")
    result = model(**inputs, output_attentions=True)
    attentions = getattr(result, field)
    gradients = torch.autograd.grad(metric(result.logits[0]), attentions)
    state = np.eye(attentions[0].shape[-1])
    states = []
    for attention, gradient in zip(attentions, gradients, strict=True):
        raised = np.maximum((attention * gradient)[0].detach().numpy(), 0)
        state = state + raised.mean(0) @ state
        states.append(state)
    return np.array(states)


def difference(logits):
    return logits[-1, 7] - logits[-1, 11]


@pytest.mark.parametrize(
    ("name", "usual", "dtype", "atol"),
    [
        ("gpt2", "sdpa", torch.float64, 1e-10),
        # Their own eager attention shares out in single precision.
        ("llama", "sdpa", torch.float64, 1e-6),
        ("mistral", "sdpa", torch.float64, 1e-6),
        ("gpt-oss", "eager", torch.float32, 1e-5),
    ],
)
def test_autograd_on_eager_attention_gives_the_same(tiny, name, usual, dtype, atol):
    inputs = {"input_ids": torch.tensor([IDS])}
    found = gradient_rollout(inputs, tiny(name, usual, dtype=dtype), target=7, other=11)
    expected = by_autograd(tiny(name, "eager", dtype=dtype), inputs, difference)
    np.testing.assert_allclose(found, expected, atol=atol)
    assert np.abs(expected - np.eye(len(IDS))).max() > 1e-3
    assert found.dims == ("layer", "query", "key")
    assert found.notes == ["not renormalized: rows do not sum to 1"]


def test_padding_is_cut_off(tiny):
    model = tiny("gpt2", dtype=torch.float64)
    plain = {"input_ids": torch.tensor([IDS])}
    padded = {
        "input_ids": torch.tensor([[*IDS, 0, 0]]),
        "attention_mask": torch.tensor([[1] * len(IDS) + [0, 0]]),
    }
    expected = gradient_rollout(plain, model, target=7, other=11)
    found = gradient_rollout(padded, model, target=7, other=11)
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize(
    ("stack", "field"), [("encoder", "encoder_attentions"), ("decoder", "decoder_attentions")]
)
def test_stacks_of_an_encoder_and_a_decoder(tiny, stack, field):
    model = tiny("t5", dtype=torch.float64)
    inputs = {
        "input_ids": torch.tensor([IDS]),
        "decoder_input_ids": torch.tensor([[0, 8, 4, 17, 3]]),
    }
    found = gradient_rollout(inputs, model, target=7, other=11, stack=stack)
    eager = tiny("t5", "eager", dtype=torch.float64)
    expected = by_autograd(eager, inputs, difference, field)
    np.testing.assert_allclose(found, expected, atol=1e-10)
    assert f"{stack} stack" in found.computed_from
    with pytest.raises(SelectionError, match="stacks"):
        gradient_rollout(inputs, model, target=7, other=11)
    with pytest.raises(SelectionError, match="self-attention"):
        gradient_rollout(inputs, model, target=7, other=11, stack="cross")


def test_it_starts_at_any_layer_and_takes_functions_of_the_logits(tiny):
    model = tiny("llama", dtype=torch.float64)
    inputs = {"input_ids": torch.tensor([IDS])}
    whole = gradient_rollout(inputs, model, metric=difference)
    later = gradient_rollout(inputs, model, metric=difference, from_layer=1)
    assert later.layer.to_numpy().tolist() == [1]
    np.testing.assert_allclose(later[0].to_numpy() @ whole[0].to_numpy(), whole[1])
    with pytest.raises(SelectionError, match="No layer 2 to start from"):
        gradient_rollout(inputs, model, metric=difference, from_layer=2)


def test_the_embedded_model_needs_what_followed_the_words_earlier_occurrence():
    model, tokenizer = gattn.load_model()
    text = "The river tall green lamp river tall green lamp river tall green"
    found = gradient_rollout(text, model, tokenizer, target=" lamp", other=" river")
    row = found.sel(layer=3, query=found["query"][-1]).to_numpy()
    tokens = found.key_token.to_numpy()
    lamps = [i for i, token in enumerate(tokens) if token == "lamp"]
    others = [i for i in range(1, len(tokens) - 1) if tokens[i] not in ("lamp", "green")]
    assert row[lamps].sum() > row[others].sum()
    assert found.computed_from == "embedded, decoder stack, layers 0-3, heads 0-3, 13 tokens"
    assert found.attrs["target"] == " lamp"
    assert found.draw() is not None


def test_what_cannot_be_differentiated_is_refused(tiny):
    inputs = {"input_ids": torch.tensor([IDS])}
    model = tiny("llama")
    with pytest.raises(SelectionError, match="gradient there is zero"):
        gradient_rollout(inputs, model, metric="kl")
    with gattn.edited(model, gattn.Cut(layer=0)), pytest.raises(EditError, match="is edited"):
        gradient_rollout(inputs, model, target=7, other=11)
