"""What compiled code depends on besides its graph: the factors that determine the name of a cache folder.

Paths are not among them (a program's files are identified by import name and content), so a folder can be copied to
another machine of the same kind and used there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import linecache
import os
import platform
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch._dynamo.utils import get_traced_code
from torch._inductor.codecache import CacheBase, torch_key

from tracekit.capture.compile.disk import private_folder, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tracekit.capture.compile.config import CompileConfig

FACTORS_FILE = "cache_key_factors.json"
#: Environment variables that change compiled code …
_VARIABLES = re.compile(r"(TORCH|PYTORCH|TRITON|INDUCTOR|AOT|CUBLAS)\w*|CXX|CC|CPPFLAGS|CXXFLAGS|CFLAGS|LDFLAGS")
#: … except those that only name places or control output.
_PLACES = re.compile(
    r"(TORCHELASTIC|TORCH_NCCL)\w*|\w*(DIR|HOME|PATH|TRACE|LOGS?|LOGS_\w+|DEBUG|OUT|HOST|PORT|ADDR|PROFILE\w*)"
)
#: Settings that do not change compiled code.
_IDLE_SETTINGS = {"cache_dir", "use_cache", "debug", "debug_dir"}
#: Instruction sets that a compiler may use with ``-march=native``.
_INSTRUCTIONS = re.compile(
    r"s?sse\w*|avx\w*|amx\w*|fma|f16c|bmi\d|v?aes|v?pclmul\w*|sha\w*|gfni|popcnt|movbe|adx|abm|lzcnt|"
    r"asimd\w*|sve\w*|sme\w*|bf16|i8mm|neon|crc32|atomics|fphp|dotprod"
)


def traced_files() -> list[str]:
    """The source files that Dynamo traced for the graph being compiled. Call it inside a backend."""
    return sorted({code.co_filename for code in get_traced_code() or ()})


def factors(config: CompileConfig, traced: Iterable[str]) -> dict[str, object]:
    """What the compiled code of a model depends on, as values that JSON can hold.

    Args:
        config: How it is compiled. Settings that do not change the code are left out.
        traced: Its source files, from :func:`traced_files`.
    """
    return {
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if _VARIABLES.fullmatch(name) and not _PLACES.fullmatch(name)
        },
        "config": {
            field.name: _plain(getattr(config, field.name))
            for field in dataclasses.fields(config)
            if field.name not in _IDLE_SETTINGS
        },
        "sources": sorted(_source(name) for name in set(traced)),
        "compiler": {"cxx": _compiler(), "system": _plain(CacheBase.get_system())},
        "machine": _machine(),
        "torch": {"version": torch.__version__, "sources": torch_key().hex()},
        "python": sys.implementation.cache_tag or platform.python_version(),
    }


def cache_folder(root: Path, factors: Mapping[str, object]) -> Path:
    """The folder in ``root`` for these factors. The factors are written to a file in it.

    If the root cannot be written to, that is not an error here: the folder's user will notice and warn once.
    """
    text = json.dumps(factors, indent=1, sort_keys=True)
    folder = Path(root) / hashlib.sha256(text.encode()).hexdigest()[:10]
    try:
        private_folder(folder)
        if not (folder / FACTORS_FILE).exists():
            write_whole(folder / FACTORS_FILE, text.encode())
    except OSError:
        return folder
    return folder


def _plain(value: object) -> object:
    """A setting as JSON, identical in every process, whatever its type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(name): _plain(item) for name, item in sorted(value.items(), key=str)}
    if isinstance(value, set | frozenset):
        return sorted(str(_plain(item)) for item in value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    uuid = getattr(value, "uuid", None)
    kind = type(value)
    name = getattr(value, "__qualname__", kind.__qualname__)
    return [
        f"{getattr(value, '__module__', kind.__module__)}.{name}",
        str(uuid()) if callable(uuid) else None,
    ]


def _source(name: str) -> list[str | None]:
    """A source file: its import name, and a digest of its content when Python read it."""
    text = "".join(linecache.getlines(name))
    return [_portable(name), hashlib.sha256(text.encode()).hexdigest() if text else None]


def _portable(name: str) -> str:
    """A file's path relative to the deepest entry of ``sys.path`` above it, or its bare name."""
    path = Path(name)
    tops = [Path(top) for top in sys.path if top and path.is_relative_to(top)]
    deepest = max(tops, key=lambda top: len(top.parts), default=path.parent)
    return path.relative_to(deepest).as_posix()


@cache
def _compiler() -> str | None:
    """The first line that the C++ compiler prints for ``--version``; None if there is no compiler."""
    command = [os.environ.get("CXX") or "g++", "--version"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return output.stdout.partition("\n")[0]


@cache
def _machine() -> dict[str, object]:
    """The properties of the processor that compiled code depends on."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", errors="replace")
    except OSError:
        text = ""
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, flags=re.MULTILINE)
    sets = {name for name in (flags[1].split() if flags else ()) if _INSTRUCTIONS.fullmatch(name)}
    digest = hashlib.sha256(" ".join(sorted(sets)).encode()).hexdigest()[:16] if sets else None
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "instruction_sets": digest or platform.processor(),
    }
