"""The tables that a dataset promises: every column with its type and what it holds.

What is written here of a table and a column is what ``tracekit schema`` and the README print. :mod:`tracekit.tables`
builds them. Adding a column is free; renaming or retyping one bumps ``manifest.FORMAT_VERSION``.
"""

from functools import partial

import pyarrow as pa

from tracekit.schema import SHAPES, TYPES, ArrowValues, Categories, Integers, TypedTable

#: What stands for null where -1 may be a value, and for a time that never came.
UNKNOWN, NEVER = -(1 << 63), (1 << 63) - 1
#: Columns with nulls, which in arrays of integers are -1 where nothing else is said.
IntegersOrNull, CategoriesOrNull = partial(Integers, null=-1), partial(Categories, nullable=True)
ValuesOrNull = partial(ArrowValues, nullable=True)

_KWARGS = pa.map_(pa.string(), SHAPES)
_KWARG_TYPES = pa.map_(pa.string(), TYPES)
_OF_KERNELS = "; null for other work than kernels."
_SAMPLES = "of its device inside it, in per cent; null without samples."
_OF_EVENTS = "for event records and stream waits, if the report has it; otherwise null."
_PARAM = pa.struct({"name": pa.string(), "shape": pa.list_(pa.int64()), "dtype": pa.string()})


class Ranges(TypedTable, name="ranges", sorted_by=("pid", "tid", "start_ns")):
    """One row per NVTX range (of a Chrome trace: per annotation and operator), sorted by (pid, tid, start_ns) with
    outer ranges first; in a report of several machines, one machine after the other.
    """

    range_id = Integers("Unique id: the row number, plus the report's first_id.")
    parent_range_id = IntegersOrNull("Innermost push/pop range around it on its thread; null if there is none.")
    depth = Integers("Number of push/pop ranges around it.", pa.int16())
    module_id = IntegersOrNull("Module of the innermost call that it is, or is inside; null outside calls.", pa.int32())
    domain = CategoriesOrNull("NVTX domain; null for the default domain.")
    text = CategoriesOrNull("Text of the range; null if it has none.")
    marker = CategoriesOrNull(
        "What the text marks: module, operator (of torch or PyProf), step, piece (of a compiled model), compiled_graph "
        "(a run of one), kernel_map (which modules its kernels serve) or unreadable; null for plain text."
    )
    phase = CategoriesOrNull(
        "Phase that the text names: forward, backward, optimizer, data (loading), compile, garbage_collection; or null."
    )
    kind = Categories("push_pop or start_end.")
    pid = Integers("Process id.", pa.int32())
    rank = IntegersOrNull("Rank of the process in its job; null if unknown.", pa.int32())
    tid = Integers("Id of the thread on which it began.", pa.int32())
    end_tid = IntegersOrNull("Id of the thread on which it ended; null if that is the same thread.", pa.int32())
    start_ns = Integers("Start, in ns since the start of the session.")
    end_ns = Integers("End, on the same clock.")
    open = ArrowValues("Whether no end is recorded; end_ns is then the last time seen on its thread.", pa.bool_())
    gpu_start_ns = IntegersOrNull("Start of the first device work launched inside it; null if none.", null=UNKNOWN)
    gpu_end_ns = IntegersOrNull("Latest end of device work launched inside it; null if none.", null=UNKNOWN)
    gpu_op_count = Integers("Number of launches inside it that put work on the device; a graph launch counts once.")
    payload_int = IntegersOrNull("Integer payload; unsigned 64-bit values wrap to two's complement. Null if none.")
    payload_float = ValuesOrNull("Floating-point payload; null if there is none.", pa.float64())
    payload_json = ValuesOrNull("Structured payload as JSON; null if there is none.", pa.string())


class Calls(TypedTable, name="calls", sorted_by=("module_id", "start_ns")):
    """One row per call of a module (or plain range, or operator), sorted by (module_id, start_ns). The subtree of a
    call is the call and all calls inside it. Replaying a CUDA graph calls no module, so replays have no rows: their
    device work counts for the calls made during graph capture, whose host times are those of the graph capture
    (where plain ranges are the modules, for the range around the replay). For the time of a module in a step, sum
    kernels by step_id.
    """

    call_id = Integers("Unique id: the row number, plus the report's first_id.")
    parent_call_id = IntegersOrNull(
        "Call that contains it, on autograd threads one of the thread that waits; null for an outermost call. A "
        "recompute is no part of the backward call around it, nor a backward pass of the forward call that begins it."
    )
    module_id = Integers("Module that was called.", pa.int32())
    module = Categories("Path of that module.")
    step_id = IntegersOrNull("Step it ran in; null outside steps.")
    occurrence = Integers("Number of the call among those of this module in its process and phase, from 1.", pa.int32())
    phase = CategoriesOrNull(
        "forward; backward; recompute: a backward pass ran the module forward again, as its results were not kept "
        "(activation checkpointing); or capture: the call ran during a graph capture on its thread. Null for another "
        "plain range."
    )
    range_id = Integers(
        "Its range in ranges; the one that began the call if it has two. For a backward call without a marker, the "
        "autograd node with which it began."
    )
    pid = Integers("Process id.", pa.int32())
    rank = IntegersOrNull("Rank of the process in its job; null if unknown.", pa.int32())
    tid = Integers("Thread id.", pa.int32())
    start_ns = Integers("Start on the host, in ns since the start of the session.")
    end_ns = Integers("Return on the host; device work of the call may still be running.")
    inputs = ValuesOrNull("Shapes of positional tensors; null if no marker records them.", SHAPES)
    outputs = ValuesOrNull("Shapes of results; null if no marker records them.", SHAPES)
    kwargs = ValuesOrNull("Shapes of keyword tensors by name; null if no marker records them.", _KWARGS)
    input_types = ValuesOrNull("Dtype and device of each positional tensor; null if no marker records them.", TYPES)
    output_types = ValuesOrNull("Dtype and device of each result; null if no marker records them.", TYPES)
    kwarg_types = ValuesOrNull("Dtype and device of each keyword tensor; null if no marker records them.", _KWARG_TYPES)
    gpu_start_ns = IntegersOrNull("Start of the first kernel in its subtree; null if there is none.", null=UNKNOWN)
    gpu_end_ns = IntegersOrNull("Latest end of the kernels in its subtree; null if there is none.", null=UNKNOWN)
    gpu_time_ns = Integers("Sum of the durations of the kernels in its subtree.")
    gpu_self_time_ns = Integers(
        "Sum of the durations of its own kernels, without those of calls inside it. A CUDA graph traced as a whole "
        "counts here for the call that holds its graph capture, though it is work of the calls inside, too."
    )
    gpu_busy_ns = Integers("Time in which at least one kernel of its subtree ran; overlapping kernels count once.")
    kernel_count = Integers("Number of kernels in its subtree.", pa.int32())
    kernel_self_count = Integers("Number of its own kernels, without those of calls inside it.", pa.int32())
    launch_time_ns = Integers(
        "Host time in API calls that launched kernels of its subtree, from begin to return, so time spent blocked is "
        "included (the launches analysis separates it). Launches during graph capture and graph replays do not count."
    )
    allocated_bytes = IntegersOrNull(
        "Memory that allocators handed out on its thread, in its subtree: torch's, of GPUs, or of the CPU in a run "
        "without one (profile_memory of torch.profiler); or CUDA's, of GPUs (nsys --cuda-memory-usage). Null if the "
        "report does not record it.",
        null=UNKNOWN,
    )
    retained_bytes = IntegersOrNull(
        "How much of that the call left more than it found: without the memory that was taken back meanwhile; negative "
        "if more was taken back. Null as allocated_bytes.",
        null=UNKNOWN,
    )
    peak_bytes = IntegersOrNull(
        "How far the memory that its process held on one device rose, while it ran, above what was held as it began: "
        "the most of all devices, 0 if it never rose. What other threads do meanwhile counts, as they share the "
        "device: those of autograd, on which a call waits, and of calls that run at the same time, each of which has "
        "the rise of both. Null as allocated_bytes.",
        null=UNKNOWN,
    )


class Kernels(TypedTable, name="kernels", sorted_by=("module_id", "start_ns")):
    """One row per piece of device work, each exactly once, sorted by (module_id, start_ns); work without a module
    comes last. For work replayed from a CUDA graph, thread, launch, range and step are those of the replay, module
    and call those of the graph capture; where plain ranges are the modules, these are the range around the replay.
    """

    kernel_id = Integers("Unique id: the position by start time in the report, plus the report's first_id.")
    kind = Categories(
        "kernel, memcpy, memset, graph (a CUDA graph traced as a whole) or cpu_op (an operator, in a run without GPU)."
    )
    name = CategoriesOrNull("Short name; null if unknown.")
    full_name = CategoriesOrNull("Name with template arguments and parameters; null if unknown.")
    start_ns = Integers("Start on the device (of a cpu_op on its thread), in ns since the start of the session.")
    end_ns = Integers("End, on the same clock.")
    dur_ns = Integers(
        "Duration: end_ns - start_ns, for a cpu_op without the operators that it called; no time counts twice."
    )
    device = IntegersOrNull("Number of the GPU, as in the report; null if unknown.", pa.int32())
    context = IntegersOrNull("Id of the CUDA context, unique within its process; null if unknown.", pa.int32())
    stream = IntegersOrNull("Id of the CUDA stream, unique within its context; null if unknown.")
    pid = IntegersOrNull("Process id; null if the report does not record it.", pa.int32())
    rank = IntegersOrNull("Rank of the process in its job; null if unknown.", pa.int32())
    tid = IntegersOrNull("Id of the thread that launched it; null if its launch is unknown.", pa.int32())
    correlation_id = IntegersOrNull("Id that links it to its launch, unique within its process; null if none.")
    launch_name = CategoriesOrNull("Name of the API call that launched it; null if unknown.")
    launch_start_ns = IntegersOrNull("Start of that API call on the host; null if unknown.", null=UNKNOWN)
    launch_end_ns = IntegersOrNull("Return of that API call on the host; null if unknown.", null=UNKNOWN)
    source = CategoriesOrNull(
        "Innermost function of Python around that call that is no part of torch: file:line function, where the line is "
        "that of its def in Chrome traces (with_stack), the one that ran in reports of nsys (--python-backtrace, "
        "--python-sampling). Null if none was recorded, as for what an autograd thread launches."
    )
    stack = CategoriesOrNull(
        "All such functions around that call, the outermost first, between semicolons; of very deep or very many "
        "distinct stacks only the innermost. Null where source is."
    )
    module_id = IntegersOrNull(
        "Module that it serves; of several the one it serves most, of equals what holds them; null: see cause.",
        pa.int32(),
    )
    module = CategoriesOrNull("Path of that module.")
    call_id = IntegersOrNull(
        "Innermost call it belongs to; for graph work, the call that ran during graph capture (by method graph_launch, "
        "and where plain ranges are the modules, that around the replay; by annotated, that in the replay). Null if "
        "unknown, and if only the module is known."
    )
    method = CategoriesOrNull(
        "How its module was found: annotated (torch wrote it on the work of a CUDA graph), compiled (by the kernel map "
        "of the compiled graph that launched it; kernel_modules lists all modules that it serves), range (around the "
        "launch), backward (by the sequence number of the autograd node that launched it), graph_node (by the graph "
        "capture of its node), graph_order (by the order of launches in the graph capture), graph_capture (a CUDA "
        "graph traced as a whole: the call that holds its graph capture, for everything in it), graph_launch (a CUDA "
        "graph with an unknown graph capture: the call that launched it, for everything in it), autograd_thread "
        "(launched by an autograd thread: the range of another thread that waited for it, or what ran inside of that) "
        "or aligned (by its certain counterpart in a marked run, parse --like); null if it was not found."
    )
    cause = CategoriesOrNull("Why its module was not found; null exactly where method is set.")
    phase = CategoriesOrNull(
        "What the program did when it launched it: forward, backward, recompute, optimizer, data (loading) or compile "
        "(torch.compile at work); of replayed work, the phase of its graph capture. Null if unknown."
    )
    op = CategoriesOrNull(
        "Innermost operator around its launch (torch.profiler, emit_nvtx, nsys --pytorch, PyProf), such as aten::mm; "
        "for graph work, around the graph capture of its node; of a cpu_op, its own name. Null if unknown."
    )
    op_shapes = CategoriesOrNull(
        "Shapes of op's inputs, as JSON: [[8, 16], [16, 4], []], empty for other than tensors; null if not recorded."
    )
    op_types = CategoriesOrNull(
        'Dtypes of that operator\'s inputs, as JSON: ["float16", "float16", ""]; inputs that are no tensors are empty. '
        "Null if its marker does not record them; Chrome traces with record_shapes do."
    )
    op_seq = IntegersOrNull(
        "Sequence number of autograd in that operator's marker; null if it has none. An operator and the backward node "
        "that it makes have the same."
    )
    range_id = IntegersOrNull(
        "Innermost NVTX range of any kind around its launch; for graph work, around the replay; null if there is none."
    )
    step_id = IntegersOrNull(
        "Step it was launched in: the innermost on its thread, otherwise the only one open in its process; null "
        "outside steps and for compilation. If steps are not marked, only threads of replicas and, in training, "
        "threads that run no forward pass of their own take the step of another thread."
    )
    grid_x = IntegersOrNull(f"Grid size in x, in blocks{_OF_KERNELS}", pa.int32())
    grid_y = IntegersOrNull(f"Grid size in y, in blocks{_OF_KERNELS}", pa.int32())
    grid_z = IntegersOrNull(f"Grid size in z, in blocks{_OF_KERNELS}", pa.int32())
    block_x = IntegersOrNull(f"Block size in x, in threads{_OF_KERNELS}", pa.int32())
    block_y = IntegersOrNull(f"Block size in y, in threads{_OF_KERNELS}", pa.int32())
    block_z = IntegersOrNull(f"Block size in z, in threads{_OF_KERNELS}", pa.int32())
    registers = IntegersOrNull(f"Registers per thread{_OF_KERNELS}", pa.int32())
    static_smem_bytes = IntegersOrNull(f"Static shared memory per block{_OF_KERNELS}", pa.int32())
    dynamic_smem_bytes = IntegersOrNull(f"Dynamic shared memory per block{_OF_KERNELS}", pa.int32())
    bytes = IntegersOrNull(
        "Bytes copied or set; of a collective the whole result of an all_gather, the whole input of a reduce_scatter "
        "or all_to_all, what a send_recv sends or receives (the larger), or its message; null if not recorded."
    )
    collective = CategoriesOrNull(
        "Collective that it runs: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, send, recv, "
        "send_recv (several in a group), dispatch and combine (of tokens, to experts and back), barrier; unknown if "
        "its name does not record which. Null for all work that is no communication."
    )
    dtype = CategoriesOrNull("Dtype of that collective's elements; null if the report does not record it.")
    group_size = IntegersOrNull("How many ranks take part in that collective; null if unknown.", pa.int32())
    communicator = CategoriesOrNull("Its process group, or NCCL's id of its communicator; null if unknown.")
    copy_kind = CategoriesOrNull("Direction of a copy, such as Host-to-Device; null for other work.")
    graph_id = IntegersOrNull("CUDA graph it ran from; null outside graphs or if unknown.")
    graph_exec_id = IntegersOrNull("Instance of that CUDA graph; null outside graphs or if unknown.")
    graph_node_id = IntegersOrNull("Node of that CUDA graph; null outside graphs or if unknown.")
    original_graph_node_id = IntegersOrNull(
        "Node of the graph capture of which its node is a copy, directly or through others; null if unknown."
    )
    capture_range_id = IntegersOrNull("Innermost NVTX range around the graph capture of its node; null if unknown.")
    metric_samples = IntegersOrNull("Number of samples of GPU metrics inside it; null if none.", pa.int32(), null=0)
    sm_active_pct = ValuesOrNull(f"Average of samples of SMs Active {_SAMPLES}", pa.float64())
    tensor_active_pct = ValuesOrNull(f"Average of samples of Tensor Active {_SAMPLES}", pa.float64())
    dram_read_pct = ValuesOrNull(f"Average of samples of DRAM Read Bandwidth {_SAMPLES}", pa.float64())
    dram_write_pct = ValuesOrNull(f"Average of samples of DRAM Write Bandwidth {_SAMPLES}", pa.float64())


class KernelModules(TypedTable, name="kernel_modules", sorted_by=("kernel_id", "module_id")):
    """One row per kernel and module that it serves, sorted by kernel_id. A fused kernel can serve several modules;
    a kernel without a module has no row. Sums of kernels.dur_ns * weight by module_id add up to the time of all
    attributed work, each module with its share.
    """

    kernel_id = Integers("The kernel.")
    module_id = Integers("A module that it serves.", pa.int32())
    weight = ArrowValues("Share of the kernel's time for this module; the weights of a kernel sum to 1.", pa.float64())
    flops = IntegersOrNull(
        "FLOPs of matrix products, convolutions and attention that the kernel computed for the module, as the kernel "
        "map of its compiled graph gives them; of several kernels that a library launched for one operation the first "
        "has them. Null if unknown, and for other work: tracekit show roofline counts that by calls."
    )
    flops_dtype = CategoriesOrNull("The dtype in which it multiplied; null if unknown, or without FLOPs.")
    flops_unknown = CategoriesOrNull("Why the FLOPs are not known, though a kernel map gives the modules.")


class ApiCalls(TypedTable, name="api_calls", sorted_by=("start_ns",)):
    """One row per CUDA API call that does not block (see waits) and started no device work (see kernels), sorted by
    start_ns: event records, waits of streams for them, queries, launches into a graph capture.
    """

    name = CategoriesOrNull("Name of the call; null if unknown.")
    pid = Integers("Process id.", pa.int32())
    tid = Integers("Thread id.", pa.int32())
    start_ns = Integers("Start on the host, in ns since the start of the session.")
    dur_ns = Integers("How long it took.")
    device = IntegersOrNull(f"Number of the GPU, {_OF_EVENTS}", pa.int32())
    context = IntegersOrNull(f"Id of the CUDA context, {_OF_EVENTS}", pa.int32())
    stream = IntegersOrNull(f"Stream that records or waits, {_OF_EVENTS}")
    kernel_id = IntegersOrNull(
        "What a stream waits for: the last to end of the work that had been launched on the event's stream before the "
        "event record. Null if there is none, or if the report does not record it."
    )


class Waits(TypedTable, name="waits", sorted_by=("start_ns",)):
    """One row per call on the host that blocks its thread, sorted by start_ns; its time is that of the whole call,
    as reports do not record when it begins to wait. cudaEventQuery does not block.
    """

    kind = Categories(
        "synchronize (*Synchronize), copy (a copy that is not Async), pageable_copy (any copy with an end in pageable "
        "host memory), allocation (cudaMalloc*, cudaHostAlloc), free (cudaFree*; those that end in Async do not "
        "block), module_loading (cuModuleLoad*, cuLibraryLoad*, and what the driver loads inside the call that first "
        "needs it, where recorded), or os_wait (a wait of the runtime of the operating system)."
    )
    name = CategoriesOrNull("Name of the call; null if unknown.")
    pid = Integers("Process id.", pa.int32())
    rank = IntegersOrNull("Rank of the process in its job; null if unknown.", pa.int32())
    tid = Integers("Thread id.", pa.int32())
    start_ns = Integers("Start on the host, in ns since the start of the session.")
    dur_ns = Integers("How long it took.")
    module_id = IntegersOrNull("Module of the innermost call around it; null outside calls.", pa.int32())
    module = CategoriesOrNull("Path of that module.")
    call_id = IntegersOrNull("That call of the module.")
    step_id = IntegersOrNull("Step it ran in; null outside steps.")
    kernel_id = IntegersOrNull(
        "Work that it waited for: that of a copy; for other calls, the last to end of the work launched before on the "
        "stream or context, or before the event record. Null if the report does not record it."
    )


class Allocations(TypedTable, name="allocations", sorted_by=("start_ns",)):
    """One row per piece of memory that an allocator handed out or took back, sorted by start_ns: torch's, of GPUs,
    or of the CPU in a run without one (profile_memory of torch.profiler); or CUDA's, of GPUs (--cuda-memory-usage
    of nsys). The sum of bytes of a process and device so far is how much more it holds than as the recording began.
    Held at a time is what was handed out until then and has no end_ns until then. Empty if the report does not
    record memory.
    """

    start_ns = Integers("When, in ns since the start of the session.")
    end_ns = IntegersOrNull(
        "When the piece handed out here was taken back; null if not in the recording, and for one taken back here.",
        null=NEVER,
    )
    bytes = Integers("How much; negative if it was taken back.")
    total_bytes = IntegersOrNull(
        "What the allocator has then handed out in all on the device, also before the recording; null if not recorded."
    )
    device = IntegersOrNull("Number of the GPU, as in the report; null for host memory.", pa.int32())
    pid = Integers("Process id.", pa.int32())
    rank = IntegersOrNull("Rank of the process in its job; null if unknown.", pa.int32())
    tid = IntegersOrNull("Thread id; null for a thread with neither ranges nor API calls.", pa.int32())
    module_id = IntegersOrNull("Module of the innermost call around it; null outside calls.", pa.int32())
    module = CategoriesOrNull("Path of that module.")
    call_id = IntegersOrNull("That call of the module.")
    step_id = IntegersOrNull("Step it happened in; null outside steps.")


class Modules(TypedTable, name="modules", sorted_by=("module_id",)):
    """One row per module of the hierarchy in pre-order, including containers that are never called. If the report
    has no modules, its rows are plain ranges or operators.
    """

    module_id = Integers("Unique id: the row number in pre-order.", pa.int32())
    subtree_end_id = Integers("End of its subtree, which has the ids module_id <= id < subtree_end_id.", pa.int32())
    parent_id = IntegersOrNull("Id of the parent module; null for a root.", pa.int32())
    depth = Integers("Number of modules above it.", pa.int16())
    path = ArrowValues(
        "Dotted path of where it runs, such as top.model.layers.3.mlp; a second module there is numbered: top~2.",
        pa.string(),
    )
    name = ArrowValues("Last part of the path. That of a range may hold dots.", pa.string())
    kind = Categories(
        "module; or range (a plain NVTX range), operator or region (a compiled graph of which nothing more is known) "
        "if the dataset is keyed by these."
    )
    class_name = ValuesOrNull("Class of the module; null if no marker records it.", pa.string())
    alias_of = ValuesOrNull(
        "Path that its markers record, if different: the module is shared, or several modules have that path. Where "
        "they record no path (with_stack), that of its first call. Null if the same.",
        pa.string(),
    )
    params = ArrowValues(
        "Its own trainable parameters, without those of submodules; a shape or size is null where markers disagree.",
        pa.list_(_PARAM),
    )
    static_params = ValuesOrNull("Other settings, as JSON; null if no marker records them.", pa.string())


class Steps(TypedTable, name="steps", sorted_by=("start_ns",)):
    """One row per step of training or serving: a range marked as a step (one around another is the same step, one
    around several is none); in a process without such ranges, from the end of one optimizer step to the end of the
    next, without evaluation; without optimizers, each outermost call of the root module that drives its loop, or
    each pass through numbered layers if there is no root; where nothing is marked, each pass that is like a step of
    a marked run (parse --like). Work outside these belongs to no step.
    """

    step_id = Integers("Unique id: the row number, plus the report's first_id.")
    name = ArrowValues(
        "Text of the range, train for an optimizer's step, or path of the root module or of the layers' container.",
        pa.string(),
    )
    kind = CategoriesOrNull("train, prefill, decode or mixed; null if the text and optimizers do not show it.")
    index = Integers("Number of the step in its text, otherwise the number of earlier steps in its process.")
    pid = Integers("Process id.", pa.int32())
    rank = IntegersOrNull("Rank of the process in its job; null if unknown.", pa.int32())
    tid = Integers("Thread id.", pa.int32())
    start_ns = Integers("Start on the host, in ns since the start of the session.")
    end_ns = Integers("End on the host; its device work may still be running.")
    batch_size = IntegersOrNull("Requests or samples in the step; null if the text does not give it.")
    tokens = IntegersOrNull("Tokens computed in the step; null if the text does not give it.")
    compile_ns = Integers("Time on the host in which its process compiled models (torch.compile).")


class Coverage(TypedTable, name="coverage"):
    """What is known and what is not, counted per subject and cause. The rows of kernels add up to all device work,
    those of ranges to all ranges. Subjects that end in ': losses' count losses; those that end in ': left out'
    count rows that are neither ranges nor launches, and operators that a CPU ran to compile. Those of compiled
    graphs show why the modules of their work are not known, and that of compiled code how much of it has no kernel
    map.
    """

    what = Categories("Subject: kernels, ranges, processes, a compiled graph, or something else that was counted.")
    cause = Categories("Method by which it is known, or cause why it is not.")
    detail = ArrowValues("What happened in particular, if a cause has several forms; otherwise empty.", pa.string())
    known = ArrowValues("Whether the row counts what is known.", pa.bool_())
    count = Integers("How many there are.")
    time_ns = Integers("Sum of their durations; 0 where durations do not apply.")
    share = ArrowValues(
        "Share of the time (kernels, compiled graphs) or count of its subject, of compiled code of the time of all "
        "kernels; 0 to 1.",
        pa.float64(),
    )
    advice = ArrowValues("What to do about it; empty if there is nothing to do.", pa.string())


#: In the order in which they are made.
DECLARED: tuple[type[TypedTable], ...] = (
    *(Ranges, Calls, Kernels, KernelModules, ApiCalls, Waits, Allocations, Modules, Steps),
    Coverage,
)
