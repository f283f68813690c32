"""Refuses a call whose elements are parts of one input, of which nothing was proved."""

from __future__ import annotations

from gattn.errors import CaptureError


class GroupsError(CaptureError):
    """Several elements of a call are parts of one input, whose tokens their number does not tell.

    Parameters
    ----------
    where : str
        Where the call is.
    count, inputs : int
        How many elements it has, and how many inputs the model was given.
    """

    def __init__(self, where: str, count: int, inputs: int) -> None:
        plural = "s" * (inputs != 1)
        super().__init__(
            f"{where} attends in {count} groups of tokens, such as windows, frames or pairs, of "
            f"{inputs} input{plural}: which tokens these are was not proved, since the model is "
            "training, or gattn made no small input that it takes. Call model.eval(); or capture "
            "and edit a module of your own whose forward calls the model, of which this is proved."
        )
