"""Graph attention as a torch-geometric layer."""

from gattn.module.graph_attention import GraphAttention

__all__ = ["GraphAttention"]
