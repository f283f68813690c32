"""What the rules by name do not say: changes to the tiny configuration of single model types."""

from __future__ import annotations

from typing import Any

_RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 16, 32],
    "depths": [1, 1, 1, 1],
    "out_features": ["stage2", "stage3", "stage4"],
}
_SEEN = {"backbone_config": _RESNET}
_SERIES = {"prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2], "num_time_features": 1}
_GEMMA4 = {"global_head_dim": 8, "layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2}

CHANGES: dict[str, dict[str, Any]] = {
    "autoformer": _SERIES | {"label_length": 4},
    "bridgetower": {"vision_config": {"hidden_size": 64}},
    "conditional_detr": _SEEN,
    "dab-detr": _SEEN,
    "deformable_detr": _SEEN,
    "dbrx": {"attn_config": {"rope_theta": 10_000.0}},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "detr": _SEEN,
    "donut-swin": {"window_size": 2},
    "esm": {"pad_token_id": 1},
    "gemma3n_text": {"intermediate_size": 64, "num_kv_shared_layers": 0},
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": _GEMMA4,
    "diffusion_gemma_text": _GEMMA4,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "informer": _SERIES,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lilt": {"hidden_size": 48},
    "mamba2": {"num_heads": 8},
    "nystromformer": {"conv_kernel_size": 5, "num_landmarks": 4, "segment_means_seq_len": 8},
    "paddleocr_vl_text": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "table-transformer": _SEEN,
    "time_series_transformer": _SERIES,
    "zamba2": {"layers_block_type": ["mamba", "hybrid"]},
}
