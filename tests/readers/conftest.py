"""What tests of readers share."""

import pytest

from tests.golden import Parse
from tests.readers.files import LINES, Rewrite


@pytest.fixture
def rewritten(parsed: Parse) -> Rewrite:
    return lambda sql="", lines=LINES, **how: parsed(lines, change=lambda db: db.executescript(sql), **how)
