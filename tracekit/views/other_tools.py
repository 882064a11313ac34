"""What other tools call the questions and commands of tracekit: for suggestions, and for a table of ``cli/README.md``.

A row has Markdown: what one used, with the names that one may type at the end of each piece of code, and what to use.
Names that stand in no text follow. To add a tool: add rows, then run ``python -m tests.references``.
"""

import re
from collections.abc import Collection

from tracekit.answers import QUESTIONS
from tracekit.errors import did_you_mean

ROWS: tuple[tuple[str, str, str], ...] = (
    (
        '`PytHooks().register_hooks(model, "top")` (vLLM, SGLang), TensorRT-LLM\'s `LayerwiseNvtxMarker`',
        "`tracekit capture`, or [`layer_markers(model)`](../capture/README.md); reports with their markers are read as "
        "they are",
        "record profile run",
    ),
    (
        "PyProf: `pyprof.init()`, `python -m pyprof.parse`, `pyprof.prof`",
        "`--ops` or `operator_markers()`; `tracekit parse` understands its markers; `tracekit show roofline`",
        "",
    ),
    ("`nvprof`, `nvvp`; `torch.autograd.profiler.load_nvprof`", "`tracekit parse run.nvprof`", "import"),
    (
        "`nsys stats -r nvtx_sum`, `nvtx_pushpop_sum`, `nvtx_startend_sum`; HTA's `get_gpu_user_annotation_breakdown`",
        "`tracekit show tree`: without module markers, ranges are the rows",
        "nvtxsum nvtxppsum nvtxsesum nvtxsssum stats hierarchy ranges summary",
    ),
    (
        "`nsys stats -r nvtx_kern_sum`; HTA's `get_gpu_kernels_with_user_annotations`",
        "`tracekit show module_kernels`",
        "nvtxkernsum",
    ),
    (
        "`nsys stats -r nvtx_gpu_proj_sum`, `nvtx_gpu_proj_trace`, `nvtx_pushpop_trace`",
        "`tracekit export run.tracekit --format csv`: `ranges` has `gpu_start_ns`, `gpu_end_ns` and `gpu_op_count`, "
        "NVIDIA's projection, row by row",
        "nvtxgpuproj nvtxpptrace",
    ),
    (
        "`nsys recipe nvtx_pace`, `nvtx_gpu_proj_pace`; HTA's `get_profiler_steps`",
        "`tracekit show steps`",
        "iterations",
    ),
    (
        "`nsys stats -r cuda_gpu_kern_sum`, `cuda_gpu_kern_gb_sum`, `cuda_gpu_sum`, `cuda_api_gpu_sum`; "
        "HTA's `get_gpu_kernel_breakdown`",
        "`tracekit show kernels`",
        "gpukernsum gpukerngbsum gpusum apigpusum cuda_gpu_kern_pace kernel",
    ),
    (
        "`nsys stats -r cuda_gpu_trace`",
        "`tracekit export run.tracekit --format csv`: `kernels` has a row for each kernel, copy and memset",
        "gputrace",
    ),
    (
        "`nsys stats -r cuda_gpu_mem_size_sum`, `cuda_gpu_mem_time_sum`; HTA's `get_memory_bw_summary`, "
        "`get_memory_bw_time_series`",
        "`tracekit show copies`",
        "gpumemsizesum gpumemtimesum memcpy bandwidth",
    ),
    (
        "`nsys stats -r cuda_api_sum`, `cuda_api_trace`, `cuda_kern_exec_sum`, `cuda_kern_exec_trace`; HTA's "
        "`get_cuda_kernel_launch_stats`, `get_queue_length_summary`, `get_queue_length_time_series`, "
        "`get_aten_op_kernels_and_delay`",
        "`tracekit show launches`: calls that start no work are in the tables `api_calls` and `waits`",
        "cudaapisum cudaapitrace kernexecsum kernexectrace api",
    ),
    ("`nsys analyze -r gpu_gaps`", "`tracekit show gaps`", "gpu_starv idle"),
    (
        "`nsys analyze -r gpu_time_util`, `nsys recipe cuda_gpu_time_util_map`; HTA's `get_temporal_breakdown`, "
        "`get_idle_time_breakdown`",
        "`tracekit show budget`",
        "gpu_low_util utilization",
    ),
    (
        "`nsys analyze -r cuda_api_sync`, `cuda_memcpy_async`, `cuda_memcpy_sync`, `cuda_memset_sync`; HTA's "
        "`get_frequent_cuda_kernel_sequences`, `get_time_spent_blocked_on_full_queue`",
        "`tracekit show findings`",
        "cuda_sync_api cuda_async_memcpy cuda_sync_memcpy cuda_sync_memset advice analyze",
    ),
    (
        "`nsys recipe nccl_sum`, `nccl_gpu_proj_sum`, `nccl_gpu_overlap_trace`, `nccl_gpu_time_util_map`; HTA's "
        "`get_comm_comp_overlap`",
        "`tracekit show communication`",
        "overlap comm nccl collectives",
    ),
    ("HTA's `get_potential_stragglers`", "`tracekit show ranks`, `tracekit show stragglers`", "slowest"),
    ("HTA's `critical_path_analysis`", "`tracekit whatif`, with `tracekit show budget`", "critical_path predict"),
    ("`nsys recipe diff`; HTA's `compare_traces`, `ops_diff`, `get_ops_summary`", "`tracekit diff`", "compare"),
    (
        "`torch.profiler`: `key_averages().table()`",
        "`tracekit show kernels`: of its Chrome trace, or after `tracekit capture --engine torch`",
        "key_averages",
    ),
    ("the same with group_by_input_shape=True", "`tracekit show shapes`", "group_by_input_shape inputs"),
    ("the same with group_by_stack_n; py-spy", "`tracekit show lines`", "group_by_stack_n group_by_stack source line"),
    (
        "operators as rows, whatever is marked",
        "`tracekit parse REPORT --rows operators`, then `tracekit show tree`",
        "ops operators op_summary",
    ),
    (
        '`export_chrome_trace("run.json")`, `export_stacks`; HTA\'s `generate_trace_with_counters`',
        "`tracekit export run.tracekit --format chrome`, `--format stacks`",
        "timeline flamegraph convert",
    ),
    ("`torch.profiler.schedule(wait, warmup, active)`", "`--warmup 2 --steps 5`, or `with step(...)`", ""),
    ("`torch.utils.flop_counter.FlopCounterMode`", "`tracekit show roofline`, with the time that it took", "flops mfu"),
    ("a report to look at", "`tracekit html` (a page), or `tracekit parse` (tables)", "report view page open"),
)
#: The name at the end of a piece of code, before its arguments.
_NAME = re.compile(r"(\w+)(?:\([^()`]*\))?`")
_MARKDOWN = re.compile(r"`|\[|\]\(.*\)$")


def counterpart(name: str) -> str | None:
    """What to type in place of a name of another tool, as a question to the user; None if no tool has it."""
    wanted = _same(name)
    for used, ours, names in ROWS:
        if wanted in map(_same, [*_NAME.findall(used), *names.split()]):
            return f"did you mean {_MARKDOWN.sub('', re.split('[:;]', ours)[0])}?"
    return None


def meant_question(name: str) -> str:
    """How a message about an unknown question ends."""
    return counterpart(name) or did_you_mean(name, QUESTIONS)


def meant_command(name: str, commands: Collection[str]) -> str:
    """How a message about an unknown command ends."""
    if name in QUESTIONS:
        return f"did you mean tracekit show {name}?"
    return counterpart(name) or did_you_mean(name, commands)


def _same(name: str) -> str:
    return name.lower().replace("-", "_").removeprefix("get_")
