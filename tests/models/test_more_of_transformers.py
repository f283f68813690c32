"""Models of transformers that attend in windows or over time, or have several configurations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gattn
from gattn.models.doors.proof.probing.one_run.constants import Constants


def _shown(stack, layer, traces):
    """Return a layer of each sequence, (heads, queries, keys)."""
    return [
        np.stack([trace.stacks[stack][layer, head].to_dense() for head in range(4)])
        for trace in traces
    ]


def _random(model):
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    return model.eval()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_sam_attends_in_windows_and_over_the_whole_image(implementation):
    transformers = pytest.importorskip("transformers")
    config = transformers.SamVisionConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=64, patch_size=16,
        window_size=2, global_attn_indexes=[1], mlp_dim=32, output_channels=16,
    )  # fmt: skip
    eager = transformers.SamVisionModel._from_config(config, attn_implementation="eager")
    model = transformers.SamVisionModel._from_config(config, attn_implementation=implementation)
    model.load_state_dict(_random(eager).state_dict())
    given: list[torch.Tensor] = []
    for layer in eager.vision_encoder.layers:
        layer.attn.register_forward_hook(lambda m, args, result: given.append(result[1]))
    pixels = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        eager(pixels)
        with gattn.capturing(model.eval(), keep=gattn.All()) as run:
            model(pixels)
    (stack,) = run.traces[0].stacks
    windows, whole = (x.numpy() for x in given)
    whole = whole.reshape(2, 4, 16, 16)
    windows = windows.reshape(2, 4, 4, 4, 4)  # image, window, head, query, key
    expected = np.zeros_like(whole)
    for window in range(4):
        rows, columns = divmod(window, 2)
        tokens = [(2 * rows + a) * 4 + 2 * columns + b for a in range(2) for b in range(2)]
        expected[:, :, np.ix_(tokens, tokens)[0], tokens] = windows[:, window]
    for layer, own in enumerate((expected, whole)):
        np.testing.assert_allclose(_shown(stack, layer, run.traces), own, atol=1e-6)


def test_space_and_time_in_turn():
    transformers = pytest.importorskip("transformers")
    config = transformers.TimesformerConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, image_size=32, patch_size=16,
        num_frames=3, intermediate_size=32,
    )  # fmt: skip
    model = _random(transformers.TimesformerModel(config))
    given: list[torch.Tensor] = []
    own = model.encoder.layer[0].temporal_attention.attention
    own.attn_drop.register_forward_hook(lambda m, args, result: given.append(result.detach()))
    frames = torch.randn(2, 3, 3, 32, 32)
    with torch.no_grad(), gattn.capturing(model, keep=gattn.All()) as run:
        model(frames)
    stack = next(name for name in run.traces[0].stacks if "temporal" in name)
    shown = np.stack(_shown(stack, 0, run.traces))
    own = given[0].numpy().reshape(2, 4, 4, 3, 3)  # video, place, head, query, key
    assert shown.shape[1] == 4
    rows = np.sort(shown, -1)[..., -3:]
    for video, place, head, query in np.ndindex(2, 4, 4, 3):
        expected = np.sort(own[video, place, head, query])
        assert np.abs(rows[video, head] - expected).max(-1).min() < 1e-6
    assert (shown > 0).sum() == own.size


def test_numbers_made_of_weights_alone_hold_no_tokens():
    model = torch.nn.Module()
    model.table = torch.nn.Parameter(torch.randn(5, 2))
    model.register_buffer("kept", torch.randn(5, 2))
    own = Constants(model)
    for table, is_weight in ((model.table, True), (model.kept, False)):
        resized = table * 2
        own.note("mul", [table], resized)
        assert own.are_weights(table) is is_weight
        assert own.are_weights(resized) is is_weight
    assert not own.are_weights(torch.randn(5, 2))


def test_a_model_with_two_configurations_of_texts_is_captured():
    transformers = pytest.importorskip("transformers")
    small = {"num_hidden_layers": 1, "num_attention_heads": 4, "hidden_size": 32}
    text = transformers.T5Config(
        vocab_size=60, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4
    )
    decoder = transformers.MusicgenDecoderConfig(
        vocab_size=60, num_codebooks=1, ffn_dim=32, **small
    )
    audio = transformers.EncodecConfig(hidden_size=16, num_filters=4, codebook_size=64)
    config = transformers.MusicgenConfig(
        text_encoder=text.to_dict(), decoder=decoder.to_dict(), audio_encoder=audio.to_dict()
    )
    model = transformers.MusicgenForConditionalGeneration(config).eval()
    ids = torch.randint(3, 60, (1, 5))
    with torch.no_grad(), gattn.capturing(model) as run:
        model(input_ids=ids, decoder_input_ids=ids[:, :3])
    assert set(run.trace.stacks) == {"encoder", "decoder", "cross"}
