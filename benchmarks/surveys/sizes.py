"""What a survey takes on disk: by column, and compared with other formats."""

from collections import Counter
from pathlib import Path
from shutil import rmtree
from typing import Any

import gattn
from benchmarks.surveys import corpus
from benchmarks.surveys.throughput import size_of

KEEPS = {"threshold": gattn.Threshold(0.02), "topk": gattn.TopK(8), "all": gattn.All()}
_TEXTS = 128
_IN_FORMATS = 8
"""The texts that are written in other formats."""


def measure(work: Path, quick: bool, *, keep: gattn.Keep) -> dict[str, Any]:
    """Write a survey; count the bytes of each column, and of some texts in other formats."""
    folder = work / "survey"
    texts = corpus.some_docstrings(work, 8 if quick else _TEXTS)
    done = gattn.survey(texts, out=folder, keep=keep, progress=False)
    table = done.texts
    found = {
        "keep": str(keep),
        "texts": len(table),
        "tokens": int(table["num_tokens"].sum()),
        "edges": int(table["num_edges"].sum()),
        "columns": _columns(folder / "edges"),
        "folders": {one.name: size_of(one) for one in sorted(folder.iterdir()) if one.is_dir()},
        "formats": {} if isinstance(keep, gattn.All) else _formats(work, done),
    }
    rmtree(folder)
    return found


def _columns(folder: Path) -> dict[str, int]:
    """Count the compressed bytes of each column."""
    from pyarrow import parquet

    found: Counter[str] = Counter()
    for path in folder.iterdir():
        metadata = parquet.read_metadata(path)
        for group in range(metadata.num_row_groups):
            for number in range(metadata.num_columns):
                column = metadata.row_group(group).column(number)
                found[column.path_in_schema] += column.total_compressed_size
    return dict(found)


def _formats(work: Path, done: gattn.Survey) -> dict[str, Any]:
    """Write some texts in other formats, and count the bytes per edge."""
    folder = work / "formats"
    folder.mkdir()
    edges = 0
    for text_id in range(min(_IN_FORMATS, len(done))):
        trace = done.trace(text_id)
        trace.save(folder / f"{text_id}.gattn")
        for (layer, head), graph in trace.only_stack.items():
            graph.save(folder / f"{text_id}-{layer}-{head}.json")
            edges += graph.graph.num_edges
        done.edges(text_id=text_id).to_csv(folder / f"{text_id}.csv", index=False)
    found = {
        kind: sum(path.stat().st_size for path in folder.glob(f"*.{kind}")) / edges
        for kind in ("gattn", "csv", "json")
    }
    rmtree(folder)
    return found
