"""Stage 5: the tables that a dataset promises, SPEC and build() side by side.

To add a table: write ``tables/<name>.py`` with the two names of :class:`~tracekit.tables.base.Table`, add the module
to ``TABLES``, and rows of it to ``tests/tables/test_golden_tables.py``. Adding a column is free; renaming or retyping
one bumps ``manifest.FORMAT_VERSION``.
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
