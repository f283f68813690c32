"""Pictures have the size that users say, in one way, and otherwise fit a page."""

import functools

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from meeting import problems
from sample_heads import causal_head, small_trace
from scenes import cross_head, landscape, picture_trace
from seen import axes

import gattn
from gattn.errors import OptionError, SelectionError

HEAD = causal_head(8)
TEXT = "The river tall green lamp river tall green"


@functools.cache
def results():
    """Results of every kind that has a picture of its own."""
    trace = gattn.capture(TEXT)
    scores = gattn.analysis.head_distances(trace, progress=False)
    why = gattn.why(TEXT, layer=2, head=0, query=-1)
    return {
        "rollout": gattn.analysis.rollout(trace),
        "points": gattn.analysis.rollout(trace)[-1, -1],
        "spectra": gattn.analysis.graph_frequencies(trace, progress=False),
        "head table": gattn.analysis.head_table(trace),
        "table": trace.summary(),
        "map": gattn.analysis.head_map(scores),
        "clusters": gattn.analysis.head_clusters(scores, 2),
        "barcode": gattn.analysis.barcode(trace[0, 0]),
        "tree": gattn.analysis.arborescence(trace[0, 0]),
        "best edges": gattn.analysis.best_edges(trace, progress=False),
        "unrolled": trace.unroll(),
        "routes": gattn.analysis.routes(TEXT, progress=False),
        "estimate": gattn.estimate(TEXT, target=" lamp", other=" river"),
        "why": why,
        "token graph": gattn.TokenGraph.causal(4),
        "over texts": gattn.analysis.over_texts([gattn.analysis.head_table(trace)] * 2),
    }


DRAWS = {name: (lambda name=name, **k: results()[name].draw(**k)) for name in [
    "rollout", "points", "spectra", "head table", "table", "map", "clusters", "barcode", "tree",
    "best edges", "unrolled", "routes", "estimate", "why", "token graph", "over texts",
]} | {
    "why, paths": lambda **k: results()["why"].draw_paths(**k),
    "text": lambda **k: HEAD.draw_text(**k),
    "all texts": lambda **k: small_trace().draw_text(**k),
    "graph": lambda **k: HEAD.with_layout({n: (n % 3, n) for n in range(8)}).draw_graph(**k),
    "image": lambda **k: picture_trace()[1, 2].draw_image(landscape(), **k),
    "image of an array": lambda **k: gattn.analysis.rollout(picture_trace()).draw_image(
        landscape(), 0, **k
    ),
    "seconds": lambda **k: cross_head(5, 40).at_times(0.5).draw_time(**k),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_every_picture_has_its_size_told_in_one_way(name):
    figure = DRAWS[name](figsize=(3.4, 3.1)).figure
    figure.draw_without_rendering()
    assert figure.get_size_inches().tolist() == [3.4, 3.1]
    for size, message in ((3, "figsize is the width and height"), ((3, 3), "not both")):
        with pytest.raises(SelectionError, match=message):
            DRAWS[name](figsize=size, **{"ax": axes()} if size != 3 else {})
    assert len(plt.get_fignums()) == 1


def test_images_of_many_heads_have_the_size_told():
    figure = picture_trace().draw_image(landscape(), figsize=(6, 5))
    assert figure.get_size_inches().tolist() == [6, 5]
    with pytest.raises(SelectionError, match="figure= or figsize=, not both"):
        picture_trace().draw_image(landscape(), figsize=(6, 5), figure=plt.figure())


@pytest.mark.parametrize("name", ["rollout", "points", "head table", "map", "routes"])
def test_an_option_that_matplotlib_lacks_too_is_named_and_leaves_no_figure(name):
    with pytest.raises(OptionError, match=r"draw\(\) has no option fgsize=.*figsize"):
        results()[name].draw(fgsize=(3, 2), figsize=(3, 3))
    assert not plt.get_fignums()


@pytest.mark.parametrize("name", ["unrolled", "routes", "estimate", "best edges", "why, paths"])
def test_in_the_style_of_papers_a_picture_fits_two_columns(name):
    with gattn.style("paper"):
        wide, high = DRAWS[name]().figure.get_size_inches()
    assert wide <= 6.75
    assert high <= 9


@pytest.mark.parametrize("layout", ["arcs", "columns", "circle", "matrix"])
def test_in_the_style_of_papers_a_long_head_fits_a_page(layout):
    with gattn.style("paper"):
        wide, high = causal_head(80).draw(layout).figure.get_size_inches()
    assert wide <= 6.75
    assert high <= 9.5
    with mpl.rc_context({"figure.figsize": (6.4, 4.8)}):
        assert causal_head(80).draw("arcs").figure.get_size_inches()[0] > 10


def test_short_arcs_take_a_low_figure():
    near = gattn.AttentionGraph.from_dense(np.eye(14, k=-1) + np.eye(14) * np.eye(14)[0])
    far = gattn.AttentionGraph.from_dense(np.tril(np.ones((14, 14)) / np.arange(1, 15)[:, None]))
    low, high = (head.draw("arcs").figure for head in (near, far))
    assert low.get_size_inches()[0] == high.get_size_inches()[0]
    assert low.get_size_inches()[1] < 0.75 * high.get_size_inches()[1]
    assert not problems(low)
    (arcs, *_) = (one for one in low.axes[0].collections if len(one.get_paths()) == 13)
    ends = arcs.get_transform().transform(np.concatenate([p.vertices for p in arcs.get_paths()]))
    assert np.ptp(ends[:, 1]) > 0.15 * low.bbox.height
