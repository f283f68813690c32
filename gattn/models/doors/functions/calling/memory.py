"""Tells memory apart, also memory that takes the same place once it is free; lays numbers out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a tensor; unlike its address, no other memory is ever equal to it."""

    storage: StorageWeakRef

    @property
    def is_free(self) -> bool:
        """Return whether nothing holds it any more."""
        return bool(self.storage.expired())


def memory_of(x: Tensor) -> Memory | None:
    """Return the memory of a tensor; None if it has none of its own."""
    with torch._C.DisableTorchFunction():  # The model reads nothing here.
        if x.layout is not torch.strided or x.is_meta:
            return None
        try:
            storage = x.untyped_storage()
        except NotImplementedError:  # Function transforms wrap others' memory.
            return None
    return Memory(StorageWeakRef(storage)) if storage.data_ptr() else None


def living(memories: Iterable[Memory | None]) -> set[Memory]:
    """Return the memory that anything still holds."""
    return {one for one in memories if one is not None and not one.is_free}


def laid_as(x: Tensor, like: Tensor) -> Tensor:
    """Return numbers that lie in memory as others do, since code may take a `view` of them."""
    return x if x.stride() == like.stride() else torch.empty_like(like, dtype=x.dtype).copy_(x)


def version_of(tensor: Tensor) -> int:
    """Count the changes in place of a tensor, or of any that shares its memory."""
    return 0 if tensor.is_inference() else tensor._version


def share(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors lie in the same memory."""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
