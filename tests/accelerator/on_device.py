"""Problems of the engines, and models, on an accelerator."""

import copy
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest
import torch
from chosen import accelerator

sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))

from problems import NAMES, Found, Problem, call_of

from gattn.graph.token_graph import TokenGraph

if reason := accelerator.why_not():
    pytest.skip(reason, allow_module_level=True)
accelerator.install()


class OnDevice(Problem):
    """A problem whose tensors, graph and functions are on the device."""

    @classmethod
    def of(cls, problem):
        """Move a problem."""
        given = {field.name: getattr(problem, field.name) for field in fields(problem)}
        if isinstance(problem.graph, TokenGraph):
            given["graph"] = problem.graph.to(accelerator.NAME)
        return cls(**given)

    def tensors(self):
        moved = {name: x.detach().to(accelerator.NAME) for name, x in super().tensors().items()}
        return {name: x.requires_grad_(self.learns) for name, x in moved.items()}

    def functions(self):
        *drawn, numbers = super().functions()
        with torch.device(accelerator.NAME):  # for tensors that a lambda captures
            *moved, learned = super().functions()
        for one, other in zip(moved, drawn, strict=True):  # a GPU draws other numbers
            if isinstance(one, torch.nn.Module):
                one.load_state_dict(other.state_dict())
        with torch.no_grad():
            for one, other in zip(learned, numbers, strict=True):
                one.copy_(other)
        return *moved, learned

    def direction(self, output):
        return super().direction(accelerator.to_host(output.detach())).to(output.device)


def is_run_by(problem, engine):
    """Return whether an engine can run a problem."""
    return import_module(f"gattn.engines.{engine}").can_run(call_of(problem)) is None


def on_host(found):
    """Bring what was found back."""
    gradients = {name: accelerator.to_host(x.detach()) for name, x in found.gradients.items()}
    return Found(accelerator.to_host(found.output.detach()), gradients)


def on_device(model):
    """Copy a model to the device."""
    moved = copy.deepcopy(model).to(accelerator.NAME)
    if hasattr(moved, "tie_weights"):  # torch unties parameters that it moves to another kind
        moved.tie_weights()
    return moved


__all__ = ["NAMES", "OnDevice", "by_gattn", "is_run_by", "on_device", "on_host"]


def by_gattn(reads):
    """Take what gattn's own lines read."""
    return [read for read in reads if read.line.startswith("gattn/")]
