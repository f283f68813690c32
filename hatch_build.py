"""Puts the npm package of the page's component into the wheel."""

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDER = "gattn/drawing/page/component/npm"


class ComponentHook(BuildHookInterface):
    """Writes the files of ``gattn-view``, as `gattn.drawing.write_component` does."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files, and add them to the wheel."""
        script = runpy.run_path(str(Path(self.root, "gattn/drawing/page/script.py")))
        self._written = tempfile.TemporaryDirectory()
        for name, text in script["component_files"](self.metadata.version).items():
            path = Path(self._written.name, name)
            path.write_text(text, encoding="utf-8", newline="\n")
            build_data["force_include"][str(path)] = f"{_FOLDER}/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete them here."""
        self._written.cleanup()
