"""Valid inputs for a model, from the parameter names of its forward."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

BATCH, TOKENS, PADDING = 2, 8, 3
DECODED = 6
GRID = 4

Inputs = dict[str, Any]
_random = torch.Generator()


def variants(model: PreTrainedModel) -> Iterator[Inputs]:
    """Yield inputs to try: the richest first, then only text, then only the main input."""
    parameters = inspect.signature(model.forward).parameters
    required = {n for n, p in parameters.items() if p.default is p.empty and p.kind in (0, 1)}
    _random.manual_seed(1)
    options: dict[str, list[Any]] = {}
    for name in parameters:
        if name in _MAKERS and (name in required or name not in _ON_DEMAND):
            options[name] = list(_MAKERS[name](model, set(parameters)))
    richest = [
        dict(zip(options, chosen, strict=True))
        for chosen in itertools.islice(itertools.product(*options.values()), 12)
    ]
    main = model.main_input_name
    mains = {main} if isinstance(main, str) else set(main)
    names = [
        {"input_ids", "attention_mask", "decoder_input_ids", *required},
        {*mains, *required},
        {*mains, "decoder_input_ids", *required},
    ]
    masks = {
        name: next(iter(_MAKERS[name](model, set(parameters))))
        for name in parameters
        if name in _ON_DEMAND and not (name == "inputs_embeds" and "input_ids" in parameters)
    }
    yield from richest
    if {"input_values", "input_features"} <= set(options):  # The waveform, or features made of it.
        for left in ("input_features", "input_values"):
            yield from ({n: v for n, v in one.items() if n != left} for one in richest)
    if masks:
        yield from ({**masks, **one} for one in richest)
    for some in names:
        yield from ({n: v for n, v in one.items() if n in some} for one in richest)


def repaired(inputs: Inputs, error: Exception, config: PreTrainedConfig) -> Inputs | None:
    """Add as many placeholder tokens to the text as an error says there are features."""
    found = re.search(
        r"(\w+) (?:features|tokens).*?(?:tokens|tokens:)[: (]+(\d+).*features?\D*(\d+)", str(error)
    )
    if found is None or "input_ids" not in inputs:
        return None
    kind, here, wanted = found[1].lower(), int(found[2]), int(found[3])
    token = find(
        config, f"{kind}_token_id", f"{kind}_token_index", "image_token_id", "image_token_index"
    )
    if wanted > 200:  # some count numbers, not features
        wanted //= find(config.get_text_config(), "hidden_size", default=32)
    each = wanted // BATCH
    if token is None or here or wanted % BATCH or not 0 < each < 200:
        return None
    ids = inputs["input_ids"]
    places = torch.full((BATCH, each), token)
    changed = dict(inputs, input_ids=torch.cat([ids[:, :1], places, ids[:, 1:]], dim=1))
    for name, fill in (("attention_mask", 1), ("mm_token_type_ids", 1), ("token_type_ids", 1)):
        if name in inputs:
            x = inputs[name]
            changed[name] = torch.cat([x[:, :1], torch.full((BATCH, each), fill), x[:, 1:]], dim=1)
    return changed


def find(config: PreTrainedConfig, *names: str, default: Any = None) -> Any:
    """Find a field by any of its names, in the configuration or those inside it."""
    for name in names:
        if (value := getattr(config, name, None)) is not None:
            return value
    for part in vars(config).values():
        if isinstance(part, PreTrainedConfig) and (value := find(part, *names)) is not None:
            return value
    return default


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=_random)


def _ids(*sizes: int, below: int = 60) -> Tensor:
    return torch.randint(10, below, (BATCH, *sizes), generator=_random)


def _text(model: PreTrainedModel, names: set[str]) -> Iterator[Tensor]:
    vocabulary = find(model.config, "vocab_size", default=60)
    yield _ids(TOKENS, below=min(60, vocabulary))
    books = find(model.config, "num_channels", "num_codebooks")
    if "pixel_values" not in names and isinstance(books, int):  # Codes of audio, and perhaps text.
        yield _ids(TOKENS, books)
        yield _ids(TOKENS, books + 1)


def _padded(length: int, padding: int) -> Tensor:
    mask = torch.ones(BATCH, length, dtype=torch.long)
    mask[1, length - padding :] = 0
    return mask


def _ones(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.long)


def _both(value: Any) -> tuple[int, int]:
    return (value[-2], value[-1]) if isinstance(value, (list, tuple)) else (value, value)


def _vision(config: PreTrainedConfig) -> PreTrainedConfig:
    return getattr(config, "vision_config", None) or config


def _images(model: PreTrainedModel, names: set[str]) -> Iterator[Tensor]:
    config = _vision(model.config)
    channels = find(config, "num_channels", "in_channels", "in_chans", default=3)
    height, width = _both(find(config, "image_size", "img_size", default=64))
    patch = find(config, "patch_size", default=16)
    patch = patch if isinstance(patch, int) else _both(patch)[-1]
    if names & {"image_grid_thw", "grid_thw"}:
        yield _patches(model, names)
    image = _normal(BATCH, channels, height, width)
    if names & {"image_grid_thw", "grid_thw"}:
        yield _patches(model, names).reshape(-1, channels, patch, patch)
    if names & {"spatial_shapes", "pixel_position_ids", "image_position_ids"}:
        yield _normal(BATCH, GRID * GRID, channels * patch**2)
    yield image
    frames = find(config, "num_frames", default=2)
    yield _normal(BATCH, frames, channels, height, width)
    yield _normal(BATCH, 1, height, width)
    if "aspect_ratio_ids" in names:
        yield _normal(BATCH, 1, find(config, "max_num_tiles", default=1), channels, height, width)


def _videos(model: PreTrainedModel, names: set[str]) -> Iterator[Tensor]:
    config = _vision(model.config)
    height, width = _both(find(config, "image_size", "crop_size", default=64))
    frames = find(config, "num_frames", "frames_per_clip", default=2)
    yield _normal(BATCH, frames, 3, height, width)


def _patches(model: PreTrainedModel, names: set[str]) -> Tensor:
    config = _vision(model.config)
    channels = find(config, "num_channels", "in_channels", "in_chans", default=3)
    patch = find(config, "patch_size", default=16)
    depth = find(config, "temporal_patch_size", default=1)
    return _normal(BATCH * GRID * GRID, channels * depth * patch**2)


def _hidden(model: PreTrainedModel, names: set[str]) -> Iterator[Tensor]:
    if "grid_thw" in names:
        yield _patches(model, names)
        yield _normal(BATCH * GRID * GRID, find(model.config, "hidden_size", default=32))
    width = find(model.config, "hidden_size", "d_model", "input_dim", default=32)
    yield _normal(BATCH, TOKENS, width)
    if (width := find(model.config, "input_dim", "in_channels", "input_size")) is not None:
        yield _normal(BATCH, TOKENS, width)


def _mel(model: PreTrainedModel, names: set[str]) -> Iterator[Tensor]:
    bins = find(
        model.config,
        "num_mel_bins",
        "feature_size",
        "n_mel_bins",
        "input_feat_per_channel",
        "input_feat_size",
        "num_mel_filters",
        "input_dim",
        "feature_projection_input_dim",
        default=16,
    )
    yield _normal(BATCH, bins, 128)
    yield _normal(BATCH, 128, bins)
    yield _normal(BATCH, 1, 64, bins)


def _wave(model: PreTrainedModel, names: set[str]) -> Iterator[Tensor]:
    yield _normal(BATCH, 2000)
    yield _normal(BATCH, 1, 2000)
    yield _normal(BATCH, 64, find(model.config, "num_mel_bins", "feature_size", default=16))


def _grid(model: PreTrainedModel, names: set[str]) -> Iterator[Tensor]:
    yield torch.tensor([[1, GRID, GRID]] * BATCH)


def _always(make: Callable[[], Tensor]) -> Callable[[PreTrainedModel, set[str]], list[Tensor]]:
    return lambda model, names: [make()]


_MAKERS: dict[str, Callable[[PreTrainedModel, set[str]], Any]] = {
    "input_ids": _text,
    "attention_mask": lambda model, names: (
        [_padded(TOKENS, PADDING)] if "input_ids" in names else [None]
    ),
    "decoder_input_ids": _always(lambda: _ids(DECODED)),
    "decoder_attention_mask": _always(lambda: _padded(DECODED, 2)),
    "bbox": _always(lambda: torch.tensor([1, 2, 8, 9]).expand(BATCH, TOKENS, 4).contiguous()),
    "mm_token_type_ids": _always(lambda: torch.zeros(BATCH, TOKENS, dtype=torch.long)),
    "pixel_values": _images,
    "image_grid_thw": _grid,
    "grid_thw": _grid,
    "spatial_shapes": _always(lambda: torch.tensor([[GRID, GRID]] * BATCH)),
    "pixel_attention_mask": _always(lambda: _ones(BATCH, GRID * GRID)),
    "pixel_position_ids": _always(
        lambda: torch.cartesian_prod(torch.arange(GRID), torch.arange(GRID)).expand(BATCH, -1, -1)
    ),
    "image_position_ids": _always(
        lambda: torch.cartesian_prod(torch.arange(GRID), torch.arange(GRID)).expand(BATCH, -1, -1)
    ),
    "hidden_states": _hidden,
    "input_features": _mel,
    "input_values": _wave,
    "encoder_hidden_states": lambda model, names: [
        _normal(BATCH, 7, find(model.config, "hidden_size", "d_model", default=32))
    ],
    "inputs_embeds": lambda model, names: [
        _normal(BATCH, TOKENS, find(model.config, "hidden_size", "d_model", default=32))
    ],
    "input_features_mask": _always(lambda: _ones(BATCH, 128)),
    "feature_attention_mask": _always(lambda: _ones(BATCH, 128)),
    "past_values": lambda model, names: [
        _normal(
            BATCH,
            12 if "past_time_features" in names else 32,
            *(
                []
                if "past_time_features" in names
                else [find(model.config, "num_input_channels", default=1)]
            ),
        ),
        _normal(BATCH, find(model.config, "context_length", default=32)),
    ],
    "past_time_features": lambda model, names: [_normal(BATCH, 12, 1)],
    "past_observed_mask": lambda model, names: (
        [_ones(BATCH, 12)] if "past_time_features" in names else [None]
    ),
    "future_values": lambda model, names: (
        [_normal(BATCH, 4)] if "past_time_features" in names else [None]
    ),
    "future_time_features": lambda model, names: [_normal(BATCH, 4, 1)],
    "pixel_values_videos": _videos,
    "merge_sizes": _always(lambda: _ones(BATCH)),
    "flattened_patches": lambda model, names: [
        torch.cat(
            [
                torch.cartesian_prod(torch.arange(1, 5), torch.arange(1, 5))
                .float()
                .expand(BATCH, -1, -1),
                _normal(BATCH, 16, 3 * find(model.config, "patch_size", default=16) ** 2),
            ],
            -1,
        )
    ],
    "qformer_input_ids": _always(lambda: _ids(TOKENS)),
    "task_inputs": lambda model, names: [_ids(find(model.config, "task_seq_len", default=TOKENS))],
    "visual_feats": lambda model, names: [_normal(BATCH, 4, model.config.visual_feat_dim)],
    "visual_pos": _always(lambda: torch.rand(BATCH, 4, 4, generator=_random)),
    "image": lambda model, names: [_normal(BATCH, 3, 64, 64)],
    "query_embeds": lambda model, names: [_normal(BATCH, 4, find(model.config, "hidden_size"))],
    "states": lambda model, names: [_normal(BATCH, TOKENS, model.config.state_dim)],
    "actions": lambda model, names: [_normal(BATCH, TOKENS, model.config.act_dim)],
    "rewards": _always(lambda: _normal(BATCH, TOKENS, 1)),
    "returns_to_go": _always(lambda: _normal(BATCH, TOKENS, 1)),
    "timesteps": _always(lambda: torch.arange(TOKENS).expand(BATCH, -1)),
    "aspect_ratio_ids": _always(lambda: _ones(BATCH, 1)),
    "aspect_ratio_mask": lambda model, names: [
        _ones(BATCH, 1, find(model.config, "max_num_tiles"))
    ],
    "image_embeds_position_mask": _always(lambda: torch.tensor([[0, 1, 1, 1, 1, 0, 0, 0]] * BATCH)),
    "target_sizes": _always(lambda: torch.tensor([[GRID, GRID]] * BATCH)),
    "feature_lens": _always(lambda: torch.tensor([64, 64])),
    "image_sizes": lambda model, names: [
        torch.tensor([_both(find(_vision(model.config), "image_size", default=64))] * BATCH),
        None,
    ],
    "mask": _always(lambda: _ones(BATCH, TOKENS)),
    "image_attention_mask": _always(lambda: _ones(BATCH, TOKENS, 2)),
    "context_input_ids": lambda model, names: [
        _ids(TOKENS).repeat(find(model.config, "n_docs", default=1), 1)
    ],
    "context_attention_mask": lambda model, names: [
        _ones(BATCH * find(model.config, "n_docs", default=1), TOKENS)
    ],
    "doc_scores": lambda model, names: [_normal(BATCH, find(model.config, "n_docs", default=1))],
    "audio_mel": lambda model, names: [_normal(BATCH, 128, find(model.config, "input_feat_size"))],
    "audio_mel_mask": _always(lambda: torch.zeros(BATCH, 128, dtype=torch.bool)),
    "spectrogram": lambda model, names: [
        _normal(BATCH, 20, find(model.config, "model_in_dim", default=80))
    ],
    "prompt_pixel_values": lambda model, names: list(_images(model, names))[:1],
    "prompt_masks": lambda model, names: list(_images(model, names))[:1],
    "lang_ids": _always(lambda: torch.zeros(BATCH, dtype=torch.long)),
}
_ON_DEMAND = {
    "context_attention_mask",
    "context_input_ids",
    "doc_scores",
    "image_attention_mask",
    "mask",
    "spectrogram",
    "hidden_states",
    "encoder_hidden_states",
    "inputs_embeds",
    "input_features_mask",
    "feature_attention_mask",
    "pixel_attention_mask",
    "lang_ids",
    "pixel_values_videos",
    "image",
    "query_embeds",
}
