"""What kinds of work a dataset has: which sorts, phases and methods of attribution, and whether it is in steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracekit.analyses.phase_times import TRAINING

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset

_COLUMNS = ("kind", "phase", "method")
_OPERATOR, _COMPILED = "cpu_op", "compiled"


class Present(NamedTuple):
    """What the device work of a dataset is.

    Attributes:
        kinds: Kinds of work: kernels, copies, operators.
        phases: What the program did.
        methods: How work found its module.
        steps: Whether any of it is in a step.
    """

    kinds: set[str]
    phases: set[str]
    methods: set[str]
    steps: bool

    @property
    def on_cpu(self) -> bool:
        """Whether operators on the host count as work."""
        return _OPERATOR in self.kinds

    @property
    def trains(self) -> bool:
        """Whether any work is of a phase of training other than forward."""
        return not self.phases.isdisjoint(name.removesuffix("_ns") for name in TRAINING)

    @property
    def in_compiled_graphs(self) -> bool:
        """Whether any work has its modules by a kernel map."""
        return _COMPILED in self.methods


def present(dataset: Dataset) -> Present:
    """What work there is, all reports together."""
    words: dict[str, set[str]] = {name: set() for name in _COLUMNS}
    steps = False
    for part in dataset.by_report():
        work = part.table("kernels", [*_COLUMNS, "step_id"])
        for name, found in words.items():
            found.update(work.column(name).unique().to_pylist())
        steps |= work.column("step_id").null_count < work.num_rows
    kinds, phases, methods = (found - {None} for found in words.values())
    return Present(kinds, phases, methods, steps)
