"""Which of the sequences that a search ran is the one that it returned."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gattn.errors import CaptureError
from gattn.models.run.record.recorded import RecordedSequence


def sequence_returned(
    run: Sequence[RecordedSequence], ids: Tensor, prompt: int
) -> tuple[RecordedSequence, int, int]:
    """Find a sequence among those that a search ran; count its prompt's tokens and all that ran."""
    best, most, counts = None, -1, (0, 0)
    for one in run:
        if one.fed is not None:
            fed, real = one.fed
            size = min(len(fed), len(ids) - 1)
            same = int((fed[:size] == ids[:size]).long().cumprod(0).sum())
            if same > most:
                best, most = one, same
                counts = int(real[:prompt].sum()), int(real[:same].sum())
    if best is None or most < prompt or len(ids[most + 1 :].unique()) > 1:
        raise CaptureError(
            "The search returned a sequence that, by its token ids, it did not run: call generate "
            "with input_ids and a cache, or with num_beams=1 and no assistant."
        )
    return best, *counts
