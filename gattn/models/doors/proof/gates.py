"""Proves that sums and products with a softmax weigh what each token has several of."""

from __future__ import annotations

from collections.abc import Collection

from gattn.models.doors.proof.candidates import Firsts, near
from gattn.models.doors.proof.no_tokens import keeps_tokens, weighs_own, weighs_parts
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.rerunning import Reruns


class Gates:
    """Proves it, once for calls that are alike.

    Parameters
    ----------
    firsts : Firsts
        The first of the calls that are alike.
    reruns : Reruns
        What runs the model's modules again.
    images : collection of tuple of int
        The shapes of what the model convolves.
    """

    def __init__(self, firsts: Firsts, reruns: Reruns, images: Collection[tuple[int, ...]]) -> None:
        self._firsts, self._reruns, self._images = firsts, reruns, images

    def keeps_tokens(self, site: Site) -> bool:
        """Prove that each value of a sum holds several tokens side by side, as branches do."""
        first = self._firsts(site, 0)
        runs = [first.chain[0], *near(first, 0, self._firsts.model)]
        return keeps_tokens(first, runs, self._reruns, self._images)

    def weighs_own(self, site: Site) -> bool:
        """Prove that each sum is made of one token alone of what the attending module is given."""
        first = self._firsts(site, 0)
        return weighs_own(first, self._reruns, self._images)

    def weighs_parts(self, site: Site, batch: int) -> bool:
        """Prove that each element weighs only what one token has several of, as after each layer.

        Tokens may be elements of a batch in the attending module, but not around it.
        """
        firsts = ((level, self._firsts(site, level)) for level in range(min(2, len(site.chain))))
        found = any(weighs_parts(one, n, self._reruns, self._images, batch) for n, one in firsts)
        if found:
            self._reruns.carry(site)
        return found
