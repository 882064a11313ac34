"""Files and folders appear whole at their place, or leave it as it was; stopping twice disturbs no cleanup."""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.command import contents
from tests.test_package import loaded_by
from tracekit.files import UNFINISHED, parents_made, remedy_of, stopped_once, stops_held, whole_file, whole_folder
from tracekit.nsight.nsys import run


def test_a_file_replaces_what_was_there_when_it_is_complete(tmp_path: Path) -> None:
    place = tmp_path / "page.html"
    place.write_text("old")
    with whole_file(place) as partial:
        partial.write_text("new")
        assert place.read_text() == "old"
        assert list(tmp_path.glob(UNFINISHED)) == [partial]
    assert contents(tmp_path) == {"page.html": b"new"}


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, ZeroDivisionError, OSError])
def test_a_file_and_a_folder_that_are_not_completed_vanish(stop: type[BaseException], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "page.html").write_text("old")
    with pytest.raises(stop), whole_file(folder / "page.html") as partial:  # noqa: PT012
        partial.write_text("half")
        raise stop
    with pytest.raises(stop), whole_folder(folder) as partial:  # noqa: PT012
        (partial / "half").write_text("half")
        raise stop
    assert contents(tmp_path) == {"run": None, "run/page.html": b"old"}


@pytest.mark.parametrize("whole", [whole_file, whole_folder])
def test_the_place_is_looked_at_again_before_it_is_taken(whole: type, tmp_path: Path) -> None:
    refuse = Mock(side_effect=PermissionError)
    with pytest.raises(PermissionError), whole(tmp_path / "out", refuse) as partial:  # noqa: PT012
        if not partial.exists():
            partial.write_text("complete")
    assert contents(tmp_path) == {}


def test_a_stop_that_comes_while_a_block_holds_it_is_answered_at_its_end() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), stops_held():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        done.append("the block went on")
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_program_that_is_stopped_while_it_starts_does_not_outlive_the_stop() -> None:
    started = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    assert run(start).stopped
    assert started[0].poll() is not None


def test_folders_above_are_made_and_go_again_if_the_block_fails(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    place = tmp_path / "kept" / "a" / "b" / "out"
    with pytest.raises(OSError, match="full"), parents_made(place):  # noqa: PT012
        assert place.parent.is_dir()
        raise OSError("full")
    assert contents(tmp_path) == {"kept": None}
    with parents_made(place):
        place.write_text("x")
    assert place.read_text() == "x"


def test_threads_that_write_one_file_at_once_leave_one_of_theirs(tmp_path: Path) -> None:
    place, together = tmp_path / "cached", threading.Barrier(4)

    def write(content: int) -> None:
        with whole_file(place) as partial:
            together.wait(10)
            partial.write_bytes(bytes([content]) * 1000)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert len(set(place.read_bytes())) == 1
    assert os.listdir(tmp_path) == ["cached"]  # noqa: PTH208


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some space or choose another"),
        (errno.ENOENT, "create its folder or choose another"),
        (errno.EACCES, "make its folder writable or choose another"),
        (errno.ENAMETOOLONG, "choose another"),
    ],
)
def test_what_to_do_depends_on_why_the_system_refused(number: int, remedy: str) -> None:
    assert remedy_of(OSError(number, os.strerror(number)), "choose another") == remedy


def test_it_loads_nothing_but_python(tmp_path: Path) -> None:
    more = {name.partition(".")[0] for name in loaded_by("import tracekit.files") - loaded_by("import tracekit")}
    assert not more & {"numpy", "pyarrow", "pandas", "sqlalchemy"}


STOPPING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


class StoppedError(Exception):
    pass


def stop(number: int, frame: object) -> None:
    raise StoppedError(signal.Signals(number).name)


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.signal(number, stop) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
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


@pytest.mark.usefixtures("handlers")
def test_a_handler_that_does_not_raise_hears_every_signal() -> None:
    heard = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    with stopped_once():
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(StoppedError):
            signal.raise_signal(signal.SIGINT)
    assert heard == [signal.SIGTERM] * 3
