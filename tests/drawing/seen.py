"""What a picture shows."""

from matplotlib.figure import Figure


def axes():
    return Figure().add_subplot()


def bars(ax):
    """The colour bars beside axes."""
    return [bar for bar in ax.child_axes if bar.get_gid() == "gattn-bar"]


def texts(ax, gid):
    return [text.get_text() for text in ax.texts if text.get_gid() == gid]


def caption(ax):
    return " ".join(texts(ax, "gattn-caption")[0].split())


def words(ax):
    """The title and all texts."""
    found = [ax.get_title(), *(text.get_text() for text in ax.texts)]
    return " ".join(found).replace("\n", " ")


def drawn_edges(ax):
    found = [c for c in ax.collections if c.get_gid() == "gattn-edges"]
    return sum(len(collection.get_paths()) for collection in found)
