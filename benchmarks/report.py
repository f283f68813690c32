"""Shows results: lines in the terminal, JSON, a Markdown table and a picture."""

import json
from pathlib import Path
from typing import Any

from benchmarks.row import Row

DESCRIPTION = "Compare gattn with its peers: time, memory, page faults, growth."
DOCS = Path(__file__).parents[1] / "docs"
BEGIN = {"cpu": "<!-- measured -->", "cuda": "<!-- measured on a GPU -->"}
END = "<!-- /measured -->"
COLUMNS = ("row", "gattn", "peer", "time", "bar", "gattn MiB", "peer MiB", "memory", "bar")
MORE_COLUMNS = ("faults", "peer's", "as N grows", "others")
WIDTHS = (32, 9, 9, 7, 9, 9, 9, 7, 9, 7, 7, 22, 6)


# Words for numbers


def described(row: Row) -> str:
    bars = [
        f"{name} <= {ratio(bar)}"
        for name, bar in (("time", row.time_bar), ("memory", row.memory_bar))
        if bar
    ]
    return f"{row.name:32}  {row.work} | {row.peer} | {', '.join(bars) or 'no bar'}"


def ratio(value: float | None) -> str:
    """Write gattn's share of the peer's: 1.04, or 1/312."""
    if value is None:
        return ""
    return f"{value:.2f}" if value > 0.5 else f"1/{_three_digits(1 / value)}"


def _three_digits(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value < 99.95 else f"{value:.0f}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _size(mib: float | None) -> str:
    return "" if mib is None else f"{mib:,.1f}" if mib < 10 else f"{mib:,.0f}"


def is_met(row: dict[str, Any], what: str) -> bool | None:
    """Return whether a bar ("time" or "memory") is met; None if there is no bar."""
    value, bar = row.get(f"{what}_ratio"), row.get(f"{what}_bar")
    return None if value is None or bar is None else value <= bar


def _bar(row: dict[str, Any], what: str) -> str:
    mark = {True: " ✓", False: " ✗", None: ""}[is_met(row, what)]
    return "" if row.get(f"{what}_bar") is None else f"≤ {ratio(row[f'{what}_bar'])}{mark}"


def _growth(growth: dict[str, Any] | None) -> str:
    if not growth:
        return ""
    time, memory = growth["seconds_exponent"], growth["mib_exponent"]
    return f"time N^{time:.1f}, mem N^{memory:.1f}"


def cells(row: dict[str, Any]) -> list[str]:
    """Write a row's cells, in the order of the columns."""
    seconds, mib, faults = (row.get(name, {}) for name in ("seconds", "mib", "faults"))
    return [
        row["name"],
        _time(seconds.get("gattn")),
        _time(seconds.get("peer")),
        ratio(row.get("time_ratio")),
        _bar(row, "time"),
        _size(mib.get("gattn")),
        _size(mib.get("peer")),
        ratio(row.get("memory_ratio")),
        _bar(row, "memory"),
        f"{faults['gattn']:,.0f}" if faults else "",
        f"{faults['peer']:,.0f}" if faults else "",
        _growth(row.get("growth")),
        f"{row['others']:.0%}" if "others" in row else "",
    ]


def remarks(row: dict[str, Any]) -> str:
    """Write a row's other results: whether it failed or was skipped, how many edges were kept."""
    found = [f"{kind}: {row[kind]}" for kind in ("failed", "skipped") if kind in row]
    found += [f"{value:.1f} {name}" for name, value in row.get("notes", {}).items()]
    return "; ".join(found)


def heading() -> str:
    titles = zip((*COLUMNS, *MORE_COLUMNS), WIDTHS, strict=True)
    return "  ".join(f"{title:{width}}" for title, width in titles)


def line(row: dict[str, Any]) -> str:
    """Write a row for the terminal."""
    text = "  ".join(f"{cell:{width}}" for cell, width in zip(cells(row), WIDTHS, strict=True))
    return f"{text}  {remarks(row)}".rstrip()


def table(results: dict[str, Any]) -> str:
    """Write all rows as Markdown, then what each of them is."""
    rows, machine = results["rows"], results["machine"]
    dates = sorted(row["date"] for row in rows)
    measured = ", ".join(f"{name} {value}" for name, value in machine.items())
    lines = [
        f"Measured {' to '.join(dict.fromkeys([dates[0], dates[-1]]))}: {measured}.",
        "",
        "| " + " | ".join((*COLUMNS, *MORE_COLUMNS)) + " |",
        "|---" + "|--:" * (len(WIDTHS) - 1) + "|",
        *("| " + " | ".join(cells(row)) + " |" for row in rows),
        "",
    ]
    for family, members in _families(rows).items():
        works = "; ".join(dict.fromkeys(row["work"] for row in members))
        lines.append(f"- **{family}**: {works}. Peer: {members[0]['peer']}.")
        lines += [f"  - {row['name']}: {remarks(row)}." for row in members if remarks(row)]
    return "\n".join(lines)


def _families(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["name"].split("/")[0], []).append(row)
    return found


# Files


def read(path: Path | None, machine: dict[str, Any]) -> dict[str, Any]:
    """Read earlier results of the same machine and versions, or start over."""
    if path and path.exists():
        results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if results["machine"] == machine:
            return results
    return {"machine": machine, "rows": []}


def put(results: dict[str, Any], found: dict[str, Any]) -> None:
    """Replace an earlier result of the same row, or append it."""
    names = [row["name"] for row in results["rows"]]
    if found["name"] in names:
        results["rows"][names.index(found["name"])] = found
    else:
        results["rows"].append(found)


def sort(results: dict[str, Any], names: list[str]) -> None:
    """Sort rows in the order of `names`, all others last."""
    places = {name: place for place, name in enumerate(names)}
    results["rows"].sort(key=lambda row: places.get(row["name"], len(names)))


def write(results: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def publish(results: dict[str, Any], path: Path, in_docs: bool) -> None:
    """Write table and picture: into the documentation, or next to the JSON file."""
    if in_docs:
        page = DOCS / "speed.md"
        text = page.read_text(encoding="utf-8")
        device = results["machine"]["device"]
        before, _, rest = text.partition(BEGIN[device])
        after = rest.partition(END)[2]
        measured = f"{BEGIN[device]}\n\n{table(results)}\n\n{END}"
        page.write_text(f"{before}{measured}{after}", encoding="utf-8")
        if device == "cpu":
            draw(results, DOCS / "pictures" / "speed")
    else:
        path.with_suffix(".md").write_text(table(results) + "\n", encoding="utf-8")
        draw(results, path.with_suffix(""))


# The picture

MET, MISSED, PLAIN, BAR = "#0072B2", "#D55E00", "#707070", "#000000"
"""Okabe and Ito's blue and vermilion, which colour-blind readers tell apart."""


def draw(results: dict[str, Any], stem: Path) -> None:
    """Draw each row's ratios of time and memory, and its bars, as SVG and PNG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "gattn"
    rows = [row for row in results["rows"] if "time_ratio" in row]
    if not rows:
        return
    figure = Figure(figsize=(11, 1.9 + 0.24 * len(rows)), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for ax, what in zip(axes, ("time", "memory"), strict=True):
        _draw_panel(ax, rows, what)
    axes[0].set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=8)
    axes[0].set_ylim(len(rows) - 0.4, -0.6)
    figure.suptitle("gattn compared with its peers: further left is better", fontsize=12)
    figure.legend(handles=_key(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(stem.with_suffix(".png"), dpi=110)


def _draw_panel(ax: Any, rows: list[dict[str, Any]], what: str) -> None:
    ax.set_xscale("log")
    ax.axvline(1, color=PLAIN, linewidth=1)
    at_the_side = ax.get_yaxis_transform()
    for number, members in enumerate(_families(rows).values()):
        if number % 2:
            first = rows.index(members[0])
            ax.axhspan(first - 0.5, first + len(members) - 0.5, color="#f0f0f0", zorder=0)
    for y, row in enumerate(rows):
        if f"{what}_ratio" not in row:
            continue
        met, value, bar = is_met(row, what), row[f"{what}_ratio"], row[f"{what}_bar"]
        if bar is not None:
            ax.plot((bar, bar), (y - 0.42, y + 0.42), color=BAR, linewidth=1.5)
        if what == "time":
            ax.plot(row["time_ratio_range"], (y, y), color=_colour(met), linewidth=1.5)
        ax.plot(value, y, linestyle="none", **_marker(met))
        ax.text(1.03, y, ratio(value), transform=at_the_side, va="center", fontsize=8)
    ax.xaxis.set_major_formatter(
        lambda value, _: f"1/{1 / value:.0f}" if value < 1 else f"{value:.0f}"
    )
    ax.tick_params(axis="x", labelsize=8)
    ax.margins(x=0.06)
    ax.grid(axis="x", color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    words = {"time": "time (line: all rounds)", "memory": "memory"}
    ax.set_xlabel(f"gattn's {words[what]}, as a share of the peer's")


def _colour(met: bool | None) -> str:
    return {True: MET, False: MISSED, None: PLAIN}[met]


def _marker(met: bool | None) -> dict[str, Any]:
    shape = {True: "o", False: "X", None: "D"}[met]
    return {"marker": shape, "color": _colour(met), "markersize": 5.5 if met is None else 6.5}


def _key() -> list[Any]:
    from matplotlib.lines import Line2D

    words = {True: "bar met", False: "bar missed", None: "no bar"}
    marks = [
        Line2D([], [], linestyle="none", label=word, **_marker(met)) for met, word in words.items()
    ]
    bar = Line2D([], [], linestyle="none", marker="|", markersize=10, color=BAR, label="the bar")
    return [*marks, bar]
