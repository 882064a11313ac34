"""The server of the tools, on standard input and output, made with the official SDK of the protocol."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, TextContent, ToolAnnotations

from tracekit.errors import TracekitError
from tracekit.mcp.answers import Answer, as_text
from tracekit.mcp.folders import Folders
from tracekit.mcp.tools import Tools
from tracekit.version import __version__

_INSTRUCTIONS = (
    "tracekit finds which nn.Module a GPU's time went to. Call files, then parse or ask, of a report or dataset: "
    "tree first, then budget, launches and kernels. An answer that is not complete names the command that prints all."
)


def server(folders: Sequence[Path], scratch: Path) -> MCPServer:
    """A server that reads below some folders, and writes datasets into another."""
    tools = [_tool(tool) for tool in Tools(Folders(folders, scratch)).all]
    return MCPServer("tracekit", instructions=_INSTRUCTIONS, version=__version__, tools=tools)


def _tool(function: Callable[..., Answer]) -> Tool:
    """A tool that refuses arguments which it does not have; the SDK would ignore them."""
    tool = Tool.from_function(
        _answering(function), annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False)
    )
    arguments = tool.fn_metadata.arg_model
    arguments.model_config["extra"] = "forbid"
    arguments.model_rebuild(force=True)
    tool.parameters["additionalProperties"] = False
    return tool


def _answering(function: Callable[..., Answer]) -> Callable[..., CallToolResult]:
    """A function whose errors reach the agent, which the SDK hides, and whose text has no spaces, which it adds."""

    @functools.wraps(function)
    def called(*args: object, **options: object) -> CallToolResult:
        try:
            answer = function(*args, **options)
        except TracekitError as error:
            raise ToolError(str(error)) from None
        return CallToolResult(content=[TextContent(type="text", text=as_text(answer))], structured_content=answer)

    return called
