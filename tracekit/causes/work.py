"""Why a piece of work has no module."""

from __future__ import annotations

from tracekit.causes.base import Cause

#: Why a kernel has no module.
NO_LAUNCH = Cause(
    "no_launch",
    "The report does not contain the API call that launched it.",
    "start recording before the work is launched; do not filter the report by time",
)
AMBIGUOUS_LAUNCH = Cause(
    "ambiguous_launch",
    "Several API calls have its correlation id, and none of them encloses the others.",
    "record again; a report of Nsight Systems can be exported again with a newer nsys",
)
IMPOSSIBLE_LAUNCH = Cause(
    "impossible_launch",
    "The API call with its correlation id cannot have launched it: it began later, launches no work, or failed.",
    "record again, because ids and times in this report contradict each other; if it happens again, use a newer "
    "profiler",
)
MANAGED_MEMORY = Cause(
    "managed_memory",
    "Managed memory was migrated because a kernel or the CPU touched it; no API call launched the copy.",
    "prefetch the data (cudaMemPrefetchAsync), or keep it in ordinary GPU memory",
)
OUTSIDE_MODULES = Cause(
    "outside_modules",
    "No marked module was running on that thread when it was launched, or during the graph capture of its node.",
    "mark more modules, or accept it: sampling, losses and copies run outside forward calls; so do backward passes and "
    "optimizers, which tracekit capture --backward tells apart",
)
OUTSIDE_RANGES = Cause(
    "outside_ranges",
    "The hierarchy is of NVTX ranges or operators, and none was open on that thread when it was launched.",
    "annotate more of the program (torch.cuda.nvtx.range, nvtx.annotate; under torch.profiler, record_function), or "
    "accept it",
)
COMPILATION = Cause(
    "compilation",
    "It ran while Dynamo, AOTAutograd or Inductor compiled, so it is not the model's own work.",
    "record after the first calls of each input shape: more --warmup, or --warmup and --steps for a program that runs "
    "its own steps",
)
BACKWARD = Cause(
    "backward", "A backward pass outside marked modules launched it.", "record with tracekit capture --backward"
)
AMBIGUOUS_SEQ = Cause(
    "ambiguous_seq",
    "Several operators of the forward pass may have given the node of autograd that launched it its sequence number: "
    "threads count by themselves, and the report does not tell of which one the node is. Ranges: how many such nodes.",
    "record with tracekit capture --backward, or with torch.profiler, which tells the thread; begin to record before "
    "the forward pass",
)
OPTIMIZER = Cause("optimizer", "An optimizer launched it, for no module alone.", "accept it")
DATA_LOADING = Cause("data_loading", "A DataLoader launched it.", "accept it, or let its workers do it (num_workers)")
GRAPH_NOT_EXPANDED = Cause(
    "graph_not_expanded",
    "The CUDA graph was traced as a whole, so the kernels inside it were not recorded, and it is not certain that the "
    "report holds the graph capture which made it.",
    "record again with: nsys profile --cuda-graph-trace=node",
)
GRAPH_NOT_IN_ONE_CALL = Cause(
    "graph_not_in_one_call",
    "The CUDA graph was traced as a whole, and its graph capture launched work in several outermost calls, or also "
    "outside of all calls, so no call holds all of it.",
    "record again with: nsys profile --cuda-graph-trace=node",
)
GRAPH_UNMAPPED = Cause(
    "graph_unmapped",
    "It was replayed from a CUDA graph, and the module that was running during the graph capture is not known.",
    "start recording before graph capture (before the warm-up, as tracekit capture does), with markers on and, under "
    "nsys, --cuda-graph-trace=node; for a Chrome trace, give the trace of the graph capture beside it (tracekit parse "
    "--graph-captures); or run eagerly (vLLM: --enforce-eager, SGLang: --disable-cuda-graph)",
)
GRAPH_UNMATCHED = Cause(
    "graph_unmatched",
    "It was replayed from a CUDA graph, and graph captures of its process were recorded, but it is not certain which "
    "of them made the graph: none agrees with what was replayed in number, order and names of kernels, or several do.",
    "give the traces of all graph captures of the run (tracekit parse --graph-captures), and mark the steps of the "
    "report (torch.profiler.record_function)",
)
COMPILED_UNMATCHED = Cause(
    "compiled_unmatched",
    "A run of a compiled graph launched it, and the kernel map of that graph does not tell its module.",
    "see the rows of compiled graphs in coverage, which tell the reason for each graph",
)
MODULE_UNREADABLE = Cause(
    "marker_unreadable",
    "It was launched inside a module marker whose module name cannot be read.",
    "see the rows of ranges whose marker is 'unreadable'",
)
MODULE_UNCLEAR = Cause(
    "module_unclear",
    "It was launched in a call whose path belongs to several modules, and the markers do not tell which one it is.",
    "give each model a prefix of its own when marking it; with_stack tells less: record with tracekit capture",
)

RECOMPUTED = Cause(
    "recomputed",
    "A backward pass ran it again (activation checkpointing) for a function, in none of the modules that it calls.",
    "checkpoint modules instead of functions: checkpoint(layer, x) runs the layer's markers again, too",
)
LEFT_OPEN = Cause(
    "left_open",
    "A forward raised and its range was never closed. Kernels: work launched after the last event that surely belongs "
    "to such a call and before the first that shows it had ended. Calls: how many were left open.",
    "use hooks that close their ranges when a forward raises: those of tracekit capture do, others need "
    "register_forward_hook(..., always_call=True)",
)
ENDED_ELSEWHERE = Cause(
    "ended_elsewhere",
    "A start/end range marks a module or a step, or is a plain one where these are nodes, but ended on another thread. "
    "The work inside it cannot be determined, so it is neither a call nor a step.",
    "mark with push/pop ranges, or end each range on the thread that began it",
)
