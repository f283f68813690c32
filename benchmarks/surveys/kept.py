"""How many edges per query trained models keep, as texts grow longer."""

import os
from pathlib import Path
from typing import Any

import gattn
from benchmarks.surveys import corpus

MODELS = {
    "embedded": "the embedded model, 4 x 4 heads, causal",
    "minilm": "all-MiniLM-L6-v2, 6 x 12 heads, complete; $GATTN_MINILM names its folder",
}
_LENGTHS = (64, 128, 256, 512, 1024)


def measure(work: Path, quick: bool, *, model: str) -> dict[str, Any]:
    """Capture docstrings put together to texts of some lengths."""
    folder = os.environ.get("GATTN_MINILM", "")
    if model == "minilm" and not folder:
        return {"skipped": "GATTN_MINILM names no folder"}
    loaded, tokenizer = gattn.load_model(folder if model == "minilm" else None)
    texts = corpus.some_docstrings(work, 60)
    ids = tokenizer("\n\n".join(texts), truncation=False, add_special_tokens=False)["input_ids"]
    most = getattr(loaded.config, "max_position_embeddings", 1024)
    found = {}
    for length in _LENGTHS[:2] if quick else [one for one in _LENGTHS if one <= most]:
        pieces = [ids[start : start + length] for start in range(0, 4 * length, length)]
        if model == "minilm":  # It was trained with a token before and after.
            ends = (tokenizer.cls_token_id, tokenizer.sep_token_id)
            pieces = [[ends[0], *piece[2:], ends[1]] for piece in pieces]
        found[length] = _edges_a_query(pieces, loaded, tokenizer)
    heads = loaded.config.num_hidden_layers * loaded.config.num_attention_heads
    return {"edges_a_query": found, "heads": heads}


def _edges_a_query(pieces: list[list[int]], model: Any, tokenizer: Any) -> float:
    keep = gattn.Threshold(0.02)
    edges = queries = 0
    for piece in pieces:
        for graph in gattn.capture(piece, model, tokenizer, keep=keep).only_stack.values():
            edges += graph.graph.num_edges
            queries += graph.graph.num_queries
    return edges / queries
