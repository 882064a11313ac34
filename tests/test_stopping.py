"""Signals that come while something is put away wait until that is done."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import pytest

from tracekit.files import stopped_once

if TYPE_CHECKING:
    from collections.abc import Iterator

STOPPING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


class StoppedError(Exception):
    pass


def stop(number: int, frame: object) -> None:
    raise StoppedError(signal.Signals(number).name)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Signals that raise, as those of the command line do."""
    before = {number: signal.signal(number, stop) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOPPING)
def test_the_first_signal_stops_and_later_ones_do_not_disturb_the_end(
    number: signal.Signals,
) -> None:
    put_away = False
    with pytest.raises(StoppedError, match=number.name), stopped_once():  # noqa: PT012 - the end is what is tested
        try:
            signal.raise_signal(number)
        finally:
            for later in STOPPING:
                signal.raise_signal(later)
            put_away = True
    assert put_away
    assert [signal.getsignal(one) for one in STOPPING] == [stop] * len(STOPPING)


def test_a_handler_that_does_not_raise_hears_every_signal() -> None:
    heard = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    with stopped_once():
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(StoppedError):
            signal.raise_signal(signal.SIGINT)
    assert heard == [signal.SIGTERM] * 3


def test_what_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stopped_once():
        signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_other_threads_leave_signals_alone() -> None:
    seen = []

    def inside() -> None:
        with stopped_once():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [stop]
