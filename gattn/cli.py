"""The `gattn` command."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import webbrowser
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gattn import __version__
from gattn.errors import CaptureError, EditError, GattnError, SelectionError
from gattn.parsing import GRAMMAR, GRAPHS, NORMALIZERS, WEIGHTS, Make, read_edit

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from gattn.analysis.results import Table
    from gattn.head import AttentionGraph
    from gattn.keep import Keep
    from gattn.models.edits import Edit
    from gattn.trace import AttentionTrace

    Loaded = tuple[str, PreTrainedModel, PreTrainedTokenizerBase]

LAYOUTS = ("arcs", "columns", "circle", "matrix")
PICTURES = (".svg", ".png", ".pdf")
PAGES = (".html", ".htm")
EXPORTS = (".gattn", ".json", ".graphml", ".gexf", ".dot", ".gv", ".csv")
KEEPS = "all, threshold:T, topk:K, topmass:P"
EDITS = {
    "--cut": ("EDIT", "cut edges"),
    "--scale": ("FACTOR:EDIT", "multiply the attention of edges"),
    "--swap": ("WEIGHT[@PLACE]", f"swap the weight function: {', '.join(WEIGHTS)}"),
    "--normalizer": ("NAME[@PLACE]", f"swap the normalizer: {', '.join(NORMALIZERS)}"),
    "--restrict": (
        "GRAPH[@PLACE]",
        f"keep only the edges of a graph: {', '.join(GRAPHS)} (window: the last N keys, the "
        "query's own among them, and the next; longformer: N tokens away at most, and token 0)",
    ),
}
_MOST_ROWS = 20
_MOST_PAIRS = 2_000_000
"""Pairs of tokens, of all heads together, up to which a page shows more of them than attention."""

METRICS = ("kl", "logit_difference", "probability")
HEAD_COLUMNS = (
    "key_value_head",
    "entropy",
    "mean_distance",
    "previous_token",
    "first_token",
    "same_token",
    "induction",
    "outside_sink",
    "kept",
    "label",
)
"""What fits in a line of the head table."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; say what went wrong in one line, and return the exit status."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], None] = options.run
    try:
        run(options)
        sys.stdout.flush()
    except GattnError as error:
        return _failed(str(error))
    except BrokenPipeError:
        # Nobody reads on: what is left of the output goes nowhere, without a word at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _failed(f"{error.filename or 'file'}: {error.strerror or error}")
    except KeyboardInterrupt:
        return _failed("stopped", 130)
    return 0


def _failed(message: str, status: int = 2) -> int:
    _say("")
    print(f"gattn: {' '.join(message.split())}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gattn", description="Read the self-attention of a model as graphs."
    )
    parser.add_argument("--version", action="version", version=f"gattn {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    draw = commands.add_parser("draw", help="draw all heads of a text, or one head")
    _add_capture(draw)
    draw.add_argument("--layout", choices=LAYOUTS, help="how to draw one head (default: arcs)")
    _add_order(draw)
    _add_output(draw, PICTURES, "attention.svg")
    draw.set_defaults(run=_draw)

    view = commands.add_parser(
        "view",
        help="write a page for the browser, and open it; with edits, before and after",
    )
    _add_capture(view)
    _add_edits(view)
    view.add_argument(
        "--generate", type=int, metavar="N", help="let the model go on with the text for N tokens"
    )
    view.add_argument("--no-open", dest="opens", action="store_false", help="write the page alone")
    _add_output(view, PAGES, "attention.html")
    view.set_defaults(run=_view)

    heads = commands.add_parser("heads", help="describe every head in one row of a table")
    _add_capture(heads)
    heads.add_argument("--all", action="store_true", help="print all columns")
    _add_output(heads, (".csv", *PICTURES))
    heads.set_defaults(run=_heads)

    export = commands.add_parser("export", help="write one head, or with .gattn all of them")
    _add_capture(export)
    _add_output(export, EXPORTS, required=True)
    export.set_defaults(run=_export)

    compare = commands.add_parser(
        "compare", help="show what edits change, in every head or in one; or match two models"
    )
    _add_capture(compare)
    _add_edits(compare)
    _add_order(compare)
    compare.add_argument(
        "--with",
        dest="other_model",
        metavar="NAME",
        help="another model, instead of edits: which of its heads is each head nearest?",
    )
    _add_output(compare, PICTURES, "compare.svg")
    compare.set_defaults(run=_compare)

    effect = commands.add_parser("effect", help="measure what edits do to the prediction")
    _add_text(effect)
    _add_edits(effect)
    _add_effect(effect)
    effect.set_defaults(run=_effect)

    routes = commands.add_parser("routes", help="find the routes of information to a prediction")
    _add_text(routes)
    routes.add_argument(
        "--position",
        type=int,
        default=-1,
        metavar="N",
        help="the token whose prediction is asked for (default: -1, the last)",
    )
    routes.add_argument(
        "--threshold",
        type=float,
        default=0.04,
        metavar="T",
        help="drop what has no larger importance (default: 0.04)",
    )
    _add_output(routes, (*PICTURES, *EXPORTS[1:]))
    routes.set_defaults(run=_routes)

    flow = commands.add_parser("flow", help="rank tokens by what flows from them to one token")
    _add_text(flow)
    flow.add_argument(
        "--target",
        default="-1",
        metavar="TOKEN",
        help="a position, or the text of a token, the last of such (default: -1, the last)",
    )
    flow.add_argument(
        "--heads", default="mean", metavar="HEADS", help="mean (default), max, min or a number"
    )
    flow.add_argument(
        "--residual", type=float, metavar="R", help="the residual stream's share (default: 0.5)"
    )
    _add_output(flow, (*PICTURES, ".csv"))
    flow.set_defaults(run=_flow)

    tokens = commands.add_parser("tokens", help="list the tokens of a text with their positions")
    _add_text(tokens)
    tokens.set_defaults(run=_tokens)

    models = commands.add_parser("models", help="list the models that load without network")
    models.set_defaults(run=_models)
    return parser


def _add_text(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", help="the text; - reads it from standard input")
    parser.add_argument(
        "--model", metavar="NAME", help="a folder or a hub name (default: the embedded model)"
    )


def _add_capture(parser: argparse.ArgumentParser) -> None:
    _add_text(parser)
    parser.add_argument("--layer", type=int, metavar="N", help="only this layer, counted from 0")
    parser.add_argument("--head", type=int, metavar="N", help="only this head, counted from 0")
    parser.add_argument(
        "--keep", metavar="RULE", help=f"which edges to keep: {KEEPS} (default: all)"
    )


def _add_order(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--heads", metavar="HEADS", help="draw these, larger, as in 1.1,2.0 or decoder:1.1,2.0"
    )
    for option, what in (
        ("--sort", "sort heads by a column of `gattn heads --all` or of the table of a comparison"),
        ("--label", "write such a column above each head; label says in words what it does"),
    ):
        parser.add_argument(option, metavar="SCORE", help=what)


def _add_edits(parser: argparse.ArgumentParser) -> None:
    edits = parser.add_argument_group(
        "edits",
        f"EDIT is {GRAMMAR}. PLACE is [STACK:]LAYER[.HEAD]; all heads by default. Edits may be "
        "given several times; `gattn tokens TEXT` lists the positions of tokens.",
    )
    for option, (metavar, what) in EDITS.items():
        edits.add_argument(
            option,
            dest="edits",
            action="append",
            default=[],
            type=partial(_written, option),
            metavar=metavar,
            help=what,
        )
    edits.add_argument(
        "--no-renormalize",
        dest="renormalize",
        action="store_false",
        help="--cut after normalizing, so that the other edges keep what they had",
    )


def _written(option: str, text: str) -> tuple[str, str]:
    return option, text


def _add_effect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--together", action="store_true", help="apply all edits at once, as one row"
    )
    parser.add_argument("--each-head", action="store_true", help="cut each head, one a row")
    parser.add_argument("--metric", choices=METRICS, default="kl", help="default: kl")
    parser.add_argument(
        "--position",
        type=int,
        default=-1,
        metavar="N",
        help="the token whose prediction is measured (default: -1, the last)",
    )
    parser.add_argument("--target", metavar="TOKEN", help='a token such as " cat"')
    parser.add_argument("--other", metavar="TOKEN", help="the one it is compared with")
    _add_output(parser, (".csv",))


def _add_output(
    parser: argparse.ArgumentParser,
    suffixes: Sequence[str],
    default: str | None = None,
    *,
    required: bool = False,
) -> None:
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=required,
        default=default,
        metavar="FILE",
        help=f"where to write: {', '.join(suffixes)}"
        + (f" (default: {default})" if default else ""),
    )


def _draw(options: argparse.Namespace) -> None:
    _check_output(options.output, PICTURES)
    if options.layout and (options.layer is None or options.head is None):
        raise SelectionError(
            "--layout draws one head: choose it with --layer and --head; `gattn heads TEXT` "
            "describes them all."
        )
    order = _order(options)
    import matplotlib as mpl

    mpl.use("agg")
    shown = _chosen(options)
    _save(_figure(shown, options.layout, order), options.output)
    print(f"{options.output}: {shown!r}")


def _order(options: argparse.Namespace) -> dict[str, Any]:
    """Read which heads are drawn, in which order and with which labels."""
    is_one = options.layer is not None and options.head is not None
    if is_one and (options.heads or options.sort or options.label):
        raise SelectionError(
            "--layer and --head draw one head: for a larger matrix of it say --heads "
            f"{options.layer}.{options.head}; --sort and --label are for several heads."
        )
    stack, heads = _head_places(options.heads) if options.heads else (None, None)
    if is_one:
        heads = [(options.layer, options.head)]
    return {"heads": heads, "stack": stack, "sort": options.sort, "label": options.label}


def _head_places(written: str) -> tuple[str | None, list[tuple[int, int]]]:
    """Read a stack, where it is named, and heads as LAYER.HEAD."""
    stack, _, places = written.rpartition(":")
    found = re.fullmatch(r"\d+\.\d+(,\d+\.\d+)*", places.replace(" ", ""))
    if not found:
        raise SelectionError(
            f"--heads is a list of LAYER.HEAD, as in 1.1,2.0 or decoder:1.1,2.0, not {written!r}."
        )
    pairs = [place.split(".") for place in found[0].split(",")]
    return stack or None, [(int(layer), int(head)) for layer, head in pairs]


def _save(figure: Figure, path: Path) -> None:
    import matplotlib as mpl

    from gattn.files.paths import whole_file

    with mpl.rc_context({"svg.fonttype": "none"}), whole_file(path) as part:
        figure.savefig(part, format=path.suffix[1:].lower(), bbox_inches="tight", dpi=200)


def _figure(
    shown: AttentionTrace | AttentionGraph, layout: str | None, order: dict[str, Any]
) -> Figure:
    from gattn.trace import AttentionTrace

    if isinstance(shown, AttentionTrace):
        return shown.draw(**order)
    return cast("Figure", shown.draw(layout or "arcs").figure)


def _view(options: argparse.Namespace) -> None:
    _check_output(options.output, PAGES)
    if options.generate is not None and (options.edits or options.generate < 1):
        raise EditError(
            "--generate takes at least 1 token, and no edits: these may change what is generated, "
            "and before and after are compared on the same tokens."
        )
    makes = _makes(options)
    loaded = _loaded(options)
    from gattn.models.editing import edited

    trace, after, said = _viewed(options, loaded), None, ", ".join(_labels(options))
    if makes:
        _, model, tokenizer = loaded
        with edited(model, *_edits(makes, loaded), tokenizer=tokenizer):
            after = _viewed(options, loaded)
    trace.to_html(options.output, other=after, edits=said)
    size = options.output.stat().st_size / 1e6
    print(f"{options.output}: {trace!r}{f'; after {said}' if said else ''}, {size:.1f} MB")
    if options.opens and _has_display():
        webbrowser.open(options.output.absolute().as_uri())


def _has_display() -> bool:
    """Say whether there is a screen for a browser, rather than a terminal that one would take."""
    return sys.platform in ("win32", "darwin") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )


def _viewed(options: argparse.Namespace, loaded: Loaded) -> AttentionTrace:
    """Capture with scores and contributions, where they are known and the page stays small."""
    from gattn.models.encoding import encode

    config = loaded[1].config.get_text_config()
    tokens = len(encode(*loaded)) + (options.generate or 0)
    layers = getattr(config, "num_hidden_layers", 1) if options.layer is None else 1
    heads = getattr(config, "num_attention_heads", 1) if options.head is None else 1
    if (pairs := tokens**2 * layers * heads) > _MOST_PAIRS:
        _note(f"{pairs:,} pairs of tokens: the page shows attention, not scores and contributions")
        return _captured(options, loaded)
    full: dict[str, Any] = {"scores": True, "contributions": True}
    reason = ""
    for extras in (full, full | {"contributions": "value"}, {"scores": True}):
        try:
            trace = _captured(options, loaded, **extras)
        except CaptureError as error:
            reason = reason or f"less than the page could show: {error}"
        else:
            break
    else:
        trace = _captured(options, loaded)
    if reason:
        _note(reason)
    return trace


def _note(message: str) -> None:
    _say("")
    print(message)


def _heads(options: argparse.Namespace) -> None:
    if options.output:
        _check_output(options.output, (".csv", *PICTURES))
    from gattn.analysis.heads import head_table

    table = head_table(_captured(options), progress=sys.stderr.isatty())
    shown = table if options.all else table[[n for n in HEAD_COLUMNS if n in table]]
    print(_without_single_stack(shown).round(3).reset_index().to_string(index=False))
    for note in table.notes:
        print(note)
    if options.output:
        _save_table(table, options.output)


def _save_table(table: Table, path: Path) -> None:
    from gattn.files.paths import whole_file

    if path.suffix.lower() == ".csv":
        with whole_file(path) as part:
            table.to_csv(part)
    else:
        import matplotlib as mpl

        mpl.use("agg")
        _save(cast("Figure", table.draw().figure), path)
    print(f"{path}: {len(table)} heads, {len(table.columns)} columns")


def _without_single_stack(table: pd.DataFrame) -> pd.DataFrame:
    is_single = table.index.get_level_values("stack").nunique() == 1
    return table.droplevel("stack") if is_single else table


def _export(options: argparse.Namespace) -> None:
    _check_output(options.output, EXPORTS)
    is_whole = options.output.suffix.lower() == ".gattn"
    if not is_whole and (options.layer is None or options.head is None):
        raise SelectionError(
            f"{options.output.suffix} holds one head: choose it with --layer and --head, or "
            "export all heads to a .gattn file."
        )
    exported = _chosen(options)
    exported.save(options.output)
    print(f"{options.output}: {exported!r}")


def _tokens(options: argparse.Namespace) -> None:
    from gattn.drawing.text import visible
    from gattn.models.encoding import encode

    encoding = encode(*_loaded(options))
    _say("")
    for position, token in enumerate(encoding.tokens):
        print(position, visible(token))


def _compare(options: argparse.Namespace) -> None:
    _check_output(options.output, PICTURES)
    if bool(options.edits) == bool(options.other_model):
        raise EditError(
            "compare takes at least one edit, such as --cut 5.1 or --swap cosine, or else another "
            "model, --with NAME."
        )
    order = _order(options)
    if options.other_model:
        if any(order.values()):
            raise SelectionError(
                "--heads, --sort and --label are for a comparison around edits: another model's "
                "heads are not in the same places."
            )
        _match(options)
        return
    makes = _makes(options)
    loaded = _loaded(options)
    import matplotlib as mpl

    mpl.use("agg")
    from gattn.analysis.comparisons import compare
    from gattn.models.editing import edited

    _, model, tokenizer = loaded
    before = _captured(options, loaded)
    with edited(model, *_edits(makes, loaded), tokenizer=tokenizer):
        after = _captured(options, loaded)
    _print_comparison(compare(before, after), options.keep)
    _print_prediction(before, after, model, tokenizer)
    said = ", ".join(_labels(options))
    _save(before.draw(other=after, edits=said, **order), options.output)
    print(f"{options.output}: {said}")


def _match(options: argparse.Namespace) -> None:
    """Find for each head the nearest one of another model."""
    import matplotlib as mpl

    mpl.use("agg")
    from gattn.analysis.head_space import head_distances
    from gattn.analysis.heads import head_table

    other_options = argparse.Namespace(**vars(options) | {"model": options.other_model})
    one, other = _captured(options), _captured(other_options)
    distances = head_distances(one, other, progress=sys.stderr.isatty())
    labels, other_labels = (
        dict(zip(distances[axis].to_numpy(), head_table(trace).label, strict=True))
        for axis, trace in (("head", one), ("other", other))
    )
    nearest = distances.idxmin("other").to_series()
    table = nearest.rename("nearest").to_frame()
    table["distance"] = distances.min("other").to_series()
    table["label"] = [labels[name] for name in table.index]
    table["nearest_label"] = [other_labels[name] for name in nearest]
    print(table.reset_index().to_string(index=False, float_format="{:.3f}".format))
    for note in distances.notes:
        print(note)
    _save(cast("Figure", distances.draw().figure), options.output)
    print(f"{options.output}: {distances.computed_from}")


def _print_comparison(table: pd.DataFrame, keep: str | None) -> None:
    from gattn.analysis.divergences import FARTHEST
    from gattn.drawing.text import visible

    shown = _without_single_stack(table).reset_index()
    shown = shown.astype(object).where(shown.notna(), "")
    for name in ("query_token", "key_token"):
        shown[name] = [token and visible(str(token)) for token in shown[name]]
    print(shown.to_string(index=False, float_format="{:.3f}".format))
    print(
        f"distance: Jensen-Shannon, base e, mean over queries, at most {FARTHEST:.3f}; entropy in "
        "nats; change: of the most changed edge, after - before"
    )
    if keep:
        print(f"of the edges that {keep} kept")


def _print_prediction(
    before: AttentionTrace,
    after: AttentionTrace,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    import torch

    if before.logits is None or after.logits is None or not model.can_generate():
        print(f"next token: none, {type(model).__name__} does not go on with texts")
        return
    logits = (before.logits, after.logits)
    one, other = (some[-1].double().cpu().log_softmax(-1) for some in logits)
    divergence = float(torch.where(one > -torch.inf, one.exp() * (one - other), 0).sum())
    print(f"next token: KL divergence {divergence:.4g} nats")
    for name, logarithms in (("before", one), ("after", other)):
        best = logarithms.topk(min(3, len(logarithms)))
        tokens = [
            f"{tokenizer.decode([token])!r} {value:.3f}"
            for value, token in zip(best.values.exp().tolist(), best.indices.tolist(), strict=True)
        ]
        print(f"  {name:7}" + "   ".join(tokens))


def _effect(options: argparse.Namespace) -> None:
    if options.output:
        _check_output(options.output, (".csv",))
    if bool(options.edits) == options.each_head:
        raise EditError(
            "effect takes edits, such as --cut 5.1 or --cut '5.1:9<-4', or else --each-head, which "
            "cuts one head after the other."
        )
    makes = _makes(options)
    loaded = _loaded(options)
    from gattn.files.paths import whole_file
    from gattn.models.effects import effect

    rows: list[Any]
    if options.each_head:
        labels, rows = _each_head(loaded)
    else:
        labels, rows = _labels(options), list(_edits(makes, loaded))
    if options.together:
        labels, rows = [", ".join(labels)], [rows]
    text, model, tokenizer = loaded
    table = effect(
        text,
        rows,
        model,
        tokenizer,
        metric=options.metric,
        position=options.position,
        target=options.target,
        other=options.other,
        progress=sys.stderr.isatty(),
    )
    table["edit"] = labels
    columns = ["edit", "plain", "edited", "effect"]
    print(table[columns].to_string(index=False, float_format="{:.4g}".format))
    if options.output:
        with whole_file(options.output) as part:
            table.to_csv(part, index=False)


def _routes(options: argparse.Namespace) -> None:
    if options.output:
        _check_output(options.output, (*PICTURES, *EXPORTS[1:]))
    loaded = _loaded(options)
    from gattn.analysis.route_finding import routes
    from gattn.drawing.text import visible

    _say("taking layers apart ...")
    found = routes(*loaded, position=options.position, threshold=options.threshold, progress=False)
    _say("")
    layer, position, _ = found.target
    predicted = visible(found.graph["predicted"]) if found.graph["predicted"] else "nothing"
    print(f"position {position}, {visible(found.tokens[position])}, predicts {predicted}")
    print(f"{layer} layers; {found.number_of_nodes()} nodes, {found.number_of_edges()} edges")
    paths = found.paths(10)
    print("\nstrength  path: layer.heads→ is attention, ↺ to the token itself")
    for strength, path in zip(paths["strength"], paths["path"], strict=True):
        print(f"   {strength:.3f}  {path}")
    edges = found.attention_edges().head(12).to_dict("records")
    print("\nstrength  importance  head  edge")
    for edge in edges:
        head = f"{edge['layer']}.{edge['head']}"
        ends = [f"{visible(edge[f'{end}_token'])} {edge[end]}" for end in ("key", "query")]
        shares = f"   {edge['strength']:.3f}       {edge['importance']:.3f}"
        print(f"{shares}  {head:>4}  {' → '.join(ends)}")
    if not options.output:
        return
    if options.output.suffix.lower() in PICTURES:
        import matplotlib as mpl

        mpl.use("agg")
        _save(cast("Figure", found.draw().figure), options.output)
    else:
        from gattn.files.paths import save

        save(found, options.output)
    print(f"\n{options.output}: {found}")


def _flow(options: argparse.Namespace) -> None:
    if options.output:
        _check_output(options.output, (*PICTURES, ".csv"))
    loaded = _loaded(options)
    from gattn.drawing.text import visible
    from gattn.models.capturing import capture

    _say("capturing ...")
    trace = capture(*loaded)
    _say("")
    target = _position(options.target, trace.tokens)
    ranked = _ranked(trace, target, options)
    shown = ranked.head(_MOST_ROWS).reset_index()
    shown["token"] = [visible(token) for token in shown["token"]]
    layers = len(trace.only_stack.layers)
    print(f"to {target}, {visible(trace.tokens[target])}, through {layers} layers")
    print(shown.to_string(index=False, float_format="{:.3f}".format))
    if left := len(ranked) - len(shown):
        print(f"and {left} more, which -o flow.csv writes too")
    print(
        "flow: the most that comes through; share: of all flow; rollout: what comes if each token "
        "passes on what it has read; attention: in the last layer alone"
    )
    for note in ranked.notes:
        print(note)
    if options.output:
        _save_ranked(ranked, options.output)
        print(f"{options.output}: {len(ranked)} tokens")


def _position(written: str, tokens: Sequence[str]) -> int:
    """Find the token that was written as its position or its text."""
    count = len(tokens)
    if written.removeprefix("-").isdecimal():
        if not -count <= int(written) < count:
            raise SelectionError(f"No position {written}: there are {count}, 0 .. {count - 1}.")
        return int(written) % count
    text = written.strip("'\"").strip()
    found = [position for position, token in enumerate(tokens) if token.strip() == text]
    if not found:
        raise SelectionError(f"No token is {text!r}: `gattn tokens TEXT` lists them.")
    return found[-1]


def _ranked(trace: AttentionTrace, target: int, options: argparse.Namespace) -> Table:
    """Rank the tokens by what flows from them to one."""
    from gattn.analysis.flows import flow
    from gattn.analysis.layers import Layers
    from gattn.analysis.results import table
    from gattn.analysis.rollouts import rollout

    heads = int(options.heads) if options.heads.isdecimal() else options.heads
    how: dict[str, Any] = {"heads": heads, "residual": options.residual}
    flows = flow(trace, targets=target, progress=sys.stderr.isatty(), **how)
    numbers = flows.to_numpy()[0]
    rolled = rollout(trace, **how).to_numpy()[-1, target]
    attention = Layers.of(trace).reduced(heads)[-1][target].numpy()
    rows = {
        "position": flows["key"].to_numpy(),
        "token": trace.tokens,
        "flow": numbers,
        "share": numbers / numbers.sum(),
        "rollout": rolled,
        "attention": attention,
    }
    source = f"to {target} {trace.tokens[target]}: {flows.computed_from}"
    notes = [note.removesuffix(", see error_bound") for note in flows.notes]
    made = table(rows, name="flow", computed_from=source, notes=notes, index=["position"])
    reached = made[(numbers > 0) | (attention > 0)]
    return cast("Table", reached.sort_values("flow", ascending=False, kind="stable"))


def _save_ranked(ranked: Table, path: Path) -> None:
    from gattn.files.paths import whole_file

    if path.suffix.lower() == ".csv":
        with whole_file(path) as part:
            ranked.to_csv(part)
        return
    import matplotlib as mpl

    mpl.use("agg")
    _save(cast("Figure", ranked.draw().figure), path)


def _each_head(loaded: Loaded) -> tuple[list[str], list[Edit]]:
    """Cut each head that a capture finds."""
    from gattn.keep import TopK
    from gattn.models.capturing import capture
    from gattn.models.edits import Cut

    trace = capture(*loaded, keep=TopK(1))
    places = [(name, *place) for name, stack in trace.stacks.items() for place in sorted(stack)]
    labels = [f"cut {layer}.{head}" for _, layer, head in places]
    if len(trace.stacks) > 1:
        labels = [f"cut {stack}:{layer}.{head}" for stack, layer, head in places]
    return labels, [Cut(layer, head, stack=stack) for stack, layer, head in places]


def _makes(options: argparse.Namespace) -> list[Make]:
    """Read the edits before anything is loaded."""
    return [
        read_edit(option, text, renormalize=options.renormalize) for option, text in options.edits
    ]


def _labels(options: argparse.Namespace) -> list[str]:
    after = "" if options.renormalize else " without renormalizing"
    return [
        f"{option[2:]} {text}{after if option == '--cut' else ''}" for option, text in options.edits
    ]


def _edits(makes: Sequence[Make], loaded: Loaded) -> list[Edit]:
    from gattn.models.encoding import encode

    config = loaded[1].config.get_text_config()
    heads = int(getattr(config, "num_attention_heads", 0) or 0)
    return [make(heads, len(encode(*loaded))) for make in makes]


def _models(options: argparse.Namespace) -> None:
    from gattn.models.loading import offline_models

    print("\n".join(offline_models()))


def _chosen(options: argparse.Namespace) -> AttentionTrace | AttentionGraph:
    """Capture, and take the one head where one is chosen."""
    trace = _captured(options)
    if options.layer is None or options.head is None:
        return trace
    return trace[options.layer, options.head]


def _loaded(options: argparse.Namespace) -> Loaded:
    """Give the text, the model and its tokenizer."""
    text = _standard_input() if options.text == "-" else options.text
    _say("loading the libraries ...")
    from huggingface_hub.utils.logging import set_verbosity

    set_verbosity(logging.ERROR)
    from gattn.models.loading import EMBEDDED, load_model

    _say(f"loading the model {options.model or EMBEDDED} ...")
    model, tokenizer = load_model(options.model)
    return text, model, tokenizer


def _captured(
    options: argparse.Namespace, loaded: Loaded | None = None, **extras: Any
) -> AttentionTrace:
    keep = _keep(options.keep) if options.keep else None
    text, model, tokenizer = loaded or _loaded(options)
    from gattn.models.capturing import capture, capturing

    _say("capturing ...")
    chosen: dict[str, Any] = extras | {
        "keep": keep,
        "layers": None if options.layer is None else [options.layer],
        "heads": None if options.head is None else [options.head],
    }
    if getattr(options, "generate", None) is None:
        trace = capture(text, model, tokenizer, **chosen)
    else:
        with capturing(model, tokenizer, **chosen) as run:
            _generate(text, model, tokenizer, options.generate)
        trace = run.trace
    _say("")
    return trace


def _generate(
    text: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tokens: int
) -> None:
    from gattn.models.encoding import encode, pad

    if not model.can_generate():
        raise CaptureError(f"{type(model).__name__} does not go on with texts: no --generate.")
    # The last token that is generated never enters the model, and so is in no trace.
    inputs = pad([encode(text, model, tokenizer)], tokenizer.pad_token_id or 0)
    generate = cast("Callable[..., object]", model.generate)
    generate(**inputs, max_new_tokens=tokens + 1, do_sample=False)


def _standard_input() -> str:
    try:
        return sys.stdin.read().rstrip("\n")
    except UnicodeDecodeError as error:
        raise CaptureError(f"Standard input is not valid text: {error}.") from error


def _say(message: str) -> None:
    """Show what takes long, on a terminal, in one line that the next message replaces."""
    if sys.stderr.isatty():
        print(f"\r\033[K{message}", end="", file=sys.stderr, flush=True)


def _keep(rule: str) -> Keep:
    from gattn.keep import All, Threshold, TopK, TopMass

    name, _, number = rule.partition(":")
    try:
        if name == "threshold":
            return Threshold(float(number))
        if name == "topk":
            return TopK(int(number))
        if name == "topmass":
            return TopMass(float(number))
    except ValueError as error:
        if isinstance(error, GattnError):
            raise
        name = ""
    if name != "all" or number:
        raise SelectionError(f"--keep is one of {KEEPS}, not {rule!r}.")
    return All()


def _check_output(path: Path, suffixes: Sequence[str]) -> None:
    """Refuse before the model runs what could not be written after it."""
    if path.suffix.lower() not in suffixes:
        raise SelectionError(f"{path}: the suffix must be one of {', '.join(suffixes)}.")
    if not path.absolute().parent.is_dir():
        raise SelectionError(f"{path}: there is no folder {path.absolute().parent}.")


if __name__ == "__main__":
    sys.exit(main())
