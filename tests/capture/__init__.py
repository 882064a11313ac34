"""Tests of what marks a running model; all of them need torch."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

if find_spec("torch") is None:
    if os.environ.get("CI"):
        pytest.fail("needs torch: pip install torch==2.13.0", pytrace=False)
    pytest.skip("needs torch: pip install torch==2.13.0", allow_module_level=True)
