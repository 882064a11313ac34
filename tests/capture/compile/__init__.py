"""Tests of compiling in pieces."""

import pytest

#: Of tests that compile: without gradients, in a Dynamo that has seen nothing.
COMPILING = [pytest.mark.torch, pytest.mark.usefixtures("inference"), pytest.mark.filterwarnings("ignore")]
