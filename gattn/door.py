"""The one door upward: modules below pictures, pages, files and analyses ask for them here.

They are loaded by name when first needed, so that no module imports one above it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from inspect import Parameter, signature
from types import MethodType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from gattn.checks import check_call
from gattn.errors import SelectionError

if TYPE_CHECKING:
    from os import PathLike

    import networkx as nx
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gattn.analysis.heads.head_table import HeadTable
    from gattn.analysis.propagation.unrolled import Unrolled
    from gattn.heads.stack import Stack
    from gattn.heads.trace import AttentionTrace

P = ParamSpec("P")
R = TypeVar("R")
GRAPHS = {
    "Circuit": "gattn.analysis.circuits.found",
    "PathCircuit": "gattn.analysis.circuits.paths.path_circuits",
    "Routes": "gattn.analysis.vectors.route_graphs",
    "Unrolled": "gattn.analysis.propagation.unrolled",
}
"""The graphs of analyses that files restore, and the modules that define them."""


def draw(shown: object, *arguments: Any, **options: Any) -> Axes:
    """Draw a result on Axes; see `gattn.drawing.pictures`."""
    axes: Axes = import_module("gattn.drawing.pictures").draw(shown, *arguments, **options)
    return axes


class DrawnByKind:
    """The method ``draw`` of what has one picture, that of its class in `gattn.drawing.pictures`.

    It has that function's signature and docstring, which ``help`` shows, with ``figsize=`` beside
    ``ax=``. They are loaded when the method is looked up.
    """

    def __get__(self, shown: object, kind: type) -> Callable[..., Axes]:
        try:
            method = _draws(kind)
        except TypeError as error:  # As hasattr expects.
            raise AttributeError(*error.args) from None
        return method if shown is None else MethodType(method, shown)


@cache
def _draws(kind: type) -> Callable[..., Axes]:
    def method(self: object, *arguments: Any, **options: Any) -> Axes:
        return draw(self, *arguments, **options)

    picture = import_module("gattn.drawing.pictures").picture_of(kind)
    method.__name__, method.__qualname__ = "draw", f"{kind.__qualname__}.draw"
    method.__module__, method.__doc__ = kind.__module__, picture.__doc__
    found = signature(picture)
    own, *rest = found.parameters.values()
    if "ax" in found.parameters and "figsize" not in found.parameters:
        at = [one.name for one in rest].index("ax")
        rest.insert(at, rest[at].replace(name="figsize", annotation="tuple[float, float] | None"))
    changed = found.replace(
        parameters=[own.replace(name="self", annotation=Parameter.empty), *rest]
    )
    method.__signature__ = changed  # type: ignore[attr-defined] # what `inspect` looks for
    return method


def checked(**hints: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a method refuse options it does not have, naming those it has.

    Parameters
    ----------
    **hints
        What to do in place of options that it does not have, though others like it do.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @wraps(method)
        def calling(*arguments: Any, **options: Any) -> Any:
            said = f"{type(arguments[0]).__name__}.{getattr(method, '__name__', '')}()"
            check_call(method, arguments[1:], options, said, hints)
            return method(*arguments, **options)

        return calling

    return decorate


def drawn_by(
    name: str, *, of: str = "", **hints: str
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a method draw by a function of `gattn.drawing`, which has the same parameters.

    The method itself is only a signature and a docstring, so that `help` shows them and nothing is
    loaded before it is needed.

    Parameters
    ----------
    name : str
        The function.
    of : str
        The method of the object that chooses heads, where those are drawn in its place.
    **hints
        What to say of a parameter that is missing or given twice, or that there is not.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @wraps(method)
        def drawing(self: Any, *arguments: Any, **options: Any) -> Any:
            said = f"{type(self).__name__}.{getattr(method, '__name__', name)}()"
            check_call(method, arguments, options, said, hints)
            chosen = [options.pop(one, None) for one in ("heads", "stack")] if of else []
            shown = getattr(self, of)(*chosen) if of else self
            return getattr(import_module("gattn.drawing"), name)(shown, *arguments, **options)

        return cast("Callable[P, R]", drawing)

    return decorate


def draw_heads(shown: object, other: object, edits: str, options: dict[str, Any]) -> Figure:
    """Draw all heads of one run, or of two side by side; see `gattn.drawing.draw_heads`."""
    drawing = import_module("gattn.drawing")
    if other is not None:
        figure: Figure = drawing.draw_compare(shown, other, edits=edits, **options)
        return figure
    if edits:
        raise SelectionError(
            f"edits={edits!r:.80} says what lies between two runs: pass the second, other=."
        )
    figure = drawing.draw_heads(shown, **options)
    return figure


def to_html(shown: object, path: str | PathLike[str] | None = None, **options: Any) -> str | None:
    """Write an interactive page, one HTML file; see `gattn.drawing.page.to_html`."""
    page: str | None = import_module("gattn.drawing.page").to_html(shown, path, **options)
    return page


def save(shown: object, path: str | PathLike[str]) -> None:
    """Write a file in the format of its suffix; see `gattn.files.save`."""
    import_module("gattn.files").save(shown, path)


class Pictured:
    """What a notebook shows as a picture; see `gattn.drawing.notebooks`."""

    __slots__ = ()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        made: dict[str, Any] = import_module("gattn.drawing.notebooks").mime_bundle(self)
        return made

    def _repr_html_(self) -> str | None:
        html: str | None = import_module("gattn.drawing.notebooks").notebook_html(self)
        return html


def head_table(trace: AttentionTrace | Stack) -> HeadTable:
    """Describe each head in a row; see `gattn.analysis.head_table`."""
    table: HeadTable = import_module("gattn.analysis").head_table(trace)
    return table


def unroll(stack: Stack, **options: Any) -> Unrolled:
    """Unroll a stack into one graph; see `gattn.heads.stack.Stack.unroll`."""
    module = import_module("gattn.analysis.propagation.unrolling")
    unrolled: Unrolled = module.unroll(stack, **options)
    return unrolled


def graph_of(kind: str, graph: nx.DiGraph[Any]) -> nx.DiGraph[Any]:
    """Restore one of `GRAPHS` from a directed graph that a file held."""
    for before, now in (("source", "key"), ("target", "query")):  # as older files name the ends
        for name in ("depth", "position"):
            if kind == "Unrolled" and f"{before}_{name}" in graph.graph:
                graph.graph[f"{now}_{name}"] = graph.graph.pop(f"{before}_{name}")
    made: nx.DiGraph[Any] = getattr(import_module(GRAPHS[kind]), kind)(graph)
    return made
