"""What the notebooks say of themselves: their commands, and what their cells gave."""

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from tests.command import ROOT

#: As its file has it: a dict of JSON.
Cell = dict[str, Any]

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
_SHELL = re.compile(r"^```bash\n(.*?)^```", re.DOTALL | re.MULTILINE)


def cells(notebook: Path, kind: str) -> list[Cell]:
    found = json.loads(notebook.read_text("utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == kind]


def source(cell: Cell) -> str:
    return "".join(cell["source"])


def commands(text: str) -> list[str]:
    blocks = [block.strip().splitlines() for block in _SHELL.findall(text)]
    return list(chain.from_iterable(blocks))


def project(folder: Path) -> Path:
    shutil.copytree(ROOT / "data", folder / "data", ignore=shutil.ignore_patterns("*.tracekit"))
    (folder / "notebooks").mkdir()
    for style in (ROOT / "notebooks").glob("*.mplstyle"):
        shutil.copy(style, folder / "notebooks")
    return folder


def arguments(line: str, root: Path) -> list[str]:
    program, *words = shlex.split(line)
    assert program == "tracekit", line
    found: list[str] = []
    for word in words:
        if "*" in word:
            found += sorted(str(path.relative_to(root)) for path in root.glob(word))
        else:
            found.append(word)
    return found


def problems(ran: list[Cell], kept: list[Cell]) -> Iterator[str]:
    for number, (new, old) in enumerate(zip(ran, kept, strict=True)):
        for output in new.get("outputs", ()):
            if output.get("name") == "stderr":
                yield f"cell {number} warns: {''.join(output['text']).strip()}"
        if _numbers(new) != _numbers(old):
            yield f"cell {number} gives other numbers than the file has: run with --write"


def _numbers(cell: Cell) -> list[str]:
    shown = [output.get("data", {}) for output in cell.get("outputs", ())]
    told = ["".join(data.get("text/plain", ())) for data in shown if "image/png" not in data]
    return sorted(f"{float(number):.4g}" for number in re.findall(r"\d+(?:\.\d+)?", " ".join(told)))
