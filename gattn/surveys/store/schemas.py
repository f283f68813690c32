"""The columns of the tables of a survey."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

LISTS = ("edges", "queries", "heads", "tokens")
"""The tables with many rows per text; `texts` and `failures` have one."""
TEXTS = pa.schema(
    [
        ("text_id", pa.int64()),
        ("text", pa.string()),
        ("num_tokens", pa.int32()),
        ("num_edges", pa.int64()),
        ("metadata", pa.string()),
        ("edits", pa.string()),
    ]
)
FAILURES = pa.schema(
    [
        ("text_id", pa.int64()),
        ("reason", pa.string()),
        ("text", pa.string()),
        ("metadata", pa.string()),
    ]
)
_HEAD = [
    ("text_id", pa.int64()),
    ("stack", pa.string()),
    ("layer", pa.int32()),
    ("head", pa.int32()),
]
TABLES: Mapping[str, pa.Schema] = {
    "texts": TEXTS,
    "edges": pa.schema(
        [*_HEAD, ("query", pa.int32()), ("key", pa.int32()), ("attention", pa.float32())]
    ),
    "queries": pa.schema(
        [*_HEAD, ("query", pa.int32()), ("total_mass", pa.float32()), ("total_edges", pa.int32())]
    ),
    "heads": pa.schema(
        [
            *_HEAD,
            ("key_value_head", pa.int32()),
            ("num_edges", pa.int64()),
            ("kept", pa.float64()),
            ("weight_function", pa.string()),
            ("normalizer", pa.string()),
            ("kept_by", pa.string()),
            ("graph", pa.string()),
        ]
    ),
    "tokens": pa.schema(
        [
            ("text_id", pa.int64()),
            ("stack", pa.string()),
            ("role", pa.string()),
            ("position", pa.int32()),
            ("token", pa.string()),
            ("word", pa.int32()),
        ]
    ),
    "failures": FAILURES,
}
"""The columns that a table always has."""
