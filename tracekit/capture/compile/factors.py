"""What compiled code depends on beside its graph: the factors that name a cache folder.

Places never count (the files of a program are known by name and content, not by path), so a folder can be copied to
another machine of its kind and is warm there.
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
#: Variables that change what is compiled …
_VARIABLES = re.compile(r"(TORCH|PYTORCH|TRITON|INDUCTOR|AOT|CUBLAS)\w*|CXX|CC|CPPFLAGS|CXXFLAGS|CFLAGS|LDFLAGS")
#: … and those among them that only say where things lie or what is printed.
_PLACES = re.compile(
    r"(TORCHELASTIC|TORCH_NCCL)\w*|\w*(DIR|HOME|PATH|TRACE|LOGS?|LOGS_\w+|DEBUG|OUT|HOST|PORT|ADDR|PROFILE\w*)"
)
#: Settings that change nothing in the code that is made.
_IDLE_SETTINGS = {"cache_dir", "use_cache", "debug", "debug_dir"}
#: Instruction sets that a compiler told ``-march=native`` may use.
_INSTRUCTIONS = re.compile(
    r"s?sse\w*|avx\w*|amx\w*|fma|f16c|bmi\d|v?aes|v?pclmul\w*|sha\w*|gfni|popcnt|movbe|adx|abm|lzcnt|"
    r"asimd\w*|sve\w*|sme\w*|bf16|i8mm|neon|crc32|atomics|fphp|dotprod"
)


def traced_files() -> list[str]:
    """The source files that Dynamo traced for the graph being compiled; to be called inside a backend."""
    return sorted({code.co_filename for code in get_traced_code() or ()})


def factors(config: CompileConfig, traced: Iterable[str]) -> dict[str, object]:
    """What the compiled code of a model depends on, as JSON can hold it.

    Args:
        config: How it is compiled; what only says where things are kept is left out.
        traced: Its source files, as :func:`traced_files` gives them.
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
    """The folder in ``root`` for these factors, which are written beside its entries.

    A root that cannot be written is no error: whoever uses the folder finds that out and says it once.
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
    """A setting as JSON: the same in every process, whatever its type."""
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
    named = getattr(value, "uuid", None)
    kind = type(value)
    name = getattr(value, "__qualname__", kind.__qualname__)
    return [
        f"{getattr(value, '__module__', kind.__module__)}.{name}",
        str(named()) if callable(named) else None,
    ]


def _source(name: str) -> list[str | None]:
    """A source file: the name that it is imported by, and a digest of what it held when it was read."""
    text = "".join(linecache.getlines(name))
    return [_portable(name), hashlib.sha256(text.encode()).hexdigest() if text else None]


def _portable(name: str) -> str:
    """A file's path below the longest place that Python imports from, or its bare name."""
    path = Path(name)
    tops = [Path(top) for top in sys.path if top and path.is_relative_to(top)]
    deepest = max(tops, key=lambda top: len(top.parts), default=path.parent)
    return path.relative_to(deepest).as_posix()


@cache
def _compiler() -> str | None:
    """The first line in which the C++ compiler names itself; none where there is no compiler."""
    command = [os.environ.get("CXX") or "g++", "--version"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.partition("\n")[0]


@cache
def _machine() -> dict[str, object]:
    """The processor as far as code made for it depends on it."""
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
