"""One memory under two names: tensors of the pretend accelerator as the CPU's, and back."""

import ctypes
from typing import Any

import torch
from torch.utils import _pytree as trees

NAME = "pretend"
_CPU, _PRIVATE = 1, 12  # kDLCPU and kDLExtDev in dlpack.h


def to_device(x: torch.Tensor) -> torch.Tensor:
    """Give the same memory as a tensor of the device, without a copy that would be noted."""
    if x.layout == torch.sparse_csr:
        parts = (to_device(part) for part in (x.crow_indices(), x.col_indices(), x.values()))
        return torch.sparse_csr_tensor(*parts, x.shape, check_invariants=False)
    return x if x.device.type != "cpu" else _relabelled(x, _PRIVATE)


def to_host(x: torch.Tensor) -> torch.Tensor:
    """Give the same memory as a tensor of the CPU, without a copy that would be noted."""
    return _relabelled(x, _CPU) if x.device.type == NAME else x


def all_to_host(x: Any) -> Any:
    """Bring all tensors of a tree, and devices that it names, to the CPU."""

    def one(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return to_host(x)
        return torch.device("cpu") if isinstance(x, torch.device) else x

    return trees.tree_map(one, x)


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("number", ctypes.c_int))


class _Tensor(ctypes.Structure):  # how a DLTensor begins
    _fields_ = (("data", ctypes.c_void_p), ("device", _Device))


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def _relabelled(x: torch.Tensor, kind: int) -> torch.Tensor:
    """Give the same memory under the name of another device: DLPack's header says which."""
    capsule = torch._C._to_dlpack(x.detach().resolve_conj().resolve_neg())
    header = ctypes.cast(_pointer(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    header.device.kind, header.device.number = kind, 0
    return torch._C._from_dlpack(capsule)
