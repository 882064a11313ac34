"""Stage 5: builds the tables that a dataset promises, each as :mod:`tracekit.schema.tables` declares it.

To add a table: declare it there, write a function that builds it, add both to ``TABLES``, and rows of it to
``tests/tables/test_golden_tables.py``.
"""

from tracekit.schema import tables
from tracekit.tables import calls, coverage, host, kernels, modules, ranges
from tracekit.tables.base import Table

#: In the order in which they are built, two at a time: those with the most work first; coverage, which counts what
#: the others lost, last.
TABLES = (
    Table(tables.Ranges.SPEC, ranges.build),
    Table(tables.Calls.SPEC, calls.build),
    Table(tables.Kernels.SPEC, kernels.build),
    Table(tables.KernelModules.SPEC, kernels.build_modules),
    Table(tables.ApiCalls.SPEC, host.api_calls),
    Table(tables.Waits.SPEC, host.waits),
    Table(tables.Allocations.SPEC, host.allocations),
    Table(tables.Modules.SPEC, modules.build),
    Table(tables.Steps.SPEC, host.steps),
    Table(tables.Coverage.SPEC, coverage.build),
)
