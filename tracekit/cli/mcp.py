"""``tracekit mcp``: a server of the Model Context Protocol that answers an agent's questions."""

import argparse
from pathlib import Path

NAME = "mcp"
HELP = "answer questions of agents (Model Context Protocol, on standard input and output)"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "folders",
        nargs="*",
        type=Path,
        default=[Path()],
        metavar="FOLDER",
        help="folders whose reports and datasets may be read, and nothing else (default: this one)",
    )


def run(args: argparse.Namespace) -> int:
    """Serves until standard input ends. Datasets of parsed reports are temporary."""
    from tracekit.errors import UsageError
    from tracekit.storage.local_copies import temp_dir

    try:
        from tracekit.mcp.server import server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise UsageError("needs the extra mcp; install it with: pip install 'nsight-tracekit[mcp]'") from None
    with temp_dir("tracekit-mcp-") as scratch:
        server(args.folders, scratch).run("stdio")
    return 0
