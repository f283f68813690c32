"""What is seen in pictures of circuits."""

from matplotlib.figure import Figure


def drawn(found, inches, **options):
    if inches is None:
        return found.draw(**options)
    return found.draw(ax=Figure(inches, layout="constrained").add_subplot(), **options)


def curves(ax):
    (lines,) = (c for c in ax.collections if c.get_gid() == "gattn-edges")
    return [path.vertices for path in lines.get_paths()]


def names(ax):
    return [text for text in ax.texts if text.get_gid() == "gattn-heads"]


def caption(ax):
    return next(t.get_text() for t in ax.texts if t.get_gid() == "gattn-caption").replace("\n", " ")
