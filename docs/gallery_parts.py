"""What sphinx-gallery is told of the examples: their order, and which pictures are theirs."""

import shutil
from pathlib import Path
from typing import Any

from sphinx_gallery.scrapers import figure_rst

ORDER = [
    "plot_dog_and_cat",
    "plot_pool_beats_badminton",
    "plot_song_ideas_step_by_step",
    "plot_scores_and_attention",
    "plot_token_graphs",
    "plot_five_weight_functions",
    "plot_learning_queries_and_keys",
    "plot_cutting_an_induction_head",
    "plot_comparing_weight_functions",
    "plot_grouped_query_heads",
    "plot_gaussian_attention",
    "plot_head_map",
    "plot_rollout",
    "plot_attention_flow",
    "plot_contributions",
    "plot_value_zeroing",
    "plot_information_flow_routes",
    "plot_pagerank",
    "plot_spectrum",
    "plot_topology",
    "plot_reach",
    "plot_syntax",
    "plot_faithfulness",
]
"""From the first call to the analyses, and to how far these are to be trusted."""


class ToldOrder:
    """Sorts examples as `ORDER` tells."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, name: str) -> int:
        return ORDER.index(Path(name).stem)


def _saved_pictures(block: object, variables: dict[str, Any], conf: dict[str, Any]) -> str:
    """Move the pictures that an example saved beside itself into the gallery."""
    folder, places = Path(variables["src_file"]).parent, []
    for export in folder.glob("*.graphml"):
        export.unlink()
    for picture in sorted(folder.glob("*.png"), key=_age):
        place = variables["image_path_iterator"].next()
        shutil.move(picture, place)
        places.append(place)
    return figure_rst(places, conf["src_dir"])


def _age(path: Path) -> int:
    return path.stat().st_mtime_ns


def _get_sg_image_scraper() -> Any:
    return _saved_pictures
