"""Tells memory apart, also from memory that takes the same place once it is free."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


def memory_of(x: Tensor) -> StorageWeakRef | None:
    """Return what tells the memory of a tensor apart; None if it has none of its own.

    Unlike its address, no other memory is ever equal to it.
    """
    with torch._C.DisableTorchFunction():  # The model reads nothing here.
        if x.layout is not torch.strided or x.is_meta:
            return None
        try:
            storage = x.untyped_storage()
        except NotImplementedError:  # Function transforms wrap others' memory.
            return None
    return StorageWeakRef(storage) if storage.data_ptr() else None
