"""Texts, tokens and edges per second: of surveys, and of what people do without gattn."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any, Literal

import numpy as np
import torch

import gattn
from benchmarks.surveys import corpus

_HEAD_TABLE = (gattn.analysis.head_table,)
_TEXTS = {"docstrings": 384, "gpt2-shape": 8}
_PEER_TEXTS = {"docstrings": 96, "gpt2-shape": 3}
_QUICK = {"docstrings": 24, "gpt2-shape": 2}


def keep_of(shape: str) -> gattn.Keep:
    """Choose what to keep: with random weights, no attention is large."""
    return gattn.Threshold(0.02) if shape == "docstrings" else gattn.TopK(8)


def model_of(shape: str, work: Path) -> str | None:
    return None if shape == "docstrings" else str(work / shape)


def texts_of(shape: str, work: Path, count: int) -> list[Any]:
    if shape == "docstrings":
        return corpus.some_docstrings(work, count)
    return corpus.random_ids(count)


def local(
    work: Path,
    quick: bool,
    *,
    shape: str,
    analyses: Sequence[Any] = _HEAD_TABLE,
    analyse: Literal["all", "kept"] = "all",
    threads: int | None = None,
) -> dict[str, Any]:
    """Run a survey in this process."""
    torch.set_num_threads(threads or torch.get_num_threads())
    found = _surveyed(work, quick, shape, None, analyses=analyses, analyse=analyse)
    return found | {"threads": torch.get_num_threads()}


def on_ray(
    work: Path, quick: bool, *, shape: str, workers: int, cpus: int | None = None
) -> dict[str, Any]:
    """Run a survey on a Ray cluster on this machine."""
    try:
        import ray
    except ModuleNotFoundError:
        return {"skipped": "Ray is not installed"}
    from gattn.surveys.run.ray_pool import RayPool

    start = time.perf_counter()
    options = {"log_to_driver": False, "logging_level": logging.ERROR, "include_dashboard": False}
    ray.init("local", num_cpus=cpus, **options)
    cluster = time.perf_counter() - start
    try:
        found = _surveyed(work, quick, shape, RayPool(workers=workers), analyses=_HEAD_TABLE)
    finally:
        ray.shutdown()
    return found | {"workers": workers, "cluster_seconds": cluster}


def _surveyed(work: Path, quick: bool, shape: str, pool: Any, **analyses: Any) -> dict[str, Any]:
    """Run a survey of one text, which shows what start-up takes, and one of all texts."""
    count = (_QUICK if quick else _TEXTS)[shape]
    texts, folder = texts_of(shape, work, count), work / "survey"
    options: dict[str, Any] = {"keep": keep_of(shape), "progress": False, **analyses}
    options |= {"model": model_of(shape, work), "ray": pool}
    gattn.survey(texts[:1], out=folder, **options)  # Imports what it needs.
    rmtree(folder)
    start = time.perf_counter()
    gattn.survey(texts[:1], out=folder, **options)
    starting = time.perf_counter() - start
    rmtree(folder)
    start, cpu = time.perf_counter(), time.process_time()
    done = gattn.survey(texts, out=folder, **options)
    whole, cpu = time.perf_counter() - start, time.process_time() - cpu
    seconds = max(whole - starting, whole / 4)  # start-up varies by more than a few texts take
    table = done.texts
    found = _rates(seconds, count, int(table["num_tokens"].sum()))
    found |= {"edges_a_second": int(table["num_edges"].sum()) / seconds}
    found |= {"failures": len(done.failures), "starting_seconds": starting}
    found |= {"disk_bytes": size_of(folder)} | ({} if pool else {"cpu_seconds": cpu})
    rmtree(folder)
    return found


def _rates(seconds: float, texts: int, tokens: int) -> dict[str, Any]:
    return {
        "texts": texts,
        "tokens": tokens,
        "seconds": seconds,
        "texts_a_second": texts / seconds,
        "tokens_a_second": tokens / seconds,
    }


def size_of(folder: Path) -> int:
    """Add up the bytes of a folder's files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def peer(work: Path, quick: bool, *, shape: str, packed: bool) -> dict[str, Any]:
    """Save everything that `output_attentions` returns, one text at a time."""
    count = (_QUICK if quick else _PEER_TEXTS)[shape]
    model, tokenizer = gattn.load_model(model_of(shape, work))
    model.set_attn_implementation("eager")
    texts = texts_of(shape, work, count)
    folder = work / "attentions"
    folder.mkdir()
    ids = [_ids(text, tokenizer) for text in texts]
    _attentions(model, ids[0])
    save: Callable[..., None] = _save_packed if packed else _save_plain
    start, cpu = time.perf_counter(), time.process_time()
    for number, one in enumerate(ids):
        save(folder, number, _attentions(model, one))
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    tokens = [one.shape[1] for one in ids]
    heads = model.config.num_hidden_layers * model.config.num_attention_heads
    pairs = sum(n * (n + 1) // 2 for n in tokens) * heads
    found = _rates(seconds, count, sum(tokens)) | {"edges_a_second": pairs / seconds}
    found |= {"disk_bytes": size_of(folder), "cpu_seconds": cpu}
    rmtree(folder)
    return found


def _ids(text: Any, tokenizer: Any) -> torch.Tensor:
    if isinstance(text, str):
        return tokenizer(text, return_tensors="pt")["input_ids"]  # type: ignore[no-any-return]
    return torch.tensor([text["input_ids"]])


def _attentions(model: Any, ids: torch.Tensor) -> list[Any]:
    with torch.no_grad():
        output = model(ids, output_attentions=True, use_cache=False)
    return [layer[0].numpy() for layer in output.attentions]


def _save_packed(folder: Path, number: int, layers: list[Any]) -> None:
    named = {f"layer{layer}": one for layer, one in enumerate(layers)}
    np.savez_compressed(folder / f"{number}.npz", **named)


def _save_plain(folder: Path, number: int, layers: list[Any]) -> None:
    for layer, one in enumerate(layers):
        np.save(folder / f"{number}-{layer}.npy", one)
