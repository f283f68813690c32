"""Joins the calls of a module that are parts of one layer, as in a loop over heads or queries.

So are the steps of a recurrent decoder, each of which makes the next row of the model's output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import prod

import torch
from torch import Tensor, nn

from gattn.models.doors.functions.calling.raw_call import RawCall
from gattn.models.doors.proof.layouts.plan import Place, Plan
from gattn.models.doors.proof.layouts.sameness import are_same, is_same
from gattn.models.doors.proof.probing import UnprovedError
from gattn.models.doors.proof.probing.alike import Alike
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.rerunning import Reruns
from gattn.models.doors.proof.probing.taints import along_dim
from gattn.models.read.layouts import Layout
from gattn.models.read.token_maps import Joined, TokenMap

Layouts = Mapping[Place, list[tuple[tuple[int, ...], Layout]]]

_BEGIN, _END = 3, 2
"""How many steps are looked at as they begin and end, and one between: each takes a run."""


def join(
    model: nn.Module, sites: Sequence[Site], plan: Plan, reruns: Reruns, alike: Alike
) -> set[Site]:
    """Join the calls of a module that are parts of one layer.

    Heads whose calls take what those before gave are none of one layer.

    Returns
    -------
    set of Site
        Steps of a decoder that read the keys of its first step again, so that these tell the order.
    """
    later: set[Site] = set()
    known: dict[object, bool] = {}
    runs_of = {site.name: site.chain[0] for site in reversed(sites)}
    for place, layouts in joined(plan.sites, plan.layouts).items():
        name, tokens = place[0], layouts[0].tokens
        if tokens is not None and tokens.joined is not None and tokens.joined.heads:
            kind = alike[model.get_submodule(name)]
            if kind not in known:
                known[kind] = reruns.feed_on_each_other(runs_of[name])
            if known[kind]:
                continue
        leads = [lead for lead, _ in plan.layouts[place]]
        plan.layouts[place] = list(zip(leads, layouts, strict=True))
    for name in {site.name: None for site in sites}:
        own = [site for site in sites if site.name == name]
        may_be = _may_be_steps(own, plan.layouts)
        if may_be and _read_the_same(own, reruns) and _make_rows(own, reruns):
            _join_steps(own, plan)
            later.update(own[1:])
    return later


def _may_be_steps(own: Sequence[Site], layouts_of: Layouts) -> bool:
    """Return whether all calls of a module have one query, and read the same keys.

    Each query may depend on the same one of these, as where a decoder begins with the last.
    """
    count = Counter(site.place for site in own)
    if len(own) < 2:
        return False
    known = [layouts_of.get(place, []) for place in count]
    if [len(one) for one in known] != list(count.values()) or len({*count.values()}) > 1:
        return False
    layouts = [layout for one in known for _, layout in one]
    tokens = [one.tokens for one in layouts if one.tokens is not None]
    said = {(one.split, one.heads) for one in layouts}
    of_tokens = {(one.sequences, one.num_queries, one.num_keys) for one in tokens}
    if len(said) > 1 or len(of_tokens) > 1 or len(tokens) < len(layouts):
        return False
    if any(x is not None for one in tokens for x in (one.keys, one.joined)):
        return False
    told = [one.queries for one in tokens if one.queries is not None]
    if told and (len(told) < len(tokens) or any(not torch.equal(x, told[0]) for x in told)):
        return False
    return all(site.queries == 1 for site in own) and tokens[0].num_keys > 1


def _read_the_same(own: Sequence[Site], reruns: Reruns) -> bool:
    """Return whether all calls of a module read the same values, each in one place."""
    found: list[Tensor] = []

    def see(site: Site, call: RawCall) -> None:
        if site in own:
            found.append(call.value)

    reruns.through(own[0].chain[-1], see, None, own[-1], is_plain=True)
    return len(found) == len(own) and all(are_same(x, found[0]) for x in found)


def _make_rows(own: Sequence[Site], reruns: Reruns) -> bool:
    """Return whether each call is the last one that a row of the model's output waits for.

    These rows come one after another, as those that the steps of a recurrent decoder make. NaN in
    what a call gives shows the rows that depend on it: that of its step and later ones. Of many
    calls, which run the same code, some are looked at.
    """
    first: set[tuple[object, int]] | None = None
    steps = range(len(own))
    for step in {*steps[:_BEGIN], len(own) // 2, *steps[-_END:]}:
        site = own[step]

        def see(one: Site, call: RawCall, site: Site = site) -> None:
            if one is site:
                call.output = torch.full_like(call.output, torch.nan)

        try:
            answer = reruns.through(site.chain[-1], see, None)
        except UnprovedError:
            return False
        begin = {(name, rows.index(True) - step) for name, rows in _reached(answer, len(own))}
        first = begin if first is None else first & begin
        if not first:
            return False
    return True


def _reached(answer: Sequence[Tensor], least: int) -> Iterator[tuple[object, list[bool]]]:
    """Say which rows NaN has reached: of each dimension, and of tensors that come as a list."""
    for n, x in enumerate(answer):
        for dim in range(x.dim() if bool(x.isnan().any()) else 0):
            if x.shape[dim] >= least:
                yield (n, dim), along_dim(x.isnan()[None], dim + 1)[0].tolist()
    at = 0
    for _, some in groupby(answer, lambda x: x.shape):
        rows = [bool(x.isnan().any()) for x in some]
        if len(rows) >= least and any(rows):
            yield at, rows
        at += len(rows)


def _join_steps(own: Sequence[Site], plan: Plan) -> None:
    done: Counter[Place] = Counter()
    for step, site in enumerate(own):
        lead, layout = plan.layouts[site.place][done[site.place]]
        assert layout.tokens is not None
        joined = Joined(own[0].place[1], step, step > 0)
        known = replace(layout.tokens, queries=None, is_cross=True, has_own_rows=False)
        tokens = replace(known, num_queries=len(own), joined=joined)
        plan.layouts[site.place][done[site.place]] = lead, replace(layout, tokens=tokens)
        done[site.place] += 1


def joined(calls: Sequence[Place], layouts: Layouts) -> dict[Place, list[Layout]]:
    """Return the layouts of calls that are joined, of each run of their module.

    The calls of a module are parts of one layer if each of them has other sequences of the batch
    than all others, or the same ones with the queries that come next. Those of one run may have all
    queries again, for one more head. Calls on other inputs are never parts of one layer.
    """
    found: dict[Place, list[Layout]] = {}
    for name in dict.fromkeys(name for name, _ in calls):
        own = [place for place in calls if place[0] == name]
        runs = Counter(own)
        if len(own) < 2 or any(len(layouts.get(place, [])) != runs[place] for place in own):
            continue
        has_turns = not all(_are_one(layouts[place]) for place in runs)
        own = own if has_turns else list(runs)
        if len(own) < 2:  # Each run of the module is a layer by itself.
            continue
        count: Counter[Place] = Counter()
        known = []
        for place in own:
            known.append(layouts[place][count[place]])
            count[place] += 1
        parts = _parts([one[1] for one in known], [_heads(*one) for one in known])
        if has_turns and any(part.joined is None or part.joined.heads for part in parts):
            continue
        for place, (_, layout), part in zip(own, known, parts, strict=False):
            assert part.joined is not None
            tokens = replace(part, joined=replace(part.joined, first=own[0][1]))
            repeats = 1 if has_turns else runs[place]
            found.setdefault(place, []).extend([replace(layout, tokens=tokens)] * repeats)
    return found


def _are_one(known: list[tuple[tuple[int, ...], Layout]]) -> bool:
    return all(is_same(layout, known[0][1]) for _, layout in known)


def _heads(lead: tuple[int, ...], layout: Layout) -> int:
    return prod((layout.split or lead)[n] for n in layout.heads)


def _parts(layouts: list[Layout], heads: list[int]) -> list[TokenMap]:
    """Return the calls' tokens with their parts in a layer; none if they are none of one."""
    known = [layout.tokens for layout in layouts]
    whole = [
        one for one in known if one is not None and len(set(one.sequences)) == len(one.sequences)
    ]
    if len(whole) < len(known) or len(set(heads)) > 1:
        return []
    if len({(one.num_queries, one.num_keys, one.is_cross, one.inputs) for one in whole}) > 1:
        return []
    if any(one.keys is not None for one in whole):
        return _of_some_keys(whole)
    done: dict[tuple[int, ...], list[int]] = {}
    parts: list[tuple[TokenMap, int, int]] = []
    for one in whole:
        others = {n for sequences in done if sequences != one.sequences for n in sequences}
        rows = _rows(one)
        if rows is None or others & set(one.sequences):
            return []
        stops = done.setdefault(one.sequences, [])
        head = next((n for n, stop in enumerate(stops) if stop == rows.start), len(stops))
        stops += [0] * (head == len(stops))
        if stops[head] != rows.start:
            return []
        stops[head] = rows.stop
        parts.append((one, rows.start, head))
    count = len(next(iter(done.values())))
    is_whole = all(stops == [whole[0].num_queries] * count for stops in done.values())
    if not is_whole or (count > 1 and heads[0] > 1):
        return []
    of_layer = 0 if count == 1 else count
    return [
        replace(one, queries=None, joined=Joined(0, start, n > 0, head, of_layer))
        for n, (one, start, head) in enumerate(parts)
    ]


def _of_some_keys(whole: list[TokenMap]) -> list[TokenMap]:
    """Return the parts of a layer in which each query reads some keys, in one part alone.

    So it is with texts that are packed into a sequence, each of which reads itself, and with
    queries that read those before them.
    """
    parts: list[TokenMap] = []
    start = 0
    for n, one in enumerate(whole):
        rows = _rows(one)
        is_next = rows is not None and rows.start == start and one.sequences == whole[0].sequences
        if rows is None or one.is_cross or not is_next:
            return []
        parts.append(replace(one, joined=Joined(0, start, n > 0)))
        start = rows.stop
    return parts if start == whole[0].num_queries else []


def _rows(tokens: TokenMap) -> range | None:
    """Return which queries of its sequences a call has, if these come one after another."""
    if tokens.queries is None:
        return range(tokens.num_queries)
    start, size = int(tokens.queries[0, 0]), tokens.queries.shape[1]
    wanted = torch.arange(start, start + size, device="cpu").expand_as(tokens.queries)
    return range(start, start + size) if torch.equal(tokens.queries, wanted) else None
