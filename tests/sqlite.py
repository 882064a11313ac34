"""SQLite files that tests write and change: of reports that nobody keeps, none waits for the disk."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """A new file, or one that is changed, with neither journal nor waits for the disk; it is whole at the end."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF")
        yield db
        db.commit()
