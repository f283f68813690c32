"""Warnings of parts name the module first, what it does, and what gattn makes of that."""

import re
import warnings

import pytest
from torch import nn

from gattn.models.doors.proof.layouts.plan import Plan
from gattn.models.run.record import warnings_of_parts as told

MODEL = nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1))
PLAN = Plan(altered={("0", 0): "scaled", ("2", 0): "scaled"})
SAYS = {
    "missed": (lambda some: told.of_missed([told.named(MODEL, name) for name in some]), "nor does"),
    "channels": (lambda some: told.of_others(MODEL, some, told.CHANNELS), "and so does"),
    "parameters": (lambda some: told.of_others(MODEL, some, told.PARAMETERS), "and so does"),
    "uses": (lambda some: told.of_uses(MODEL, some), "and so does"),
    "untold": (lambda some: told.of_untold(MODEL, dict.fromkeys(some, "why")), "and so does"),
    "altered": (lambda some: told.of_altered(MODEL, [PLAN], some), "and so does"),
    "picks": (lambda some: told.of_picks(MODEL, some), "and so does"),
    "nodes": (lambda some: told.of_nodes(MODEL, dict.fromkeys(some, "")), "and so does"),
}


def said(function, names):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        function(names)
    (one,) = found
    return str(one.message)


@pytest.mark.parametrize("kind", SAYS)
def test_a_warning_names_the_module_and_what_follows(kind):
    function, more = SAYS[kind]
    one, both = said(function, ["0"]), said(function, ["0", "2"])
    assert re.match(r"0 \(Linear\) (does|attends|multiplies|sums|picks) [^:]*: [a-z].*\w\.$", one)
    assert both == one.replace(": ", f", {more} 1 more module: ", 1)


def test_the_model_itself_begins_a_sentence():
    assert said(SAYS["nodes"][0], [""]).startswith("The model itself (Sequential) attends over ")


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("missed", "What is seen are torch's attention functions"),
        ("picks", "capture these modules by themselves"),
        ("nodes", "capture this module by itself"),
    ],
)
def test_a_warning_says_what_to_do(kind, advice):
    assert advice in said(SAYS[kind][0], ["0"])
    with pytest.warns(UserWarning, match="Edit 'b' as well"):
        told.of_apart(MODEL, "0", "b", "a")
