"""Changes to the tiny configurations of single model types, beyond the rules by name."""

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
_SERIES = {
    "prediction_length": 4,
    "context_length": 8,
    "lags_sequence": [1, 4],
    "num_time_features": 1,
}
_GEMMA4 = {
    "global_head_dim": 8,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_hidden_layers": 2,
}

_RT = {
    "backbone_config": {
        "model_type": "rt_detr_resnet",
        "embedding_size": 8,
        "hidden_sizes": [8, 16, 16, 32],
        "depths": [1, 1, 1, 1],
        "out_features": ["stage2", "stage3", "stage4"],
    },
    "encoder_in_channels": [16, 16, 32],
    "decoder_in_channels": [32, 32, 32],
    "encoder_layers": 1,
}
_SWIN = {
    "model_type": "swin",
    "embed_dim": 8,
    "depths": [1, 1, 1, 1],
    "num_heads": [1, 1, 2, 2],
    "window_size": 2,
    "image_size": 64,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
_DINO = {
    "model_type": "dinov2",
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "image_size": 64,
    "patch_size": 16,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
    "reshape_hidden_states": False,
}
_DEPTH = {"backbone_config": _DINO, "neck_hidden_sizes": [8, 8, 8, 8], "fusion_hidden_size": 8}
_LLAMA4_VISION = {
    "projector_input_dim": 32,
    "pixel_shuffle_ratio": 0.5,
    "intermediate_size": 128,
}
_HIERA = {
    "hidden_size": 8,
    "blocks_per_stage": [1, 2, 2, 1],
    "embed_dim_per_stage": [8, 16, 32, 64],
    "num_attention_heads_per_stage": [1, 2, 2, 2],
    "window_size_per_stage": [8, 4, 4, 4],
    "window_positional_embedding_background_size": [2, 2],
    "global_attention_blocks": [4],
    "image_size": [64, 64],
}
_SAM2 = {
    "backbone_config": {"model_type": "sam2_hiera_det_model", **_HIERA},
    "backbone_channel_list": [64, 32, 16, 8],
    "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
    "fpn_hidden_size": 32,
}
_TILED = {"image_grid_pinpoints": [[64, 64]]}

CHANGES: dict[str, dict[str, Any]] = {
    "align": {
        "projection_dim": 80,
        "vision_config": {"width_coefficient": 0.25, "depth_coefficient": 0.3},
    },
    "aria": {"projector_patch_to_query_dict": {"16": 16}},
    "audio-spectrogram-transformer": {"max_length": 64, "num_mel_bins": 16},
    "autoformer": _SERIES | {"label_length": 4},
    "bamba": {"attn_layer_indices": [1]},
    "bridgetower": {"vision_config": {"hidden_size": 64}},
    "bridgetower_vision_model": {"hidden_size": 64},
    "blt": {"use_cache": False},
    "bros": {"hidden_size": 64},
    "chameleon": {"vocabulary_map": {"<image>": 97}},
    "clap": {
        "audio_config": {
            "spec_size": 64,
            "hidden_size": 256,
            "window_size": 2,
            "num_mel_bins": 32,
            "enable_fusion": False,
        }
    },
    "clap_audio_model": {
        "spec_size": 64,
        "hidden_size": 256,
        "window_size": 2,
        "num_mel_bins": 32,
        "enable_fusion": False,
    },
    "clvp": {
        "text_config": {"hidden_size": 128},
        "speech_config": {"hidden_size": 128},
        "decoder_config": {"hidden_size": 128},
    },
    "clvp_encoder": {"hidden_size": 128},
    "conditional_detr": _SEEN,
    "d_fine": _RT,
    "dab-detr": _SEEN,
    "deformable_detr": _SEEN,
    "dbrx": {"attn_config": {"rope_theta": 10_000.0, "clip_qkv": 8.0}},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "depth_anything": _DEPTH,
    "depth_pro": {"patch_size": 64},
    "detr": _SEEN,
    "diffusion_gemma_text": _GEMMA4,
    "donut-swin": {"window_size": 2},
    "dots1": {"n_shared_experts": 1},
    "efficientloftr": {
        "hidden_size": 32,
        "out_features": [16, 16, 16, 32],
        "stage_num_blocks": [1, 1, 1, 1],
        "num_attention_heads": 8,
    },
    "emu3": {"vocabulary_map": {"<image>": 97, "<|extra_200|>": 96}},
    "esm": {"pad_token_id": 1},
    "esmc": {"num_key_value_heads": 4},
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_d_head": 4},
    "fastspeech2_conformer_with_hifigan": {
        "vocoder_config": {"model_in_dim": 16},
        "model_config": {"num_mel_bins": 16},
    },
    "gemma3n": {"text_config": {"intermediate_size": 64, "num_kv_shared_layers": 0}},
    "gemma3n_text": {"intermediate_size": 64, "num_kv_shared_layers": 0},
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": _GEMMA4,
    "gemma4_audio": {"subsampling_conv_channels": [128, 32]},
    "glm5_next_text": {"index_topk": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "grounding-dino": {"num_queries": 8, "backbone_config": _SWIN},
    "informer": _SERIES,
    "instructblip": {"image_token_id": 95},
    "instructblipvideo": {"video_token_id": 95},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kosmos-2": {"latent_query_num": 4},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4},
    "llama4": {"vision_config": _LLAMA4_VISION},
    "llama4_vision_model": _LLAMA4_VISION,
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lightglue": {"keypoint_detector_config": {"keypoint_decoder_dim": 65}},
    "lilt": {"hidden_size": 48},
    "llava_next": _TILED,
    "llava_next_video": _TILED,
    "llava_onevision": _TILED,
    "mllama": {
        "text_config": {"cross_attention_layers": [1]},
        "vision_config": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 96},
    },
    "mamba2": {"num_heads": 8},
    "mask2former": {"backbone_config": _SWIN, "feature_size": 32, "mask_feature_size": 32},
    "mm-grounding-dino": {"num_queries": 8, "backbone_config": _SWIN},
    "mobilevit": {"hidden_sizes": [32, 32, 32]},
    "mllama_vision_model": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 96},
    "musicgen": {"decoder": {"num_codebooks": 1}},
    "musicgen_melody": {"decoder": {"num_codebooks": 1}},
    "musicgen_decoder": {"num_codebooks": 2},
    "musicgen_melody_decoder": {"num_codebooks": 2},
    "nystromformer": {"conv_kernel_size": 5, "num_landmarks": 4, "segment_means_seq_len": 8},
    "oneformer": {"backbone_config": _SWIN},
    "paddleocr_vl_text": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    },
    "patchtst": {"context_length": 32, "patch_length": 4, "patch_stride": 4},
    "pix2struct": {"vision_config": {"patch_embed_hidden_size": 768}},
    "pix2struct_vision_model": {"patch_embed_hidden_size": 768},
    "prompt_depth_anything": _DEPTH,
    "pvt": {"sequence_reduction_ratios": [1, 1, 1, 1]},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 32},
    "qwen4_exp_text": {"index_topk": 4},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"axial_pos_embds": False},
    "rt_detr": _RT,
    "rt_detr_v2": _RT,
    "sam": {"vision_config": {"output_channels": 32, "num_pos_feats": 16}},
    "sam_hq": {"vision_config": {"output_channels": 32, "num_pos_feats": 16}},
    "sam2": {"vision_config": _SAM2},
    "sam2_hiera_det_model": _HIERA,
    "sam2_video": {"vision_config": _SAM2},
    "sam2_vision_model": _SAM2,
    "step3p5": {"sliding_window": 4},
    "superglue": {"keypoint_detector_config": {"keypoint_decoder_dim": 65}},
    "superpoint": {"keypoint_decoder_dim": 65},
    "maskformer-swin": {"window_size": 2},
    "swin2sr": {"depths": [1, 1], "num_heads": [2, 2], "image_size": 16},
    "swin": {"window_size": 2},
    "swinv2": {"window_size": 2},
    "t5gemma2_decoder": {"dropout_rate": 0.0},
    "t5gemma2_encoder": {"text_config": {"dropout_rate": 0.0}},
    "t5gemma2_text": {"dropout_rate": 0.0},
    "table-transformer": _SEEN,
    "time_series_transformer": _SERIES,
    "tvp": {
        "visual_prompt_size": 8,
        "max_img_size": 64,
        "num_frames": 2,
        "backbone_config": _RESNET | {"out_features": ["stage4"]},
    },
    "upernet": {"backbone_config": _SWIN, "auxiliary_in_channels": 32},
    "vipllava": {"vision_feature_layers": [-2, -1]},
    "vitmatte": {
        "backbone_config": {
            "model_type": "vitdet",
            "num_channels": 4,
            "hidden_size": 32,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "image_size": 64,
            "out_features": ["stage2"],
        },
        "fusion_hidden_sizes": [32, 16, 8, 4],
    },
    "voxtral": {"audio_token_id": 90},
    "xclip_vision_model": {"num_frames": 2},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["mamba", "hybrid"]},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"]},
}

NOT_TOKENS = {"PatchTSMixerGatedAttention": "features"}
"""Modules whose softmax is over something else than tokens, by the name of their class."""
