"""Stage 5: builds the tables that a dataset promises, each as :mod:`tracekit.schema.tables` declares it.

To add a table: declare it there, write ``tables/<name>.py`` with the two names of :class:`~tracekit.tables.base.Table`,
add the module to ``TABLES``, and rows of it to ``tests/tables/test_golden_tables.py``.
"""

from tracekit.tables import (
    allocations,
    api_calls,
    calls,
    coverage,
    kernel_modules,
    kernels,
    modules,
    ranges,
    steps,
    waits,
)
from tracekit.tables.base import Table

#: In the order in which they are built, two at a time: those with the most work first; coverage, which counts what
#: the others lost, last.
TABLES: tuple[Table, ...] = (
    *(ranges, calls, kernels, kernel_modules, api_calls, waits, allocations, modules, steps),
    coverage,
)
