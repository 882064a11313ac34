"""What the processes of a command are asked to record, handed on through the environment."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.capture.program import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

#: Environment variable with the request; ``startup/sitecustomize.py`` spells it too.
VARIABLE = "TRACEKIT_RECORDING"
_STARTUP = Path(__file__).parent / "startup"
_PATHS = "PYTHONPATH"


@dataclass(frozen=True, slots=True)
class Request:
    """What each process records.

    Attributes:
        folder: Where the processes leave what they record.
        engine: ``torch`` if they record themselves, ``nsys`` if they only emit markers.
        settings: What to record.
    """

    folder: Path
    engine: str
    settings: Settings

    @classmethod
    def of_environment(cls) -> Self | None:
        """The request that this process was started with; None if there is none, or it is over."""
        text = os.environ.get(VARIABLE)
        if not text:
            return None
        values = json.loads(text)
        settings = values["settings"]
        restored = Settings(**(settings | {"skip": tuple(settings["skip"])}))
        request = cls(Path(values["folder"]), values["engine"], restored)
        return request if request.folder.is_dir() else None

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """An environment with the request, and with the folder of the start-up hook before all other paths."""
        values = {"folder": str(self.folder.absolute()), "engine": self.engine, "settings": asdict(self.settings)}
        paths = os.pathsep.join(path for path in (str(_STARTUP), given.get(_PATHS)) if path)
        return {**given, VARIABLE: json.dumps(values), _PATHS: paths}
