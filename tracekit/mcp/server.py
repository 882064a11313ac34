"""The server of the tools, on standard input and output, made with the official SDK of the protocol."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp.types import PARSE_ERROR, CallToolResult, ErrorData, JSONRPCError, TextContent, ToolAnnotations
from pydantic import ValidationError
from typing_extensions import override

from tracekit.errors import TracekitError, plain
from tracekit.mcp.bounds import Answer, Folders, as_text, refused
from tracekit.mcp.tools import Tools
from tracekit.version import __version__
from tracekit.views.formatting import shortened

_INSTRUCTIONS = (
    "tracekit finds which nn.Module a GPU's time went to. Call files, then parse or ask, of a report or dataset: "
    "tree first, then budget, launches and kernels. An answer that is not complete names the command that prints all."
)
#: The most characters of an error, and of a tool's name in one.
_MOST_CHARACTERS, _LONGEST_NAME = 1_000, 64
_NO_MESSAGE = JSONRPCError(
    jsonrpc="2.0",
    id=None,
    error=ErrorData(code=PARSE_ERROR, message="a line is no message: expected JSON of the Model Context Protocol"),
)


def server(folders: Sequence[Path], scratch: Path) -> MCPServer:
    """A server that reads below some folders, and writes datasets into another."""
    tools = [_tool(tool) for tool in Tools(Folders(folders, scratch)).all]
    return _Server("tracekit", instructions=_INSTRUCTIONS, version=__version__, log_level="ERROR", tools=tools)


class _Server(MCPServer):
    """A server that refuses what no tool can mean, and whose errors are as bounded as its answers."""

    @override
    async def run_stdio_async(self) -> None:
        """Also answers lines that are no messages, which the SDK drops: a client would wait for ever."""
        forward, messages = anyio.create_memory_object_stream[SessionMessage | Exception]()
        async with stdio_server() as (received, sent), anyio.create_task_group() as tasks:

            async def forwarded() -> None:
                async with forward:
                    async for item in received:
                        is_message = not isinstance(item, Exception)
                        await (forward.send(item) if is_message else sent.send(SessionMessage(_NO_MESSAGE)))

            tasks.start_soon(forwarded)
            await self._lowlevel_server.run(messages, sent, self._lowlevel_server.create_initialization_options())

    @override
    async def call_tool(self, name: str, arguments: dict[str, Any], *more: Any, **options: Any) -> Any:
        try:
            if why := refused([name, arguments]):
                raise ToolError(f"{shortened(name, _LONGEST_NAME)} is refused: {why}")
            return await super().call_tool(name, arguments, *more, **options)
        except UnexpectedToolError:
            raise
        except ToolError as error:
            text = str(error)
            if isinstance(cause := error.__cause__, ValidationError):
                flaws = [
                    f"{'.'.join(map(str, flaw['loc']))}: {flaw['msg']}" for flaw in cause.errors(include_url=False)
                ]
                text = f"Error executing tool {name}: {'; '.join(flaws)}"
            raise ToolError(plain(shortened(text, _MOST_CHARACTERS), keep="\n")) from None


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
