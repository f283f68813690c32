"""Where a survey's time goes: each step alone, on one thread, in CPU seconds."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import torch

import gattn
from benchmarks.surveys.throughput import keep_of, model_of, texts_of
from gattn.analysis.heads.summed.nodes import Nodes
from gattn.analysis.heads.summed.of_blocks import Marks
from gattn.models.load.encoding import encode
from gattn.models.run.capturing import capture_encoded
from gattn.models.run.options import Options
from gattn.surveys.run.summing import SummedTexts
from gattn.surveys.store.parts import write_part
from gattn.surveys.store.text_rows import joined, tables_of, text_row

_TEXTS = {"docstrings": 64, "gpt2-shape": 2}
_QUICK = {"docstrings": 8, "gpt2-shape": 1}
_NOTHING = gattn.Threshold(2.0)
"""Larger than any attention from a softmax."""
_MOST_TOKENS = 4096
_CPU = torch.device("cpu")


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
    scored = _capture(model, _NOTHING, gattn.analysis.head_table)
    _check_scores(scored(rows), whole)
    table = with_edges(rows)
    alone = _seconds(lambda: without(rows))
    no_edges, columns = _seconds(lambda: _columns(empty)), _seconds(lambda: _columns(traces))
    kept = _seconds(lambda: with_edges(rows)) - columns
    seconds = {"model": _seconds(lambda: _run(model, tokenizer, inputs))}
    seconds |= {
        "capture": max(0.0, alone - no_edges - seconds["model"]),
        "scores": max(0.0, _seconds(lambda: scored(rows)) - alone),
        "keeping": max(0.0, kept - (alone - no_edges)),
        "columns": columns,
        "packing and writing": _seconds(lambda: _write(work, table)),
    }
    return {
        "seconds": seconds,
        "texts": len(texts),
        "tokens": sum(trace.only_stack[0, 0].graph.num_keys for trace in traces),
        "heads": sum(len(trace.only_stack) for trace in traces),
        "edges": sum(table["num_edges"].to_pylist()),
        "pairs": sum(head.graph.num_edges for trace in whole for head in trace.heads()),
        "scores_of_kept_seconds": _seconds(lambda: _scores(traces)),
        "scores_edge_by_edge_seconds": _seconds(lambda: _scores(whole)),
        "rows_of_scores_seconds": _rows_of_scores(model, tokenizer, inputs),
        "patterns_seconds": _seconds(lambda: _list_patterns(traces)),
        "squares": sum(trace.only_stack[0, 0].graph.num_keys ** 2 for trace in traces),
    }


def _capture(model: Any, keep: gattn.Keep, *analyses: Any) -> gattn.CaptureGraphs:
    return gattn.CaptureGraphs(model, keep=keep, analyses=analyses, most_tokens=_MOST_TOKENS)


def _check_scores(rows: Any, traces: Sequence[gattn.AttentionTrace]) -> None:
    """Check that the scores of a survey are those of all edges, one by one."""
    for row, trace in zip(rows.to_pylist(), traces, strict=True):
        expected = gattn.analysis.head_table(trace, progress=False).drop(columns=["kept", "label"])
        found = [[head[name] for name in expected] for head in row["heads"]]
        numbers = np.array(found, dtype=float), expected.to_numpy(dtype=float)
        if not np.allclose(*numbers, rtol=2e-6, atol=2e-6, equal_nan=True):
            raise AssertionError("The scores of a survey differ from those of all edges.")


def _rows_of_scores(model: Any, tokenizer: Any, inputs: Sequence[Any]) -> float:
    """Time what is left for the CPU once the edges are summed up, in CPU seconds."""
    encodings = [encode(one, model, tokenizer) for one in inputs]
    summed = SummedTexts(encodings)
    options = Options(_NOTHING, onlooker=summed)
    traces = capture_encoded(encodings, model, tokenizer, options)
    return _seconds(lambda: [summed.scores(*one) for one in enumerate(traces)])


def _list_patterns(traces: Sequence[gattn.AttentionTrace]) -> None:
    """List the pairs of patterns of each text, which all layers share."""
    for trace in traces:
        nodes, known = Nodes.of(trace.only_stack[0, 0]), Marks()
        every = slice(0, nodes.num_keys)
        known.keys(nodes, _CPU)
        known.pairs(nodes, every, every, _CPU)


def _seconds(step: Callable[[], Any]) -> float:
    """Return the shortest of three times, in CPU seconds."""
    times = []
    for _ in range(3):
        start = time.process_time()
        step()
        times.append(time.process_time() - start)
    return min(times)


def _run(model: Any, tokenizer: Any, inputs: Sequence[Any]) -> None:
    """Run the model alone and without its head, on the batches that a survey makes."""
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
            model.base_model(padded, attention_mask=mask, use_cache=False)


def _scores(traces: Sequence[gattn.AttentionTrace]) -> None:
    for trace in traces:
        gattn.analysis.head_table(trace, progress=False)


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
