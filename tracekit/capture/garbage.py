"""Marks of Python's garbage collections, in which all threads of a process that run Python stand still.

Those before there is a model get none.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import methodcaller

from tracekit.capture.emit import quiet_emitter
from tracekit.capture.program import Marking
from tracekit.markers import formatting


class _Range:
    """The range of a collection, opened and closed by looking up ``start`` and ``stop``: no line of Python runs.

    A signal during a collection is answered at the next line of Python. In a callback, Python would ignore what the
    signal's handler raises.
    """

    start = property(methodcaller("open"))
    stop = property(methodcaller("close"))

    def __init__(self) -> None:
        self.prepare()

    def prepare(self) -> None:
        """Looks up the functions, in a forked process anew: nsys does not know the texts of its parent there."""
        emitter, text = quiet_emitter(), formatting.garbage_collection()
        native = getattr(emitter, "native_range", None)
        functions = native(text) if native else (emitter.opener(text), emitter.close)
        self.open: Callable[[], object] = functions[0]
        self.close: Callable[[], object] = functions[1]


@contextmanager
def collection_markers(marking: Marking) -> Iterator[None]:
    """Marks garbage collections while the block runs, from the first marked model on."""
    # Python calls it with "start" or "stop" and a dictionary, which serves as the default that getattr takes.
    collection = _Range()
    callback = partial(getattr, collection)
    marking.begins = partial(gc.callbacks.append, callback)
    marking.begins_anew = collection.prepare
    try:
        with marking:
            yield
    finally:
        if callback in gc.callbacks:
            gc.callbacks.remove(callback)
