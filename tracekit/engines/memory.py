"""How much memory is available, by the system and by the limits of a container."""

from __future__ import annotations

from pathlib import Path

#: A container's limit and use of memory, in either version of Linux's control groups.
_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


def available_bytes() -> int:
    """Memory that is available without swapping."""
    import psutil  # noqa: PLC0415 - most commands need not know

    free = [psutil.virtual_memory().available]
    for limit, used in ((_system_file(limit_path), _system_file(used_path)) for limit_path, used_path in _LIMITS):
        if limit.isdigit() and used.isdigit():
            free.append(max(0, int(limit) - int(used)))
    return int(min(free))


def _system_file(path: Path) -> str:
    """The text of a file of the system; empty if there is none."""
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeError):
        return ""
