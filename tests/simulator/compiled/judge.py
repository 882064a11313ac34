"""What a dataset says of the kernels of a program, beside the truth."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from math import isclose
from os.path import commonpath
from typing import Any, NamedTuple

from tests.simulator.compiled.program import Program, Served
from tracekit.dataset.opening import Dataset


class Answer(NamedTuple):
    """What a dataset says of a kernel, and the truth."""

    row: dict[str, Any]
    found: dict[str, float]
    served: Served

    @property
    def exact(self) -> bool:
        true = self.served.modules
        return self.found.keys() == true.keys() and all(isclose(self.found[path], true[path]) for path in true)

    @property
    def truthful(self) -> bool:
        """Whether it names one module of which all are part; where a map tells none, the call around the run."""
        if len(self.found) != 1 or not (self.served.modules or self.row["method"] != "compiled"):
            return False
        (path,) = self.found
        return all(f"{served}.".startswith(f"{path}.") for served in self.served.modules or [self.served.within])

    @property
    def right(self) -> bool:
        row, found = self.row, self.found
        if (row["method"] is None) == bool(found) or (row["cause"] is None) != bool(found):
            return False
        if not found:
            return row["module"] is None
        heaviest = [path.replace(".", "/") for path in found if isclose(found[path], max(found.values()))]
        return (self.exact or self.truthful) and row["module"] == commonpath(heaviest).replace("/", ".")


def answers(made: Program, dataset: Dataset) -> Iterator[Answer]:
    paths = dataset.table("modules", ["path"]).column("path").to_pylist()
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for row in dataset.table("kernel_modules").to_pylist():
        found[row["kernel_id"]][paths[row["module_id"]]] = row["weight"]
    for row in dataset.table("kernels").to_pylist():
        served = made.truth.get((row["pid"], row["start_ns"]))
        if served is not None:
            yield Answer(row, found[row["kernel_id"]], served)


def wrong(made: Program, dataset: Dataset) -> list[Answer]:
    return [answer for answer in answers(made, dataset) if not answer.right]


def undetermined(made: Program, dataset: Dataset) -> list[Answer]:
    whole = made.features.whole_report
    return [one for one in answers(made, dataset) if whole and one.served.certain and not one.exact]


def determined(made: Program, dataset: Dataset) -> Counter[str]:
    return Counter("exact" if one.exact else "around" if one.found else "none" for one in answers(made, dataset))
