"""Models of transformers that attend in windows of an image, and to several images of a text."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from transformers.models.idefics2 import modeling_idefics2
from transformers.models.patchtst import modeling_patchtst
from transformers.models.sam2 import modeling_sam2
from transformers.models.swin import modeling_swin

import gattn
from gattn.errors import CaptureError
from gattn.models.doors.proof.grouping import attends_in_groups
from gattn.models.hugging_face.media import Batch
from gattn.models.read.track.tracking import Tracker

HEADS, WIDTH, SIDE, WINDOW = 2, 12, 8, 4
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def randomized(model):
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    return model.eval()


@pytest.fixture
def swin():
    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=WIDTH, depths=[2, 1], num_heads=[HEADS, HEADS],
        window_size=WINDOW, attn_implementation="eager",
    )  # fmt: skip
    return randomized(transformers.SwinModel(config)).double()


@pytest.fixture
def eager(monkeypatch):
    """Keep what eager code attends to, call by call; a function may change it."""

    def watch(module, change=lambda number, weights: weights):
        kept = []

        def attend(module, query, key, value, attention_mask, scaling, **options):
            scores = query @ key.mT * scaling
            weights = (scores + (0 if attention_mask is None else attention_mask)).softmax(-1)
            kept.append(change(len(kept), weights))
            return (kept[-1] @ value).transpose(1, 2).contiguous(), kept[-1]

        monkeypatch.setattr(module, "eager_attention_forward", attend)
        return kept

    return watch


def patches_of_windows(side, window, shift):
    """Return the patch of each slot: (windows, slots)."""
    patches = np.roll(np.arange(side * side).reshape(side, side), (-shift, -shift), (0, 1))
    each = side // window
    parts = patches.reshape(each, window, each, window).transpose(0, 2, 1, 3)
    return parts.reshape(each * each, window * window)


def on_patches(weights, queries, keys, image):
    """Put the attention of windows on the patches of an image: (heads, queries, keys)."""
    count = len(queries)
    own = weights[image * count : (image + 1) * count].detach().numpy()
    whole = np.zeros((own.shape[1], queries.size, keys.size))
    for window in range(count):
        whole[:, queries[window][:, None], keys[window]] = own[window]
    return whole


def captured(model, *given, **named):
    with torch.no_grad(), gattn.capturing(model) as run:
        model(*given, **named)
    return run.traces


class Own(nn.Module):
    """A module of one's own around a model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixels):
        return self.model(pixels).last_hidden_state


@pytest.mark.parametrize("wrap", [lambda x: x, Own])
def test_tokens_of_shifted_windows_are_patches(swin, eager, wrap):
    images = IMAGES.double()
    kept = eager(modeling_swin)
    with torch.no_grad():
        swin(images)
    weights, model = list(kept), wrap(swin)
    traces = captured(model, images)
    assert len(traces) == 2
    for image, trace in enumerate(traces):
        first, _ = trace.stacks.values()
        for layer, shift in enumerate((0, WINDOW // 2)):
            slots = patches_of_windows(SIDE, WINDOW, shift)
            expected = on_patches(weights[layer], slots, slots, image)
            for head in range(HEADS):
                np.testing.assert_allclose(first[layer, head].to_dense(), expected[head], atol=1e-9)


def test_windows_are_known_though_a_later_stage_is_one_window():
    """Its modules ask no interface, and show the attention of each window."""
    config = transformers.Swinv2Config(
        image_size=32, patch_size=4, embed_dim=WIDTH, depths=[2, 1], num_heads=[HEADS, HEADS],
        window_size=WINDOW,
    )  # fmt: skip
    model = randomized(transformers.Swinv2Model(config)).double()
    with torch.no_grad():
        given = model(IMAGES.double(), output_attentions=True).attentions
    for image, trace in enumerate(captured(model, IMAGES.double())):
        first, last = trace.stacks.values()
        slots = patches_of_windows(SIDE, WINDOW, WINDOW // 2)  # It shows a stage's last layer.
        expected = on_patches(given[0], slots, slots, image)
        np.testing.assert_allclose(first[1, 1].to_dense(), expected[1], atol=1e-9)
        np.testing.assert_allclose(last[0, 0].to_dense(), given[1][image, 0], atol=1e-9)


def test_a_cut_in_a_shifted_window_is_that_of_its_patches(swin, eager):
    slots = patches_of_windows(SIDE, WINDOW, WINDOW // 2)
    window, query, key = 1, 3, 6

    def change(number, weights):
        if number == 1:  # the second layer, of two images with as many windows each
            weights = weights.clone()
            weights[window :: len(slots), 1, query, key] = 0
            weights = weights / weights.sum(-1, keepdim=True)
        return weights

    edge = {"query": int(slots[window, query]), "key": int(slots[window, key])}
    stack = "encoder.layers.0.blocks.attention"
    with torch.no_grad(), gattn.edited(swin, gattn.Cut(stack=stack, layer=1, head=1, **edge)):
        found = swin(IMAGES.double()).last_hidden_state
    eager(modeling_swin, change)
    with torch.no_grad():
        expected = swin(IMAGES.double()).last_hidden_state
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)  # Its softmax is rounded.


def test_windows_of_a_model_that_is_trained_are_not_numbered_by_guess(swin):
    says = pytest.raises(CaptureError, match=r"8 groups of tokens.* of 2 inputs.*.*model\.eval\(\)")
    with says, gattn.edited(swin.train(), gattn.Scale(0.5, layer=0, head=0)):
        swin(IMAGES.double())


def test_queries_that_are_pooled_in_windows(eager):
    """Hiera's queries are 2 x 2 patches of their window, pooled; its keys are those patches."""
    config = transformers.Sam2HieraDetConfig(
        hidden_size=WIDTH, num_attention_heads=1, blocks_per_stage=[1, 1],
        embed_dim_per_stage=[WIDTH, 2 * WIDTH], num_attention_heads_per_stage=[1, 2],
        window_size_per_stage=[WINDOW, WINDOW], global_attention_blocks=[], num_query_pool_stages=1,
        image_size=[32, 32], patch_kernel_size=[7, 7], patch_stride=[4, 4], patch_padding=[3, 3],
        window_positional_embedding_background_size=[2, 2], attn_implementation="eager",
    )  # fmt: skip
    model = randomized(modeling_sam2.Sam2HieraDetModel(config)).double()
    kept = eager(modeling_sam2)
    with torch.no_grad():
        model(IMAGES.double())
    _, pooled = weights = list(kept)
    slots = patches_of_windows(SIDE, WINDOW, 0)
    of_queries = np.arange((SIDE // 2) ** 2).reshape(len(slots), -1)  # They are no patches.
    for image, trace in enumerate(captured(model, IMAGES.double())):
        first, second = trace.stacks.values()
        expected = on_patches(weights[0], slots, slots, image)
        np.testing.assert_allclose(first[0, 0].to_dense(), expected[0], atol=1e-9)
        expected = on_patches(pooled, of_queries, slots, image)
        for head in range(2):
            np.testing.assert_allclose(second[0, head].to_dense(), expected[head], atol=1e-9)


@pytest.mark.parametrize(("channels", "among_channels"), [(2, False), (1, True)])
def test_channels_of_a_time_series_are_groups(eager, channels, among_channels):
    """Steps of each channel attend to each other; then channels may, at each step."""
    sizes = {"context_length": 12, "patch_length": 4, "patch_stride": 4, "d_model": 8}
    config = transformers.PatchTSTConfig(
        num_input_channels=channels, num_hidden_layers=1, num_attention_heads=HEADS, ffn_dim=12,
        channel_attention=among_channels, attn_implementation="eager", **sizes,
    )  # fmt: skip
    model = randomized(transformers.PatchTSTModel(config))
    series = torch.randn(2, 12, channels, generator=torch.Generator().manual_seed(0))
    kept = eager(modeling_patchtst)
    with torch.no_grad():
        model(past_values=series)
    first = kept[0].reshape(2, channels, HEADS, 3, 3)
    for n, trace in enumerate(captured(model, past_values=series)):
        stack = trace.stacks["encoder.layers.self_attn"]
        for head in range(HEADS):
            expected = torch.block_diag(*first[n, :, head])
            np.testing.assert_allclose(stack[0, head].to_dense(), expected, atol=1e-6)


def test_bugs_of_gattn_are_no_sign_that_a_model_attends_otherwise(swin, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(Tracker, "place", broken)
    with pytest.raises(ZeroDivisionError):
        attends_in_groups(swin)


LATENTS, PATCHES, PLACE = 3, 4, 59


@pytest.fixture
def idefics():
    """Three latents of each image read its four patches and themselves."""
    config = transformers.Idefics2Config(
        vision_config={
            "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
            "num_attention_heads": 2, "image_size": 16, "patch_size": 8,
        },
        perceiver_config={
            "hidden_size": 16, "resampler_n_latents": LATENTS, "resampler_depth": 2,
            "resampler_n_heads": HEADS, "resampler_head_dim": 8, "num_key_value_heads": HEADS,
        },
        text_config={
            "model_type": "mistral", "vocab_size": 60, "hidden_size": 16, "intermediate_size": 24,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
            "pad_token_id": 0,
        },
        image_token_id=PLACE, attn_implementation="eager",
    )  # fmt: skip
    return randomized(transformers.Idefics2Model(config))


def texts(*images):
    """Give texts with so many images each."""
    rows = [[5, *[PLACE] * (count * LATENTS), 7] for count in images]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(len(images), max(images), 3, 16, 16, generator=generator)
    for row, count in zip(pixels, images, strict=True):
        row[count:] = 0  # Images of nothing but zeros are left out.
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "pixel_values": pixels}


def of_latents(kept):
    """Take the calls in which latents read patches."""
    return [weights for weights in kept if weights.shape[2] == LATENTS != weights.shape[3]]


def test_several_images_of_a_text_are_read_side_by_side(idefics, eager):
    kept = eager(modeling_idefics2)
    traces = captured(idefics, **texts(2, 2))
    slots = PATCHES + LATENTS
    for layer, weights in enumerate(of_latents(kept)):
        own = weights.reshape(2, 2, HEADS, LATENTS, slots).numpy()
        for n, trace in enumerate(traces):
            for head in range(HEADS):
                expected = np.zeros((2 * LATENTS, 2 * slots))
                for image in range(2):
                    rows, columns = (slice(image * x, (image + 1) * x) for x in (LATENTS, slots))
                    expected[rows, columns] = own[n, image, head]
                found = trace.stacks["encoder"][layer, head].to_dense()
                np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("images", [(0, 2), (2, 0)])
def test_images_of_one_of_two_texts_are_its_own(idefics, eager, images):
    """There are as many images as texts."""
    kept = eager(modeling_idefics2)
    inputs = texts(*images)
    traces = captured(idefics, **inputs)
    first, owner = of_latents(kept)[0], images.index(2)
    for head in range(HEADS):
        found = traces[owner].stacks["encoder"][0, head].to_dense()
        np.testing.assert_allclose(found, torch.block_diag(*first[:, head]), atol=1e-6)
    assert set(traces[1 - owner].stacks) == {"text"}
    length = int(inputs["attention_mask"][owner].sum())
    cut = gattn.Cut(stack="encoder", layer=0, head=1, query=LATENTS, key=PATCHES + LATENTS)
    with torch.no_grad(), gattn.edited(idefics, cut):
        found = idefics(**inputs).last_hidden_state

    def change(weights):
        weights[1, 1, 0, 0] = 0
        return weights

    expected = edited_by_hand(idefics, inputs, eager, change)
    real = slice(0, length)
    torch.testing.assert_close(found[owner, real], expected[owner, real], atol=1e-5, rtol=1e-5)


def test_elements_that_may_be_texts_or_images_belong_to_none():
    config = SimpleNamespace(image_token_id=PLACE)
    batch = Batch(texts(0, 2), config)
    assert batch.belonging("decoder", 2, length=8).sequences == [0, 1]  # as long as texts
    assert batch.belonging("encoder", 2, length=LATENTS).sequences == [1, 1]  # as the places are
    assert batch.belonging("decoder", 2, length=8 + 5) is None
    assert Batch(texts(1, 1), config).belonging("decoder", 2, length=20).sequences == [0, 1]


PADDED = (((0, 0), (0, 1)), ((1, 0),), ((0, 1),))
"""Images of which only the upper row of patches is no padding: (text, image)."""


def with_padding(padded):
    """Give two texts with two images each."""
    mask = torch.ones(2, 2, 16, 16, dtype=torch.long)
    for text, image in padded:
        mask[text, image, 8:] = 0
    return texts(2, 2) | {"pixel_attention_mask": mask}


@pytest.mark.parametrize("padded", PADDED)
def test_padded_images_keep_the_numbers_of_their_slots(idefics, eager, padded):
    kept = eager(modeling_idefics2)
    traces = captured(idefics, **with_padding(padded))
    first = of_latents(kept)[0]
    for n, trace in enumerate(traces):
        for head in range(HEADS):
            expected = torch.block_diag(*first[2 * n : 2 * n + 2, head])
            found = trace.stacks["encoder"][0, head].to_dense()
            np.testing.assert_allclose(found, expected, atol=1e-6)


def edited_by_hand(model, inputs, eager, change):
    """Run with other weights where latents of the first layer read patches."""
    changed: list[int] = []

    def change_first(number, weights):
        if weights.shape[2:] == (LATENTS, PATCHES + LATENTS) and not changed:
            changed.append(number)
            weights = change(weights.clone())
            weights = weights / weights.sum(-1, keepdim=True)
        return weights

    eager(modeling_idefics2, change_first)
    with torch.no_grad():
        return model(**inputs).last_hidden_state


@pytest.mark.parametrize("padded", PADDED)
def test_an_edit_reaches_the_same_slot_of_padded_images(idefics, eager, padded):
    inputs, slots, slot = with_padding(padded), PATCHES + LATENTS, PATCHES
    cut = gattn.Cut(stack="encoder", layer=0, head=1, query=LATENTS, key=slots + slot)
    with torch.no_grad(), gattn.edited(idefics, cut):
        found = idefics(**inputs).last_hidden_state

    def change(weights):
        weights[[1, 3], 1, 0, slot] = 0
        return weights

    expected = edited_by_hand(idefics, inputs, eager, change)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_the_graph_of_padded_images_is_used_in_others(idefics, eager):
    inputs = with_padding(PADDED[0])
    graph = captured(idefics, **inputs)[0].stacks["encoder"][0, 0]
    use = gattn.Use(graph, stack="encoder", layer=0, head=1)
    with torch.no_grad(), gattn.edited(idefics, use):
        found = idefics(**inputs).last_hidden_state

    def change(weights):
        weights[:, 1] = weights[[0, 1, 0, 1], 0]
        return weights

    expected = edited_by_hand(idefics, inputs, eager, change)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_an_edit_reaches_the_image_that_it_names(idefics, eager):
    inputs, slots = texts(2, 2), PATCHES + LATENTS
    cut = gattn.Cut(stack="encoder", layer=0, head=1, query=LATENTS + 2, key=slots + 1)
    with torch.no_grad(), gattn.edited(idefics, cut):
        found = idefics(**inputs).last_hidden_state

    def change(weights):
        weights[[1, 3], 1, 2, 1] = 0  # the second image of both texts
        return weights

    with torch.no_grad():
        plain = idefics(**inputs).last_hidden_state
    expected = edited_by_hand(idefics, inputs, eager, change)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found, plain, atol=1e-4)


def test_texts_with_other_numbers_of_images_are_refused(idefics):
    with pytest.raises(CaptureError, match=r"reads 2 and 1 images .* of 2 texts.*one by one"):
        captured(idefics, **texts(2, 1))
    assert len(captured(idefics, **texts(1))) == 1
