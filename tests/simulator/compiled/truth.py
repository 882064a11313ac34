"""Compares what a dataset says of the kernels of a program with the truth."""

from __future__ import annotations

from collections import defaultdict
from itertools import takewhile
from math import isclose
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.simulator.compiled.program import Program
    from tests.simulator.compiled.recording import Served
    from tracekit.dataset.opening import Dataset


class Answer(NamedTuple):
    """What a dataset says of a piece of work, and the truth."""

    row: dict[str, Any]
    found: dict[str, float]
    served: Served

    @property
    def exact(self) -> bool:
        """Whether it names just those modules, with these weights."""
        true = self.served.modules
        return self.found.keys() == true.keys() and all(isclose(self.found[path], true[path]) for path in true)

    @property
    def truthful(self) -> bool:
        """Whether it names one module of which all are part; where a map tells none, the call around the run."""
        if len(self.found) != 1 or not (self.served.modules or self.row["method"] != "compiled"):
            return False
        (path,) = self.found
        return all(f"{served}.".startswith(f"{path}.") for served in self.served.modules or [self.served.within])


def answers(made: Program, dataset: Dataset) -> Iterator[Answer]:
    """Every piece of work that the dataset holds."""
    kernels = dataset.table("kernels").to_pylist()
    paths = dataset.table("modules", ["path"]).column("path").to_pylist()
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for row in dataset.table("kernel_modules").to_pylist():
        found[row["kernel_id"]][paths[row["module_id"]]] = row["weight"]
    for row in kernels:
        served = made.truth.get((row["pid"], row["start_ns"]))
        if served is not None:
            yield Answer(row, found.get(row["kernel_id"], {}), served)


def wrong(made: Program, dataset: Dataset) -> list[Answer]:
    """Work whose modules are neither unknown, nor right, nor what its modules are all part of."""
    return [answer for answer in answers(made, dataset) if not _right(answer)]


def _right(answer: Answer) -> bool:
    row, found = answer.row, answer.found
    if (row["method"] is None) == bool(found) or (row["cause"] is None) != bool(found):
        return False
    if not found:
        return row["module"] is None
    heaviest = [path for path in found if isclose(found[path], max(found.values()))]
    return (answer.exact or answer.truthful) and row["module"] == _around(heaviest)


def _around(paths: Iterable[str]) -> str:
    """What all of some modules are part of, or are."""
    parts = zip(*(path.split(".") for path in paths))  # noqa: B905 - up to where the shortest ends
    return ".".join(part[0] for part in takewhile(lambda part: len({*part}) == 1, parts))


def undetermined(made: Program, dataset: Dataset) -> list[Answer]:
    """Work that the report tells without a doubt, and the dataset does not."""
    if not made.features.whole_report:
        return []
    return [answer for answer in answers(made, dataset) if answer.served.certain and not answer.exact]


def determined(made: Program, dataset: Dataset) -> Mapping[str, int]:
    """How many pieces of work have just their modules, one around them, and none."""
    counts = {"exact": 0, "around": 0, "none": 0}
    for answer in answers(made, dataset):
        counts["exact" if answer.exact else "around" if answer.found else "none"] += 1
    return counts
