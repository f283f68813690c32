"""Models whose first layer has no attention: only others know how long a cache is."""

import numpy as np
import pytest
import torch

from gattn import Scale, capturing, edited

IDS = [5, 17, 42, 17, 8, 33, 21]
SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,
    "max_position_embeddings": 64,
}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8}
MAMBA |= {"mamba_d_conv": 2, "mamba_expand": 2, "mamba_chunk_size": 4}
LINEAR = {"layer_types": ["linear_attention", "full_attention"] * 2}
DELTA = {"linear_num_value_heads": 4, "linear_num_key_heads": 2}
DELTA |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
HYBRIDS = {
    "MiniMax": LINEAR | EXPERTS | {"block_size": 4},
    "Bamba": MAMBA | {"attn_layer_indices": [1, 3]},
    "RecurrentGemma": {"lru_width": 32, "attention_window_size": 64}
    | {"block_types": ["recurrent", "attention"]},
    "Qwen3Next": LINEAR
    | DELTA
    | {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
    | {"shared_expert_intermediate_size": 16},
    "Lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "GraniteMoeHybrid": MAMBA
    | EXPERTS
    | {"layer_types": ["mamba", "attention"] * 2, "shared_intermediate_size": 16},
    "FalconH1": MAMBA | {"mamba_d_ssm": 32, "mamba_n_heads": 4},
}


@pytest.fixture(params=HYBRIDS)
def model(request):
    import transformers

    name, state = request.param, torch.random.get_rng_state()
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        **SIZES | HYBRIDS[name], attn_implementation="eager"
    )
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    torch.random.set_rng_state(state)
    return model


def steps(model, attentions=False):
    """Run a prompt and some tokens one by one, as a loop of one's own does it."""
    from transformers import DynamicCache

    # MiniMax makes its own cache, and RecurrentGemma gives none back.
    is_given = "Recurrent" in type(model).__name__
    cache, outputs = DynamicCache(config=model.config) if is_given else None, []
    with torch.no_grad():
        for first, part in ((0, IDS[:4]), *((n, [IDS[n]]) for n in range(4, len(IDS)))):
            position = torch.arange(first, first + len(part))[None]
            output = model(
                torch.tensor([part]),
                position_ids=position,
                past_key_values=cache,
                use_cache=True,
                output_attentions=attentions,
            )
            cache = cache if is_given else output.past_key_values
            outputs.append(output)
    return outputs


def test_steps_are_one_text(model):
    """Each row is what the model reports for its step."""
    expected = [[x for x in step.attentions if x is not None] for step in steps(model, True)]
    if "MiniMax" in type(model).__name__:  # It reports its linear attention as well.
        expected = [step[1::2] for step in expected]
    with capturing(model) as run:
        steps(model)
    stack = run.trace.only_stack
    assert stack.tokens == [str(i) for i in IDS]
    assert len(stack.layers) == len(expected[0])
    for (layer, h), head in stack.items():
        found, first = head.to_dense(), 0
        for step in expected:
            rows = step[layer][0, h].numpy()
            here = found[first : first + len(rows), : rows.shape[1]]
            np.testing.assert_allclose(here, rows, atol=1e-5)
            first += len(rows)
        assert first == len(IDS)


def test_an_identity_changes_nothing(model):
    plain = steps(model)
    with edited(model, Scale(1.0)):
        same = steps(model)
    for one, other in zip(plain, same, strict=True):
        size = float(one.logits.abs().max())
        torch.testing.assert_close(other.logits, one.logits, rtol=0, atol=1e-4 * size)


def test_a_generated_text_is_what_steps_give(model):
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    plain = model.generate(torch.tensor([IDS]), **options)
    with capturing(model) as run, edited(model, Scale(1.0)):
        assert torch.equal(model.generate(torch.tensor([IDS]), **options), plain)
    assert run.trace.only_stack.tokens == [str(int(i)) for i in plain[0, :-1]]
