"""Runs every notebook from top to bottom: ``python -m tests.run_notebooks [--write]``.

Each in a fresh copy of the project's data, as *Run All* does in a fresh checkout. Fails if a cell fails or warns, or if
it gives other numbers than the outputs in the file; ``--write`` puts new ones there instead.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from matplotlib import font_manager
from nbclient import NotebookClient

from tests.command import environment
from tests.notebooks import NOTEBOOKS, problems, project

_TIMEOUT_S = 120


def run(path: Path, folder: Path) -> Any:
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=_TIMEOUT_S, record_timing=False, resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env=environment())
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def main() -> int:
    """Runs the notebooks."""
    write = "--write" in sys.argv
    font_manager.get_font_names()  # Else the first kernel would tell that it looks for fonts.
    failed = False
    for path in NOTEBOOKS:
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            ran = run(path, project(Path(folder) / "project") / "notebooks")
        if write:
            nbformat.write(ran, path)
        found = list(problems(ran.cells, nbformat.read(path, as_version=4).cells))
        failed |= bool(found)
        seconds = time.perf_counter() - begin
        sys.stdout.write(f"{path.name}: {len(ran.cells)} cells in {seconds:.1f} s\n")
        sys.stdout.writelines(f"  {problem}\n" for problem in found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
