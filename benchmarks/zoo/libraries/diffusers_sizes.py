"""diffusers: small configurations, and inputs for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

_ONE = torch.tensor(3)
_STEP = torch.tensor([3, 5])
_TRUE = torch.tensor([[True] * 7, [True] * 5 + [False] * 2])
_PLACES = torch.stack(torch.meshgrid(*map(torch.arange, (1, 4, 4)), indexing="ij"), -1).view(16, 3)


@dataclass(frozen=True)
class Sizes:
    """A class of diffusers, its configuration, and its inputs: tensors, or their shapes."""

    kind: str
    config: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)


_HEADS: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2}
_LATENT = {"in_channels": 4, "out_channels": 4}
_TEXT = {"encoder_hidden_states": (2, 7, 32)}
_IMAGE = {"hidden_states": (2, 4, 8, 8), "timestep": _STEP}
_VIDEO = {"hidden_states": (2, 4, 2, 8, 8), "timestep": _STEP, **_TEXT}
_BLOCKS = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}
_UNET = {
    **_BLOCKS,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "attention_head_dim": 2,
    "cross_attention_dim": 32,
    "sample_size": 8,
}
_NOISY = {"sample": (2, 4, 8, 8), "timestep": _STEP}
_UNET_3D = {
    **_UNET,
    "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
    "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
    "attention_head_dim": 8,
}
_AUTOENCODER = {**_BLOCKS, "latent_channels": 4}
_AUTOENCODER["down_block_types"] = ("DownEncoderBlock2D",) * 2
_AUTOENCODER["up_block_types"] = ("UpDecoderBlock2D",) * 2
_JOINT = {**_HEADS, "joint_attention_dim": 32, "sample_size": 8, **_LATENT}
_SIMPLE = {
    **_UNET,
    "down_block_types": ("DownBlock2D", "SimpleCrossAttnDownBlock2D"),
    "up_block_types": ("SimpleCrossAttnUpBlock2D", "UpBlock2D"),
    "mid_block_type": "UNetMidBlock2DSimpleCrossAttn",
    "attention_head_dim": 8,
}
_FLUX = {
    "in_channels": 4,
    "num_layers": 1,
    "num_single_layers": 1,
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "joint_attention_dim": 32,
    "axes_dims_rope": (4, 6, 6),
}
_FLUX_INPUTS = {
    "hidden_states": (2, 16, 4),
    "timestep": torch.tensor([0.3, 0.5]),
    "img_ids": _PLACES.float(),
    "txt_ids": torch.zeros(7, 3),
    **_TEXT,
}
_PIXART = {
    **_HEADS,
    **_LATENT,
    "cross_attention_dim": 32,
    "caption_channels": 32,
    "sample_size": 8,
    "norm_num_groups": 8,
}
_SIZE = torch.tensor([[8.0, 8.0]] * 2)

SIZES = {
    **{
        f"unet-condition{way}": Sizes("UNet2DConditionModel", config, {**_NOISY, **_TEXT, **more})
        for way, config, more in (
            ("", _UNET, {}),
            ("-linear-projection", {**_UNET, "use_linear_projection": True}, {}),
            ("-masked", _UNET, {"encoder_attention_mask": _TRUE}),
            ("-upcast", {**_UNET, "upcast_attention": True}, {}),
            ("-only-cross", {**_UNET, "only_cross_attention": True}, {}),
            ("-deep", {**_UNET, "transformer_layers_per_block": 2}, {}),
            ("-added-keys", _SIMPLE, {}),
        )
    },
    "unet": Sizes(
        "UNet2DModel",
        {
            **_BLOCKS,
            **_LATENT,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        },
        _NOISY,
    ),
    "unet-1d": Sizes(
        "UNet1DModel",
        {"sample_size": 64, "block_out_channels": (32, 32, 64), "extra_in_channels": 64},
        {"sample": (2, 2, 64), "timestep": _STEP},
    ),
    "unet-3d": Sizes(
        "UNet3DConditionModel", _UNET_3D, {**_NOISY, "sample": (2, 4, 3, 8, 8), **_TEXT}
    ),
    "unet-motion": Sizes(
        "UNetMotionModel",
        {
            **{key: value for key, value in _UNET.items() if key != "attention_head_dim"},
            "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"),
            "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion"),
            "num_attention_heads": 2,
            "motion_num_attention_heads": 2,
        },
        {**_NOISY, "sample": (2, 4, 3, 8, 8), "encoder_hidden_states": (6, 7, 32)},
    ),
    "unet-spatio-temporal": Sizes(
        "UNetSpatioTemporalConditionModel",
        {
            "block_out_channels": (32, 64),
            "layers_per_block": 1,
            "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
            "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
            "num_attention_heads": (2, 4),
            "cross_attention_dim": 32,
            "addition_time_embed_dim": 8,
            "projection_class_embeddings_input_dim": 24,
            "num_frames": 3,
            **_LATENT,
        },
        {"sample": (2, 3, 4, 8, 8), "timestep": _ONE, "added_time_ids": torch.ones(2, 3)}
        | {"encoder_hidden_states": (2, 1, 32)},
    ),
    "uvit": Sizes(
        "UVit2DModel",
        {
            "hidden_size": 32,
            "cond_embed_dim": 32,
            "micro_cond_encode_dim": 8,
            "micro_cond_embed_dim": 40,
            "encoder_hidden_size": 32,
            "vocab_size": 40,
            "codebook_size": 32,
            "in_channels": 32,
            "block_out_channels": 32,
            "num_res_blocks": 1,
            "block_num_heads": 2,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 48,
            "sample_size": 4,
        },
        {
            "input_ids": torch.arange(32).view(2, 4, 4) % 32,
            "pooled_text_emb": (2, 32),
            "micro_conds": torch.ones(2, 5),
            **_TEXT,
        },
    ),
    "controlnet": Sizes(
        "ControlNetModel",
        {
            key: value
            for key, value in {**_UNET, "conditioning_embedding_out_channels": (16, 32)}.items()
            if key not in ("sample_size", "up_block_types")
        },
        {**_NOISY, **_TEXT, "controlnet_cond": (2, 3, 16, 16)},
    ),
    "autoencoder-kl": Sizes("AutoencoderKL", _AUTOENCODER, {"sample": (2, 3, 16, 16)}),
    "vq": Sizes("VQModel", {**_AUTOENCODER, "num_vq_embeddings": 16}, {"sample": (2, 3, 16, 16)}),
    "dit": Sizes(
        "DiTTransformer2DModel",
        {**_HEADS, "in_channels": 4, "sample_size": 8, "norm_num_groups": 8},
        {**_IMAGE, "class_labels": torch.tensor([1, 2])},
    ),
    "sd3": Sizes(
        "SD3Transformer2DModel",
        {**_JOINT, "caption_projection_dim": 32, "pooled_projection_dim": 32},
        {**_IMAGE, **_TEXT, "pooled_projections": (2, 32)},
    ),
    "sd3.5-dual": Sizes(
        "SD3Transformer2DModel",
        {
            **_JOINT,
            "caption_projection_dim": 32,
            "pooled_projection_dim": 32,
            "dual_attention_layers": (0,),
            "qk_norm": "rms_norm",
        },
        {**_IMAGE, **_TEXT, "pooled_projections": (2, 32)},
    ),
    "flux": Sizes(
        "FluxTransformer2DModel",
        {**_FLUX, "pooled_projection_dim": 32},
        {**_FLUX_INPUTS, "pooled_projections": (2, 32)},
    ),
    "chroma": Sizes(
        "ChromaTransformer2DModel",
        {**_FLUX, "approximator_num_channels": 16, "approximator_hidden_dim": 32}
        | {"approximator_layers": 1},
        _FLUX_INPUTS,
    ),
    "pixart": Sizes("PixArtTransformer2DModel", _PIXART, {**_IMAGE, **_TEXT}),
    "pixart-masked": Sizes(
        "PixArtTransformer2DModel", _PIXART, {**_IMAGE, **_TEXT, "encoder_attention_mask": _TRUE}
    ),
    "auraflow": Sizes(
        "AuraFlowTransformer2DModel",
        {
            "num_mmdit_layers": 1,
            "num_single_dit_layers": 1,
            "caption_projection_dim": 32,
            "pos_embed_max_size": 64,
            **{key: value for key, value in _JOINT.items() if key != "num_layers"},
        },
        {**_IMAGE, **_TEXT, "timestep": torch.tensor([0.3, 0.5])},
    ),
    "wan": Sizes(
        "WanTransformer3DModel",
        {**_HEADS, **_LATENT, "text_dim": 32, "freq_dim": 16, "ffn_dim": 48},
        _VIDEO,
    ),
    "ltx": Sizes(
        "LTXVideoTransformer3DModel",
        {**_HEADS, **_LATENT, "cross_attention_dim": 32, "caption_channels": 32},
        {
            **_VIDEO,
            "hidden_states": (2, 16, 4),
            "encoder_attention_mask": _TRUE.long(),
            "num_frames": 1,
            "height": 4,
            "width": 4,
        },
    ),
    "cogvideox": Sizes(
        "CogVideoXTransformer3DModel",
        {
            **_HEADS,
            **_LATENT,
            "time_embed_dim": 8,
            "text_embed_dim": 32,
            "sample_width": 8,
            "sample_height": 8,
            "sample_frames": 5,
            "max_text_seq_length": 7,
        },
        {**_VIDEO, "hidden_states": (2, 2, 4, 8, 8)},
    ),
    "hunyuan-dit": Sizes(
        "HunyuanDiT2DModel",
        {
            **_HEADS,
            "in_channels": 4,
            "patch_size": 2,
            "sample_size": 8,
            "hidden_size": 32,
            "cross_attention_dim": 32,
            "cross_attention_dim_t5": 32,
            "pooled_projection_dim": 16,
            "text_len": 7,
            "text_len_t5": 5,
        },
        {
            **_IMAGE,
            **_TEXT,
            "text_embedding_mask": _TRUE.long(),
            "encoder_hidden_states_t5": (2, 5, 32),
            "text_embedding_mask_t5": torch.ones(2, 5, dtype=torch.long),
            "image_meta_size": torch.ones(2, 6),
            "style": torch.tensor([0, 0]),
            "timestep": _STEP.float(),
            "image_rotary_emb": [torch.ones(16, 16), torch.zeros(16, 16)],
        },
    ),
    "lumina2": Sizes(
        "Lumina2Transformer2DModel",
        {
            "sample_size": 8,
            **_LATENT,
            "hidden_size": 32,
            "num_layers": 2,
            "num_refiner_layers": 1,
            "num_attention_heads": 2,
            "num_kv_heads": 1,
            "axes_dim_rope": (4, 6, 6),
            "axes_lens": (32, 32, 32),
            "cap_feat_dim": 32,
        },
        {**_IMAGE, **_TEXT, "encoder_attention_mask": _TRUE},
    ),
    "sana": Sizes(
        "SanaTransformer2DModel",
        {
            **_HEADS,
            **_LATENT,
            "num_cross_attention_heads": 2,
            "cross_attention_head_dim": 16,
            "cross_attention_dim": 32,
            "caption_channels": 32,
            "sample_size": 4,
        },
        {**_IMAGE, "hidden_states": (2, 4, 4, 4), **_TEXT},
    ),
    "prior": Sizes(
        "PriorTransformer",
        {**_HEADS, "embedding_dim": 32, "num_embeddings": 7},
        {
            "hidden_states": (2, 32),
            "timestep": _STEP,
            "proj_embedding": (2, 32),
            "attention_mask": _TRUE,
            **_TEXT,
        },
    ),
    "stable-audio": Sizes(
        "StableAudioDiTModel",
        {
            **_HEADS,
            **_LATENT,
            "num_key_value_attention_heads": 1,
            "cross_attention_dim": 32,
            "cross_attention_input_dim": 32,
            "time_proj_dim": 16,
            "global_states_input_dim": 32,
            "sample_size": 16,
        },
        {
            "hidden_states": (2, 4, 12),
            "timestep": torch.tensor([0.3, 0.5]),
            "global_hidden_states": (2, 1, 32),
            "rotary_embedding": (torch.ones(13, 8), torch.zeros(13, 8)),
            **_TEXT,
        },
    ),
    "cogview4": Sizes(
        "CogView4Transformer2DModel",
        {
            **_HEADS,
            **_LATENT,
            "text_embed_dim": 32,
            "time_embed_dim": 16,
            "condition_dim": 8,
            "pos_embed_max_size": 8,
            "sample_size": 8,
            "rope_axes_dim": (8, 8),
        },
        {**_IMAGE, **_TEXT, "original_size": _SIZE, "target_size": _SIZE}
        | {"crop_coords": torch.zeros(2, 2)},
    ),
    "mochi": Sizes(
        "MochiTransformer3DModel",
        {**_HEADS, "in_channels": 4, "pooled_projection_dim": 32, "text_embed_dim": 32}
        | {"time_embed_dim": 16, "max_sequence_length": 7},
        {**_VIDEO, "encoder_attention_mask": _TRUE},
    ),
    "hunyuan-video": Sizes(
        "HunyuanVideoTransformer3DModel",
        {
            **_HEADS,
            **_LATENT,
            "num_layers": 1,
            "num_single_layers": 1,
            "num_refiner_layers": 1,
            "text_embed_dim": 32,
            "pooled_projection_dim": 32,
            "rope_axes_dim": (4, 6, 6),
            "guidance_embeds": False,
        },
        {**_VIDEO, "encoder_attention_mask": _TRUE, "pooled_projections": (2, 32)},
    ),
    "latte": Sizes(
        "LatteTransformer3DModel",
        {
            **_HEADS,
            **_LATENT,
            "cross_attention_dim": 32,
            "caption_channels": 32,
            "patch_size": 2,
            "sample_size": 8,
            "video_length": 3,
            "norm_type": "ada_norm_single",
            "num_embeds_ada_norm": 10,
            "norm_elementwise_affine": False,
        },
        {**_VIDEO, "hidden_states": (2, 4, 3, 8, 8)},
    ),
    "qwen-image": Sizes(
        "QwenImageTransformer2DModel",
        {
            **_HEADS,
            "in_channels": 16,
            "out_channels": 4,
            "joint_attention_dim": 32,
            "axes_dims_rope": (4, 6, 6),
        },
        {
            "hidden_states": (2, 16, 16),
            "encoder_hidden_states_mask": _TRUE.long(),
            "timestep": torch.tensor([0.3, 0.5]),
            "img_shapes": [[(1, 4, 4)]] * 2,
            **_TEXT,
        },
    ),
}
"""The models by name."""
