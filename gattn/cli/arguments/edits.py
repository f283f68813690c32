"""Reads edits of the command line, such as ``5.1:9<-4``, without loading torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import gattn
from gattn.errors import EditError, GattnError
from gattn.names.places import DIGITS, NUMBERS, PLACE, read_heads, read_number, read_numbers

if TYPE_CHECKING:
    from gattn.models.edit.base import Edit

Make: TypeAlias = "Callable[[int, int], Edit]"
"""Makes an edit for a number of heads per layer, and a number of tokens."""

_TOKENS = rf'{NUMBERS}|-\d+|"[^"]+"'
_EDGES = re.compile(rf"(?P<place>{PLACE})(?::(?P<query>{_TOKENS})<-(?P<key>{_TOKENS}))?")
GRAMMAR = (
    "[STACK:]LAYER[.HEAD][:QUERY<-KEY], each a number from 0, a range 2-4, a list 1,4 or * for "
    "all; a token, but no layer or head, can also be -1 for the last, or a word in quotes: "
    '5.1:9<-4, *:-1<-"cat", 5.1 for a whole head, 1.1,2.0 for heads of several layers'
)

WEIGHTS: Mapping[str, Callable[..., Any]] = {
    "alibi": lambda heads: gattn.ModelScore() + gattn.ALiBi(heads),
    "cosine[:TAU]": lambda heads, tau=1.0: gattn.Cosine(tau),
    "dot": lambda heads: gattn.Dot(),
    "l1-distance[:C]": lambda heads, c=1.0: gattn.L1Distance(c),
    "polynomial:DEGREE": lambda heads, degree: gattn.Polynomial(degree),
    "scaled:FACTOR": lambda heads, factor: factor * gattn.ModelScore(),
    "softcap:CAP": lambda heads, cap: gattn.Softcap(gattn.ModelScore(), cap),
    "squared-distance[:C]": lambda heads, c=1.0: gattn.SquaredDistance(c),
}
NORMALIZERS: Mapping[str, Callable[..., Any]] = {
    "entmax15": lambda: gattn.Entmax15(),
    "relu": lambda: gattn.ReLU(),
    "sigmoid": lambda: gattn.Sigmoid(),
    "softmax": lambda: gattn.Softmax(),
    "sparsemax": lambda: gattn.Sparsemax(),
    "topk:K": lambda k: gattn.TopKSoftmax(k),
}
GRAPHS: Mapping[str, Callable[..., Any]] = {
    "longformer:N": lambda tokens, size: gattn.TokenGraph.longformer(tokens, size, [0]),
    "self-loops": lambda tokens: gattn.TokenGraph.self_loops(tokens),
    "window:N": lambda tokens, size: (
        gattn.TokenGraph.self_loops(tokens)
        if size == 1
        else gattn.TokenGraph.window(tokens, size - 1, causal=False)
    ),
}
"""The weight functions, normalizers and graphs of the command line: a name, and its number."""


def read_place(text: str, option: str = "--cut", *, of_edges: bool = True) -> dict[str, Any]:
    """Read where an edit applies.

    Parameters
    ----------
    text : str
        As in `GRAMMAR`.
    option : str
        The option that has this text, for errors.
    of_edges : bool
        Whether ``:QUERY<-KEY`` is allowed.

    Returns
    -------
    dict
        Arguments of an edit: those of ``stack``, ``layer``, ``head``, ``query`` and ``key`` that
        are given.
    """
    found = _EDGES.fullmatch(text.strip())
    if not of_edges and (found is None or found["query"]):
        _refuse(option, text, "a place without edges after @, [STACK:]LAYER[.HEAD], such as @5.1")
    if found is None:
        _refuse(option, text, GRAMMAR)
    try:
        named = read_heads(found["place"])
        tokens = {name: _tokens(found[name]) for name in ("query", "key")}
    except ValueError as error:
        _refuse(option, text, str(error))
    place = {"stack": named.stack, "layer": list(named.heads) or named.layer, "head": named.head}
    return {name: value for name, value in (place | tokens).items() if value is not None}


def _tokens(written: str | None) -> int | str | list[int] | None:
    if written is None or written == "*":
        return None
    if written.startswith('"'):
        return written[1:-1]
    if written.startswith("-"):
        return -read_number(written[1:])
    return read_number(written) if written.isdecimal() else read_numbers(written)


def read_edit(option: str, text: str, *, renormalize: bool = True) -> Make:
    """Read an edit from the text of an option: --cut, --scale, --swap, --normalizer, --restrict."""
    if option == "--cut":
        place = read_place(text)
        return lambda heads, tokens: gattn.Cut(**place, renormalize=renormalize)
    if option == "--scale":
        factor, colon, written = text.partition(":")
        if not colon or not _is_number(factor):
            _refuse(option, text, f"FACTOR:EDIT such as 0.5:5.1, where EDIT is {GRAMMAR}")
        place = read_place(written, option)
        return lambda heads, tokens: gattn.Scale(float(factor), **place)
    name, at, written = text.partition("@")
    place = read_place(written, option, of_edges=False) if at else {}
    if option == "--swap":
        weight = _named(option, name, WEIGHTS)
        return lambda heads, tokens: gattn.Swap(**place, weight=weight(heads))
    if option == "--normalizer":
        normalizer = _named(option, name, NORMALIZERS)
        return lambda heads, tokens: gattn.Swap(**place, normalizer=normalizer())
    graph = _named(option, name, GRAPHS)
    return lambda heads, tokens: gattn.Restrict(graph(tokens), **place)


def _named(option: str, text: str, makers: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Find the maker of this name, and bind the number after the name."""
    name, _, number = text.partition(":")
    form = next((form for form in makers if re.split(r"\[?:", form)[0] == name), None)
    takes, needs = ":" in (form or ""), ":" in (form or "") and "[" not in (form or "")
    if form is None or (number and not (takes and _is_number(number))) or (needs and not number):
        forms = ", ".join(makers)
        _refuse(option, text, f"one of {forms}, with @LAYER or @LAYER.HEAD where not for all heads")
    if not number:
        return makers[form]
    is_whole = number.isdecimal() and len(number) <= DIGITS
    given = int(number) if is_whole else float(number)
    if makers is GRAPHS and not (is_whole and given >= 1):
        _refuse(option, text, f"{form} with a whole number N of at least 1, such as {name}:8")

    def make(*sizes: int) -> Any:
        try:
            return makers[form](*sizes, given)
        except GattnError as error:
            raise EditError(f"{option} {text}: {error}") from error

    return make


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _refuse(option: str, text: str, expected: str) -> NoReturn:
    raise EditError(f"{option} takes {expected}; not {text!r}.")
