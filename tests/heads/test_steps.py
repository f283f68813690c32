"""Steps by which a head came by its edges: fields in memory, text in files."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from torch import Tensor

from gattn import files
from gattn.errors import ShapeError
from gattn.heads import steps
from gattn.heads.head import AttentionGraph
from gattn.heads.steps import Merged, NoSelfLoops, OtherStep, Without
from gattn.keep import All, Keep, Threshold, TopK, TopMass

WRITTEN = {
    "All()": (All(),),
    "TopK(3), Threshold(0.1)": (TopK(3), Threshold(0.1)),
    "TopMass(0.9), no self-loops, merged": (TopMass(0.9), NoSelfLoops(), Merged()),
    "All(), without special tokens": (All(), Without("special")),
    "All(), without the first token, without 1 token, without 12 tokens": (
        *(All(), Without("first")),
        *(Without(1), Without(12)),
    ),
    "": (OtherStep(""),),
    "the ten best": (OtherStep("the ten best"),),
    "Mine(a=1, b=2), merged": (OtherStep("Mine(a=1, b=2)"), Merged()),
    "Threshold(-1.0)": (OtherStep("Threshold(-1.0)"),),
    "Threshold(nan)": (OtherStep("Threshold(nan)"),),
    "TopK(many)": (OtherStep("TopK(many)"),),
    "without old tokens": (OtherStep("without old tokens"),),
}


@pytest.mark.parametrize("text", WRITTEN)
def test_steps_are_written_as_text_and_read_back(text):
    assert steps.from_text(text) == WRITTEN[text]
    assert steps.to_text(WRITTEN[text]) == text


@pytest.mark.parametrize("wrong", ["TopK(2)", (), ("TopK(2)",), TopK(2), None])
def test_a_head_takes_steps_and_nothing_else(wrong):
    with pytest.raises(ShapeError, match="kept_by must be a tuple of keeps and steps"):
        AttentionGraph.from_dense(np.eye(2), kept_by=wrong)


@dataclass(frozen=True)
class Diagonal(Keep):
    """A keep of one's own."""

    width: int = 1

    def select(self, attention: Tensor, present: Tensor) -> Tensor:
        return present


@pytest.mark.parametrize("suffix", [".gattn", ".json", ".graphml"])
def test_files_keep_steps(suffix, tmp_path):
    head = AttentionGraph.from_dense(np.eye(3))
    for kept_by, expected in (
        ((TopK(2), NoSelfLoops()), (TopK(2), NoSelfLoops())),
        ((Diagonal(), Merged()), (OtherStep("Diagonal(width=1)"), Merged())),
    ):
        replace(head, kept_by=kept_by).save(path := tmp_path / f"head{suffix}")
        found = files.load(path)
        found = found if isinstance(found, AttentionGraph) else AttentionGraph.from_networkx(found)
        assert found.kept_by == expected
