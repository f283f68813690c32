"""What a large survey would cost, from measurements here and the data sheet of a GPU."""

from typing import Any, NamedTuple

TEXTS, TOKENS, LAYERS, HEADS, WIDTH, GPUS = 1_000_000, 1_024, 12, 12, 768, 8
FLOPS, BANDWIDTH, COPYING = 67e12, 3.35e12, 25e9
"""An H100 SXM's peaks in float32 and of its memory (NVIDIA's data sheet); a third of PCIe 5 x16."""
DGX_CORES = 112
"""The cores of a DGX H100, which has eight of these GPUs (NVIDIA's data sheet)."""
WALL = f"time on {GPUS} GPUs"
WITH_SCORES = "the same, with head_table of all edges"
ON_CPUS = (
    "CPU, columns, packing, writing",
    "CPU, head_table of kept edges",
    "CPU, head_table of all edges summed up on GPUs: patterns",
    "CPU, head_table of all edges summed up on GPUs: rows",
    "CPU, head_table of all edges summed up on CPUs",
)
COMPUTING, MOVING, PASSES = 0.3, 0.5, 20
"""Assumed: shares of those peaks, and how often each pair's number is read or written."""
SUMMING, SORTING = 18, 5e9
"""Assumed: how often it is read or written to sum up scores, and how many are sorted a second."""
_COPIED = 12
"""Bytes per edge that are copied to the host: its position and its attention."""


class Line(NamedTuple):
    """A quantity in the table, and how it is computed."""

    what: str
    formula: str
    value: float
    unit: str


def lines(rows: dict[str, dict[str, Any]]) -> list[Line]:
    """Work out a survey of a million texts."""
    kept = rows["kept/embedded"]["edges_a_query"]
    length = max(kept, key=int)
    queries = TEXTS * TOKENS * LAYERS * HEADS
    edges = queries * kept[length]
    disk = _disk(rows["size/threshold"], edges, queries)
    gpu = _gpu_seconds(edges)
    wall = sum(line.value for line in gpu) / GPUS
    cpu = _cpu_seconds(rows["stages/gpt2-shape"], edges)
    scores = _gpu_seconds_of_scores()
    with_scores = wall + sum(line.value for line in scores) / GPUS
    return [
        Line("queries", "texts x tokens x heads", queries, ""),
        Line("edges", f"queries x {kept[length]:.1f}, kept at {length} tokens", edges, ""),
        *disk,
        *gpu,
        Line(WALL, "the three lines above / GPUs", wall, "seconds"),
        *scores,
        Line(WITH_SCORES, "the five lines above / GPUs", with_scores, "seconds"),
        *cpu,
        Line("written", "disk / time", sum(line.value for line in disk) / wall, "bytes per second"),
    ]


def _disk(size: dict[str, Any], edges: float, queries: float) -> list[Line]:
    an_edge = size["folders"]["edges"] / size["edges"]
    of_queries = size["folders"]["queries"] / (size["tokens"] * 16)
    a_head = size["folders"]["heads"] / (size["texts"] * 16)
    a_token = sum(size["folders"][name] for name in ("tokens", "texts")) / size["tokens"]
    heads, tokens = TEXTS * LAYERS * HEADS, TEXTS * TOKENS
    return [
        Line("disk, edges", f"edges x {an_edge:.2f} bytes", edges * an_edge, "bytes"),
        Line("disk, queries", f"queries x {of_queries:.2f} bytes", queries * of_queries, "bytes"),
        Line(
            "disk, the rest",
            f"heads x {a_head:.0f} bytes + tokens x {a_token:.1f} bytes",
            heads * a_head + tokens * a_token,
            "bytes",
        ),
    ]


def _gpu_seconds(edges: float) -> list[Line]:
    weights, pairs = 12 * LAYERS * WIDTH**2, TOKENS**2
    flops = TEXTS * (2 * weights * TOKENS + 6 * pairs * LAYERS * WIDTH)
    moved = TEXTS * LAYERS * HEADS * pairs * 4 * PASSES
    return [
        Line(
            "GPU, arithmetic",
            f"texts x (2 x {weights / 1e6:.0f}M weights x tokens + 6 x tokens² x layers x width) / "
            f"({COMPUTING:.0%} of {FLOPS / 1e12:.0f} TFLOP/s)",
            flops / (COMPUTING * FLOPS),
            "seconds",
        ),
        Line(
            "GPU, scores in memory",
            f"texts x heads x tokens² x 4 bytes x {PASSES} passes / "
            f"({MOVING:.0%} of {BANDWIDTH / 1e12:.2f} TB/s)",
            moved / (MOVING * BANDWIDTH),
            "seconds",
        ),
        Line(
            "GPU, edges to the host",
            f"edges x {_COPIED} bytes / {COPYING / 1e9:.0f} GB/s",
            edges * _COPIED / COPYING,
            "seconds",
        ),
    ]


def _gpu_seconds_of_scores() -> list[Line]:
    passes = _pairs() * 4 * SUMMING / (MOVING * BANDWIDTH)
    return [
        Line(
            "GPU, scores summed up",
            f"all pairs x 4 bytes x {SUMMING} passes / "
            f"({MOVING:.0%} of {BANDWIDTH / 1e12:.2f} TB/s)",
            passes,
            "seconds",
        ),
        Line(
            "GPU, rows sorted",
            f"all pairs / {SORTING / 1e9:.0f} billion per second",
            _pairs() / SORTING,
            "seconds",
        ),
    ]


def _pairs() -> float:
    return TEXTS * LAYERS * HEADS * TOKENS * (TOKENS + 1) / 2


def _cpu_seconds(stages: dict[str, Any], edges: float) -> list[Line]:
    seconds, kept = stages["seconds"], stages["edges"]
    written = (seconds["columns"] + seconds["packing and writing"]) / kept
    of_kept = stages["scores_of_kept_seconds"] / kept
    listed = stages["patterns_seconds"] / stages["squares"]
    a_row = stages["rows_of_scores_seconds"] / stages["heads"]
    of_all = seconds["scores"] / stages["pairs"]
    sums = (
        (edges, written, "edges"),
        (edges, of_kept, "edges"),
        (TEXTS * TOKENS**2, listed, "texts x tokens²"),
        (TEXTS * LAYERS * HEADS, a_row, "heads"),
        (_pairs(), of_all, "all pairs"),
    )
    return [
        Line(name, f"{of} x {each * 1e9:,.1f} ns", number * each, "seconds")
        for name, (number, each, of) in zip(ON_CPUS, sums, strict=True)
    ]
