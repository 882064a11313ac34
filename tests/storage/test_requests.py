"""Many reports at a URL are asked for several at a time; what comes is what comes one after the other."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

import tracekit
from tests.pipeline.test_several_reports import RANKS
from tests.storage.servers import KEYS, s3_server
from tests.trace_lines import report
from tracekit.dataset import opening
from tracekit.storage import requests
from tracekit.storage.requests import in_order

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

s3fs = pytest.importorskip("s3fs", reason="the extra s3 is not installed")
pytest.importorskip("moto", reason="moto[s3], which the extra test brings, is not installed")

REPORTS = 6
RUN = "s3://runs/run.tracekit"


class AtUrl:
    """A place that bears several requests at once."""

    class fs:  # noqa: N801 - as the places of universal_pathlib call it
        async_impl = True


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3") / "log") as address:
        yield address


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [report(tmp_path / f"rank{at}.sqlite", RANKS[at % len(RANKS)]) for at in range(REPORTS)]


@pytest.fixture
def run(address: str, paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A dataset of these reports in a bucket, whose file system is given."""
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": address}.items():
        monkeypatch.setenv(name, value)
    files = s3fs.S3FileSystem(endpoint_url=address, use_listings_cache=False)
    files.mkdir("runs")
    tracekit.parse(paths, RUN)
    yield files
    files.rm("runs", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


@given(items=st.lists(st.integers(-3, 50), max_size=60), taken=st.integers(0, 60))
def test_answers_come_in_order_and_the_first_error_is_that_of_one_after_the_other(items: list[int], taken: int) -> None:
    def asked(item: int) -> int:
        if item < 0:
            raise ValueError(item)
        return item * item

    def outcome(answers: Iterator[int]) -> tuple[list[int], str]:
        given: list[int] = []
        try:
            for _, answer in zip(range(taken), answers, strict=False):
                given.append(answer)
        except ValueError as error:
            return given, str(error)
        return given, ""

    assert outcome(in_order(asked, items, AtUrl())) == outcome(map(asked, items))  # type: ignore[arg-type]


def test_files_of_many_reports_are_opened_and_read_side_by_side(
    run: object, paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tracekit.parse(paths, tmp_path / "here"), tracekit.load(RUN)
    expected = here.table("kernels")
    open_one, at_a_time = opening.opened, threading.Barrier(REPORTS - 1)
    places: list[Any] = []

    def opened(place: Any) -> Any:
        places.append(place)
        if len(places) > 1:
            at_a_time.wait(60)
        return open_one(place)

    monkeypatch.setattr(opening, "opened", opened)
    assert there.table("kernels").equals(expected)


def test_pieces_and_subtrees_are_those_of_a_dataset_here(run: object, paths: list[Path], tmp_path: Path) -> None:
    here, there = tracekit.parse(paths, tmp_path / "here"), tracekit.load(RUN)
    assert [*there.pieces("calls")] == [*here.pieces("calls")]
    for table in ("steps", "calls"):
        assert there.subtree("net.mlp").table(table).equals(here.subtree("net.mlp").table(table))


def test_only_the_first_file_is_opened_where_one_tells_the_columns(
    run: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tracekit.load(RUN)
    asked = []
    open_one = opening.opened
    monkeypatch.setattr(opening, "opened", lambda place: asked.append(place) or open_one(place))
    there.schema("kernels")
    assert len(asked) == 1


@pytest.mark.parametrize("lost", range(0, REPORTS, 2))
def test_a_file_that_is_lost_is_told_as_it_is_one_after_the_other(
    lost: int, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.rm(f"runs/run.tracekit/kernels.parquet/report=rank{lost}", recursive=True)

    def problem() -> str:
        with pytest.raises(tracekit.DatasetError) as raised:
            tracekit.load(RUN).table("kernels")
        return str(raised.value)

    side_by_side = problem()
    monkeypatch.setattr(requests, "_AT_ONCE", 1)
    assert side_by_side == problem()
    assert "its table kernels cannot be read" in side_by_side
