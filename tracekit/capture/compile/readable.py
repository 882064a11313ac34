"""Writes a split graph for people to read: its code, and the modules that each piece computes."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from tracekit.files import whole_file

if TYPE_CHECKING:
    from pathlib import Path

    from torch import fx

    from tracekit.capture.compile.split import Part, Split

_LOG = logging.getLogger("tracekit.capture")
#: Dynamo's name of the model itself.
_ROOT = re.compile(r"L\['(?:self|\w+)'\]\.?|\bL__self___?")


def module_of(node: fx.Node) -> str | None:
    """Path of the innermost module that a node was traced in, without the model's own name; None if unknown."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    path, _ = list(stack.values())[-1]
    return _ROOT.sub("", str(path), count=1)


def modules_of(part: Part) -> list[str]:
    """The innermost modules of a piece's nodes, in execution order, without the model itself."""
    nodes = (node for node in part.graph.graph.nodes if node.op.startswith("call_"))
    paths = (module_of(node) for node in nodes)
    return list(dict.fromkeys(path for path in paths if path))


def listing(split: Split) -> list[str]:
    """One line per piece: name, whether it splits, number of operations, modules."""
    lines = []
    for part in split.parts:
        count = sum(node.op.startswith("call_") for node in part.graph.graph.nodes)
        kind = "splits" if part.splitting else "compiled"
        modules = ", ".join(modules_of(part)) or "-"
        lines.append(f"{part.name}  {kind}  {count} operations  {modules}")
    return lines


def source(split: Split) -> str:
    """The split graph and its pieces as readable Python, below a list of the pieces."""
    comments = "".join(f"# {line}\n" for line in listing(split))
    code = split.graph.print_readable(print_output=False).replace("<lambda>", "GraphModule")
    return f"{comments}from __future__ import annotations\nimport torch\n{code}\n"


def write(split: Split, folder: Path, number: int) -> None:
    """Writes ``computation_graph.py``; later graphs of the same model get a number. Failing to write is a warning."""
    name = f"computation_graph_{number}.py" if number else "computation_graph.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(folder / name) as partial:
            partial.write_text(source(split), "utf-8")
    except OSError as error:
        _LOG.warning("%s: cannot be written: %s", folder / name, error.strerror)
