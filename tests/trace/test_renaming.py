"""Golden test of renamings: modules that got another path while they were recorded have one path in all calls."""

import json

from tests.golden import Parse, expect
from tracekit.markers.formatting import MOST_CHARACTERS, renamed

#: Parts run before their whole. One of a part is named by itself, the other goes with it; ``Idle`` is to be skipped.
#: A later module and another process have a module of the old name.
LINES = """
    range  1    0  50 {"Module": "Encoder", "Inputs": [[2]]}
    range  1   10  20 {"Module": "Encoder.norm", "Inputs": [[2]]}
    run    1   11  12 early
    range  1   30  40 {"Module": "Encoder.up", "Inputs": [[2]]}
    range  1   80  90 {"Module": "Idle", "Inputs": [[2]]}
    range  1  100 100 {"Renamed": 0, "Paths": {"Encoder": "Whole.enc", "Encoder.norm": "Whole.enc.first", "Idle": ""}}
    range  1  200 300 {"Module": "Whole", "Inputs": [[2]]}
    range  1  210 250 {"Module": "Whole.enc", "Inputs": [[2]]}
    range  1  220 240 {"Module": "Whole.enc.first", "Inputs": [[2]]}
    run    1  221 222 late
    range  1  500 550 {"Module": "Encoder", "Inputs": [[2]]}
    range  2/1  0  50 {"Module": "Encoder", "Inputs": [[2]]}
"""


def test_calls_before_a_renaming_have_the_new_path_and_others_keep_theirs(parsed: Parse) -> None:
    dataset = parsed(LINES)
    expect(dataset, "calls")("""
        module           occurrence  pid  start_ns
        Whole            1           1    200
        Whole.enc        1           1    0
        Whole.enc        2           1    210
        Whole.enc.first  1           1    10
        Whole.enc.first  2           1    220
        Whole.enc.up     1           1    30
        Encoder          1           2    0
        Encoder          1           1    500
    """)
    expect(dataset, "kernels")("""
        name   module           method
        early  Whole.enc.first  range
        late   Whole.enc.first  range
    """)


def test_many_new_paths_are_in_as_many_texts_as_have_room_for_them() -> None:
    paths = {f"layers.{number}": "x" * 1000 for number in range(MOST_CHARACTERS // 700)}
    texts = [*renamed(3, paths)]
    assert [item for text in texts for item in json.loads(text)["Paths"].items()] == [*paths.items()]
    assert all(MOST_CHARACTERS // 2 - 2000 < len(text) <= MOST_CHARACTERS // 2 + 100 for text in texts[:-1])
