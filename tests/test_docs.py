import re
import sys
from importlib import import_module
from inspect import ismodule
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

import gattn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import concept_pictures  # noqa: E402
import draw_pictures  # noqa: E402
import shown  # noqa: E402
import tutorial_notebooks  # noqa: E402
from tutorial_order import ORDER  # noqa: E402


def is_lamp(logits, names, low, high):
    (lamp,) = names["tokenizer"].encode(" lamp", add_special_tokens=False)
    return low < float(logits[0, -1].detach().softmax(-1)[lamp]) < high


CLAIMS = {
    "README.md": [
        lambda names: is_lamp(names["model"](**names["inputs"]).logits, names, 0.925, 0.935),
        lambda names: is_lamp(names["logits"], names, 0, 0.01),
        lambda names: not names["after"][2, 0].attention.any(),
        lambda names: names["after"].edits == (gattn.Cut(layer=2, head=[0, 1]),),
        lambda names: names["trace"].edits == () and names["trace"][2, 0].attention.any(),
    ],
    "docs/guide.md": [
        lambda names: 0.925 < float(names["plain"][names["lamp"]]) < 0.935,
        lambda names: float(names["cut"][names["lamp"]]) < 0.01,
        lambda names: (names["halved"][1, 0].to_dense()[1:].sum(1) < 0.9).any(),
        lambda names: (names["sparse"][2, 0].attention == 0).any(),
        lambda names: (names["factor"] != 0.1).all(),
        lambda names: len(names["run"].trace.tokens) == 12 + 5,
    ],
    "docs/analyses/why.md": [
        lambda names: round(names["found"].table().attrs["total"], 2) == 5.63,
        lambda names: round(float(names["found"].matrix().sel(key_part="1.1").sum()), 2) == 5.12,
        lambda names: names["found"].table()["share"].max() > 0.5,
        lambda names: (
            names["found"].table().loc[0, ["query_part", "key_part"]].tolist() == ["mlp 1", "1.1"]
        ),
        lambda names: (
            names["found"].without("key").round(2).iloc[0].tolist()
            == ["1.1", 0.24, 0.02, -0.22, -0.03]
        ),
        lambda names: (
            names["found"].among([12], [5, 9]).without("key").round(2).iloc[0].tolist()
            == ["1.1", 0.74, 0.04, -0.7, -0.48]
        ),
        lambda names: (
            names["measured"].without("key").set_index("part").round(3)["measured"]["1.1"] == -0.216
        ),
        lambda names: (
            names["measured"].without("key").set_index("part").round(3).loc["0.3"].tolist()[2:]
            == [-0.033, -0.034, -0.016]
        ),
        lambda names: (
            round(float(names["split"].matrix().sel(key_part="1.1 from 'green' (8)").sum()), 2)
            == 5.11
        ),
        lambda names: (
            round(names["sparse"].table()["score"].sum(), 2)
            == round(names["found"].table()["score"].sum(), 2)
        ),
    ],
    "docs/analyses/subspaces.md": [
        lambda names: names["found"].rank == len(names["found"].components) == 5,
        lambda names: names["found"].separation["auc"].round(2).tolist() == [0.94, 0.6, 0.91],
        lambda names: names["found"].separation["difference"].round(2).tolist() == [4.2, 0.49, 4.7],
        lambda names: names["why"].key == (7,) and names["why"].tokens[7].strip() == "dog",
    ],
}
"""What the texts say of the numbers that their code gives."""

SLOW = ("docs/analyses/subspaces.md",)
"""Pages of these that take more than a few seconds."""


def blocks(name):
    return list(shown.BLOCK.finditer((ROOT / name).read_text(encoding="utf-8")))


RUN = [
    "docs/index.md",
    "docs/start.md",
    "docs/analyses.md",
    "docs/drawing.md",
    *(
        f"docs/{folder}/{path.name}"
        for folder in ("analyses", "concepts", "coming_from", "drawing", "surveys")
        for path in sorted((ROOT / "docs" / folder).glob("*.md"))
    ),
]
"""Pages whose blocks run one after the other, by themselves."""

TEXTS = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/guide.md", "docs/design.md", *RUN]


def run(name, monkeypatch, folder):
    """Run a page's blocks in an empty folder, and give their variables."""
    monkeypatch.chdir(folder)
    plt.switch_backend("agg")
    names = {}
    for block in blocks(name):
        printed, _ = shown.run_block(block["code"], names)
        if Path(name).stem in shown.PAGES:
            assert printed == (block["text"] or "")
        plt.close("all")  # as notebooks do after each cell
    return names


def text_of(*pages):
    return "\n".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in pages)


def test_the_index_leads_to_every_page_and_names_every_analysis():
    index = text_of("analyses.md")
    for path in (ROOT / "docs/analyses").glob("*.md"):
        assert f"(analyses/{path.name})" in index, path.name
    for name in gattn.analysis.__all__:
        assert f"`{name}`" in index, name


@pytest.mark.parametrize("folder", ["concepts", "coming_from"])
def test_the_index_of_a_folder_leads_to_its_pages(folder):
    index = text_of(f"{folder}/index.md")
    pages = [path.name for path in (ROOT / "docs" / folder).glob("*.md")]
    assert len(pages) > 4
    assert [name for name in pages if name != "index.md" and f"({name})" not in index] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_every_block_of_code_of_a_page_runs(name, tmp_path, monkeypatch):
    run(name, monkeypatch, tmp_path)


@pytest.mark.parametrize("name", ["docs/analyses/routes.md"])
def test_the_routes_of_the_command_line_lead_to_what_the_figure_tells(name):
    texts = re.findall(r'gattn routes "(.+?)"', (ROOT / name).read_text(encoding="utf-8"))
    assert texts
    for text in texts:
        predicted = gattn.analysis.routes(text, progress=False).graph["predicted"]
        assert predicted.strip() == "lamp"


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x in SLOW else x for x in CLAIMS]
)
def test_every_block_of_code_runs_from_top_to_bottom(name, tmp_path, monkeypatch):
    assert len(blocks(name)) >= 2
    names = run(name, monkeypatch, tmp_path)
    held = CLAIMS[name]
    assert all(claim(names) for claim in held), [claim(names) for claim in held]


@pytest.mark.parametrize("name", TEXTS)
def test_every_link_leads_somewhere(name):
    path = ROOT / name
    made = {ROOT / "docs/gallery/index.rst"}
    made |= {ROOT / f"docs/concepts/pictures/{one}.svg" for one in concept_pictures.pictures()}
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        place = (path.parent / target).resolve()
        assert place in made or place.exists(), target


@pytest.mark.parametrize(
    "module",
    [
        "gattn",
        "gattn.analysis",
        "gattn.surveys",
        "gattn.drawing",
        "gattn.engines",
        "gattn.testing",
        "gattn.errors",
    ],
)
def test_the_api_has_a_page_for_every_public_name(module):
    pages = [page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs/api").glob("*.rst"))]
    lines = {
        line.strip()
        for page in pages
        if f".. currentmodule:: {module}\n" in page
        for line in page.splitlines()
        if line.startswith("   ")
    }
    package = import_module(module)
    public = getattr(package, "__all__", [name for name in vars(package) if name[0] != "_"])
    names = [name for name in public if not ismodule(getattr(package, name))]
    assert [name for name in names if name not in lines] == []


def test_concepts_show_every_picture_that_is_drawn_and_no_other():
    pages = text_of(*(f"concepts/{path.name}" for path in (ROOT / "docs/concepts").glob("*.md")))
    shown = re.findall(r"\(pictures/(\w+)\.svg\)", pages)
    assert sorted(shown) == sorted(concept_pictures.pictures())


def test_there_is_a_picture_for_every_token_graph_weight_function_and_normalizer():
    drawn = set(concept_pictures.pictures())
    constructors = [
        name
        for name, value in vars(gattn.TokenGraph).items()
        if isinstance(value, classmethod) and not name.startswith("_")
    ]
    bases = {"WeightFunction", "PositionWeight", "ModelScore", "Normalizer"}
    public = {name: getattr(gattn, name) for name in gattn.__all__ if name not in bases}
    classes = {name: value for name, value in public.items() if isinstance(value, type)}
    weights = [name for name, value in classes.items() if issubclass(value, gattn.WeightFunction)]
    normalizers = [name for name, value in classes.items() if issubclass(value, gattn.Normalizer)]
    assert (len(weights), len(normalizers)) == (19, 9)
    expected = {f"graph_{name}" for name in constructors}
    expected |= {f"weight_{name}" for name in weights}
    expected |= {f"normalizer_{name}" for name in normalizers}
    assert expected - drawn == set()


def test_every_example_has_its_place_among_the_tutorials():
    assert sorted(ORDER) == sorted(path.stem for path in (ROOT / "examples").glob("plot_*.py"))


def gallery_cards():
    page = draw_pictures.GALLERY.read_text(encoding="utf-8")
    cards = draw_pictures.CARD.findall(page)
    assert len(cards) == page.count(":img-top:") > 20
    return dict(cards)


def test_the_gallery_shows_every_picture_that_is_drawn_for_it():
    folder = draw_pictures.FOLDER
    drawn = {path.relative_to(folder).as_posix() for path in folder.glob("gallery/*.png")}
    assert drawn == set(gallery_cards())


def test_alt_texts_of_heads_in_the_gallery_are_true():
    alts = dict(
        re.findall(
            r":img-top: .*/(\w+)\.png\n:img-alt: (.*)",
            draw_pictures.GALLERY.read_text(encoding="utf-8"),
        )
    )
    text = "The river tall green lamp river tall green lamp river tall green"
    head = gattn.capture(text, scores=True)[2, 0]
    (image,) = head.draw("matrix", values="score").images
    is_around_zero = image.norm.vmin == -image.norm.vmax
    assert ("around zero" in alts["scores"]) == is_around_zero
    assert alts["arcs"].startswith("Thirteen tokens")
    assert len(head.labels()) == 13
    plt.close("all")


@pytest.mark.slow
def test_every_line_of_the_gallery_draws(tmp_path, monkeypatch):
    names = run("docs/drawing/gallery.md", monkeypatch, tmp_path)
    for code in gallery_cards().values():
        drawn = eval(code, names)
        assert getattr(drawn, "figure", drawn).axes, code
        plt.close("all")


# Notebooks of the tutorials


def notebook_cells(*sources):
    return {"cells": [{"cell_type": "code", "source": [source]} for source in sources]}


def test_a_notebook_shows_each_picture_that_its_example_saves():
    for path in (ROOT / "examples").glob("plot_*.py"):
        code = path.read_text(encoding="utf-8")
        notebook = notebook_cells("first", code)
        tutorial_notebooks.finish(notebook, path.stem, {})
        (source,) = notebook["cells"][1]["source"]
        assert source.startswith(code)
        assert source.count("display(Image(") == code.count(".savefig(") > 0, path.name


def test_a_notebook_says_what_its_pictures_show():
    saves = 'figure.savefig("two_heads.png", dpi=110)'
    for said, alt in {'a "head"\n': 'a \\"head\\"', "": "two heads"}.items():
        notebook = notebook_cells(saves)
        tutorial_notebooks.finish(notebook, "plot_x", {"two_heads.png": said})
        (source,) = notebook["cells"][0]["source"]
        assert source == f'{saves}\ndisplay(Image("two_heads.png", alt="{alt}"))'


def test_a_notebook_brings_along_what_its_example_reads_of_the_repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, path in tutorial_notebooks.FILES.items():
        assert Path(path).name in (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
        notebook = notebook_cells("pass")
        tutorial_notebooks.finish(notebook, name, {})
        exec(notebook["cells"][0]["source"][0], {})
        assert Path(path).read_bytes() == (ROOT / path).read_bytes()
