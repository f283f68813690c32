"""Groups of heads that attend alike, and a map of all heads, from their distances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from gattn.analysis.reading.results import Table
from gattn.checks import whole
from gattn.errors import SelectionError


class HeadClusters(Table):
    """What `head_clusters` gives: a `Table` whose picture is the tree of the heads."""


def head_clusters(distances: xr.DataArray, count: int) -> HeadClusters:
    """Group heads that attend alike, by the mean distance between groups (average linkage).

    Parameters
    ----------
    distances : Array
        What `head_distances` gives for one set of heads.
    count : int
        How many groups.

    Returns
    -------
    Table
        By ``layer`` and ``head``: ``cluster``, numbered in order of appearance, and ``distance``,
        the mean distance to the other heads of the cluster, NaN if there are none. The head with
        the smallest stands for its cluster best.

    Raises
    ------
    SelectionError
        If `distances` are not between the same heads, or `count` is not a number of groups.
    """
    from scipy.cluster.hierarchy import average, fcluster
    from scipy.spatial.distance import squareform

    values = _square(distances)
    count = whole("count", count, 1, SelectionError, most=len(values))
    tree = average(squareform(values, checks=False)) if len(values) > 1 else np.zeros((0, 4))
    found = fcluster(tree, count, "maxclust") if len(values) > 1 else np.ones(1, int)
    cluster = pd.factorize(found)[0]
    alike = cluster[:, None] == cluster
    others = alike.sum(1) - 1
    mean = np.divide(
        (values * alike).sum(1), others, out=np.full(len(values), np.nan), where=others > 0
    )
    return HeadClusters.of(
        _places(distances) | {"cluster": cluster, "distance": mean},
        name="head clusters",
        **_told(distances),
        tree=tree.tolist(),
        index=["layer", "head"],
    )


class HeadMap(Table):
    """What `head_map` gives: a `Table` whose picture is the map."""


def head_map(distances: xr.DataArray) -> HeadMap:
    r"""Place heads in the plane, so that near ones attend alike: classical scaling.

    With D the distances and :math:`J = I - 1/n`, the coordinates are the two largest eigenvectors
    of :math:`-\tfrac12 J D^2 J`, each times the root of its eigenvalue.

    Parameters
    ----------
    distances : Array
        What `head_distances` gives for one set of heads.

    Returns
    -------
    Table
        By ``layer`` and ``head``: ``x`` and ``y``. The notes say how much of the heads' spread two
        axes show.

    Raises
    ------
    SelectionError
        If `distances` are not between the same heads.

    References
    ----------
    Torgerson (1952), Multidimensional scaling; Clark et al. (2019), What does BERT look at?, maps
    heads by it.
    """
    squares = _square(distances) ** 2
    centred = squares - squares.mean(0) - squares.mean(1, keepdims=True) + squares.mean()
    sizes, vectors = np.linalg.eigh(-centred / 2)
    sizes = np.pad(sizes[::-1].clip(0), (0, 1))
    vectors = np.pad(vectors[:, ::-1], ((0, 0), (0, 1)))
    places = vectors[:, :2] * np.sqrt(sizes[:2])
    largest = np.abs(places).argmax(0)
    places = places * np.where(places[largest, [0, 1]] < 0, -1, 1)  # eigenvectors have no sign
    share = sizes[:2].sum() / whole if (whole := sizes.sum()) else 1.0
    said = _told(distances)
    return HeadMap.of(
        _places(distances) | {"x": places[:, 0], "y": places[:, 1]},
        name="head map",
        **said
        | {"notes": [f"two axes show {share * 100:.0f} % of the heads' spread", *said["notes"]]},
        index=["layer", "head"],
    )


def _square(distances: xr.DataArray) -> NDArray[np.float64]:
    if not isinstance(distances, xr.DataArray):
        raise SelectionError(
            "Clusters and maps take the distances between heads, head_distances(trace), not "
            f"{type(distances).__name__}."
        )
    is_placed = distances.dims == ("head", "other") and {"layer", "number"} <= {*distances.coords}
    if not is_placed or not np.array_equal(distances["head"], distances["other"]):
        raise SelectionError(
            "Clusters and maps take the distances between heads of one set, as in "
            f"head_distances(trace), not axes {distances.dims} of {distances.shape}."
        )
    return np.asarray(distances.to_numpy(), dtype=np.float64)


def _places(distances: xr.DataArray) -> dict[str, Any]:
    return {"layer": distances["layer"].to_numpy(), "head": distances["number"].to_numpy()}


def _told(distances: xr.DataArray) -> dict[str, Any]:
    names = ("computed_from", "notes", "edits")
    return {"computed_from": "", "notes": []} | {
        name: distances.attrs[name] for name in names if name in distances.attrs
    }
