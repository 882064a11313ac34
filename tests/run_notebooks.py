"""Runs every notebook from top to bottom: ``python -m tests.run_notebooks [--write]``.

In a copy of the project's data, after the commands that their first cells name. Fails if a cell fails or warns, or if
it gives other numbers than the outputs in the file; ``--write`` puts new ones there instead.
"""

import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat
from matplotlib import font_manager
from nbclient import NotebookClient

from tests.command import environment, separately
from tests.notebooks import NOTEBOOKS, arguments, first_commands, problems, project

_TIMEOUT_S = 120


def make_datasets(notebooks: Iterable[Path], root: Path) -> None:
    lines = dict.fromkeys(line for notebook in notebooks for line in first_commands(notebook))
    for line in lines:
        done = separately(*arguments(line, root), cwd=root)
        if done.code:
            raise SystemExit(f"{line}: exit code {done.code}\n{done.err}")


def run(path: Path, folder: Path) -> Any:
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=_TIMEOUT_S, record_timing=False, resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env=environment())
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def main() -> int:
    """Makes the datasets and runs the notebooks."""
    write = "--write" in sys.argv
    font_manager.get_font_names()  # Else the first kernel would tell that it looks for fonts.
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        root = project(Path(folder) / "project")
        make_datasets(NOTEBOOKS, root)
        for path in NOTEBOOKS:
            begin = time.perf_counter()
            ran = run(path, root / "notebooks")
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
