"""The server of the tools, on standard input and output, made with the official SDK of the protocol."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from tracekit.errors import TracekitError
from tracekit.mcp.answers import Answer
from tracekit.mcp.folders import Folders
from tracekit.mcp.tools import Tools
from tracekit.version import __version__

_INSTRUCTIONS = (
    "tracekit finds which nn.Module a GPU's time went to. Call files, then parse (of a report) or ask (of a dataset): "
    "tree first, then budget, launches and kernels. An answer that is not complete names the command that prints all."
)


def server(folders: Sequence[Path], scratch: Path) -> MCPServer:
    """A server that reads below some folders, and writes datasets into another."""
    made = MCPServer("tracekit", instructions=_INSTRUCTIONS, version=__version__)
    hints = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    for tool in Tools(Folders(folders, scratch)).all:
        made.add_tool(_refusing(tool), annotations=hints)
    return made


def _refusing(tool: Callable[..., Answer]) -> Callable[..., Answer]:
    """A tool whose errors reach the agent: the SDK hides those that are not its own."""

    @functools.wraps(tool)
    def called(*args: object, **options: object) -> Answer:
        try:
            return tool(*args, **options)
        except TracekitError as error:
            raise ToolError(str(error)) from None

    return called
