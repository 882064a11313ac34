"""Plain ranges: what of a text names a place in the program and what only counts, domains, layers of TensorRT.

``iteration 17`` and ``iteration 18`` are one place that runs twice; ``layer_0`` and ``layer_1`` are two. A number is

* a *counter*, if the word before it says so (``step 17``, ``batch=3``), or if it is an address, an identifier or a
  shape;
* a part of the *place*, if the word before it says so (``layer 3``), or if it follows a word without a gap (``conv1``);
* *undecided* otherwise. Then what the report shows decides: a text that comes again is a place, and texts that differ
  only by that number and come once each are counted by it.
"""

import re
import string
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

#: Stands for what counts in the name of a range.
COUNTER = "*"
#: Stands for an undecided number.
UNDECIDED = "\0"
#: Of a longer text the beginning is the name, with a digest of the rest.
LONGEST_NAME = 512
#: Characters that distinguish texts.
_LONGEST_TEXT = 1 << 13

#: Words that count iterations of a program: a range that one of them counts may be a step.
_ITERATIONS = frozenset({"iteration", "iter", "it", "itr", "step", "batch", "minibatch", "timestep", "frame"})
_COUNTED = _ITERATIONS | {
    *("epoch", "request", "req", "sample", "seq", "sequence", "op_id", "opid", "id", "idx", "index", "call", "count"),
    *("trial", "cycle", "round", "run", "time", "timestamp", "corr", "correlation"),
    *("token", "tokens", "size", "len", "length", "bytes"),
}
_PLACES = frozenset(
    {
        *("layer", "block", "stage", "head", "expert", "level", "module", "unit", "cell", "conv", "fc", "linear"),
        *("encoder", "decoder", "tower", "branch", "scale", "part", "phase", "group", "node", "kernel"),
        *("device", "gpu", "rank", "stream", "worker", "thread", "input", "output"),
    }
)
_IDENTIFIER = re.compile(
    r"\b0x[0-9a-fA-F]+\b"
    r"|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
    r"|\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{12,}\b"
)
_SHAPE = re.compile(r"\[ *\d+(?: *, *\d+)+ *,? *\]|\( *\d+(?: *, *\d+)+ *,? *\)|\b\d+(?:x\d+){2,}\b")
_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_GAP = string.punctuation + string.whitespace + string.digits
_LETTERS = string.ascii_letters + "_"
_LONGEST_WORD = 80
#: Characters of a digest.
_ENDING = 8
_WORD_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_BLANKS = re.compile(r"\s+")


class Counted(NamedTuple):
    """A text with its counters taken out.

    Attributes:
        name: The text, with ``COUNTER`` for what counts; undecided numbers are still there.
        template: The name with ``UNDECIDED`` for each undecided number; the same as the name if there are none.
        iteration: Its number; None if the text counts none.
    """

    name: str
    template: str
    iteration: int | None


def counted(text: str) -> Counted:
    """Takes the counters out of a text."""
    text = _BLANKS.sub(" ", text[:_LONGEST_TEXT].replace(UNDECIDED, " ")).strip()
    text = _SHAPE.sub(_without_numbers, _IDENTIFIER.sub(COUNTER, text))
    name: list[str] = []
    template: list[str] = []
    iteration = None
    at = 0
    for number in _NUMBER.finditer(text):
        digits, before = number[0], text[at : number.start()]
        at = number.end()
        word, attached = _word_before(before[-_LONGEST_WORD:])
        counts = word in _COUNTED
        if word in _ITERATIONS and iteration is None and digits.isdigit():
            iteration = int(digits[:18])
        undecided = not (counts or attached or word in _PLACES)
        name += before, COUNTER if counts else digits
        template += before, COUNTER if counts else UNDECIDED if undecided else digits
    rest = text[at:]
    return _shortened("".join((*name, rest)), "".join((*template, rest)), iteration)


def _shortened(name: str, template: str, iteration: int | None) -> Counted:
    """Of a long name the beginning, and a digest of what is behind it in the template."""
    if len(template) > LONGEST_NAME:
        behind = template[LONGEST_NAME - _ENDING :].encode(errors="replace")
        ending = f"\u2026{blake2b(behind, digest_size=_ENDING // 2).hexdigest()}"
        name, template = (text[: LONGEST_NAME - _ENDING - 1] + ending for text in (name, template))
    return Counted(name, template, iteration)


def _without_numbers(shape: re.Match[str]) -> str:
    """``[8, 4096]`` as ``[*]``: the bracket stays, so that a call with a shape looks like one."""
    text = shape[0]
    return f"{text[0]}{COUNTER}{text[-1]}" if not text[0].isdigit() else COUNTER


@lru_cache(maxsize=1 << 14)
def _word_before(text: str) -> tuple[str, bool]:
    """The last word of a text, in lower case and singular, and whether nothing stands behind it.

    ``ProfilerStep#`` ends in the word ``step``, ``op_id = `` in ``op_id``, ``/blocks.`` in ``block``.
    """
    before_gap = text.rstrip(_GAP)
    word = before_gap[len(before_gap.rstrip(_LETTERS)) :]
    attached = bool(word) and len(before_gap) == len(text)
    if word.lower() in _COUNTED:
        return word.lower(), attached
    parts = _WORD_PART.findall(word)
    last = parts[-1].lower() if parts else ""
    return (last[:-1] if last[:-1] in _COUNTED | _PLACES else last), attached


#: Names of domains as libraries register them; what frameworks run (``DeepSpeed``, ``TensorRT-LLM``, ``TSL`` of XLA) is
#: inside their ranges.
_LIBRARIES = re.compile(
    r"(nccl|aws-ofi-nccl|cublas|cudnn|cusparse|cusolver|cufft|curand|cutensor|custatevec|cudss|cufile|cccl|thrust|cub|"
    r"libcu\w+|libkvikio|kvikio|(lib)?rmm|(lib)?raft|cudf|cuml|cugraph|cuvs|cucim|dali|tensorrt(?![-_ ]?llm)|myelin|"
    r"nvimgcodec|nvjpeg|nvtiff|nvcomp|nvcv|nvmath|mpi|shmem|ucx|ucp|nvshmem|cupy|openacc|openmp|osrt)"
    r"([\W_].*|lt|exec|\d.*)?",
    re.IGNORECASE,
)


def has_layers(domain: str) -> bool:
    """Whether the texts of a domain are names of layers, in which no number counts."""
    return domain.strip().lower() == "tensorrt"


def is_library(domain: str) -> bool:
    """Whether a domain is a library's (``NCCL``, ``cuBLASLt``), whose ranges never stand above a user's."""
    return _LIBRARIES.fullmatch(domain.strip()[:64]) is not None


_LONGEST_LAYER = 4_096
_MOST_PARTS = 64
_NODE = re.compile(r"(?<![\w/.])/([\w.:-]+(?:/[\w.:-]+)*)")
#: A module of a list that ran before.
_REPEATED = re.compile(r"^(\d+)_\d+$")


def module_of(layer: str) -> tuple[str, ...]:
    """The parts of the path of the innermost module that has all nodes of a layer of TensorRT; empty if not known.

    An engine made from a model that torch exported names its layers by nodes of ONNX: ``/layer1/layer1.0/conv1/Conv +
    /layer1/layer1.0/relu/Relu`` is part of ``layer1.0``. Torch names each scope after the attribute that holds the
    module, and one in a list after the list too (``torch/onnx``).
    """
    # Three dots are between the first and the last node of a part that was compiled as a whole.
    nodes = [node.split("/")[:-1] for node in _NODE.findall(layer[:_LONGEST_LAYER].replace("...", " "))]
    parts: list[str] = []
    around = ""
    for scopes in zip(*nodes, strict=False):
        if len(set(scopes)) > 1:
            break
        parts += (_REPEATED.sub(r"\1", part) for part in scopes[0].removeprefix(f"{around}.").split("."))
        around = scopes[0]
    return tuple(parts) if all(parts) and len(parts) <= _MOST_PARTS else ()
