"""Hostile marker texts, and properties that hold for any text: the fast way of reading it is as the slow one."""

from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

import tracekit
from tests.golden import Parse
from tests.markers.test_dialects import said
from tests.trace_lines import report
from tests.work import lines_of
from tracekit.markers import layer_hooks, literal
from tracekit.markers.base import ModuleMarker as Module, Unreadable
from tracekit.trace.decoding import decode

HOSTILE_VALUES = {
    "minus": "-" * 60_000 + "1",
    "attribute": "a" + ".a" * 30_000,
    "huge number": "9" * 60_000,
    "open brackets": "[" * 60_000,
    "backslashes": "\\" * 60_000,
    "escaped quotes": "\\'" * 15_000,
}


@pytest.mark.parametrize("value", HOSTILE_VALUES.values(), ids=HOSTILE_VALUES.keys())
def test_hostile_values_become_a_counted_cause(value: str) -> None:
    for text in (f"{{'Module': 'a', 'x': {value}}}", f'{{"Module": "a", "x": {value}}}'):
        marker = said(text)
        assert isinstance(marker, Module)
        assert marker.path == "a"
        assert marker.cause is not None
    assert isinstance(said(f"{{'Module': {value}}}"), Unreadable)


OF_FRAMEWORKS = [
    "FSDP::all_gather (" + "_orig_mod." * 9_000,
    "PP:(" + "1F2;" * 9_000,
    "[pl][profile]" + "{" * 60_000,
    "[Executor] _forward_step " + "1" * 60_000,
    "Thunk:#" + ",name=" * 9_000,
    "Thunk:#name=" + "transpose(jvp(" * 9_000 + "#",
    "transformer_engine.a.forward" + ".b" * 30_000,
]


@pytest.mark.parametrize("text", [*HOSTILE_VALUES.values(), *OF_FRAMEWORKS], ids=lambda text: text[:24])
def test_work_on_hostile_texts_grows_with_their_length_alone(text: str) -> None:
    """One that is four times as long runs four times as many lines at most."""
    form = "{}" if text in OF_FRAMEWORKS else "{{'Module': 'a', 'x': {}}}"
    quarter, whole = (lines_of(partial(said, form.format(text[:end]))) for end in (len(text) // 4, len(text)))
    assert whole <= 4 * quarter + 100


def test_nothing_that_a_text_says_is_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    run = f"__import__('pathlib').Path({str(trap)!r}).touch()"
    for text in (f"{{'Module': {run}}}", f"{{'Module': 'a', 'x': {run}}}", f"a in=[{run}]", run):
        said(text)
    assert not trap.exists()


HOSTILE_TEXTS = {
    "cut short": "{'Module': 'top.b', 'Inputs': [[8,",
    "100 kB": "{'Module': 'top.b', 'x': '" + "y" * 100_000 + "'}",
    "10,000 deep": "{'Module': 'top.b', 'x': " + "[" * 10_000 + "]" * 10_000 + "}",
    "code": "{'Module': __import__('os').system('true')}",
    "lone surrogate in the name": r"{'Module': 'top.\ud800'}",
    "lone surrogate in a keyword": r"{'Module': 'top.b', '\ud800': [[8]]}",
    "lone surrogate in a setting": r"{'Module': 'top.b', 'StaticParams': {'\ud800': '\ud800'}}",
    "NUL in the name": r"{'Module': 'top.\x00'}",
    "line breaks in the name": r"{'Module': 'top.\n\r\u2028'}",
    "setting that is no JSON": r"{'Module': 'top.b', 'StaticParams': {'a': b'\xff', 'b': 1j, 'c': ...}}",
    "numbers as keys": "{'Module': 'top.b', 1: [[8]], None: [[8]], 'StaticParams': {1: 2, None: 3}}",
}


@pytest.mark.parametrize("text", HOSTILE_TEXTS.values(), ids=HOSTILE_TEXTS.keys())
def test_a_report_with_a_hostile_text_is_parsed(parsed: Parse, text: str) -> None:
    dataset = parsed(f"""
        range  1  0 100 {{'Module': 'top'}}
        range  1 10  50 {text}
        launch 1 20  25 #1
        kernel 1 60  70 #1 gemm
    """)
    assert dataset.table("ranges").column("text").to_pylist() == ["{'Module': 'top'}", text]
    (kernel,) = dataset.table("kernels").to_pylist()
    assert (kernel["method"] is None) == (kernel["cause"] is not None)
    assert kernel["module"] != "top"
    counted = [row for row in dataset.table("coverage").to_pylist() if row["what"] == "ranges"]
    assert sum(row["count"] for row in counted) == 2


def test_calls_nested_thousands_deep_are_counted_and_work_grows_with_their_number_alone(tmp_path: Path) -> None:
    work = []
    for deep in (2_000, 8_000):
        calls = [f"range 1 {at} {20_000 - at} {{'Module': 'top'}}" for at in range(deep)]
        lines = "\n".join([*calls, "launch 1 9000 9001 #1", "kernel 1 9002 9009 #1"])
        work.append(lines_of(partial(tracekit.parse, report(tmp_path / f"{deep}.sqlite", lines))))
        dataset = tracekit.load(tmp_path / f"{deep}.tracekit")
        assert dataset.table("calls").column("gpu_time_ns").to_pylist() == [7] * deep
        assert len(dataset.table("modules")) < 1_000
        counted = {row["cause"]: row["count"] for row in dataset.table("coverage").to_pylist()}
        assert counted["module_unclear"] == deep - len(dataset.table("modules"))
    assert work[1] < 5 * work[0]


BEGINNINGS = ["", "{'Module': ", "{'Module': 'a', ", '{"Module": "a", ', "{'mod': ", "a in=["]
BEGINNINGS += ["Torch Compiled Module (input):", "step[", "{'Module': 'Torch Compiled Module ("]


@settings(max_examples=300)
@given(
    st.sampled_from(BEGINNINGS),
    st.text() | st.text("{}[]()'\"\\:,.0 -einfaModule"),
    st.sampled_from(["", "}", "'}", "]}", "]"]),
)
def test_no_text_ever_raises(beginning: str, middle: str, end: str) -> None:
    assert len(decode([beginning + middle + end]).markers) <= 1


VALUES = st.recursive(
    st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
    max_leaves=12,
)
FIELDS = [", 'Class': 'b'", ", 'TrainableParams': {'w': [2, 's0']}", ", 'x': [[3]]", ", 'StaticParams': {'p': 1}", "?"]
FIELDS += [field.replace("'", '"') for field in ("'Module': 'a'", ", 'Inputs': ", ", 'Outputs': ", *FIELDS)]
FIELDS += ["'Module': 'a'", ", 'Inputs': ", ", 'Outputs': ", "[[1]]", "}"]
PIECES = ["'", "{", "}", "[", "]", ", ", ": ", "'a'", "'a': 1", "1", "#", " ", "-", "0", "(", ")"]


@given(st.lists(st.tuples(st.sampled_from(["Module", "Inputs", "x", "x, 'y': 1"]), VALUES)))
def test_a_dict_is_read_the_fast_way_as_the_slow_way(items: list[tuple[str, object]]) -> None:
    text = f"{{{', '.join(f'{key!r}: {value!r}' for key, value in items)}}}"
    fast = literal._plain(text)
    assert fast is None or fast == literal._python(text)


@given(st.lists(st.sampled_from(PIECES + FIELDS), max_size=10).map("".join))
@example("{'Module': 'a', 'Inputs': [[1]]}")
@example("{'Module': 'a', 'Inputs': [[1]]} ")
@example("{'Module': 'a', 'Inputs': [[1]]")
@example("{'Module': 'a'}, 'Inputs': [[1]]}")
@example("{'Module': 'a, 'Inputs': [[1]]}")
@example("{'x': {'Module': 'a', 'Inputs': [[1]]}}")
@example("{'Module': 'a', 'Inputs': [[1]], 'Inputs': [[2]]}")
@example("{'Module': 'a', 'Outputs': [[1]]}")
@example("{'Module': 'a', 'Inputs': [[1]], 'Outputs': [[2]]}")
@example("{'Module': 'a', 'Outputs': [[1]], 'Inputs': [[2]]}")
@example("{'Module': '', 'Inputs': [[1]], 'Phase': 'recompute'}")
@example("{'Module': 'a', 'TrainableParams': {'w': 'x'}, 'Inputs': [['s0']], 'StaticParams': {'p': 1}}")
@example("{'Module': 'a', 'TrainableParams': {'w': ['s0']}, 'Inputs': [['s0']], 'x': [[1]]}")
@example("""{'Module': 'a', "x, 'Inputs': ": [[1]]}""")
@example(
    """{"Module": "a", "Class": "B", "Inputs": [[1]], "Types": ["f"], "Kwargs": {"x": [[2]]}, "Phase": "capture"}"""
)
@example("""{"Module": "a", 'Inputs': [[1]]}""")
@example("{'Module': 'a', [1]: 2, 'Inputs': [[1]], [1]: 2}")
def test_a_text_is_read_in_halves_as_it_is_as_a_whole(text: str) -> None:
    whole = layer_hooks.LAYER_DICTS._replace(halves=None)
    halved, read = decode([text], [layer_hooks.LAYER_DICTS]), decode([text], [whole])
    assert halved.markers == read.markers
    assert halved.of_text.tolist() == read.of_text.tolist()
