"""Ranges of frameworks for training and serving: no calls of modules, but a name, and maybe a phase or a step.

Each entry names the files that write its texts. If ranges are the nodes of the hierarchy, the name has ``*`` for
numbers and keys that only count.
"""

import re
from collections.abc import Mapping

from tracekit.markers.base import Dialect, RangeMarker, StepMarker
from tracekit.markers.literal import bare_name


def _ranges(
    candidates: str,
    form: str,
    phases: Mapping[str, str] | None = None,
    *,
    rename: tuple[str, str] = ("$^", ""),
    compiled: bool = False,
) -> Dialect:
    """A dialect of ranges: ``form`` is of whole names, and its last group that matches selects one of ``phases``.

    ``rename`` is an expression, and what replaces it in the name.
    """
    whole = re.compile(form, re.DOTALL)
    phase = re.compile("|".join(f"(?P<{name}>{part})" for name, part in (phases or {}).items()) or "$^", re.DOTALL)
    replaced = re.compile(rename[0])

    def parse(text: str) -> RangeMarker | None:
        name = bare_name(text)
        if not (match := whole.fullmatch(name)):
            return None
        found = phase.fullmatch(match[match.lastindex]) if match.lastindex else None
        return RangeMarker(replaced.sub(rename[1], name), found.lastgroup or "" if found else "", compiled)

    return Dialect(candidates, parse)


_WRAPPER = "(?:_checkpoint_wrapped_module|_fsdp_wrapped_module|_orig_mod)"

#: torch's data parallel wrappers. ``FSDP::all_gather (layers.3) [pg=8]`` of FSDP2
#: (``torch/distributed/fsdp/_fully_shard``), whose name leaves out wrappers;
#: ``FullyShardedDataParallel._post_backward_hook`` of FSDP (``torch/distributed/fsdp/_runtime_utils.py``);
#: ``DistributedDataParallel.forward`` (``torch/nn/parallel``). An ``all_gather`` may be part of either pass.
FSDP = _ranges(
    r"^(FSDP::\w|FullyShardedDataParallel\._?[a-z]|(Distributed)?DataParallel\.forward)",
    r"(?:FSDP::|(?:FullySharded|Distributed)?DataParallel\._?)(\w+)(?: .*)?",
    {"backward": r"\w*backward\w*", "forward": r"\w*forward\w*|inputs_to_device"},
    rename=(rf" \({_WRAPPER}(?:\.{_WRAPPER})*\)|\b{_WRAPPER}\.|\.{_WRAPPER}\b", ""),
)

#: torch's pipeline schedules (``torch/distributed/pipelining/schedules.py``): ``PP:2F0`` is the number of a stage, a
#: kind and the number of a micro-batch. Simple schedules write ``Forward 3``, which names a phase and nothing else.
PIPELINING = _ranges(
    r"^PP:[\d(]",
    r"PP:(?:\d{1,9}([A-Z]+(?:_[A-Z]+)*)\d{0,9}|\([\dA-Z_;]*\)[A-Z]+(?:_[A-Z]+)*)",
    {"forward": "F", "backward": "[BIW]"},
    rename=(r"(?<=[A-Z])\d+", "*"),
)

#: Code that torch.compile made: ``Torch-Compiled Region: 0/1`` is frame 0 compiled the second time
#: (``torch/_dynamo/convert_frame.py``), ``## Call CompiledFxGraph fx4k… ##`` a graph by a key that changes with torch
#: (``torch/_inductor/output_code.py``), ``graph_3_inductor_wrapper_call`` the code of one
#: (``torch/_inductor/codegen/wrapper.py``).
INDUCTOR = _ranges(
    r"^(Torch-Compiled Region: |## Call CompiledFxGraph |graph_\d+_inductor_wrapper_call)",
    r"Torch-Compiled Region: [\w/\[\]!.-]{1,80}|## Call CompiledFxGraph \w{1,200} ##|"
    r"graph_\d{1,9}_inductor_wrapper_call",
    rename=(r"(?<=CompiledFxGraph )\w+", "*"),
    compiled=True,
)

#: Functions of DeepSpeed by qualified names, which ``instrument_w_nvtx`` writes (``deepspeed/utils/nvtx.py``), since
#: 0.18 in the domain ``DeepSpeed``: ``DeepSpeedZeroOptimizer_Stage3.step``. Hooks of the forward pass prepare the
#: backward one. Timers (``fwd_microstep``, ``bwd``, ``step``) write no ranges.
DEEPSPEED = _ranges(
    r"^(DeepSpeed(Engine|Zero|ZeRo)\w*|(SuperOffload|MiCS_)\w+|PartitionedParameterCoordinator)\.[\w<]",
    r"\w+(?:\.(?:\w+|<locals>))*\.(\w+)",
    {
        "forward": r"_(?:pre|post)_backward_module_hook|(?!\w*backward)\w*forward\w*",
        "backward": r"\w*backward\w*|allreduce_gradients|reduce_(?:partition_and_remove|leaf_module)_grads|"
        r"_*partition_grads|independent_gradient_partition_epilogue|__avg_scatter_(?:contiguous_)?grads|"
        r"__reduce_and_partition_ipg_grads",
        "optimizer": r"(?:_post_|_optimizer_)?step|zero_grad|unscale_and_clip_grads|"
        r"_(?:prepare|release)_sub_group|_prepare_fp32_grad_for_sub_group|_overflow_check_and_loss_scale_update|"
        r"_get_norm_groups|get_grad_norm_direct|_reassign_or_swap_out_partitioned_parameters(?:_async)?",
    },
)

#: Megatron-LM. ``nvtx_range_push`` and ``nvtx_decorator`` write the path of a function and a suffix
#: (``megatron/core/utils.py``): ``megatron.core.transformer.attention.forward.qkv``; schedules that overlap passes
#: write layers and parts of layers (``megatron/core/models/common/model_chunk_schedule_plan.py``):
#: ``layer_3f-layer_5b``, ``attn backward``; its FSDP ``MFSDP decoder.layers.0 forward``.
MEGATRON = _ranges(
    r"^(megatron\.\w|layer_\d+[fb]\b|MFSDP |CustomFSDP\.forward|"
    r"(pre_process|post_process|pre_dispatch_computation|attn|mlp|moe_dispatch|moe_combine|mtp_post_process) "
    r"(forward|backward|wgrad))",
    r"(?:MFSDP \S+|\w+) (forward|backward|wgrad)|((?:layer_\d{1,9}f)?-?(?:layer_\d{1,9}b)?)|"
    r"((?:megatron|CustomFSDP)(?:\.[\w<>]+)+)",
    {"forward": r"(?!.*backward).*forward.*|layer_\d+f", "backward": r"(?!.*forward).*backward.*|wgrad|layer_\d+b"},
)

#: Transformer Engine with ``NVTE_NVTX_ENABLED=1``: its autograd functions write a label and their parts
#: (``transformer_engine/pytorch/module/linear.py``), ``transformer_engine._Linear.forward.qkv.gemm``; its modules
#: ``<class> forward`` (``transformer_engine/pytorch/module/base.py``; Megatron-LM's classes begin with ``TE``).
TRANSFORMER_ENGINE = _ranges(
    r"^(transformer_engine\.\w+\.(forward|backward)|[A-Z]\w*(Linear|MLP|Attention|Norm)\w* forward$|Linear forward$)",
    r"transformer_engine\.\w+\.(forward|backward)(?:\.\w+)*|[A-Z]\w* (forward)",
    {"forward": "forward", "backward": "backward"},
)

#: vLLM with ``VLLM_NVTX_SCOPES_FOR_PROFILING=1`` (``vllm/v1/worker/gpu_model_runner.py``). Its other scopes are plain
#: texts.
VLLM_SCOPES = _ranges(r"^gpu_model_runner: forward", "gpu_model_runner: (forward)", {"forward": "forward"})


_VLLM = re.compile(r"execute_(?:\d+_)?context_(\d{1,9})\((\w*)\)_generation_(\d{1,9})\((\w*)\)")
# What begins with a number counts somebody's own steps: step[3].
_SGLANG = re.compile(r"step\[([^\W\d]\w*)((?: +[^\]\s]+)*) *\]")
_ATOM = re.compile(r"(prefill|decode)\[bs=(\d{1,9})(?:/\d+)? tok=(\d{1,18})\b(.*)\]")
_TENSORRT_LLM = re.compile(
    r"\[Executor\] _forward_step(?: (\d{1,18}))?: (\d{1,9}) ctx reqs, (?:(\d{1,18}) ctx tokens, )?(\d{1,9}) gen reqs"
)
_FIELD = re.compile(r"(?<!\S)(\w+)=(\d{1,18})(?!\S)")
_TOKENS = re.compile(r"(?:sq)?(\d{1,18})")
_SGLANG_KINDS = {"EXTEND": "prefill", "PREFILL": "prefill", "DECODE": "decode", "MIXED": "mixed"}


def serving_kind(prefills: int, decodes: int) -> str | None:
    """The kind of a step of a serving engine, by its numbers of requests."""
    return "mixed" if prefills and decodes else "prefill" if prefills else "decode" if decodes else None


def _vllm(text: str) -> StepMarker | None:
    if not (match := _VLLM.match(text)):
        return None
    prefills, decodes = int(match[1]), int(match[3])
    tokens = [_TOKENS.match(number) for number in match.group(2, 4)]
    total = sum(int(number[1]) for number in tokens if number) if all(tokens) else None
    return StepMarker(text, serving_kind(prefills, decodes), batch_size=prefills + decodes, tokens=total)


def _sglang(text: str) -> StepMarker | None:
    if not (match := _SGLANG.match(text)):
        return None
    numbers = {key: int(number) for key, number in _FIELD.findall(match[2])}
    kind = _SGLANG_KINDS.get(match[1].upper())
    batch_size = numbers.get("bs")
    # A decode step computes one token a request, unless it speculates.
    queries = [numbers[key] for key in ("c_sq", "g_sq") if key in numbers]
    otherwise = sum(queries) if queries else batch_size if kind == "decode" else None
    return StepMarker(text, kind, batch_size=batch_size, tokens=numbers.get("toks", otherwise))


def _atom(text: str) -> StepMarker | None:
    if not (match := _ATOM.match(text)):
        return None
    requests = {key: int(number) for key, number in re.findall(r" ([pd])=(\d{1,9})\b", match[4])}
    kind = "mixed" if len(requests) > 1 and all(requests.values()) else match[1]
    return StepMarker(text, kind, batch_size=int(match[2]), tokens=int(match[3]))


def _tensorrt_llm(text: str) -> StepMarker | None:
    if not (match := _TENSORRT_LLM.fullmatch(text)):
        return None
    index, tokens = (int(number) if number else None for number in match.group(1, 3))
    prefills, decodes = int(match[2]), int(match[4])
    # With speculative decoding a request that generates computes more than one token.
    tokens = None if decodes else tokens
    return StepMarker(text, serving_kind(prefills, decodes), index, prefills + decodes, tokens)


#: Steps of vLLM, ``execute_context_<requests>(<tokens>)_generation_<requests>(<tokens>)`` (newer: ``sq<tokens>sk…``).
VLLM_STEPS = Dialect(r"^execute_(\d+_)?context_\d", _vllm)
#: Steps of SGLang: ``step[EXTEND bs=15 toks=15360]``, ``step[DECODE bs=32]``, ``step[MIXED bs=2 c_sq=2048 g_sq=64]``.
SGLANG_STEPS = Dialect(r"^step\[", _sglang)
#: Steps of ATOM: ``prefill[bs=2 tok=14721 ctx=[7803, 6918]]``, ``decode[bs=117/128 tok=117 d=117]`` (padded to 128).
ATOM_STEPS = Dialect(r"^(prefill|decode)\[bs=", _atom)
#: Steps of TensorRT-LLM (``tensorrt_llm/_torch/pyexecutor/py_executor.py``): ``[Executor] _forward_step 12: 1 ctx
#: reqs, 128 ctx tokens, 4 gen reqs``. The first versions wrote no number and no tokens.
TENSORRT_LLM = Dialect(r"^\[Executor\] _forward_step", _tensorrt_llm)


_LIGHTNING_MODULE = re.compile(r"\[pl\]\[module\](?:[\w<>]+\.)*([\w<>]+): (\S+)")
_LIGHTNING_ACTION = "[pl][profile]"
_SETTINGS_OF_CALLBACKS = re.compile(r"\{.*\}", re.DOTALL)
_LIGHTNING_PHASE = re.compile(
    r"(?P<forward>(?:training|validation|test|predict)_step|forward)|(?P<backward>backward)|"
    # What an optimizer's step calls to compute the loss names its own phase.
    r"(?P<optimizer>optimizer_step|optimizer_zero_grad|configure_gradient_clipping|lr_scheduler_step)|"
    r"(?P<data>\w+_next|\w*batch_to_device|on_(?:before|after)_batch_transfer|(?:train|val|test|predict)_dataloader)"
)


def _lightning(text: str) -> RangeMarker | StepMarker | None:
    name = bare_name(text)
    if module := _LIGHTNING_MODULE.fullmatch(name):
        return RangeMarker(f"{module[2]} ({module[1]})", "forward")
    if not name.startswith(_LIGHTNING_ACTION):
        return None
    action = _SETTINGS_OF_CALLBACKS.sub("", name.removeprefix(_LIGHTNING_ACTION))
    if action == "run_training_batch":
        return StepMarker(action)
    phase = _LIGHTNING_PHASE.fullmatch(action.rsplit(".", 1)[-1])
    return RangeMarker(action, phase.lastgroup or "" if phase else "") if action else None


#: Lightning's profiler for torch: ``[pl][profile][Strategy]DDPStrategy.training_step``
#: (``src/lightning/pytorch/trainer/call.py``) and ``[pl][module]torch.nn.modules.linear.Linear: encoder.0``, the class
#: and place of a module (``src/lightning/pytorch/profilers/pytorch.py``). ``run_training_batch`` is one iteration.
LIGHTNING = Dialect(r"^\[pl\]\[(module|profile)\]", _lightning)


_XLA_FORM = re.compile(r"(\w+):#(.*)#", re.DOTALL)
# Values may hold commas and equal signs, so only these names begin a field.
_XLA_FIELD = re.compile(r"(?:^|,)(prefix|name|hlo_op|hlo_module|module|program_id|unique_hlo_op_id)=")
_XLA_COMPILES = re.compile(r"Xla(?:Compile|Pass|Emit|Autotuner|MakeKernel|Create|Dump|Memory|Buffer|Optimize|Llvm)\w*")
_XLA_PHASES = (
    ("recompute", re.compile(r"(?:^|/)rematted_computation(?:/|$)")),
    ("backward", re.compile(r"(?:^|/)transpose\(jvp\(")),
    ("forward", re.compile(r"(?:^|/)jvp\(")),
)


def _xla(text: str) -> RangeMarker | None:
    match = _XLA_FORM.fullmatch(bare_name(text))
    if not match:
        return None
    parts = _XLA_FIELD.split(match[2])
    fields = dict(zip(parts[1::2], parts[2::2], strict=True))
    kind, scope = match[1], fields.get("name", "")
    operation = fields.get("hlo_op") or fields.get("hlo_module") or fields.get("module")
    if not scope and not operation:
        return None
    phase = "compile" if _XLA_COMPILES.fullmatch(kind) else ""
    phase = phase or next((phase for phase, form in _XLA_PHASES if form.search(scope)), "")
    return RangeMarker(
        f"{kind} {scope} ({operation})" if scope and operation else f"{kind} {scope or operation}", phase
    )


#: XLA, which runs JAX, in the domain ``TSL`` (``xla/backends/gpu/runtime/annotation.cc``). ``XlaModule:#hlo_module=…#``
#: is a compiled program, ``Thunk:#name=…,hlo_op=fusion.3#`` what it launches for one operation, named after scopes of
#: ``jax.named_scope`` and Flax, with ``jvp(…)`` and ``transpose(jvp(…))`` for forward and backward; ``XlaCompile:#…#``
#: and the like are parts of compiling.
XLA = Dialect(r"^(Xla\w+|Thunk):#\w+=", _xla)

#: Dialects whose ranges are no calls of modules: they record a name, and maybe a phase or a step.
FRAMEWORKS: tuple[Dialect, ...] = (
    *(FSDP, PIPELINING, INDUCTOR, DEEPSPEED, MEGATRON, TRANSFORMER_ENGINE, LIGHTNING),
    *(TENSORRT_LLM, VLLM_SCOPES, XLA),
)
