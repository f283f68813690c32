"""What a real JupyterLab shows: run, both themes, reload, trust; and what nbconvert makes of it."""

import base64
import io
import json
import os
import re
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from playwright.sync_api import expect

import gattn

sys.path.insert(0, str(Path(gattn.__file__).parents[1] / "docs"))

import tutorial_notebooks

pytestmark = pytest.mark.slow

ROOT = Path(gattn.__file__).parents[1]
CELLS = [
    "import gattn\ntext = 'The river tall green lamp river tall green lamp river tall green'\n"
    "trace = gattn.capture(text)",
    "trace",
    "trace[2, 1]",
    "trace[2, 1].graph",
    "trace.unroll(heads='1.1,2.1')",
    "gattn.analysis.routes(text, progress=False)",
    "gattn.circuit(text, target=' lamp', progress=False)",
    "gattn.analysis.rollout(trace)",
    "trace.summary()",
]
FRAMES, PICTURES = 2, len(CELLS) - 1
VIEW = {"viewport": {"width": 1400, "height": 1000}, "color_scheme": "null"}
"""Playwright forces any other color scheme onto frames, whatever contains them."""
QUIET = """
c.LabApp.news_url = None
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
"""
READY = """window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status == "idle"
&& window.jupyterapp.shell.currentWidget.context.isReady"""
STAYS = """() => {
    const cells = [...document.querySelectorAll(".jp-Cell")];
    const heights = cells.map((cell) => cell.offsetHeight).join();
    const before = window.heightsBefore;
    window.heightsBefore = heights;
    return before === heights;
}"""
"""Whether no cell has changed its height since the last call: editors, outputs come one by one."""
CORNER = """() => {
    const canvas = document.querySelector("#view canvas");
    return [...canvas.getContext("2d").getImageData(8, 8, 1, 1).data];
}"""
PREFERS_DARK = 'matchMedia("(prefers-color-scheme: dark)").matches'
EXECUTE = "([name, given]) => window.jupyterapp.commands.execute(name, given)"


def notebook_of(cells):
    cells = [
        {"cell_type": "code", "id": f"cell{n}", "source": source, "metadata": {}}
        | {"execution_count": None, "outputs": []}
        for n, source in enumerate(cells)
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    (folder / "cells.ipynb").write_text(json.dumps(notebook_of(CELLS)))
    return folder


@pytest.fixture(scope="module", autouse=True)
def installed():
    if find_spec("jupyterlab") is None or find_spec("nbconvert") is None:
        reason = "no JupyterLab: pip install -c constraints.txt -e '.[notebook]'"
        if os.environ.get("CI"):
            pytest.fail(f"{reason}; .ci/run needs it")
        pytest.skip(reason)


@pytest.fixture(scope="module")
def lab(folder, tmp_path_factory):
    """Start a JupyterLab that knows nothing of its user, and give its address."""
    home = tmp_path_factory.mktemp("home")
    (home / "jupyter_server_config.py").write_text(QUIET)
    settings = home / "settings" / "@jupyterlab" / "notebook-extension"
    settings.mkdir(parents=True)
    # Cells out of sight would not be in the document.
    (settings / "tracker.jupyterlab-settings").write_text('{"windowingMode": "none"}')
    places = {"CONFIG_DIR": "", "DATA_DIR": "data", "RUNTIME_DIR": "run"}
    own = {f"JUPYTER_{name}": str(home / place) for name, place in places.items()}
    own |= {"JUPYTERLAB_SETTINGS_DIR": str(home / "settings"), "IPYTHONDIR": str(home / "ipython")}
    own |= {"JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"), "HOME": str(home)}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    port = free_port()
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += ["--expose-app-in-browser", f"--ServerApp.port={port}", "--ServerApp.ip=127.0.0.1"]
    command += ["--IdentityProvider.token=lamp", f"--ServerApp.root_dir={folder}"]
    env = os.environ | own | {"PYTHONPATH": path}
    with (
        (home / "log").open("w") as log,
        subprocess.Popen(command, env=env, stdout=log, stderr=log) as server,
    ):
        try:
            wait_for(port, server, home / "log")
            yield f"http://127.0.0.1:{port}/lab/tree/{{}}?token=lamp&reset"
        finally:
            server.terminate()


def wait_for(port, server, log):
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert server.poll() is None, log.read_text()
        time.sleep(0.1)
    pytest.fail(log.read_text())


@pytest.fixture(scope="module")
def notebook(browser, lab, folder):
    """Run all cells, and save them."""
    page = browser.new_context(**VIEW).new_page()
    open_notebook(page, lab.format("cells.ipynb"))
    page.evaluate(EXECUTE, ["notebook:run-all-cells", {}])
    outputs = page.locator(".jp-OutputArea-output")
    expect(outputs).to_have_count(PICTURES, timeout=120_000)
    page.evaluate(EXECUTE, ["docmanager:save", {}])
    yield page
    page.context.close()


def open_notebook(page, address):
    page.goto(address)
    page.wait_for_function("window.jupyterapp?.restored", timeout=60_000)
    page.evaluate("window.jupyterapp.restored")
    cells = page.locator(".jp-NotebookPanel .jp-CodeCell")
    expect(cells).to_have_count(len(CELLS), timeout=60_000)
    page.locator(".jp-CodeCell").first.click()
    page.wait_for_function(READY, timeout=60_000)
    page.wait_for_function(STAYS, timeout=60_000, polling=1_000)


def frames_of(page):
    """The pages in a notebook, once they show a head."""
    elements = page.locator(".jp-OutputArea-output iframe")
    expect(elements).to_have_count(FRAMES)
    frames = [elements.nth(n).element_handle().content_frame() for n in range(FRAMES)]
    for frame in frames:
        expect(frame.locator("#caption")).not_to_be_empty()
    return frames


def lightness(picture):
    """The lightness of the corner of a picture, its background."""
    picture.scroll_into_view_if_needed()
    return plt.imread(io.BytesIO(picture.screenshot()))[8:12, 8:12, :3].mean()


def check_theme(page, theme):
    """Check that all is light, or dark, in the end: a browser paints when it has time."""
    page.wait_for_function(STAYS, timeout=60_000, polling=1_000)
    for frame in frames_of(page):
        frame.frame_element().scroll_into_view_if_needed()  # out of sight it would not change
        expect(frame.locator(f'html[data-theme="{theme}"]')).to_have_count(1, timeout=30_000)
        expect(frame.locator("#view")).not_to_have_attribute("aria-busy", "true")
        *colour, opacity = frame.evaluate(CORNER)
        assert opacity == 255
        assert (sum(colour) > 1.5 * 255) == (theme == "light")
    pictures = page.locator(".jp-OutputArea-output .gattn:not(:has(iframe)) > img")
    expect(pictures).to_have_count(PICTURES - FRAMES)
    for picture in pictures.all():
        picture.evaluate("image => image.decode()")
        for _ in range(30):
            if (lightness(picture) > 0.5) == (theme == "light"):
                break
            page.wait_for_timeout(200)
        assert (lightness(picture) > 0.5) == (theme == "light")


def prefers_dark(frame):
    frame.frame_element().scroll_into_view_if_needed()
    for _ in range(50):
        if frame.evaluate(PREFERS_DARK):
            return True
        frame.page.wait_for_timeout(200)
    return False


def open_in_dark(page, address):
    """Open a notebook in the dark theme, again where a frame missed the theme.

    Chromium may lose the color scheme of an element whose frame loads in that very moment.
    """
    for _ in range(3):
        open_notebook(page, address)
        expect(page.locator('body[data-jp-theme-light="false"]')).to_have_count(1, timeout=60_000)
        page.wait_for_function(STAYS, timeout=60_000, polling=1_000)
        if all(prefers_dark(frame) for frame in frames_of(page)):
            return
    pytest.fail("in three openings a frame did not know that the theme was dark")


def test_page_and_pictures_follow_the_theme_and_stay_when_the_notebook_is_opened_again(
    notebook, lab
):
    check_theme(notebook, "light")
    notebook.evaluate(EXECUTE, ["apputils:change-theme", {"theme": "JupyterLab Dark"}])
    expect(notebook.locator('body[data-jp-theme-light="false"]')).to_have_count(1)
    check_theme(notebook, "dark")
    open_in_dark(notebook, lab.format("cells.ipynb"))
    check_theme(notebook, "dark")
    notebook.evaluate(EXECUTE, ["apputils:change-theme", {"theme": "JupyterLab Light"}])
    expect(notebook.locator('body[data-jp-theme-light="true"]')).to_have_count(1)
    check_theme(notebook, "light")


def test_a_page_is_as_high_as_it_needs(notebook):
    for frame in frames_of(notebook):
        assert frame.evaluate(
            """document.documentElement.scrollHeight <= innerHeight &&
            document.querySelector("footer").getBoundingClientRect().bottom > 0.8 * innerHeight"""
        )


def test_nothing_is_written_in_red(notebook, folder):
    saved = json.loads((folder / "cells.ipynb").read_text())
    kinds = [output["output_type"] for cell in saved["cells"] for output in cell["outputs"]]
    assert kinds == ["execute_result"] * PICTURES


def test_a_notebook_of_someone_else_shows_pictures_until_it_is_trusted(
    notebook, browser, lab, folder
):
    theirs = json.loads((folder / "cells.ipynb").read_text())
    theirs["cells"][0]["source"] = "# theirs"
    (folder / "theirs.ipynb").write_text(json.dumps(theirs))
    page = browser.new_context(**VIEW).new_page()
    open_notebook(page, lab.format("theirs.ipynb"))
    pictures = page.locator(".jp-OutputArea-output img")
    expect(pictures).to_have_count(PICTURES)
    assert page.locator("iframe").count() == 0
    for picture in pictures.all():
        assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
    page.evaluate("window.jupyterapp.commands.execute('notebook:trust'); null")
    page.locator(".jp-Dialog button.jp-mod-accept").click()
    frames_of(page)
    page.context.close()


def test_nbconvert_keeps_the_page_and_has_pictures_for_paper(notebook, folder, dark_browser):
    from nbconvert import HTMLExporter, LatexExporter

    text, _ = HTMLExporter().from_filename(str(folder / "cells.ipynb"))
    (folder / "cells.html").write_text(
        re.sub('src="https?:', 'src="about:', text), encoding="utf-8"
    )
    page = dark_browser.new_page(color_scheme="null")
    page.goto((folder / "cells.html").as_uri())
    assert len(page.frames) == 1 + FRAMES
    for frame in page.frames[1:]:
        expect(frame.locator('html[data-theme="light"]')).to_have_count(1)
    page.close()
    _, resources = LatexExporter().from_filename(str(folder / "cells.ipynb"))
    pictures = [data for name, data in resources["outputs"].items() if name.endswith(".png")]
    assert len(pictures) == PICTURES - 1  # of a table, there are its numbers
    assert all(plt.imread(io.BytesIO(data)).std() > 0.01 for data in pictures)
    saved = json.loads((folder / "cells.ipynb").read_text())
    head = saved["cells"][2]["outputs"][0]["data"]
    assert base64.b64decode(head["image/png"]) in pictures


FIGURES = {
    "trace[2, 1].draw('arcs')": 1,
    "trace.draw()": 1,
    "figure = trace.draw()\nfigure": 1,
    "figure": 1,
    "trace[1, 1].draw()\ntrace[0, 0].draw('matrix');": 2,
    "with gattn.style('dark'):\n    trace[2, 1].draw()": 1,
    "import matplotlib.pyplot as plt\nplt.plot([1, 2]);": 1,
    "assert not plt.get_fignums()": 0,
}


@pytest.mark.parametrize("first", ["trace[2, 1].graph", "with gattn.style('talk'): pass"])
def test_a_cell_shows_each_of_its_figures_once(first, tmp_path, monkeypatch):
    import nbformat
    from nbconvert.preprocessors import ExecutePreprocessor

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made = notebook_of([CELLS[0], first, *FIGURES])
    notebook = nbformat.reads(json.dumps(made), as_version=4)
    ExecutePreprocessor(timeout=300).preprocess(notebook, {"metadata": {"path": str(tmp_path)}})
    shown = [
        sum("image/png" in output.get("data", {}) for output in cell.outputs)
        for cell in notebook.cells[2:]
    ]
    assert shown == list(FIGURES.values())


def test_a_tutorial_runs_as_a_notebook_and_shows_its_pictures(tmp_path, monkeypatch):
    import nbformat
    from nbconvert.preprocessors import ExecutePreprocessor

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    code = (ROOT / "examples" / "plot_dog_and_cat.py").read_text(encoding="utf-8")
    made = notebook_of([tutorial_notebooks.first_cell("gattn"), code])
    tutorial_notebooks.finish(made, "plot_dog_and_cat", {"all_heads.png": "All heads"})
    notebook = nbformat.reads(json.dumps(made), as_version=4)
    ExecutePreprocessor(timeout=300).preprocess(notebook, {"metadata": {"path": str(tmp_path)}})
    outputs = notebook.cells[1].outputs
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 3
    assert "All heads" in [picture["metadata"]["image/png"]["alt"] for picture in pictures]
    assert not [output for output in outputs if output.get("name") == "stderr"]
