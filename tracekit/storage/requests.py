"""Several requests at a time to a store, since each one waits for the network some ten milliseconds."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from tracekit.storage.locations import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tracekit.storage.locations import Location

_AT_ONCE = 16

Item = TypeVar("Item")
Result = TypeVar("Result")


def at_once(place: Location) -> int:
    """How many requests a place may have at once; where each waits for its answer, it need not bear several."""
    return _AT_ONCE if is_remote(place) and getattr(place.fs, "async_impl", False) else 1


def in_order(function: Callable[[Item], Result], items: Iterable[Item], place: Location) -> Iterator[Result]:
    """What a function that asks a place gives for each item, in their order; at a URL, several are asked for ahead.

    The first is asked for alone, for often nothing else is wanted.

    Raises:
        Exception: What the function raises for the first item for which it raises anything.
    """
    waiting = iter(items)
    for item in islice(waiting, 1):
        yield function(item)
    if (count := at_once(place)) == 1:
        yield from map(function, waiting)
        return
    pool = ThreadPoolExecutor(count)
    try:
        ahead = deque(pool.submit(function, item) for item in islice(waiting, count))
        while ahead:
            yield ahead.popleft().result()
            ahead += [pool.submit(function, item) for item in islice(waiting, 1)]
    finally:
        pool.shutdown(cancel_futures=True)
