"""Plain ranges: what of a text names a place in the program and what only counts, domains, layers of TensorRT.

``iteration 17`` and ``iteration 18`` are one place that runs twice; ``layer_0`` and ``layer_1`` are two. A number is

* a *counter*, if the word before it shows it (``step 17``, ``batch=3``), or if it is an address, an identifier or a
  shape;
* a part of the *place*, if the word before it shows it (``layer 3``);
* *attached*, if it follows another word without a gap (``bs17``, ``relu1``), else *undecided*. Then what the report
  shows decides: a text that comes again is a place, and texts that differ only by that number and come once each are
  counted by it; by an attached one only if it takes many values with gaps.
"""

import re
import string
from collections.abc import Container
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

#: Stands for what counts in the name of a range.
COUNTER = "*"
#: Stands for an undecided number, one that follows a word without a gap, one of an iteration.
UNDECIDED, ATTACHED, ITERATION = "\0", "\1", "\2"
_UNUSED = str.maketrans(dict.fromkeys((UNDECIDED, ATTACHED, ITERATION), " "))
#: The name of a longer text is its beginning, with a digest of the rest.
LONGEST_NAME = 512
#: Characters that distinguish texts.
_LONGEST_TEXT = 1 << 13

#: Words that count iterations of a program: a range that one of them counts may be a step.
_ITERATIONS = frozenset({"iteration", "iter", "it", "itr", "step", "batch", "minibatch", "timestep", "frame"})
#: A regular expression (RE2) that rejects most texts that count no iterations.
ITERATION_CANDIDATES = rf"(?i)(?:{'|'.join(sorted(_ITERATIONS))})[^A-Za-z]*\d"
#: What a step consists of, if that is what an iteration is called.
_SMALLER = "micro"
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
    r"(?<![0-9A-Za-z])(?:0x[0-9a-fA-F]+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|(?=[A-Fa-f]*\d)(?=\d*[A-Fa-f])(?:[0-9a-f]{8,}|[0-9A-F]{8,}))(?![0-9A-Za-z])"
)
_SHAPE = re.compile(r"\[ *\d+(?: *, *\d+)+ *,? *\]|\( *\d+(?: *, *\d+)+ *,? *\)|\b\d+(?:x\d+){2,}\b|\b\d{3,}x\d{3,}\b")
_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_GAP = string.punctuation + string.whitespace + string.digits
_LETTERS = string.ascii_letters + "_"
_LONGEST_WORD = 80
#: Characters of a digest.
_ENDING = 8
_WORD_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_BLANKS = re.compile(r"\s+")


class Number(NamedTuple):
    """A number in a text: what stands before it, its digits, and what it is (``COUNTER``, ``UNDECIDED`` …)."""

    before: str
    digits: str
    kind: str


class Counted(NamedTuple):
    """A text by its numbers, but for those inside words, and the number of the iteration that it counts, if any."""

    numbers: tuple[Number, ...]
    rest: str
    iteration: int | None = None

    def text(self, hidden: str = COUNTER + ITERATION) -> str:
        """The text with the digits of some kinds of numbers hidden behind their kind."""
        shown = (number.kind if number.kind and number.kind in hidden else number.digits for number in self.numbers)
        name = "".join(number.before + text for number, text in zip(self.numbers, shown, strict=True)) + self.rest
        if len(name) <= LONGEST_NAME:
            return name
        behind = name[LONGEST_NAME - _ENDING :].encode(errors="replace")
        return f"{name[: LONGEST_NAME - _ENDING - 1]}\u2026{blake2b(behind, digest_size=_ENDING // 2).hexdigest()}"

    def as_(self, kind: str, other: str, where: Container[int] | None = None) -> "Counted":
        """The same with another kind for all numbers of one kind, or for those at some places."""
        numbers = (
            number._replace(kind=other) if number.kind == kind and (where is None or at in where) else number
            for at, number in enumerate(self.numbers)
        )
        return self._replace(numbers=tuple(numbers))

    @property
    def name(self) -> str:
        """The text with ``COUNTER`` for what counts."""
        return self.text().replace(ITERATION, COUNTER)


def counted(text: str) -> Counted:
    """Finds what counts in a text."""
    text = _BLANKS.sub(" ", text[:_LONGEST_TEXT].translate(_UNUSED)).strip()
    text = _SHAPE.sub(_without_numbers, _IDENTIFIER.sub(COUNTER, text))
    numbers: list[Number] = []
    iteration = None
    at = 0
    for number in _NUMBER.finditer(text):
        digits, before = number[0], text[at : number.start()]
        at = number.end()
        word, attached = _word_before(before[-_LONGEST_WORD:])
        kind = COUNTER if word in _COUNTED else "" if word in _PLACES else ATTACHED if attached else UNDECIDED
        if word in _ITERATIONS and iteration is None and digits.isdigit():
            kind = ITERATION
            iteration = None if _SMALLER in before[-_LONGEST_WORD:].lower() else int(digits[:18])
        numbers.append(Number(before, digits, kind))
    return Counted(tuple(numbers), text[at:], iteration)


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
