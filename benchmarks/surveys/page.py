"""Writes the page on what surveys cost: all its numbers come from the results."""

import re
from pathlib import Path
from typing import Any

from benchmarks.surveys import paper
from benchmarks.surveys.kept import MODELS
from benchmarks.surveys.words import bytes_of, count, duration, large, number, table

Rows = dict[str, dict[str, Any]]

TITLES = {
    "docstrings": "docstrings, the embedded model (4 x 4 heads), Threshold(0.02)",
    "gpt2-shape": "512 random ids, GPT-2's shape (12 x 12 heads), TopK(8)",
}
WAYS = {
    "local": "survey, head_table",
    "kept": "survey, head_table of kept edges",
    "bare": "survey, no analyses",
    "local-1-thread": "survey, 1 thread",
    "ray": "survey on Ray, 1 worker",
    "packed": "output_attentions, savez_compressed",
    "plain": "output_attentions, np.save",
}
_TEMPLATE = Path(__file__).with_name("page.md")


def of_shape(rows: Rows, shape: str) -> Rows:
    """Select the rows of one model."""
    found = {way: rows.get(f"{shape}/{way}", {}) for way in WAYS}
    return {way: row for way, row in found.items() if "texts_a_second" in row}


def written(results: dict[str, Any]) -> str:
    """Write the page; sections whose measurements are missing are left out."""
    rows: Rows = {row["name"]: row for row in results["rows"]}
    good = {name: row for name, row in rows.items() if not {"failed", "skipped"} & row.keys()}
    values = {
        "head": _head(results, rows),
        "throughput": _throughput(good),
        "stages": _stages(good),
        "scaling": _scaling(good, results["machine"]["cpus"]),
        "size": _sizes(good),
        "memory": _memory(good),
        "reading": _reading(good),
        "paper": _paper(good),
        "missing": _missing(rows),
    }
    sections = _sections()
    found = [sections[name].strip().format(**given) for name, given in values.items() if given]
    return "\n\n".join(found) + "\n"


def _sections() -> dict[str, str]:
    """Read the sentences of each section."""
    parts = re.split(r"^<!-- (\w+) -->\n", _TEMPLATE.read_text(encoding="utf-8"), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _head(results: dict[str, Any], rows: Rows) -> dict[str, str]:
    dates = sorted(row["date"] for row in rows.values())
    others = max((row["others"] for row in rows.values()), default=0.0)
    return {
        "machine": ", ".join(f"{name} {value}" for name, value in results["machine"].items()),
        "when": " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else "never",
        "others": f"{others:.0%}",
    }


def _missing(rows: Rows) -> dict[str, str]:
    said = [
        f"- `{name}`: {row.get('failed') or row['skipped']}"
        for name, row in rows.items()
        if {"failed", "skipped"} & row.keys()
    ]
    return {"list": "\n".join(said)} if said else {}


def _throughput(rows: Rows) -> dict[str, str]:
    tables = []
    for shape, title in TITLES.items():
        if found := of_shape(rows, shape):
            base = found.get("local")
            lines = [_way(way, row, base) for way, row in found.items()]
            heading = ("", "texts/s", "tokens/s", "edges/s", "peak MiB", "of which workers")
            heading += ("bytes per text", "first row's speed / this", "first row's disk / this")
            tables += [f"**{title[0].upper()}{title[1:]}**\n", table(heading, lines)]
    if not tables:
        return {}
    return {"tables": "\n".join(tables).rstrip(), "starting": _starting(rows)}


def _way(way: str, row: dict[str, Any], base: dict[str, Any] | None) -> tuple[str, ...]:
    a_text = row["disk_bytes"] / row["texts"]
    faster = share = None
    if base and row is not base:
        faster = base["texts_a_second"] / row["texts_a_second"]
        share = base["disk_bytes"] / base["texts"] / a_text
    return (
        WAYS[way],
        number(row["texts_a_second"]),
        count(row["tokens_a_second"]),
        count(row["edges_a_second"]),
        count(row.get("all_mib", row["mib"])),
        count(row["workers_mib"]) if "workers_mib" in row else "",
        bytes_of(a_text),
        f"{faster:.2f} x" if faster else "",
        f"{share:.1%}" if share else "",
    )


def _starting(rows: Rows) -> str:
    said = [
        f"{duration(row['starting_seconds'])} {words}"
        for name, words in (("docstrings/local", "in one process"), ("docstrings/ray", "on Ray"))
        if (row := rows.get(name))
    ]
    ray = rows.get("docstrings/ray")
    cluster = f", after {duration(ray['cluster_seconds'])} for the cluster" if ray else ""
    return " and ".join(said) + cluster if said else "not known here"


def _stages(rows: Rows) -> dict[str, str]:
    found = {shape: row for shape in TITLES if (row := rows.get(f"stages/{shape}"))}
    if not found:
        return {}
    names = ("model", "capture", "scores", "keeping", "columns", "packing and writing")
    lines = [(name, *_shares(found, name)) for name in names]
    totals = [sum(row["seconds"].values()) / row["texts"] for row in found.values()]
    lines.append(("together", *(f"{1000 * total:.1f} ms per text" for total in totals)))
    largest = "; ".join(
        f"{max(row['seconds'], key=row['seconds'].get)} ({shape})" for shape, row in found.items()
    )
    said = {
        "kept": ("scores_of_kept_seconds", "texts", 1e3, "ms"),
        "one_by_one": ("scores_edge_by_edge_seconds", "pairs", 1e9, "ns"),
    }
    others = {
        name: "; ".join(
            f"{scale * row[seconds] / row[of]:.1f} {unit}, {shape}" for shape, row in found.items()
        )
        for name, (seconds, of, scale, unit) in said.items()
    }
    others["a_pair"] = "; ".join(
        f"{1e9 * row['seconds']['scores'] / row['pairs']:.1f} ns, {shape}"
        for shape, row in found.items()
    )
    return {"table": table(("", *found), lines).rstrip(), "largest": largest} | others


def _shares(found: Rows, name: str) -> list[str]:
    return [
        f"{1000 * row['seconds'][name] / row['texts']:.1f} ms per text, "
        f"{row['seconds'][name] / sum(row['seconds'].values()):.0%}"
        for row in found.values()
    ]


def _scaling(rows: Rows, cpus: int) -> dict[str, Any]:
    found = [row for n in (1, 2, 3) if (row := rows.get(f"scaling/{n}"))]
    if not found:
        return {}
    one = found[0]["texts_a_second"] if found[0]["workers"] == 1 else None
    lines = [
        (
            str(row["workers"]),
            number(row["texts_a_second"]),
            f"{row['texts_a_second'] / one:.2f}" if one else "",
            duration(row["starting_seconds"]),
            count(row["all_mib"]),
            count(row["workers_mib"]),
        )
        for row in found
    ]
    heading = ("workers", "texts/s", "relative to 1 worker", "start-up")
    heading += ("peak MiB", "of which workers")
    return {"table": table(heading, lines).rstrip(), "cpus": cpus}


def _sizes(rows: Rows) -> dict[str, str]:
    found = [row for name in ("threshold", "topk", "all") if (row := rows.get(f"size/{name}"))]
    if not found:
        return {}
    keeps = tuple(row["keep"] for row in found)
    folders = [
        (f"{name}/", *(bytes_of(row["folders"][name] / row["texts"]) for row in found))
        for name in ("edges", "queries", "heads", "tokens", "texts")
    ]
    return {
        "columns": table(("", *keeps), _bytes_an_edge(found)).rstrip(),
        "folders": table(("", *keeps), folders).rstrip(),
        "texts": count(found[0]["texts"]),
        "tokens": count(found[0]["tokens"] / found[0]["texts"]),
    }


def _bytes_an_edge(found: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    lines = [
        (f"`{name}`", *(f"{row['columns'][name] / row['edges']:.3f}" for row in found))
        for name in found[0]["columns"]
    ]
    whole = (f"**{row['folders']['edges'] / row['edges']:.2f}**" for row in found)
    lines.append(("**edges/, whole files**", *whole))
    for kind in ("gattn", "csv", "json"):
        sizes = [row["formats"].get(kind) for row in found]
        lines.append((f"as .{kind}", *("" if one is None else f"{one:.1f}" for one in sizes)))
    a_query = (f"{row['edges'] / row['tokens'] / 16:.1f}" for row in found)
    return [*lines, ("edges per query", *a_query)]


def _memory(rows: Rows) -> dict[str, str]:
    found = [row for name, row in rows.items() if name.startswith("memory/")]
    lines = [
        (f"{row['texts']:,}", count(row["mib"]), duration(row["seconds"]))
        for row in sorted(found, key=lambda row: row["texts"])
    ]
    heading = ("texts", "peak MiB", "the whole survey")
    return {"table": table(heading, lines).rstrip()} if lines else {}


def _reading(rows: Rows) -> dict[str, str]:
    row = rows.get("reading")
    if not row:
        return {}
    median, most = row["median_ms"], row["most_ms"]
    lines = [
        (f"`{name}`", duration(median[name] / 1000), duration(most[name] / 1000)) for name in median
    ]
    return {
        "table": table(("", "median", "longest"), lines).rstrip(),
        "texts": count(row["texts"]),
        "parts": count(row["parts"]),
        "edges": large(row["edges"]),
    }


def _paper(rows: Rows) -> dict[str, str]:
    if not {"kept/embedded", "size/threshold", "stages/gpt2-shape"} <= rows.keys():
        return {}
    found = paper.lines(rows)
    lines = [(one.what, one.formula, large(one.value, one.unit)) for one in found]
    return {
        "table": table(("", "how", "result"), lines).rstrip(),
        "limit": _limit(found),
        "kept": "; ".join(_kept(name, rows) for name in MODELS if f"kept/{name}" in rows),
        "count": count(paper.TEXTS),
        "tokens": count(paper.TOKENS),
        "heads": count(paper.LAYERS * paper.HEADS),
        "gpus": count(paper.GPUS),
    }


def _kept(name: str, rows: Rows) -> str:
    found = rows[f"kept/{name}"]["edges_a_query"]
    values = ", ".join(f"{value:.1f} at {length}" for length, value in found.items())
    return f"{MODELS[name].split(';')[0]}: {values}"


def _limit(lines: list[paper.Line]) -> str:
    value = {line.what: line.value for line in lines}
    wall, scored = value[paper.WALL], value[paper.WITH_SCORES]
    writing, kept, patterns, rows, every = (value[name] for name in paper.ON_CPUS)
    cores = (writing + patterns + rows) / scored
    said = (
        f"To keep up with these GPUs, writing takes {writing / wall:,.0f} cores; with `head_table` "
        f"of the kept edges it is {(writing + kept) / wall:,.0f}. `head_table` of all edges is "
        f"summed up where the model runs: then the GPUs take {scored / 3600:.1f} hours instead of "
        f"{wall / 3600:.1f}, and {cores:,.0f} cores keep up with them. On CPUs alone it would be "
        f"{(writing + every) / wall:,.0f}. NVIDIA's DGX H100 has {paper.DGX_CORES}. "
    )
    if cores > paper.DGX_CORES:
        return said + "So writing is the limit, not the GPUs."
    return said + "So the limit is the GPUs or the disk."
