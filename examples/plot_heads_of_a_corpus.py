"""Heads of a corpus
=================

One text is an anecdote: take a hundred to see what each head does, and how sure that is.

The texts are docstrings of Python's own library. A survey runs the embedded model over them and
writes every head's graph and scores to a folder of Parquet files that you can query with SQL. Two
heads of layer 2 and two of layer 3 read what followed an earlier occurrence of a token (induction).
They can only know what followed because a head of layer 1 reads the previous token and passes it
on: in a second survey of the same texts, with that head cut, they lose most of their induction
score, while heads before it do not change at all. Docstrings of one module are alike, so the
intervals are somewhat too narrow for Python's library as a whole.
"""

import json
import logging
import pathlib
import textwrap
from inspect import getdoc, getmembers, isclass, isfunction
from tempfile import mkdtemp

import matplotlib.pyplot as plt

import gattn

MODULES = [json, logging, pathlib, textwrap]


def docstrings():
    """Yield the docstrings of modules, and of their classes, functions and methods."""
    for module in MODULES:
        things = [module, *(thing for _, thing in getmembers(module, isclass))]
        for thing in things:
            for part in [thing, *(function for _, function in getmembers(thing, isfunction))]:
                text = getdoc(part) if part.__doc__ else ""
                if text and len(text) >= 150:
                    yield {"text": text[:300], "module": module.__name__, "name": part.__name__}


rows = list({row["text"]: row for row in docstrings()}.values())

# %%
# One line runs the model and writes the folder. If it is interrupted, run it again to resume.

folder = pathlib.Path(mkdtemp())
survey = gattn.survey(rows, keep=gattn.TopK(8), out=folder / "plain", progress=False)
print(survey)
print(
    survey.sql("""
        select layer, head, avg(induction) as induction, max(induction) as most,
               avg(previous_token) as previous_token
        from heads group by all order by induction desc limit 4
    """)
)

# %%
# The head of layer 1 that reads the previous token is found the same way, and cut in a second
# survey.

previous = survey.statistics("previous_token").loc["decoder"]["mean"].loc[[1]].idxmax()
cut = gattn.Cut(layer=previous[0], head=previous[1])
without = gattn.survey(rows, keep=gattn.TopK(8), edits=[cut], out=folder / "cut", progress=False)

induction = survey.statistics("induction")
change = survey.compare(without, "induction")
print(change.sort_values("difference").head(4).to_string())

# %%
# On the left, each head's mean with its interval; on the right, what the cut changes. Tests are
# paired by text and corrected for the number of heads.

figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5), layout="constrained")
induction.draw(ax=left)
change.draw("ranked", ax=right)
figure.savefig("heads_of_a_corpus.png", dpi=110)
plt.close("all")
