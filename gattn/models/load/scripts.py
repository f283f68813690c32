"""Parts of a model that torch.jit scripted or traced: which may be left as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gattn.errors import ModelError

_WHOLES = ("attention", "multi_head", "transformer_encoder")
_EXPONENTIALS = ("exp", "exp_", "exp2", "exp2_", "logsumexp")
_PRODUCTS = frozenset(("matmul", "mm", "bmm", "baddbmm", "addbmm", "einsum", "tensordot", "mv"))
_PRODUCTS |= {"dot", "sum", "cumsum"}
_ADDS = frozenset(("baddbmm", "addbmm"))
_TURNS = frozenset(("aten::t", "aten::transpose", "aten::numpy_T", "aten::mT", "aten::permute"))


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
    found = {node.kind() for node in _nodes(module)}
    names = {one.removeprefix("aten::").lstrip("_") for one in found}
    attends = any(word in one for word in _WHOLES for one in names)
    products = names & _PRODUCTS
    if not any(one.endswith("softmax") for one in names):  # Gates have exponentials, too.
        has_powers = not names.isdisjoint(_EXPONENTIALS)
        products = {one for one in products if has_powers and _is_of_tokens(one, module)}
    if attends or products:
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


def _is_of_tokens(product: str, module: nn.Module) -> bool:
    """Return whether some product of a kind multiplies nothing with a parameter."""
    first = int(product in _ADDS)
    every = [node for node in _nodes(module) if node.kind() == f"aten::{product}"]
    return not all(any(_is_parameter(x, module) for x in [*one.inputs()][first:]) for one in every)


def _is_parameter(value: Any, module: nn.Module) -> bool:
    """Return whether a value is a parameter, perhaps turned, or a number of the code."""
    path: list[str] = []
    node = value.node()
    while node.kind() in _TURNS:
        node = node.inputsAt(0).node()
    if node.kind() == "prim::Constant":
        return bool(node.output().type().kind() == "TensorType")
    while node.kind() == "prim::GetAttr":
        path.insert(0, node.s("name"))
        node = node.inputsAt(0).node()
    return ".".join(path) in dict(module.named_parameters())


def _nodes(module: nn.Module) -> Iterator[Any]:
    """List the operations of all that a scripted part can run."""
    code: Any = module
    for name in code._c._method_names():
        yield from _of_block(getattr(code, name).inlined_graph)


def _of_block(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _of_block(inner)
