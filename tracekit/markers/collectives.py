"""Kernels that communicate, by their names: what libraries call the collectives that they run.

Names are those of functions in the libraries' sources, without templates and parameters. If a name is common
(``dispatch``), its namespace decides: ``flash_fwd_splitkv_combine_kernel`` computes.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

#: The operation of a collective whose name does not record it.
UNKNOWN = "unknown"
_NCCL = "NCCL"
#: What reports lack where other libraries communicate, and what to do.
OTHERS_SIZES = "sizes of collectives that are not NCCL's", "their kernels record none"
#: Words of operations in names of functions, of NVTX ranges and of calls of process groups; the first in a name counts.
_OPERATIONS = {
    "all_reduce": r"all_?reduce|rdxn",
    "all_gather": r"all_?gather|fcollect",
    "reduce_scatter": r"reduce_?scatter",
    "all_to_all": r"all_?to_?all(_?v)?|a2a",
    "broadcast": r"broadcast|bcast",
    "send_recv": r"send_?recv",
    "dispatch": r"(ep_)?dispatch",
    "combine": r"(ep_)?combine",
    "barrier": r"barrier",
    "reduce": r"reduce",
    "send": r"send",
    "recv": r"recv",
}
_ANY = "|".join(f"(?P<{name}>{word})" for name, word in _OPERATIONS.items())
_WORDS = re.compile(rf"(?<![a-z])(?:{_ANY})(?![a-z])")
_CAPITALS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_LONGEST = 512

_EXPERTS = r"(?:deep_ep|hybrid_ep|uccl|pplx|mori|intranode|internode(?:_ll)?)::(?:\w+::)*"
_LOCAL = r"\w*(?:layout|epilogue|prologue)"
#: Library, names with namespaces, and the operation where it is another than the words of a name.
_LIBRARIES = (
    # NCCL and RCCL: src/device; msccl is RCCL's.
    (_NCCL, r"\w*(?i:nccl)\w*|mscclKernel\w*", None),
    # vllm csrc/custom_all_reduce.cuh, sgl-kernel csrc/allreduce, aiter csrc/include/custom_all_reduce.cuh
    ("vLLM", r"cross_device_reduce_[12]stage\w*", "all_reduce"),
    # flashinfer include/flashinfer/comm, TensorRT-LLM cpp/tensorrt_llm/kernels/communicationKernels, aiter
    ("TensorRT-LLM", r"\w*allreduce_fusion_kernel\w*|\w*(?i:(?:one|two)shot_?allreduce)\w*", "all_reduce"),
    ("TensorRT-LLM", r"moeA2A(?:Prepare)?Dispatch\w*", "dispatch"),
    ("TensorRT-LLM", r"moeA2A(?:Prepare)?Combine\w*", "combine"),
    # Its second half: it waits for what the others sent, and norms.
    ("TensorRT-LLM", r"(?i:rmsNormLamport)\w*", UNKNOWN),
    # pytorch torch/csrc/distributed/c10d/symm_mem
    ("symmetric memory", r"_?(?:multimem|(?:one|two)_shot(?=\w*(?:reduce|gather|cast)))_\w+", None),
    ("symmetric memory", r"c10d::(?:\w+::)*(?:barrier|put_signal|wait_signal)_kernel|allToAllV\w*", None),
    ("symmetric memory", r"exchangeSplitAndOffset\w*", "all_to_all"),
    # nvshmem src/include/internal/non_abi
    ("NVSHMEM", r"nvshmem\w+|(?:[a-z]+|_wait_until\w*)_on_stream_kernel\w*", None),
    # DeepEP csrc/kernels, UCCL, mori src/ops/dispatch_combine, pplx-kernels csrc/all_to_all, pplx-garden
    ("DeepEP", rf"{_EXPERTS}(?!{_LOCAL})(?:\w+_)?(?:dispatch|combine|notify|barrier|sync)(?:_\w+)?", None),
    ("mori", r"Ep(?:Dispatch|Combine)\w*Kernel\w*", None),
    ("pplx", r"dispatchKernel|a2a_dispatch_(?:send|recv)_kernel", "dispatch"),
    ("pplx", r"combineKernel|a2a_combine_(?:send|recv)_kernel", "combine"),
    # quickreduce csrc/quickreduce, vllm csrc/quickreduce
    ("QuickReduce", r"allreduce_prototype_\w+", None),
    # mscclpp src/core/include/execution_kernel.hpp
    ("MSCCL++", r"mscclpp::(?:\w+::)*\w+", None),
    # TransformerEngine common/comm_gemm_overlap/userbuffers
    ("Transformer Engine", r"userbuffers_\w*_rs(?:_\w+)?", "reduce_scatter"),
    ("Transformer Engine", r"userbuffers_\w*_ag(?:_\w+)?", "all_gather"),
    ("Transformer Engine", r"k?userbuffers_\w+", None),
    # torch's process groups on CPUs
    ("Gloo", r"gloo:\w+", None),
    ("UCC", r"ucc:\w+", None),
)
_NAMES = "|".join(f"({names})" for _, names, _ in _LIBRARIES)
_TABLE = re.compile(rf"(?:\w+::)*(?:{_NAMES})")
#: Kernels of others, by their words: no part of a block or of a product, nor what Inductor fused behind a collective.
_OTHERS = re.compile(
    r"(?!triton_|.*(?:gemm|matmul|(?<![a-z])mm(?![a-z])))"
    r"(?!.*(?<![a-z])(?:warp|wave|block|cta|thread|group|tile|lane|simd)s?_)"
    r".*(?<![a-z])(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|a2a)(?![a-z])"
)
_UNNAMED, _PARAMETERS = re.compile(r"\(anonymous namespace\)::|<unnamed>::"), re.compile(r"[<(\[]")
_MANGLED, _LENGTH, _DEEPEST = re.compile(r"_Z(N?)(?=\d)"), re.compile(r"\d{1,4}"), 8


class Communication(NamedTuple):
    """What a kernel's name shows: its operation, or ``UNKNOWN``, and its library; None if that is unknown.

    The ranks of an all-reduce, all-gather or reduce-scatter of a known library wait for each other in it.
    """

    operation: str
    library: str | None


@lru_cache(maxsize=1 << 14)
def communication(kernel: str) -> Communication | None:
    """Which collective a kernel runs, by its name, signature or symbol; None if it computes.

    >>> communication("void deep_ep::intranode::dispatch<8, 768>(int4*, float*)")
    Communication(operation='dispatch', library='DeepEP')
    >>> communication("ncclDevKernel_AllReduce_Sum_bf16_RING_LL")
    Communication(operation='all_reduce', library='NCCL')
    """
    path = _path(kernel)
    if (match := _TABLE.fullmatch(path)) and match.lastindex:
        library, _, operation = _LIBRARIES[match.lastindex - 1]
        return Communication(operation or operation_of(path) or UNKNOWN, library)
    if _OTHERS.match(_in_words(path)):
        return Communication(operation_of(path) or UNKNOWN, None)
    return None


def is_process_group(name: str) -> bool:
    """Whether torch names a collective of a process group on CPUs so (``gloo:all_reduce``)."""
    known = communication(name) if name.startswith(("gloo:", "ucc:")) else None
    return known is not None


def collectives_among(kernels: Iterable[str]) -> tuple[bool, bool]:
    """Whether some kernels are collectives of NCCL, and whether some are others', whose sizes no report records."""
    of_nccl = {known.library == _NCCL for known in map(communication, kernels) if known}
    return True in of_nccl, False in of_nccl


def operation_of(text: str) -> str | None:
    """One name for all spellings of a collective: ``all_gather`` for ``ncclAllGather`` or ``_allgather_base``.

    None if a text names none.
    """
    match = _WORDS.search(_in_words(text[:_LONGEST]))
    return match.lastgroup if match else None


def _in_words(path: str) -> str:
    return _CAPITALS.sub("_", path.rpartition("::")[2]).lower()


def _path(kernel: str) -> str:
    """The name of a function with its namespaces. Kernels return void, and are no members of classes."""
    if not (mangled := _MANGLED.match(kernel)):
        plain = _PARAMETERS.split(_UNNAMED.sub("", kernel[:_LONGEST]), 1)[0]
        return plain.strip().rpartition(" ")[2].removesuffix(".kd")
    parts, at = list[str](), mangled.end()
    while length := _LENGTH.match(kernel, at):
        at = length.end() + int(length[0])
        parts.append(kernel[length.end() : at][:_LONGEST])
        if not mangled[1]:
            break
    return "::".join(parts[:_DEEPEST])
