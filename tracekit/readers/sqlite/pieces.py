"""A large table piece by piece, so that memory does not grow with its rows."""

from __future__ import annotations

import itertools
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tracekit.readers.sqlite.bulk import PART_PAGES, part_of, with_nulls
from tracekit.readers.sqlite.pages import NotPlain, leaves, open_pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    import pyarrow as pa

    from tracekit.arrays.types import Ints
    from tracekit.readers.requests import Request
    from tracekit.readers.sqlite.bulk import Part
    from tracekit.readers.sqlite.file import SqliteFile

_MOST_AHEAD = 4


def pieces(file: SqliteFile, request: Request, progress: Callable[[float], None]) -> Iterator[pa.Table]:
    """The rows of a table in the order of their rowids, some thousand pages at a time; nothing if the file lacks it.

    Every piece has all columns that the table has, in the types that are asked for.

    Args:
        file: The file.
        request: What to read.
        progress: Called with the share that is done.

    Raises:
        NotPlain: If the table, or a value of it, can only be read by a query.
    """
    name = request.table.name
    if name not in file.tables:
        return
    layout = file.layout(name)
    if layout is None or not layout.keys.isdisjoint(request.columns):
        raise NotPlain
    present = [column for column in request.columns if column in file.tables[name]]
    last = None
    with open_pages(file.path) as pages:
        leaf = leaves(pages, layout.root)
        runs = [leaf[at : at + PART_PAGES] for at in range(0, leaf.size, PART_PAGES)]
        for done, part in enumerate(_ahead(lambda run: part_of(pages, run, request, layout), runs), 1):
            rows = part.rowid
            ascending = rows.size < 2 or bool((rows[1:] > rows[:-1]).all())  # noqa: PLR2004
            if part.elsewhere or part.beyond or not ascending or (last is not None and rows.size and rows[0] <= last):
                raise NotPlain
            last = int(rows[-1]) if rows.size else last
            yield with_nulls(part, present, request.columns)
            progress(done / len(runs))


def _ahead(function: Callable[[Ints], Part], items: list[Ints]) -> Iterator[Part]:
    """``map``, with the next few results computed beside."""
    workers = min(_MOST_AHEAD, os.cpu_count() or 1)
    pending: deque[Future[Part]] = deque()
    waiting = iter(items)
    with ThreadPoolExecutor(max_workers=workers) as pool:
        try:
            pending.extend(pool.submit(function, item) for item in itertools.islice(waiting, workers + 1))
            while pending:
                yield pending.popleft().result()
                pending.extend(pool.submit(function, item) for item in itertools.islice(waiting, 1))
        finally:
            pool.shutdown(cancel_futures=True)
