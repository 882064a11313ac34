"""Parses many damaged copies of a report, one after the other, in a process that may crash or hang.

Prints how often each good outcome was seen, a dataset or a TracekitError, and every other one.
"""

import json
import random
import shutil
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import tracekit
from tests.command import ROOT, environment
from tests.sqlite import writing

_MOST_FLIPS = 24


def dense(report: Path) -> Path:
    with writing(report) as db:
        db.execute("PRAGMA page_size = 512")
        db.execute("VACUUM")
    return report


def damaged_copies(whole: bytes, cuts: int, flips: int) -> Iterator[tuple[str, bytes]]:
    for step in range(cuts):
        length = len(whole) * step // cuts
        yield f"the first {length} bytes", whole[:length]
    chance = random.Random(20240229)
    telling = [at for at, byte in enumerate(whole) if byte]
    for step in range(flips):
        bits = 1 if step % 2 else chance.randint(2, _MOST_FLIPS)
        places = [(chance.choice(telling), chance.randrange(8)) for _ in range(bits)]
        damaged = bytearray(whole)
        for at, bit in places:
            damaged[at] ^= 1 << bit
        yield f"flipped (byte, bit): {places}", bytes(damaged)


def outcome(folder: Path, damaged: bytes) -> str:
    """Parses it in an empty folder; says how it went and that only what may be there is there."""
    report = folder / "report.sqlite"
    report.write_bytes(damaged)
    try:
        dataset = tracekit.parse(report)
    except tracekit.TracekitError as error:
        dataset, said = None, str(error)
    if dataset is None:
        assert "\n" not in said, said
    else:
        assert dataset.table("kernels").num_rows == dataset.manifest["rows"]["kernels"]
    may_be_there = {"report.sqlite", *(["report.tracekit"] if dataset else [])}
    left = {path.name for path in folder.iterdir()}
    assert left == may_be_there, f"left behind: {left}"
    assert report.read_bytes() == damaged, "changed the report"
    return "read" if dataset else "refused"


def outcomes(folder: Path, copies: Iterator[tuple[str, bytes]]) -> tuple[Counter[str], list[str]]:
    seen: Counter[str] = Counter()
    bad = []
    for what, damaged in copies:
        sys.stderr.write(f"trying {what}\n")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            seen[outcome(folder, damaged)] += 1
        except Exception as error:  # noqa: BLE001 - whatever comes here is what is looked for
            where = traceback.extract_tb(error.__traceback__)[-1]
            bad.append(f"{type(error).__name__}: {error} ({where.filename}:{where.lineno}); {what}")
    return seen, bad


def survey(report: Path, folder: Path, *, cuts: int, flips: int) -> tuple[Counter[str], list[str]]:
    """Does it in a process of its own, so that a crash or a hang fails one test only."""
    call = [sys.executable, "-m", "tests.damage", str(report), str(folder), str(cuts), str(flips)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=300, cwd=ROOT, env=environment(), check=False)
    assert done.returncode == 0, f"exit code {done.returncode} at: {done.stderr[-1000:]}"
    found = json.loads(done.stdout)
    return Counter(found["seen"]), found["bad"]


def main(report: str, folder: str, cuts: str, flips: str) -> None:
    seen, bad = outcomes(Path(folder), damaged_copies(Path(report).read_bytes(), int(cuts), int(flips)))
    json.dump({"seen": seen, "bad": bad}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
