"""Reads waveforms, and draws them above a picture in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor

from gattn.checks import finite_number, refuse_hidden
from gattn.errors import ContractError, ShapeError

_BINS = 800
_BAND = 0.82, 0.98
"""Where a waveform stands, in shares of the height of axes."""
ROOM = 0.78
"""The share of the height that is left below it."""


@dataclass(frozen=True)
class Sound:
    """A waveform.

    Parameters
    ----------
    samples : array (samples,)
        Its samples.
    rate : float
        How many there are per second.
    """

    samples: NDArray[np.float64]
    rate: float

    @property
    def seconds(self) -> float:
        """How long it is."""
        return len(self.samples) / self.rate

    def draw(self, ax: Axes) -> None:
        """Draw what lies between its lowest and highest samples in a band above all else."""
        bins = min(_BINS, len(self.samples))
        edges = np.linspace(0, len(self.samples), bins + 1).astype(int)[:-1]
        low, high = (
            np.minimum.reduceat(self.samples, edges),
            np.maximum.reduceat(self.samples, edges),
        )
        top = float(np.abs(self.samples).max()) or 1.0
        middle, half = (_BAND[0] + _BAND[1]) / 2, (_BAND[1] - _BAND[0]) / 2
        ax.fill_between(
            (edges + 0.5) / self.rate,
            middle + half * low / top,
            middle + half * high / top,
            transform=ax.get_xaxis_transform(),
            color=mpl.rcParams["text.color"],
            alpha=0.45,
            linewidth=0.4,
            gid="gattn-waveform",
        )


def read_sound(waveform: Any, rate: Any) -> Sound | None:
    """Read a waveform of one channel, or None if there is none.

    Raises
    ------
    ShapeError
        If it has several channels or no samples, a sample is not finite, or `rate` is missing.
    """
    if waveform is None:
        if rate is not None:
            raise ShapeError(f"rate={rate!r:.40} is of a waveform: pass waveform=, too.")
        return None
    refuse_hidden("waveform", waveform, ShapeError)
    if isinstance(waveform, Tensor):
        waveform = waveform.detach().cpu().double().numpy()
    try:
        samples = np.asarray(waveform, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ShapeError(
            f"waveform must hold samples, as an array of numbers, not {waveform!r:.60}."
        ) from error
    if samples.ndim == 2 and 1 in samples.shape:
        samples = samples.ravel()
    if samples.ndim != 1 or not len(samples):
        raise ShapeError(
            f"waveform must be (samples,), one channel, not {samples.shape}: take one channel, or "
            "their mean."
        )
    if not np.isfinite(samples).all():
        raise ShapeError(
            f"waveform has {(~np.isfinite(samples)).sum()} samples that are not finite."
        )
    try:
        found = float(finite_number("rate", rate))
    except ContractError as error:
        raise ShapeError(f"{error} It is the samples per second, such as rate=16000.") from error
    if found <= 0:
        raise ShapeError(f"rate must be above 0, the samples per second, not {rate!r}.")
    return Sound(samples, found)
