"""Where tokens lie: on the grid of a picture, in time, or at places of their own."""

from gattn.heads.geometry.base import Geometry
from gattn.heads.geometry.grid import Grid
from gattn.heads.geometry.layout import Layout
from gattn.heads.geometry.times import Times

__all__ = ["Geometry", "Grid", "Layout", "Times"]
