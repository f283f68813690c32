"""Judges models of transformers that return no attention, as those of other libraries."""

from __future__ import annotations

from torch import nn

from benchmarks import zoo
from benchmarks.coverage.libraries.case import Case
from benchmarks.coverage.libraries.checks import examine
from benchmarks.coverage.libraries.softmaxes import softmaxes
from benchmarks.coverage.libraries.verdict import Verdict
from benchmarks.zoo.table import NOT_TOKENS
from gattn.models.doors.attending import unseen


def examine_by_kernels(specimen: zoo.Specimen) -> Verdict:
    """Compare gattn with what PyTorch's softmax kernels compute in a model."""
    inputs = {name: value for name, value in specimen.inputs.items() if value is not None}
    case = Case(specimen.model_type, specimen.model, kwargs=inputs, not_tokens=NOT_TOKENS)
    return examine(case)


def attends_unseen(specimen: zoo.Specimen) -> list[str]:
    """Name the modules that attend by a softmax without asking transformers' interface how."""
    modules = {part: specimen.model.get_submodule(part) for part in unseen(specimen.model)}
    others = [name for name, one in modules.items() if not isinstance(one, nn.MultiheadAttention)]
    if not others:
        return []
    with softmaxes(specimen.model) as kernels:
        specimen.run()
    weighing = [f"{one.path}." for one in kernels.softmaxes if one.weighs or one.is_mixed]
    return [name for name in others if any(path.startswith(f"{name}.") for path in weighing)]
