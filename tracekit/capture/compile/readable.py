"""What a person may want to read of a split graph: its code, and each piece with the modules it computes."""

from __future__ import annotations

import logging
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from torch import fx

    from tracekit.capture.compile.split import Part, Split

_LOG = logging.getLogger("tracekit.capture")
#: Dynamo's name of the model itself.
_ROOT = re.compile(r"L\['(?:self|\w+)'\]\.?|\bL__self___?")


def module_of(node: fx.Node) -> str | None:
    """Dotted path, below the model, of the innermost module that a node was traced in; None if none is known."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    path, _ = list(stack.values())[-1]
    return _ROOT.sub("", str(path), count=1)


def modules_of(part: Part) -> list[str]:
    """The innermost modules of a piece's nodes, in the order in which they run; the model itself is left out."""
    nodes = (node for node in part.graph.graph.nodes if node.op.startswith("call_"))
    paths = (module_of(node) for node in nodes)
    return list(dict.fromkeys(path for path in paths if path))


def listing(split: Split) -> list[str]:
    """One line a piece: name, whether it splits, number of operations, modules."""
    lines = []
    for part in split.parts:
        count = sum(node.op.startswith("call_") for node in part.graph.graph.nodes)
        kind = "splits" if part.splitting else "compiled"
        what = ", ".join(modules_of(part)) or "-"
        lines.append(f"{part.name}  {kind}  {count} operations  {what}")
    return lines


def source(split: Split) -> str:
    """The split graph and its pieces as Python to read, the list of pieces above."""
    comments = "".join(f"# {line}\n" for line in listing(split))
    code = split.graph.print_readable(print_output=False).replace("<lambda>", "GraphModule")
    return f"{comments}from __future__ import annotations\nimport torch\n{code}\n"


def write(split: Split, folder: Path, number: int) -> None:
    """Writes ``computation_graph.py``; later graphs of the same model get a number. A full disk is a warning."""
    name = f"computation_graph_{number}.py" if number else "computation_graph.py"
    aside = folder / f".{name}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        aside.write_text(source(split), "utf-8")
        aside.replace(folder / name)
    except OSError as error:
        _LOG.warning("%s: not written: %s", folder / name, error.strerror)
