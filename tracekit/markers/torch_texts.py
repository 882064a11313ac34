"""Modules and operators as PyTorch's own tools write them: torch.profiler, TorchScript, ``emit_nvtx``, and PyProf.

Every text of an operator may be another, since torch counts calls: ``aten::addmm, seq = 12, op_id = 317``. So they are
no dialect, which reads one text at a time: here are the expressions (RE2) that read a column of them at once.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tracekit.causes import NO_NAME
from tracekit.markers import literal
from tracekit.markers.base import MODULE, Dialect, ModuleMarker, OperatorMarker, Param, Shapes, StepMarker, Unreadable
from tracekit.markers.literal import is_path, shapes_of

#: What the text of a call begins with that torch.profiler's ``with_stack`` records.
PREFIX = "nn.Module: "
#: What the text of a call ends with that runs a module again.
AGAIN = ", recompute"

_NUMBERED = re.compile(
    rf"{re.escape(PREFIX)}(?P<name>(?P<class>.+?)_(?P<number>\d{{1,9}}))(?: \((?P<sign>.+)\))?"
    rf"(?: weight (?P<weight>\[[\d, ]+\]))?(?P<again>{AGAIN})?",
    re.DOTALL,
)


def _numbered_module(text: str) -> ModuleMarker | Unreadable:
    match = _NUMBERED.fullmatch(text)
    if match is None or not is_path(match["name"]):
        return Unreadable(NO_NAME)
    return ModuleMarker(
        path=match["name"].replace(".", "_"),
        class_name=match["class"],
        static_params=json.dumps({"forward": match["sign"]}) if match["sign"] else None,
        params=(Param("weight", tuple(json.loads(match["weight"]))),) if match["weight"] else (),
        class_only=True,
        numbered=True,
        phase="recompute" if match["again"] else "forward",
    )


#: Calls of modules by class and number, ``nn.Module: Linear_3`` for the fourth Linear that was called: no path, since
#: names of attributes are not recorded; it is below the call around it. If several modules have one name, the
#: reader adds what distinguishes them, ``nn.Module: Block_0 (model.py(12))``; to a module of one weight the shape of
#: that, ``nn.Module: Linear_3 weight [32, 16]``; and where it runs again for a backward pass, ``, recompute``.
NUMBERED_MODULES = Dialect(rf"^{re.escape(PREFIX)}", _numbered_module)


#: What the text of a call begins with whose module torch wrote on the work of a CUDA graph.
_ANNOTATED = "Annotated module: "
_ANNOTATION = re.compile(rf"{_ANNOTATED}(?P<path>\S+)(?: \((?P<class>.+)\))?", re.DOTALL)


def annotated_text(path: str, class_name: str) -> str:
    """The text of a call of an annotated module; its class may be empty."""
    return f"{_ANNOTATED}{path} ({class_name})" if class_name else f"{_ANNOTATED}{path}"


def _annotated_module(text: str) -> ModuleMarker | Unreadable:
    match = _ANNOTATION.fullmatch(text)
    if match is None or not is_path(match["path"]):
        return Unreadable(NO_NAME)
    return ModuleMarker(match["path"], match["class"], annotated=True, phase="")


#: Calls of modules in a CUDA graph that torch annotated; their paths are as the model names its modules.
ANNOTATED_MODULES = Dialect(rf"^{_ANNOTATED}", _annotated_module)


class Numbering:
    """Numbers of modules in several traces of one process, each of which counts from 0.

    ``Linear_0`` of one trace and of another are different modules unless it is known that they are the same: where all
    that both traces number is equal, and where a class has one module in both that runs around the same work. A trace
    whose modules are not known to be those of others has its numbers raised.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._known = _by_class(_numbered(texts))
        self._renamed: dict[frozenset[str], dict[str, str]] = {}

    def renamed(self, texts: Iterable[str], same: Iterable[str] = ()) -> dict[str, str]:
        """The texts of one more trace that need another number, with the text that has it.

        Texts in ``same`` mean the same module as in the first trace, if it is the only one of its class in both.
        """
        numbered, alike = _numbered(texts), {*_numbered(same).values()}
        key = frozenset(numbered)
        if key not in self._renamed:
            own = _by_class(numbered)
            raised = {
                name: max(self._known[name]) + 1
                for name, numbers in own.items()
                if numbers & self._known.get(name, set())
                and not (numbers == self._known[name] and len(numbers) == 1 and (name, *numbers) in alike)
            }
            self._renamed[key] = {
                text: _numbered_text(name, number + raised[name]) + text.removeprefix(_numbered_text(name, number))
                for text, (name, number) in numbered.items()
                if name in raised
            }
            for name, numbers in own.items():
                self._known.setdefault(name, set()).update(number + raised.get(name, 0) for number in numbers)
        return self._renamed[key]


def _by_class(numbered: dict[str, tuple[str, int]]) -> dict[str, set[int]]:
    numbers: dict[str, set[int]] = {}
    for name, number in numbered.values():
        numbers.setdefault(name, set()).add(number)
    return numbers


def _numbered_text(name: str, number: int) -> str:
    return f"{PREFIX}{name}_{number}"


def _numbered(texts: Iterable[str]) -> dict[str, tuple[str, int]]:
    matches = {text: _NUMBERED.fullmatch(text) for text in texts if text.startswith(PREFIX)}
    return {text: (match["class"], int(match["number"])) for text, match in matches.items() if match is not None}


#: The field of an event of a Chrome trace that holds a hierarchy.
FIELD = "Module Hierarchy"
#: What the notation cannot hold.
_UNKNOWN = "INSTANCE_NAME_UNKNOWN"
_UNWRITABLE_NAME, _UNWRITABLE_CLASS = re.compile(r"[.()\s]|::|^(?:TOP|SELF|CALL_FUNCTION)$|^$"), re.compile(r"[()]")


class Node(NamedTuple):
    """A node of a hierarchy, with the row of the node above it, or -1, and its attribute; a root has a name."""

    parent: int
    name: str
    class_name: str | None
    kind: str = MODULE


def hierarchy_texts(nodes: Sequence[Node]) -> list[str | None]:
    """The notation of TorchScript for every node; one that is no module has that of the module above it, or None.

    Every method is ``forward``, as others are not known. Roots of one class go by their names. Each node comes after
    the one above it.
    """
    roots = Counter(node.class_name or node.name for node in nodes if node.parent < 0)
    texts: list[str | None] = []
    for node in nodes:
        above = texts[node.parent] if node.parent >= 0 else None
        if node.kind != MODULE:
            texts.append(above)
        elif above is None:
            own = node.class_name if node.class_name and roots[node.class_name] <= 1 else node.name
            texts.append(f"TOP({_UNWRITABLE_CLASS.sub('', own)})::forward.")
        else:
            name = _UNKNOWN if _UNWRITABLE_NAME.search(node.name) else node.name
            texts.append(f"{above}{name}({_UNWRITABLE_CLASS.sub('', node.class_name or '')})::forward.")
    return texts


def _pyprof(text: str) -> OperatorMarker | None:
    items = literal.fields(text)
    if isinstance(stack := items.get("traceMarker"), list):
        return OperatorMarker(None, stack=tuple(map(str, stack)))
    name, namespace = items.get("op"), items.get("mod")
    if isinstance(settings := items.get("strRepr"), str) and isinstance(namespace, str):
        return OperatorMarker(f"{namespace}({settings})")
    if not isinstance(name, str):
        return None
    return OperatorMarker(name, namespace if isinstance(namespace, str) else None, _tensors(items.get("args")))


def _tensors(args: object) -> Shapes:
    if not isinstance(args, list):
        return ()
    shapes = [shapes_of([arg.get("shape")]) for arg in args if isinstance(arg, dict) and arg.get("type") == "tensor"]
    return tuple(shape[0] for shape in shapes if shape)


#: Operators, ``{'mod': 'torch', 'op': 'norm', 'args': [...]}``, and the lines that called them, from the outside in,
#: ``{'traceMarker': ['train.py:12', ...]}``; of recurrent layers class and settings, ``{'mod': 'LSTM', 'strRepr': …}``.
PYPROF = Dialect(r"""^\s*\{\s*['"](mod|op|traceMarker)['"]\s*:""", _pyprof)

_PROFILER_STEP = re.compile(r"(ProfilerStep#(\d{1,18}))(?:, op_id = \d+)?")


def _profiler_step(text: str) -> StepMarker | None:
    match = _PROFILER_STEP.fullmatch(text)
    return StepMarker(match[1], index=int(match[2])) if match else None


PROFILER_STEPS = Dialect(r"^ProfilerStep#\d", _profiler_step)


#: Stands before the name of a node that the engine of autograd runs.
EVALUATION = "autograd::engine::evaluate_function: "
#: The fields that differ from call to call, and what stands behind the sizes.
COUNTING_FIELDS = r", (?:seq|op_id) = -?\d+|, input_op_ids = .*$"
#: A text of torch 1.8 and newer, in which either all operators are marked or none: with the number of a call, or as a
#: Chrome trace has it, with sizes.
COMPLETE = r"^\S.*, op_id = \d+|^(?:[\w.]+::.*|\w+Backward\d*(?:, seq = \d+)?), sizes = \["
#: A name, and behind it the sizes and types.
NAME_AND_INPUTS = r"(?s)^(?P<name>.*?)(?:, sizes = (?P<sizes>\[.*?))?(?:, types = (?P<types>\[\"[^\]]*\]))?$"
#: Only releases without a blank around ``=`` wrote this; elsewhere, ``seq=128`` is the length of somebody's sequence.
OLD_SIGN = ", stashed seq="
#: The beginnings of names that only operators have, and such names.
NAMES = (
    r"^(?:aten|prims?|c10d?|_?c10d_functional|torch|torchvision|torchaudio|autograd|quantized|profiler|_C\w*|"
    r"vllm|fbgemm|xformers|flash_attn\w*|transformer_engine)::.|^[A-Za-z]\w*Backward\d*$|^Optimizer\.\w+#."
)
#: What an operator or a function of autograd can be called. ``record_function("iteration 17")`` gets an ``op_id``, too,
#: but neither a sequence number nor sizes.
IDENTIFIER = r"^[A-Za-z_][\w.:]*$"

_NUMBERS_ALONE = re.compile(r"[\[\]\d, ]*")


class Fields(NamedTuple):
    """Expressions for what only texts with fields hold, the sequence number ``seq``, and fields that count calls."""

    any: str
    sequence: str
    counting: str


def fields(*, old: bool) -> Fields:
    """How fields are written.

    ``aten::addmm, seq = 12, op_id = 317, sizes = [[8, 16], [16, 4]], input_op_ids = [(316,0)]`` is a name and fields,
    which torch leaves out where it does not know them; Chrome traces also have ``types = ["float32", "float32"]``.
    torch 1.3 to 1.7 wrote ``addmm, seq = 12``, and before (``old``), ``addmm, seq=12`` and ``AddmmBackward, stashed
    seq=12``.
    """
    sequence = ", (?:stashed )?seq ?= ?" if old else ", seq = "
    later = r"(?:, (?:op_id|sizes|input_op_ids) = |$)"
    return Fields(
        any=rf"(?:{sequence}-?|, op_id = )\d+{later}|, sizes = \[\[",
        sequence=rf"{sequence}(?P<seq>-?\d{{1,18}}){later}",
        counting=rf"(?s)(?:{sequence}-?\d+|, op_id = \d+|, input_op_ids = .*$)",
    )


def types_in(types: str) -> tuple[str, ...] | None:
    """The dtypes of inputs; None if they cannot be read, or there is no text."""
    try:
        words = json.loads(types) if types else None
    except ValueError:
        return None
    return tuple(words) if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


def shapes_in(sizes: str) -> Shapes | None:
    """The shapes of inputs; None if they cannot be read, or there is no text."""
    if not _NUMBERS_ALONE.fullmatch(sizes):
        return None
    try:
        return shapes_of(json.loads(sizes)) if sizes else None
    except (ValueError, RecursionError):
        return None
