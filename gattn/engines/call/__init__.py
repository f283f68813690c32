"""What engines are given: one call, its inputs once checked."""

from gattn.engines.call.call import AttentionCall, naming_shapes
from gattn.engines.call.edge_list import EdgeList, check_features, known_edge_list
from gattn.engines.call.inputs import attention_call

__all__ = [
    "AttentionCall",
    "EdgeList",
    "attention_call",
    "check_features",
    "known_edge_list",
    "naming_shapes",
]
