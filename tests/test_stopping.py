"""Signals that come while something is put away wait until that is done."""

import signal
from collections.abc import Iterator

import pytest

from tracekit.files import stopped_once

STOPPING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


class StoppedError(Exception):
    pass


def stop(number: int, frame: object) -> None:
    raise StoppedError(signal.Signals(number).name)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.signal(number, stop) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOPPING)
def test_the_first_signal_stops_and_later_ones_do_not_disturb_the_end(number: signal.Signals) -> None:
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
