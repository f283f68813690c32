"""The commands that follow what travels: circuit, routes, flow."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gattn.cli.arguments.captures import captured, load
from gattn.cli.arguments.values import head_choice, written_token
from gattn.cli.commands.effects import answer
from gattn.cli.terminal.output import (
    PAGES,
    PICTURES,
    print_notes,
    print_table,
    save_drawing,
    save_table,
    say,
)
from gattn.errors import SelectionError

if TYPE_CHECKING:
    from gattn.analysis.circuits.measuring.measured import Measured
    from gattn.analysis.reading.results import Table
    from gattn.analysis.vectors.route_graphs import Routes
    from gattn.heads.trace import AttentionTrace
    from gattn.names.choices import HeadChoice

_MOST_ROWS = 20


def run_circuit(options: argparse.Namespace) -> None:
    """Find the fewest edges that keep the answer."""
    are_paths = "paths" in options.units
    if are_paths and options.output and options.output.suffix.lower() in PAGES:
        raise SelectionError(
            "A page shows edges between tokens, and paths lead from head to head: write a picture "
            "or a graph, as in -o circuit.svg."
        )
    loaded = load(options)
    from gattn.analysis.circuits.circuit import circuit
    from gattn.analysis.circuits.found import Circuit

    say("searching ...")
    found = circuit(
        *loaded,
        metric=options.metric,
        **answer(options),
        keep=options.keep,
        ablation=options.ablation,
        units=options.units,
        max_edges=options.max_edges,
        seconds=options.seconds,
        progress=sys.stderr.isatty(),
    )
    say("")
    print(found)
    print_notes(found.notes)
    units = found.table() if are_paths else found.units()
    for table in (units, found.heads())[: 1 if options.units == "heads" else 2]:
        if len(table):
            print()
            shown = table.head(_MOST_ROWS)
            print_table(shown.drop(columns="stack") if len(found.stacks) == 1 else shown)
            if left := len(table) - len(shown):
                print(f"and {left} more, which gattn.circuit(...) lists")
    print(f"\n{found.graph['runs']} runs of the model in {found.graph['seconds']:.1f} s")
    if options.output:
        if options.output.suffix.lower() == ".csv":
            save_table(found.table(), options.output, index=False)
        elif isinstance(found, Circuit) and options.output.suffix.lower() in PAGES:
            found.to_html(options.output)
        else:
            _save_graph(found, options.output)
        what = "paths" if are_paths else "edges"
        print(f"{options.output}: {found.graph['edges']} {what}")


def run_routes(options: argparse.Namespace) -> None:
    """Find the paths by which a prediction gets its information."""
    loaded = load(options)
    from gattn.analysis.vectors.routes import routes

    say("decomposing layers ...")
    found = routes(
        *loaded,
        position=None if options.position is None else written_token(options.position),
        threshold=options.threshold,
        progress=False,
    )
    say("")
    _print_routes(found)
    if options.output:
        _save_graph(found, options.output)
        print(f"\n{options.output}: {found}")


def _print_routes(found: Routes) -> None:
    from gattn.names.text import numbered, placed, quoted, visible

    layer, position, _ = found.end
    entry = found.graph["predicted"]
    predicted = quoted(entry, is_entry=True) if entry else "nothing"
    print(f"position {placed(position, found.tokens, position)} predicts {predicted}")
    print(f"{layer} layers; {found.number_of_nodes()} nodes, {found.number_of_edges()} edges")
    paths = found.paths(10)
    print("\nstrength  path: layer.head→ is attention, ↺ stays at the token")
    for strength, path in zip(paths["strength"], paths["path"], strict=True):
        print(f"   {strength:.3f}  {path}")
    edges = found.attention_edges().head(12).to_dict("records")
    print("\nstrength  importance  head  edge")
    for edge in edges:
        head = f"{edge['layer']}.{edge['head']}"
        ends = [numbered(edge[end], visible(edge[f"{end}_token"])) for end in ("key", "query")]
        shares = f"   {edge['strength']:.3f}       {edge['importance']:.3f}"
        print(f"{shares}  {head:>4}  {' → '.join(ends)}")


def _save_graph(found: Measured | Routes, path: Path) -> None:
    if path.suffix.lower() in PICTURES:
        save_drawing(found.draw, path)
    else:
        from gattn.files.paths import save

        save(found, path)


def run_flow(options: argparse.Namespace) -> None:
    """Rank tokens by how much flows from them to one token."""
    stack, heads = head_choice(options.heads)
    trace = captured(options)
    from gattn.names.text import placed, visible

    if stack is not None:
        trace = replace(trace, stacks={stack: trace[stack]})
    query = _position(options.query, trace.tokens)
    ranked = _ranked(trace, query, heads, options)
    shown = ranked.head(_MOST_ROWS).reset_index()
    shown["token"] = [visible(token) for token in shown["token"]]
    layers = len(trace.only_stack.layers)
    print(f"to {placed(query, trace.tokens, query)}, through {layers} layers")
    print_table(shown)
    if left := len(ranked) - len(shown):
        print(f"and {left} more, which -o flow.csv includes")
    print(
        "flow: the maximum flow; share: of all flow; rollout: what arrives if each token passes on "
        "what it has read; attention: in the last layer only"
    )
    print_notes(ranked.notes)
    if options.output:
        save_table(ranked, options.output)
        print(f"{options.output}: {len(ranked)} tokens")


def _position(written: str, tokens: Sequence[str]) -> int:
    """Find a token by its position or text."""
    from gattn.names.tokens import find_token

    try:
        return find_token(written_token(written), range(len(tokens)), tokens, "query")
    except SelectionError as error:
        raise SelectionError(f"{error} `gattn tokens TEXT` lists all tokens.") from error


def _ranked(
    trace: AttentionTrace, query: int, heads: HeadChoice, options: argparse.Namespace
) -> Table:
    """Rank the tokens by what flows from them to one."""
    from gattn.analysis.propagation.flow import flow
    from gattn.analysis.propagation.rollout import rollout
    from gattn.analysis.reading.layers_of import layers_of
    from gattn.analysis.reading.results import Table
    from gattn.names.text import placed

    which: dict[str, Any] = {"heads": heads, "reduce": options.reduce}
    how: dict[str, Any] = {**which, "residual": options.residual}
    flows = flow(trace, queries=query, progress=sys.stderr.isatty(), **how)
    numbers = flows.to_numpy()[0]
    rolled = rollout(trace, **how).to_numpy()[-1, query]
    attention = layers_of(trace).reduced(**which)[-1][query].numpy()
    rows = {
        "position": flows["key"].to_numpy(),
        "token": trace.tokens,
        "flow": numbers,
        "share": numbers / numbers.sum(),
        "rollout": rolled,
        "attention": attention,
    }
    source = f"to {placed(query, trace.tokens, query)}: {flows.computed_from}"
    notes = flows.notes
    made = Table.of(rows, name="flow", computed_from=source, notes=notes, index=["position"])
    reached = made[(numbers > 0) | (attention > 0)]
    return cast("Table", reached.sort_values("flow", ascending=False, kind="stable"))
