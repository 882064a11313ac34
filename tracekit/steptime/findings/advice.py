"""What to do about a finding: in any program, and in engines that have a switch of their own for it."""

from __future__ import annotations

import re
from typing import Any

from tracekit.arrays.codes import labels
from tracekit.dataset.opening import Dataset

READ = "The host reads a value from the device here (.item(), .cpu(), a branch on a tensor) and waits for it."
SYNCHRONISED = "The host waits for the device here ({call})."
COPIED = (
    "This module copies as many bytes from the host in every step. "
    "If they are the same, copy them once: register_buffer, or create them on the device."
)
CAST = (
    "This module casts as many values in every step. "
    "If they are parameters or constants, keep them in the dtype in which they are used."
)
STEADILY = (
    "The others wait in collectives for {who}, which works {share:.0%} longer than the median rank{since}, most of all "
    "in {where}. Compare it with another one: its share of the work, its clocks, its host."
)
MOVING = (
    "Ranks wait for each other in collectives, and none of them is slow in most steps. "
    "Divide the work of a step evenly: batches of equal numbers of tokens, and no rank with work of its own."
)
#: What is said of each family, with figures of the finding in braces.
_TEXTS = {
    "read": "Keep the value on the device, or read it later, once a step and without blocking.",
    "synchronize": "Remove the call, or wait for an event that was recorded earlier.",
    "launch_bound": "The device waits while the host launches small kernels here. {how}",
    "graph": 'Use a CUDA graph: torch.compile(mode="reduce-overhead"), or torch.cuda.graph around it.',
    "data_loading": "The thread that launches the work loads the next batch, or waits for it, before it goes on. "
    "Load ahead in other processes: more num_workers, a higher prefetch_factor, less to do for each sample.",
    "host_code": "Code of the host outside modules takes {share:.0%} of the time ({time}). "
    "While the device is idle, it is {where}. The saving is that of running it while the device works. {how}",
    "overlap": "Run it on another thread or, if the next launch does not need it, behind that; make the rest faster.",
    "allocation": "The steps still allocate or free device memory with CUDA itself. "
    "Let torch's allocator keep it: no empty_cache(), sizes that repeat, or expandable_segments:True.",
    "recompilation": "torch.compile compiles again in these steps. {how}",
    "dynamic": "Find what changes with TORCH_LOGS=recompiles: mark sizes that vary as dynamic, or pad them to a few.",
    "garbage_collection": "Python's garbage collector stops the thread that launches the work. After the warm-up call "
    "gc.collect() and gc.freeze(), and collect between steps, or less often (gc.set_threshold).",
    "pageable_copy": "This copy reads host memory that is not pinned, so the host blocks and the copy is "
    "slow. Pin the memory (pin_memory=True of the DataLoader, or .pin_memory()) and copy with non_blocking=True.",
    "elementwise_chain": "Elementwise kernels follow each other here, and each reads and writes its tensors again. "
    "Fuse them: torch.compile on this module or function, or one kernel in Triton.",
    "exposed_communication": "The device computes nothing while these collectives run. {how}",
    "all_reduce": "Start them earlier and on a stream of their own: other sizes of buckets, prefetching of parameters, "
    "async_op=True.",
    "all_to_all": "Overlap them with other work: compute one half of the batch while the other is exchanged, or "
    "shared experts at the same time.",
    "send": "Between stages of a pipeline: more and smaller microbatches, or an interleaved schedule.",
    "unlike_layers": "{few} of {all} layers of one kind and size differ: {path} takes {ratio:.1f} times as long as the "
    "median layer. Compare its kernels with those of another one: another dtype or layout, a fallback, or work of its "
    "own.",
    "clock_drop": "In {count} of {all} steps nearly all kernels take about {ratio:.2f} times as long as the same ones "
    "in others. Look at clocks, power and temperature with nvidia-smi -q -d CLOCK,PERFORMANCE, and fix clocks (-lgc).",
    "below_roof": "These products run in float32 without tensor cores, far below what the device can do. "
    'Use bfloat16 (autocast), or TF32: torch.set_float32_matmul_precision("high").',
    "shared_gpu": "{count} times work was queued, nothing that was recorded held it, and the device still began it "
    "late. See who else uses the GPU (nvidia-smi: processes, time slices, MPS), and look at its clocks and power.",
    "unexplained": "The device is idle for {share:.0%} of the time ({idle}), and findings explain less than half of "
    "it. By kind: {kinds}.",
    "recorder": "The profiler recorded stacks of Python (with_stack), which can double host time; idle "
    "time, launches and savings may be too large. Record again without with_stack and record_shapes.",
}  # fmt: skip
#: Engines, by what is in their recordings: classes of modules, and texts of ranges; the first that fits counts.
_ENGINES = {
    "SGLang": (r"RadixAttention|RadixLinearAttention", r"sglang[/.:]"),
    "vLLM": (r"(QKV|Row|MergedColumn|Column)Parallel\w*|ParallelLMHead|VocabParallelEmbedding", r"vllm[/.:]"),
    "Lightning": (r"Lightning\w*Module", r"\[pl\]|\[(Strategy|LightningModule|Callback)\]|lightning/pytorch"),
    # torch has a TransformerDecoderLayer of its own.
    "Hugging Face": (r"(?!Transformer)\w+(For(CausalLM|ConditionalGeneration|MaskedLM|\w+Classification)|DecoderLayer)",
                     r"transformers/(trainer|generation|models)"),
}  # fmt: skip
#: What an engine has a switch of its own for, by the name of the text that it replaces.
_SWITCHES = {
    ("vLLM", "graph"): "vLLM has CUDA graphs of its own: run without --enforce-eager, and let "
    "cudagraph_capture_sizes hold this batch size.",
    ("vLLM", "read"): "In vLLM the scheduler can run ahead: --async-scheduling.",
    ("vLLM", "overlap"): "In vLLM: --async-scheduling.",
    ("vLLM", "dynamic"): "vLLM keeps what it compiled below VLLM_CACHE_ROOT: keep that folder from start to start.",
    ("SGLang", "graph"): "SGLang has CUDA graphs of its own: run without --disable-cuda-graph, and let "
    "--cuda-graph-max-bs reach this batch size.",
    ("SGLang", "read"): "In SGLang the scheduler runs ahead unless --disable-overlap-schedule is given.",
    ("SGLang", "overlap"): "In SGLang the scheduler runs ahead unless --disable-overlap-schedule is given.",
    ("SGLang", "dynamic"): "Keep TORCHINDUCTOR_CACHE_DIR from start to start, and lower --torch-compile-max-bs.",
    ("Hugging Face", "graph"): 'With generate() of transformers: cache_implementation="static" and '
    'torch.compile(model.forward, mode="reduce-overhead").',
    ("Hugging Face", "read"): "Trainer reads the loss where it logs: raise logging_steps. generate() reads after each "
    "token whether all is done. Elsewhere keep the value on the device.",
    ("Hugging Face", "dynamic"): 'With transformers, use cache_implementation="static" and pad_to_multiple_of, so that '
    "sizes repeat.",
    ("Lightning", "graph"): 'With Lightning: torch.compile(module, mode="reduce-overhead") before Trainer.fit.',
    ("Lightning", "read"): "Lightning reads what self.log is given as a number or shows in its bar: log tensors, raise "
    "log_every_n_steps, prog_bar=False.",
}  # fmt: skip


def advice(engine: str | None, name: str, **figures: Any) -> str:  # noqa: ANN401 - figures of any type
    """The text of a family or of a part of one, in the engine's own words where it has some."""
    return _SWITCHES.get((engine or "", name), _TEXTS[name]).format(**figures)


def engine_of(dataset: Dataset) -> str | None:
    """The engine whose run was recorded, if its classes or ranges tell."""
    classes = {str(name) for name in dataset.table("modules", ["class_name"]).column("class_name").to_pylist()}
    texts = [word for part in dataset.by_report() for word in labels(part.table("ranges", ["text"]), "text").words]
    for engine, (of_classes, of_texts) in _ENGINES.items():
        known, begins = re.compile(of_classes), re.compile(of_texts)
        if any(map(known.fullmatch, classes)) or any(map(begins.match, texts)):
            return engine
    return None


def recorded_stacks(dataset: Dataset) -> bool:
    """Whether a profiler recorded stacks of Python, from which the names of modules are then known."""
    missing = (data for entry in dataset.entries for data in entry.get("missing", []))
    return any(data["what"] == "names of modules" for data in missing)
