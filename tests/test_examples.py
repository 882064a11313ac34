"""How many examples a property tries where nobody asks for all of them."""

import pytest
from hypothesis import given, settings, strategies as st

from tests.conftest import with_fewer_examples


@pytest.mark.parametrize(("named", "tried"), [(80, 20), (12, 5), (4, 4)])
def test_a_property_tries_a_quarter_of_its_examples_and_at_least_five(named: int, tried: int) -> None:
    seen = []

    @settings(max_examples=named, database=None)
    @given(st.integers())
    def every_number(number: int) -> None:
        seen.append(number)

    with_fewer_examples(every_number)
    every_number()
    assert len(seen) == tried
