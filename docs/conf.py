"""How the site is built: `sphinx-build -W --keep-going docs docs/_build/html`."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
os.environ["HF_HUB_OFFLINE"] = "1"  # the site is made of the embedded model alone
os.environ["OMP_NUM_THREADS"] = "1"  # its products are so small that threads only wait

import tutorial_notebooks  # noqa: E402
from sphinx.util.inspect import TypeAliasForwardRef  # noqa: E402

import gattn  # noqa: E402 - the variable above is read on import

project = "gattn"
copyright = "the authors of gattn"
version = release = gattn.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "concept_pictures",
    "gallery_parts",
    "mathml",
    "named_parts",
    "page_links",
    "shown",
]
exclude_patterns = ["_build", "gallery/*.ipynb", "gallery/*.py", "gallery/*.md5", "_templates"]
templates_path = ["_templates"]
default_role = "py:obj"
show_warning_types = True
suppress_warnings = ["config.cache"]  # sphinx-gallery's settings hold functions

# Pages are Markdown that reads well on GitHub, too.
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

# The API comes from the docstrings: a page for each public name.
autosummary_ignore_module_all = False
autodoc_typehints_format = "short"
autodoc_type_aliases = {
    "ArrayLike": "ArrayLike",
    "Attention": "Attention",
    "Floats": "ndarray",
    "HeadReduction": "str | int | ArrayLike",
    "Heads": "Attention | Sequence[AttentionGraph]",
    "Hidden": "Tensor | ndarray | Sequence[Tensor]",
    "Inputs": "str | Sequence[int] | Tensor | Mapping",
    "Ints": "ndarray",
    "Passages": "Attention | TokenGraph | Sequence[TokenGraph]",
    "Ranking": "Attention | DataFrame | Series | Routes",
    "Residual": "float | ArrayLike | DataArray | None",
}
autodoc_member_order = "bysource"
# torch-geometric writes these once a layer has run, as one has in a tutorial.
autodoc_default_options = {"exclude-members": "propagate, edge_updater"}
autodoc_preserve_defaults = True
maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"
python_use_unqualified_type_names = True
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

# In a union or a mapping an alias would be written as the object that stands for it.
TypeAliasForwardRef.__repr__ = lambda alias: alias.name

INVENTORIES = {
    "python": "https://docs.python.org/3/",
    "numpy": "https://numpy.org/doc/stable/",
    "scipy": "https://docs.scipy.org/doc/scipy/",
    "pandas": "https://pandas.pydata.org/docs/",
    "xarray": "https://docs.xarray.dev/en/stable/",
    "networkx": "https://networkx.org/documentation/stable/",
    "matplotlib": "https://matplotlib.org/stable/",
    "torch": "https://docs.pytorch.org/docs/stable/",
    "torch_geometric": "https://pytorch-geometric.readthedocs.io/en/stable/",
}
"""Sites with an inventory. transformers has none: its site is not made by Sphinx."""


def _inventory(name: str) -> tuple[str, str] | None:
    """Fetch a site's inventory once; None without network."""
    path = HERE / "_build" / "inventories" / f"{name}.inv"
    try:
        if not path.exists():
            with urlopen(INVENTORIES[name] + "objects.inv", timeout=10) as answer:
                found = answer.read()
            if not found.startswith(b"# Sphinx inventory version 2"):
                return None
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(found)
    except (OSError, HTTPException):
        return None
    return INVENTORIES[name], str(path)


# Without network names of other libraries are plain text, and that is no warning.
with ThreadPoolExecutor() as pool:
    _found = dict(zip(INVENTORIES, pool.map(_inventory, INVENTORIES), strict=True))
intersphinx_mapping = {name: place for name, place in _found.items() if place}

# Where the site and its sources are published; without these there are no links to them.
SITE = os.environ.get("GATTN_SITE", "").rstrip("/")
REPOSITORY = os.environ.get("GATTN_REPOSITORY", "")
PACKAGE = "gattn[survey,topology]" + f" @ git+{REPOSITORY}" * bool(REPOSITORY)

# The tutorials are the examples, run in the build.
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "within_subsection_order": "gallery_parts.ToldOrder",
    "image_scrapers": ("gallery_parts",),
    "first_notebook_cell": tutorial_notebooks.first_cell(PACKAGE),
    "capture_repr": (),
    "show_memory": False,
    "write_computation_times": False,
    "show_signature": False,
    "download_all_examples": False,
    "remove_config_comments": True,
    "plot_gallery": "True",
    "abort_on_example_error": True,
    "doc_module": ("gattn",),
    "backreferences_dir": "gallery/uses",
}

html_math_renderer = "mathml"
html_theme = "pydata_sphinx_theme"
html_title = "gattn"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "gattn"},
    "header_links_before_dropdown": 7,
    "navigation_with_keys": True,
    "show_toc_level": 2,
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
copybutton_exclude = ".linenos, .gp"
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
if REPOSITORY:
    html_theme_options["icon_links"] = [
        {"name": "Repository", "url": REPOSITORY, "icon": "fa-brands fa-github"}
    ]
if SITE:
    html_baseurl = f"{SITE}/{version}/"
    html_theme_options |= {
        "switcher": {"json_url": f"{SITE}/switcher.json", "version_match": version},
        "check_switcher": False,
        "navbar_end": ["version-switcher", "theme-switcher", "navbar-icon-links"],
    }
