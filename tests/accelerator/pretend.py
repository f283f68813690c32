"""A pretend accelerator: tensors in main memory that torch believes to be on another device.

`install()` registers the device "pretend" with torch, for the whole process. Each operation on its
tensors runs on the CPU, after what a real device would do is checked or noted: an operation on
tensors of two devices is an error, and what makes the host wait for the device is listed in
`reads`, with the line of gattn that asked for it.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pretend_memory
import torch
from pretend_memory import NAME, all_to_host, to_device, to_host
from torch.utils import _pytree as trees

import gattn
from gattn.engines.tensors import moving

_OWN = {__file__, pretend_memory.__file__}
_GATTN = str(Path(gattn.__file__).parent)
_NO_FLASH = 0  # SDPBackend.MATH: the fused kernel is made of operations that this device has


class Read(NamedTuple):
    """What made the host wait for the device, and the innermost line of gattn that did."""

    what: str
    line: str

    def __str__(self) -> str:
        return f"{self.what} at {self.line}"


class MixedDevicesError(RuntimeError):
    """An operation on tensors of two devices."""


reads: list[Read] = []
uploads: list[Read] = []
"""Copies to the device for which the host does not wait; there should be few."""


def forget() -> None:
    """Empty both lists."""
    del reads[:], uploads[:]


def why_not() -> str | None:
    """Say why this torch cannot have the device; None if it can."""
    try:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
    except ImportError:
        return f"torch {torch.__version__} cannot register a device from Python"
    del _setup_privateuseone_for_python_backend
    return None


_LIBRARIES: list[torch.library.Library] = []  # torch forgets kernels whose library is gone


def install() -> None:
    """Register the device with torch; a second call does nothing."""
    if _LIBRARIES:
        return
    moving._COPY_FIRST.append(NAME)
    from torch.utils import backend_registration as registration

    class Module(registration._DummyBackendModule):
        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [torch.bfloat16, torch.float16]

        def get_rng_state(self, device: Any = None) -> torch.Tensor:  # the CPU draws for it
            return torch.get_rng_state()

        def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
            torch.set_rng_state(state)

    registration._setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(_run, "PrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    aten.impl("_fused_sdp_choice", lambda *_, **__: _NO_FLASH, "PrivateUse1")
    aten.impl("_copy_from", _copy, "PrivateUse1")
    aten.impl("resize_", _resize, "PrivateUse1")
    for name in ("empty_strided", "empty.memory_format"):  # within a mode torch finds no fallback
        aten.impl(name, partial(_run, _op(name)), "PrivateUse1")
    for name in ("as_strided", "set_.source_Storage", "set_.source_Storage_storage_offset"):
        aten.impl(name, _by_kernel_of(name, "CPU"), "PrivateUse1")
    for name in ("crow_indices", "col_indices", "values", "_nnz"):
        aten.impl(name, _by_kernel_of(name, "SparseCsrCPU"), "SparseCsrPrivateUse1")
    aten.impl("sparse_sampled_addmm.out", _sampled_addmm, "SparseCsrPrivateUse1")
    _LIBRARIES.extend((everything, aten))
    torch.Generator = Generator
    torch.UntypedStorage.clone = _cloned(torch.UntypedStorage.clone)  # for copies of models


def _run(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run an operation on the CPU."""
    given = [x for x in trees.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    _check_devices(op, args, given)
    _note(op, args, kwargs, given)
    outs = {a.name for a in op._schema.arguments if a.is_out}
    fresh = {name: torch.empty(0, dtype=kwargs[name].dtype) for name in outs}
    on_host = {name: all_to_host(x) for name, x in kwargs.items()} | fresh
    # The packet finds the form for a number that torch hands over where it wants a tensor.
    kernel = op if _has_tensors(op, args) else op.overloadpacket
    found = kernel(*(all_to_host(x) for x in args), **on_host)
    for name, result in fresh.items():
        _write(kwargs[name], result)
    return _returned(op, args, kwargs, found)


def _has_tensors(op: torch._ops.OpOverload, args: Any) -> bool:
    kinds = (str(argument.type) for argument in op._schema.arguments)
    return all(
        kind != "Tensor" or isinstance(x, torch.Tensor)
        for kind, x in zip(kinds, args, strict=False)
    )


def _returned(op: torch._ops.OpOverload, args: Any, kwargs: Any, found: Any) -> Any:
    """Bring results to the device; what was written in place is returned as it was given."""
    aliased = {}
    for place, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None:
            one = args[place] if place < len(args) else kwargs.get(argument.name)
            aliased[frozenset(argument.alias_info.before_set)] = one
    returns = op._schema.returns
    if len(returns) == 1:
        return _one(returns[0], found, aliased)
    return tuple(_one(kind, x, aliased) for kind, x in zip(returns, found, strict=True))


def _one(kind: Any, found: Any, given: dict[frozenset[str], Any]) -> Any:
    base = None if kind.alias_info is None else given[frozenset(kind.alias_info.before_set)]
    if kind.alias_info is not None and kind.alias_info.is_write:
        return base
    return trees.tree_map_only(torch.Tensor, lambda x: _view_of(base, x), found)


def _view_of(base: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    """Bring a tensor to the device: as a view of another, if it is one."""
    if base is None or base.dtype != x.dtype or not x.numel():
        return to_device(x)
    offset = (x.data_ptr() - base.data_ptr()) // x.itemsize + base.storage_offset()
    view = torch.ops.aten.as_strided.default
    return view.redispatch(_keys("CPU"), base.detach(), x.shape, x.stride(), offset)


def _check_devices(op: torch._ops.OpOverload, args: Any, given: list[torch.Tensor]) -> None:
    """Refuse tensors of two devices where other devices do.

    They take single numbers from the host in place of a number, and indices into their tensors.
    """
    name = op.overloadpacket.__name__
    takes_numbers = torch.Tag.pointwise in op.tags or name in _TAKE_A_NUMBER
    indices = args[1] if name in _INDEXED and args[0].device.type == NAME else ()
    others = [
        x
        for x in given
        if x.device.type != NAME
        and not (takes_numbers and x.dim() == 0)
        and not any(x is index for index in indices)
    ]
    if others:
        shapes = ", ".join(f"{tuple(x.shape)} on {x.device}" for x in given)
        raise MixedDevicesError(f"{op} got tensors of two devices, {shapes}, at {_line()}")


_TAKE_A_NUMBER = {"masked_fill", "masked_fill_", "fill_", "index_put_", "index_put", "where"}
_INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}
_WAITS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def _note(op: torch._ops.OpOverload, args: Any, kwargs: Any, given: list[torch.Tensor]) -> None:
    name = op.overloadpacket.__name__
    if name in _INDEXED:
        indices = [x for x in args[1] if x is not None]
        # One number put where booleans say is a `masked_fill`.
        is_filled = name != "index" and args[2].numel() == 1 and args[2].device.type != NAME
        if any(x.dtype == torch.bool and x.device.type == NAME for x in indices) and not is_filled:
            reads.append(Read(f"{name} by booleans", _line()))
        if any(x.device.type != NAME for x in indices):
            uploads.append(Read("indices", _line()))
    elif _WAITS & set(op.tags) and not _knows_size(name, kwargs):
        reads.append(Read(name, _line()))


def _knows_size(name: str, kwargs: Any) -> bool:
    return name == "repeat_interleave" and kwargs.get("output_size") is not None


def _line() -> str:
    """Name the innermost line of gattn, or else of what called torch."""
    frame, first = sys._getframe(1), None
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_GATTN):
            return f"{Path(name).relative_to(Path(_GATTN).parent)}:{frame.f_lineno}"
        if first is None and name not in _OWN and "/torch/" not in name:
            first = f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return first or "torch"


def _is_eager_flex() -> bool:
    """Say whether torch's eager flex attention, which no GPU runs, asks for this."""
    frame = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(_GATTN):
        if frame.f_code.co_filename.endswith("_higher_order_ops/flex_attention.py"):
            return True
        frame = frame.f_back
    return False


def _write(target: torch.Tensor, result: torch.Tensor) -> None:
    """Write a result into what was given as `out`, which takes its shape."""
    if target.shape == result.shape:
        to_host(target).copy_(result)
    else:
        target.data = to_device(result)


def _copy(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy between or within devices."""
    if target.device.type != NAME:
        reads.append(Read("a copy to the host", _line()))
    elif source.device.type != NAME:
        waits = not non_blocking and not _is_eager_flex()
        (reads if waits else uploads).append(Read("a copy to the device", _line()))
    to_host(target).copy_(to_host(source))
    return target


def _resize(x: torch.Tensor, size: list[int], *, memory_format: Any = None) -> torch.Tensor:
    if tuple(x.shape) != tuple(size):
        larger = torch.empty(size, dtype=x.dtype)
        count = min(larger.numel(), x.numel())
        larger.view(-1)[:count] = to_host(x).reshape(-1)[:count]
        x.data = to_device(larger)
    return x


def _by_kernel_of(name: str, key: str) -> Callable[..., Any]:
    """Let a kernel of the CPU handle tensors of the device: it does not look at their memory."""
    op = _op(name)
    return lambda *args, **kwargs: op.redispatch(_keys(key), *args, **kwargs)


def _op(name: str) -> torch._ops.OpOverload:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _keys(name: str) -> torch._C.DispatchKeySet:
    return torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))


def _sampled_addmm(
    matrix: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: torch.Tensor,
) -> torch.Tensor:
    """Multiply at the places of a sparse matrix, in its own memory."""
    _check_devices(torch.ops.aten.sparse_sampled_addmm.out, (), [matrix, left, right])
    assert out is matrix
    parts = (
        to_host(part) for part in (matrix.crow_indices(), matrix.col_indices(), matrix.values())
    )
    host = torch.sparse_csr_tensor(*parts, matrix.shape, check_invariants=False)
    ends = to_host(left), to_host(right)
    torch.sparse.sampled_addmm(host, *ends, beta=beta, alpha=alpha, out=host)
    return out


class _IsGenerator(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Generator)


_Generator = torch.Generator


class Generator(metaclass=_IsGenerator):
    """Draws numbers for the device on the CPU, as all kernels for it do."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return _Generator("cpu" if torch.device(device).type == NAME else device)


def _cloned(clone: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Copy storages of the device, too: torch would ask for its allocator."""

    def cloned(self: Any) -> Any:
        if self.device.type != NAME:
            return clone(self)
        memory = torch.empty(0, dtype=torch.uint8, device=NAME).set_(self)
        return to_device(to_host(memory).clone()).untyped_storage()

    return cloned
