"""What the terminal shows, as text."""

import io

from rich.console import Console


def printed(renderable: object, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(renderable, crop=False)
    return console.file.getvalue()
