"""Parts of a model that torch.jit scripted or traced: which may be left as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gattn.errors import ModelError

_WHOLES = ("attention", "multi_head", "transformer_encoder")
_EXPONENTIALS = ("softmax", "exp", "exp_", "exp2", "exp2_", "logsumexp")
_PRODUCTS = frozenset(("matmul", "mm", "bmm", "baddbmm", "addbmm", "einsum", "tensordot", "mv"))
_PRODUCTS |= {"dot", "sum", "cumsum"}


def is_script(module: nn.Module) -> bool:
    """Return whether a module is code that runs without Python, and takes no hooks."""
    return isinstance(module, torch.jit.ScriptModule)


def is_training(module: nn.Module) -> bool:
    """Return whether a module trains; parts that were frozen do not say, and do not."""
    return bool(getattr(module, "training", False))


def check_script(name: str, module: nn.Module) -> None:
    """Refuse a scripted part that may attend, or that keeps something from run to run.

    Raises
    ------
    ModelError
        With the reason.
    """
    found = set(_operations(module))
    names = {one.removeprefix("aten::").lstrip("_") for one in found}
    attends = any(word in one for word in _WHOLES for one in names)
    has_softmax = any(one.endswith(_EXPONENTIALS[0]) or one in _EXPONENTIALS for one in names)
    if attends or (has_softmax and names & _PRODUCTS):
        what = "may compute attention, which cannot be seen in it"
    elif "prim::SetAttr" in found:
        what = "changes its own attributes as it runs, which cannot be put back after a proof"
    elif "equal" in names:  # As torch.jit does itself with constants, as it runs.
        what = "compares tensors by torch.equal, and may do something else by other numbers"
    else:
        return
    raise ModelError(
        f"{name} in the model is a ScriptModule (torch.jit.script or torch.jit.trace), and {what}: "
        "put the module that it was made of in its place."
    )


def frozen_numbers(module: nn.Module) -> Iterator[Tensor]:
    """List the tensors that a scripted part holds in its code, as torch.jit.freeze puts them."""
    for node in _nodes(module):
        if node.kind() == "prim::Constant" and node.output().type().kind() == "TensorType":
            yield node.t("value")


def described_script(module: nn.Module) -> object:
    """Describe what a scripted part holds beside tensors, and what it is."""
    held: Any = module
    return id(held._c), held._c.dump_to_str(code=False, attrs=True, params=False)


def _operations(module: nn.Module) -> Iterator[str]:
    """List the operations of all that a scripted part can run."""
    return (node.kind() for node in _nodes(module))


def _nodes(module: nn.Module) -> Iterator[Any]:
    code: Any = module
    for name in code._c._method_names():
        yield from _of_block(getattr(code, name).inlined_graph)


def _of_block(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _of_block(inner)
