"""Runs every notebook from top to bottom: ``python -m tests.run_notebooks``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

import tracekit

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Runs them in an empty folder that holds the dataset they read."""
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
    with tempfile.TemporaryDirectory() as folder:
        tracekit.parse(ROOT / "data" / "small_llama.sqlite", Path(folder) / "small_llama.tracekit")
        for path in notebooks:
            notebook = nbformat.read(path, as_version=4)
            NotebookClient(
                notebook, timeout=120, resources={"metadata": {"path": folder}}
            ).execute()
            sys.stdout.write(f"{path.name}: {len(notebook.cells)} cells ran\n")
    return 0 if notebooks else 1


if __name__ == "__main__":
    sys.exit(main())
