"""Joining many rules without deep nests."""

from __future__ import annotations

from typing import cast

from gattn.errors import GraphError
from gattn.graph.rules.base import Rule
from gattn.graph.rules.combined import Combined
from gattn.graph.rules.edges import Edges

_MOST_RULES, _DEEPEST = 4096, 64


def combined(operation: str, left: Rule, right: Rule) -> Rule:
    """Join two rules, each part once and nests flat.

    Edges that were added and taken away stay one set each, (rule | added) - taken, however often
    they are in turn.

    Raises
    ------
    GraphError
        If so many rules are joined that each pair would be looked up in thousands.
    """
    rule = _folded(operation, left, right)
    if isinstance(rule, Combined) and (rule.size > _MOST_RULES or rule.depth > _DEEPEST):
        raise GraphError(
            f"The graph would combine {rule.size:,} rules, {rule.depth} deep; at most "
            f"{_MOST_RULES:,} and {_DEEPEST} can be. List its edges first: "
            "TokenGraph.from_edge_index(graph.edge_index, graph.num_tokens)."
        )
    return rule


def _folded(operation: str, left: Rule, right: Rule) -> Rule:
    """Join two rules; the sets of edges that they add and take away are joined separately."""
    one, added, taken = _unfolded(left)
    other, its_added, its_taken = _unfolded(right)
    if operation == "|":
        rest = _union_of(_where(taken, right, False), _where(its_taken, left, False))
        return _fold(_nested("|", one, other), _union_of(added, its_added), rest)
    if operation == "&":
        both = _nested("&", one, other) if one is not None and other is not None else None
        shared = _union_of(_where(added, right, True), _where(its_added, left, True))
        return _fold(both, shared, _union_of(taken, its_taken))
    kept = _union_of(_where(added, right, False), _where(its_taken, left, True))
    cut = _where(its_added, right, True)
    return _fold(None if one is None else _nested("-", one, other), kept, _union_of(taken, cut))


def _unfolded(rule: Rule) -> tuple[Rule | None, Edges | None, Edges | None]:
    """Take (rule | added) - taken apart; any of the three may be missing."""
    rule, taken = _split("-", rule)
    if isinstance(rule, Edges):
        return None, rule, taken
    return *_split("|", rule), taken


def _split(operation: str, rule: Rule) -> tuple[Rule, Edges | None]:
    """Split off the set of edges that an operation ends with."""
    if isinstance(rule, Combined) and rule.operation == operation:
        left, right = rule.left, rule.right
        return (left, right) if isinstance(right, Edges) else (rule, None)
    return rule, None


def _fold(rule: Rule | None, added: Edges | None, taken: Edges | None) -> Rule:
    """Make (rule | added) - taken; without a rule, the edges that are left."""
    if rule is None and added is not None:
        return added if taken is None else added.where(taken, False)
    whole = cast("Rule", rule)
    if added is not None and len(added.key):
        whole = Combined("|", whole, added)
    return Combined("-", whole, taken) if taken is not None and len(taken.key) else whole


def _nested(operation: str, left: Rule | None, right: Rule | None) -> Rule | None:
    """Join rules that are not sets of edges."""
    if left is None or right is None:
        return right if left is None else left
    if operation != "-":
        return balanced(operation, parts_of(operation, left, right))
    if isinstance(left, Combined) and left.operation == "-":
        return Combined("-", left.left, _folded("|", left.right, right))
    return Combined("-", left, right)


def _where(edges: Edges | None, rule: Rule, wanted: bool) -> Edges | None:
    return None if edges is None else edges.where(rule, wanted)


def _union_of(left: Edges | None, right: Edges | None) -> Edges | None:
    if left is None or right is None:
        return right if left is None else left
    return left.joined(right)


def parts_of(operation: str, *rules: Rule) -> list[Rule]:
    """List the different rules that an operation joins."""
    found: dict[Rule, None] = {}
    waiting = list(reversed(rules))
    while waiting:
        rule = waiting.pop()
        if isinstance(rule, Combined) and rule.operation == operation:
            waiting += [rule.right, rule.left]
        else:
            found[rule] = None
    return list(found)


def balanced(operation: str, rules: list[Rule]) -> Rule:
    """Join rules without deep nests."""
    if len(rules) == 1:
        return rules[0]
    middle = (len(rules) + 1) // 2
    sides = (balanced(operation, some) for some in (rules[:middle], rules[middle:]))
    return Combined(operation, *sides)
