"""Fewer cases than a full product, where all of it would meet the same code again."""

from itertools import combinations, product


def all_pairs(*axes):
    """Choose cases so that any two values of two axes meet in one of them, greedily."""
    axes = [list(axis) for axis in axes]
    cases = list(product(*(range(len(axis)) for axis in axes)))
    pairs = {case: set(combinations(enumerate(case), 2)) for case in cases}
    missing, chosen = set().union(*pairs.values()), []
    while missing:
        chosen.append(max(cases, key=lambda case: len(pairs[case] & missing)))
        missing -= pairs[chosen[-1]]
    return [tuple(map(list.__getitem__, axes, case)) for case in sorted(chosen)]


def in_turn(one, *others):
    """Give each value of the first axis one of each of the others, all of them in turn."""
    others = [list(axis) for axis in others]
    return [(x, *(axis[n % len(axis)] for axis in others)) for n, x in enumerate(one)]
