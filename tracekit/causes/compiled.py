"""Why a compiled graph that was run with kernel maps on has none. Its work counts for the module around it."""

from __future__ import annotations

from tracekit.causes.base import Cause

_CAUSES = {
    "branches": Cause(
        "kernel_map_branches",
        "The compiled graph has branches or loops of its own (torch.cond, while_loop), so which kernels run is decided "
        "while it runs; its work counts for the module, or the range, around it.",
        "accept it, or run without torch.compile",
    ),
    "other_modules": Cause(
        "kernel_map_of_other_modules",
        "The compiled graph was loaded from a cache that knows other modules for its code; its work counts for the "
        "module, or the range, around it.",
        "record once more with an empty cache (TORCHINDUCTOR_CACHE_DIR)",
    ),
    "several_modules": Cause(
        "kernel_map_of_several_modules",
        "Several modules share the code of the compiled graph, and nothing tells for which of them it ran; its work "
        "counts for the module, or the range, around it.",
        "mark the model before it runs, as tracekit capture does; for backward passes, with --backward",
    ),
    "unseen": Cause(
        "kernel_map_unseen",
        "Its kernels were compiled where tracekit does not see them, in another process or by another compiler; its "
        "work counts for the module, or the range, around it.",
        "compile in the process that runs the graph (unset TORCHINDUCTOR_FX_COMPILE_MODE), or accept it",
    ),
    "failed": Cause(
        "kernel_map_failed",
        "The kernel map of the compiled graph could not be made; its work counts for the module, or the range, around "
        "it.",
        "report it, with what the logger tracekit.capture says at level DEBUG",
    ),
}


def cause_of(reason: object) -> Cause | None:
    """The cause that a marker names by its reason; None if it names none that is known."""
    return _CAUSES.get(reason) if isinstance(reason, str) else None
