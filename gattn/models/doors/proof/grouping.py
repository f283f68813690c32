"""Tells whether a model of transformers attends in groups of an image's tokens, as in windows."""

from __future__ import annotations

from threading import RLock
from weakref import WeakKeyDictionary

import torch
from torch import nn

from gattn.errors import GattnError
from gattn.models.doors.attaching import attached
from gattn.models.doors.proof.copying.copies import copied
from gattn.models.doors.proof.copying.random_numbers import random_numbers_kept
from gattn.models.doors.proof.copying.small_inputs import small_input
from gattn.models.doors.proof.probing.alike import state_of
from gattn.models.doors.proof.probing.failing import is_out_of_memory
from gattn.models.read.track.groups import GroupsError
from gattn.models.watch.contexts import Context, without_contexts
from gattn.models.watch.inside import outside

_PICTURES = (1, 2)
"""How many pictures models compare at once, or see one after another."""

_lock = RLock()
_known: WeakKeyDictionary[nn.Module, tuple[object, bool]] = WeakKeyDictionary()


def attends_in_groups(model: nn.Module) -> bool:
    """Return whether a routed model attends several times to one of its inputs, side by side.

    A copy of it runs once, on a small input. Where none can be made, nothing is known.
    """
    with _lock:
        state = state_of(model)
        known = _known.get(model)
        if known is None or known[0] != state:
            found = any(_attends_so(model, pictures) for pictures in _PICTURES)
            known = _known[model] = state, found
        return known[1]


def _attends_so(model: nn.Module, pictures: int) -> bool:
    given = small_input(model, pictures)
    if given is None:
        return False
    with without_contexts(), outside(), random_numbers_kept(model), torch.no_grad():
        twin = copied(model)
        try:
            twin(**given)
        except Exception as error:  # Models fail on small inputs in many ways.
            if is_out_of_memory(error):
                raise
            return False
        with attached(twin, Context(), is_any=False):
            try:
                twin(**given)
            except GroupsError:
                return True
            except GattnError:
                return False  # The user's own call is refused for this, with the reason.
    return False
