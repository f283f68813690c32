"""Where a survey's time goes: each step alone, on one thread, in CPU seconds."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch

import gattn
from benchmarks.surveys.throughput import keep_of, model_of, texts_of
from gattn.surveys.store.parts import write_part
from gattn.surveys.store.text_rows import joined, tables_of, text_row

_TEXTS = {"docstrings": 64, "gpt2-shape": 2}
_QUICK = {"docstrings": 8, "gpt2-shape": 1}
_NOTHING = gattn.Threshold(2.0)
"""Larger than any attention from a softmax."""
_MOST_TOKENS = 4096


def measure(work: Path, quick: bool, *, shape: str) -> dict[str, Any]:
    """Time each step, and surveys that leave steps out; the rest are differences."""
    torch.set_num_threads(1)
    model, tokenizer = gattn.load_model(model_of(shape, work))
    texts = texts_of(shape, work, (_QUICK if quick else _TEXTS)[shape])
    column = "text" if shape == "docstrings" else "input_ids"
    rows = {column: [text if column == "text" else text[column] for text in texts]}
    inputs = [text if isinstance(text, str) else text["input_ids"] for text in texts]
    traces, empty, whole = (
        list(gattn.capture_many(inputs, model, tokenizer, keep=keep, progress=False))
        for keep in (keep_of(shape), _NOTHING, gattn.All())
    )
    with_edges, without = _capture(model, keep_of(shape)), _capture(model, _NOTHING)
    table = with_edges(rows)
    seconds = {
        "model": _seconds(lambda: _run(model, tokenizer, inputs)),
        "columns": _seconds(lambda: _columns(traces)),
        "analyses": _seconds(lambda: _analyses(whole)),
        "keeping": _seconds(lambda: _keep(whole, keep_of(shape))),
        "packing and writing": _seconds(lambda: _write(work, table)),
    }
    no_edges = _seconds(lambda: without(rows)) - _seconds(lambda: _columns(empty))
    seconds["capture"] = max(0.0, no_edges - seconds["model"])
    return {
        "seconds": seconds,
        "texts": len(texts),
        "tokens": sum(trace.only_stack[0, 0].graph.num_keys for trace in traces),
        "heads": sum(len(trace.only_stack) for trace in traces),
        "edges": sum(table["num_edges"].to_pylist()),
        "pairs": sum(head.graph.num_edges for trace in whole for head in trace.heads()),
        "analyses_of_kept_seconds": _seconds(lambda: _analyses(traces)),
    }


def _capture(model: Any, keep: gattn.Keep) -> gattn.CaptureGraphs:
    return gattn.CaptureGraphs(model, keep=keep, analyses=[], most_tokens=_MOST_TOKENS)


def _seconds(step: Callable[[], Any]) -> float:
    """Return the shortest of three times, in CPU seconds."""
    times = []
    for _ in range(3):
        start = time.process_time()
        step()
        times.append(time.process_time() - start)
    return min(times)


def _run(model: Any, tokenizer: Any, inputs: Sequence[Any]) -> None:
    """Run the model alone, on the batches that a survey makes."""
    ids = [tokenizer(one)["input_ids"] if isinstance(one, str) else one for one in inputs]
    ids.sort(key=len, reverse=True)
    while ids:
        batch = ids[: max(1, _MOST_TOKENS // len(ids[0]))]
        ids = ids[len(batch) :]
        padded = torch.zeros(len(batch), len(batch[0]), dtype=torch.long)
        mask = torch.zeros_like(padded)
        for row, one in enumerate(batch):
            padded[row, : len(one)], mask[row, : len(one)] = torch.tensor(one), 1
        with torch.no_grad():
            model(padded, attention_mask=mask, use_cache=False)


def _analyses(traces: Sequence[gattn.AttentionTrace]) -> None:
    for trace in traces:
        gattn.analysis.head_table(trace, progress=False)


def _keep(traces: Sequence[gattn.AttentionTrace], keep: gattn.Keep) -> None:
    for trace in traces:
        for head in trace.heads():
            head.keep(keep)


def _columns(traces: Sequence[gattn.AttentionTrace]) -> Any:
    return joined([text_row(number, trace, {}) for number, trace in enumerate(traces)])


def _write(work: Path, rows: Any) -> None:
    folder = work / "part"
    folder.mkdir()
    numbered = rows.set_column(
        rows.column_names.index("text_id"), "text_id", [list(range(len(rows)))]
    )
    write_part(folder, 0, tables_of(numbered))
    rmtree(folder)
