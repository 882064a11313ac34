"""Golden tests of graphs whose nodes were not recorded in their capture: order tells, or nothing does."""

from collections.abc import Callable
from pathlib import Path

import pytest

import tracekit
from tests.golden import check
from tests.graphs.test_clone_chains import CAPTURE, REPLAY, moved
from tests.sqlite import writing
from tests.trace_lines import report
from tracekit.dataset.opening import Dataset

Parse = Callable[..., Dataset]

#: Nodes as they are recorded by versions of nsys that do so after the capture has ended.
LATE = """
    node!1    1 105 105
    node!2    1 105 105
    node!3    1 106 106
    node!4    1 106 106        ## waits for an event: does no work
    node!11   1 112 112
    node!11   1 112 112  1
    node!12   1 113 113  2
    node!13   1 114 114  3
    node!14   1 114 114        ## the instance's own
"""
GRAPHS = """
    made 1   1   1 graph 1
    made 1 111 111 graph 2
    made 1 112 112 graph 3
    made 1 119 119 exec 2 of 1
"""
MAPPED = """
    kind    module  method       cause  step_id
    kernel  top.a   graph_order  -      0
    memset  top.b   graph_order  -      0
    kernel  top.b   graph_order  -      0
"""
UNMAPPED = """
    kind    module  method  cause           step_id
    kernel  -       -       graph_unmapped  0
    memset  -       -       graph_unmapped  0
    kernel  -       -       graph_unmapped  0
"""
#: What nsys says of a process of which it recorded all CUDA calls, from the first to the last.
FROM_THE_START = """
    said 1   -100 -100  Profiling has started.
    said 1    -99  -99  Process was launched by the profiler, see stdout.log for program output
    said 1    -50  -50  CUDA injection initialized successfully.
    said 1  99999 99999 Profiling has stopped.
"""


def of_instance(number: int, lines: str = REPLAY) -> str:
    for node in (11, 12, 13):
        lines = lines.replace(f"!{node} ", f"!{number << 32 | node} ")
    return lines


def other(lines: str, by: int, tens: int) -> str:
    return moved(lines, by).replace("#", f"#{tens}") + "\n"


def test_nodes_recorded_after_the_graph_capture_are_its_launches_in_their_order(parsed: Parse) -> None:
    dataset = parsed(CAPTURE + LATE + REPLAY)
    check(dataset, "kernels", MAPPED)
    check(
        dataset,
        "kernels",
        """
        original_graph_node_id  capture_range_id  call_id
        1                       1                 1
        2                       2                 2
        3                       2                 2
    """,
    )


def test_nodes_are_in_the_order_of_the_captured_ones_not_of_their_copies(parsed: Parse) -> None:
    swapped = LATE.replace("!11 ", "!x ").replace("!13 ", "!11 ").replace("!x ", "!13 ")
    replay = REPLAY.replace("!11 ", "!x ").replace("!13 ", "!11 ").replace("!x ", "!13 ")
    check(parsed(CAPTURE + swapped + replay), "kernels", MAPPED)


def test_late_nodes_of_one_graph_capture_are_not_taken_for_those_of_the_next(parsed: Parse) -> None:
    """Both graphs are of one shape; only the time of the records tells which is which."""
    second = other(CAPTURE, 1000, 3).replace("'top", "'other")
    late = moved(LATE, 1000)
    for node in (11, 12, 13, 14, 1, 2, 3, 4):
        late = late.replace(f"!{node} ", f"!{node + 20} ")
    late = late.replace("112 1", "112 21").replace("113 2", "113 22").replace("114 3", "114 23")
    replay = other(REPLAY, 2000, 4)
    for node in (11, 12, 13):
        replay = replay.replace(f"!{node} ", f"!{node + 20} ")
    dataset = parsed(CAPTURE + LATE + second + late + "\n" + REPLAY + replay)
    check(
        dataset,
        "kernels",
        """
        module   method       original_graph_node_id
        top.a    graph_order  1
        top.b    graph_order  2
        top.b    graph_order  3
        other.a  graph_order  21
        other.b  graph_order  22
        other.b  graph_order  23
    """,
    )


def test_late_nodes_on_another_thread_say_nothing_of_a_graph_capture(parsed: Parse) -> None:
    elsewhere = LATE.replace("   1 10", "   2 10")
    assert elsewhere != LATE
    check(parsed(CAPTURE + elsewhere + REPLAY), "kernels", UNMAPPED)


@pytest.mark.parametrize("clone", ["", "made 1 115 115 clone 7 of 1\nmade 1 119 119 exec 9 of 7\n"])
def test_without_nodes_the_record_of_the_graph_tells_its_graph_capture(parsed: Parse, clone: str) -> None:
    replay = of_instance(9 if clone else 2)
    dataset = parsed(CAPTURE + GRAPHS + clone + replay)
    check(dataset, "kernels", MAPPED)
    assert dataset.table("kernels").column("original_graph_node_id").null_count == 3


def test_a_graph_created_outside_of_every_graph_capture_stays_unknown(parsed: Parse) -> None:
    """Captured before the recording, or built by hand; a capture of the same shape is no proof."""
    earlier = GRAPHS.replace("1   1   1 graph 1", "1 -90 -90 graph 1")
    assert earlier != GRAPHS
    check(parsed(CAPTURE + earlier + of_instance(2)), "kernels", UNMAPPED)


def test_a_graph_of_which_nothing_is_recorded_stays_unknown_where_others_are(parsed: Parse) -> None:
    check(parsed(CAPTURE + GRAPHS + of_instance(77)), "kernels", UNMAPPED)


def test_records_that_contradict_each_other_tell_nothing(parsed: Parse) -> None:
    both = GRAPHS + "made 1 119 119 exec 2 of 3\n"
    check(parsed(CAPTURE + both + of_instance(2)), "kernels", UNMAPPED)


@pytest.mark.parametrize("replay", [REPLAY, of_instance(2)])
def test_one_graph_capture_and_one_graph_belong_together_where_all_of_the_process_was_recorded(
    parsed: Parse, replay: str
) -> None:
    check(parsed(FROM_THE_START + CAPTURE + replay), "kernels", MAPPED)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (FROM_THE_START, ""),  # older versions of nsys say nothing
        ("-100 -100  Profiling", "-60 -60 Profiling"),  # launched, and waited for the window to open
        ("-100 -100  Profiling", "150 150 Profiling"),  # the window opened after the capture
        ("-50  -50  CUDA", "-120 -120 CUDA"),  # CUDA was there before the window
        ("CUDA injection initialized successfully.", "NVTX injection initialized successfully."),
        ("was launched by the profiler", "was attached to"),
        ("Profiling has stopped.", "Profiling has started."),  # twice
        ("said 1  99999", "said 0 5 5 Profiling started due to cudaProfilerStart API\nsaid 1 99999"),
        ("said 1  99999", "said 1 9 9 Not all CUDA events might have been collected.\nsaid 1 99999"),
        ("said 1    -50", "said 7/1 -50"),  # said of another process
    ],
)
def test_a_graph_may_be_from_before_the_recording_unless_all_of_the_process_was_recorded(
    parsed: Parse, old: str, new: str
) -> None:
    """A graph of the same shape may have been captured earlier, and this capture never replayed."""
    assert old in FROM_THE_START
    start = FROM_THE_START.replace(old, new) + "\n"
    check(parsed(start + CAPTURE + REPLAY), "kernels", UNMAPPED)


def test_a_graph_capture_that_is_not_replayed_may_have_the_shape_of_another_s_graph(parsed: Parse) -> None:
    """Another capture's launches may be recorded in part, so that its graph looks like the first one's."""
    second = other(CAPTURE, 1000, 3).replace("'top", "'other").replace("cudaMemset", "cudaMemcpy")
    replay = moved(REPLAY, 2000)
    dataset = parsed(FROM_THE_START + CAPTURE + second + replay)
    assert set(dataset.table("kernels").column("cause").to_pylist()) == {"graph_unmapped"}


def counted(folder: Path, lines: str, figures: dict[str, int]) -> Dataset:
    path = report(folder / "report.sqlite", lines)
    with writing(path) as db:
        db.execute("CREATE TABLE TRACEKIT_RECORDER (name TEXT, value INTEGER)")
        db.executemany("INSERT INTO TRACEKIT_RECORDER VALUES (?, ?)", figures.items())
    return tracekit.parse(path)


def test_a_recorder_that_counted_all_graphs_leaves_no_earlier_one(tmp_path: Path) -> None:
    figures = {"graphs_before": 0, "graph_replays": 1}
    check(counted(tmp_path, CAPTURE + REPLAY, figures), "kernels", MAPPED)


@pytest.mark.parametrize(
    "figures",
    [
        {},
        {"graphs_before": 1, "graph_replays": 1},  # torch had captured one before
        {"graphs_before": 0, "graph_replays": 0},  # the graph that was launched is not torch's
        {"graph_replays": 1},
    ],
)
def test_a_recorder_that_may_have_missed_a_graph_capture_says_nothing(tmp_path, figures) -> None:
    check(counted(tmp_path, CAPTURE + REPLAY, figures), "kernels", UNMAPPED)


@pytest.mark.parametrize("call", ["cudaGraphCreate_v10000", "cuGraphAddKernelNode_v2"])
def test_a_graph_may_be_built_by_hand_where_a_process_builds_any(parsed: Parse, call: str) -> None:
    by_hand = f"launch 1 130 135 #50 {call}\n"
    check(parsed(FROM_THE_START + CAPTURE + by_hand + REPLAY), "kernels", UNMAPPED)


def test_two_graph_captures_and_two_graphs_of_two_shapes_belong_together(parsed: Parse) -> None:
    second = other(CAPTURE, 1000, 3).replace("'top", "'other").replace("cudaMemset", "cudaMemcpy")
    replay = other(REPLAY, 2000, 4).replace("memset!12", "memcpy!12")
    for node in (11, 12, 13):
        replay = replay.replace(f"!{node} ", f"!{node + 20} ")
    dataset = parsed(FROM_THE_START + CAPTURE + second + moved(REPLAY, 1500) + "\n" + replay)
    check(
        dataset,
        "kernels",
        """
        module   method
        top.a    graph_order
        top.b    graph_order
        top.b    graph_order
        other.a  graph_order
        other.b  graph_order
        other.b  graph_order
    """,
    )


def test_the_driver_s_calls_inside_the_runtime_s_count_once(parsed: Parse) -> None:
    driver = """
        launch 1  1  2 #101 cuStreamBeginCapture
        launch 1 22 28 #102 cuLaunchKernel
        launch 1 62 68 #103 cuMemsetD32Async
        launch 1 76 79 #104 cuLaunchKernel
        launch 1 101 102 #105 cuStreamEndCapture
    """
    check(parsed(FROM_THE_START + CAPTURE + driver + REPLAY), "kernels", MAPPED)


def test_work_launched_to_another_stream_meanwhile_is_no_node(parsed: Parse) -> None:
    aside = """
        launch 1  40  42 #99
        kernel 1 700 705 #99 aside
    """
    dataset = parsed(FROM_THE_START + CAPTURE + aside + REPLAY)
    check(
        dataset,
        "kernels",
        """
        name           module  method
        gemm           top.a   graph_order
        aside          top.a   range
        [CUDA memset]  top.b   graph_order
        gelu           top.b   graph_order
    """,
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("launch    1  20  30  #2", ""),  # a launch less
        ("launch    1  75  80  #4", "launch 1 75 77 #4\nlaunch 1 78 80 #9"),  # a launch more
        ("cudaMemsetAsync_v3020", "cudaMemcpyAsync_v3020"),  # of another kind
        ("cudaStreamEndCapture_v10000", "cudaStreamQuery"),  # never ended
        ("cudaStreamBeginCapture_v10000", "cudaStreamQuery"),  # begun before the recording
        (
            "launch    1   1   2  #1 cudaStreamBeginCapture_v10000",
            "launch 1 1 2 #1 cudaStreamBeginCapture_v10000\nlaunch 1 3 4 #9 cudaStreamBeginCapture_v10000",
        ),  # two at once
    ],
)
@pytest.mark.parametrize("records", [FROM_THE_START, LATE, GRAPHS])
def test_a_graph_capture_that_does_not_agree_with_the_graph_tells_nothing(
    parsed: Parse, old: str, new: str, records: str
) -> None:
    assert old in CAPTURE
    replay = of_instance(2) if records == GRAPHS else REPLAY
    check(parsed(CAPTURE.replace(old, new) + records + "\n" + replay), "kernels", UNMAPPED)


def test_two_graph_captures_of_one_shape_without_records_are_not_told_apart(parsed: Parse) -> None:
    second = other(CAPTURE, 1000, 3).replace("'top", "'other")
    dataset = parsed(FROM_THE_START + CAPTURE + second + moved(REPLAY, 2000))
    assert set(dataset.table("kernels").column("cause").to_pylist()) == {"graph_unmapped"}


def test_two_graphs_of_one_shape_cannot_both_be_of_one_graph_capture(parsed: Parse) -> None:
    earlier = other(REPLAY, 1000, 4)
    for node in (11, 12, 13):
        earlier = earlier.replace(f"!{node} ", f"!{node - 10} ")
    dataset = parsed(FROM_THE_START + CAPTURE + REPLAY + earlier)
    assert set(dataset.table("kernels").column("cause").to_pylist()) == {"graph_unmapped"}


def test_a_graph_without_a_graph_capture_shows_that_others_were_captured_before(parsed: Parse) -> None:
    alien = """
        launch    1 810 820  #40 cudaGraphLaunch_v10000
        kernel!99 1 900 910  #40 alien
    """
    dataset = parsed(FROM_THE_START + CAPTURE + REPLAY + alien)
    assert set(dataset.table("kernels").column("cause").to_pylist()) == {"graph_unmapped"}


def test_a_graph_that_ran_before_its_graph_capture_is_another(parsed: Parse) -> None:
    check(parsed(FROM_THE_START + moved(CAPTURE, 1000) + "\n" + REPLAY), "kernels", UNMAPPED)


def test_a_graph_of_another_process_is_not_of_this_graph_capture(parsed: Parse) -> None:
    dataset = parsed(FROM_THE_START + CAPTURE + REPLAY.replace(" 1 ", " 8/1 "))
    assert set(dataset.table("kernels").column("cause").to_pylist()) == {"graph_unmapped"}


def test_a_graph_captured_before_the_recording_is_unmapped_with_advice(parsed: Parse) -> None:
    dataset = parsed(of_instance(2), rows="modules")
    check(dataset, "kernels", UNMAPPED)
    (row,) = [r for r in dataset.table("coverage").to_pylist() if r["what"] == "kernels"]
    assert "before the warm-up" in row["advice"]
    assert "tracekit capture" in row["advice"]


def test_the_launches_around_nodes_whose_record_was_lost_tell_where_they_stand(parsed: Parse) -> None:
    some = """
        node!1    1  25  25
        node!11   1 112 112 1
    """
    check(
        parsed(CAPTURE + some + REPLAY),
        "kernels",
        """
        kind    module  method       original_graph_node_id
        kernel  top.a   graph_node   1
        memset  top.b   graph_order  -
        kernel  top.b   graph_order  -
    """,
    )


def test_nodes_that_have_their_place_forbid_an_order_that_contradicts_it(parsed: Parse) -> None:
    """Ids that do not follow the launches, as they need not where several streams were captured."""
    crossed = """
        node!1    1  77  77
        node!11   1 112 112 1
    """
    check(
        parsed(CAPTURE + crossed + REPLAY),
        "kernels",
        """
        kind    module  method      cause
        kernel  top.b   graph_node  -
        memset  -       -           graph_unmapped
        kernel  -       -           graph_unmapped
    """,
    )


def test_where_graphs_say_nothing_of_an_instance_its_late_nodes_may(parsed: Parse) -> None:
    lost = GRAPHS.replace("made 1 119 119 exec 2 of 1", "")
    late = LATE
    for node in (11, 12, 13, 14):
        late = late.replace(f"!{node} ", f"!{2 << 32 | node} ")
    check(parsed(CAPTURE + lost + late + "\n" + of_instance(2)), "kernels", MAPPED)


def captured(number: int, lines: str = CAPTURE) -> str:
    name = "top" if number == 0 else f"top{number}"
    return moved(lines, 1000 * number).replace("'top", f"'{name}").replace("#", f"#{number + 1}")


def written(number: int, at: int, *, numbered: bool, originals: range = range(1, 4)) -> str:
    """Late records of the nodes of one of several captures, all at one time, and of the instance's copies."""
    graph, instance = ids_of(number, numbered=numbered)
    lines = [f"node!{graph + node} 1 {at} {at}" for node in originals]
    copied = 1000 * number + 112
    lines += [f"node!{instance + node} 1 {copied} {copied} {graph + node}" for node in range(1, 4)]
    return "\n".join(lines) + "\n"


def replayed(number: int, *, numbered: bool) -> str:
    _, instance = ids_of(number, numbered=numbered)
    lines = moved(REPLAY, 50_000 + 1000 * number).replace("#", f"#{number + 1}")
    for node in (11, 12, 13):
        lines = lines.replace(f"!{node} ", f"!{instance + node - 10} ")
    return lines + "\n"


def ids_of(number: int, *, numbered: bool) -> tuple[int, int]:
    """The ids before the first nodes of a captured graph and of its instance: with the graph's number, or small."""
    if numbered:
        return (3 * number + 1) << 32, (3 * number + 2) << 32
    return 100 * number, 100 * number + 50


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("ran", [[0], [1], [0, 1]])
def test_nodes_of_two_graph_captures_recorded_together_are_told_apart_by_their_graphs_numbers_only(
    parsed: Parse, ran: list[int], numbered: bool
) -> None:
    lines = [captured(number) for number in (0, 1)]
    lines += [written(number, 1105, numbered=numbered) for number in (0, 1)]
    lines += [replayed(number, numbered=numbered) for number in ran]
    expected = {0: ["top.a", "top.b", "top.b"], 1: ["top1.a", "top1.b", "top1.b"]}
    actual = parsed("\n".join(lines)).table("kernels").column("module").to_pylist()
    assert actual == [path if numbered else None for number in ran for path in expected[number]]


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize(
    ("captures", "recorded"),
    [
        ([0, 1], [0]),  # the second's records are lost, or the first's come late
        ([0, 1], [1]),
        ([1], [0, 1]),  # the first was captured before the recording
    ],
)
def test_as_many_graphs_as_graph_captures_must_be_recorded(
    parsed: Parse, captures: list[int], recorded: list[int], numbered: bool
) -> None:
    lines = [captured(number) for number in captures]
    lines += [written(number, 1105, numbered=numbered) for number in recorded]
    lines += [replayed(number, numbered=numbered) for number in recorded]
    dataset = parsed("\n".join(lines))
    assert set(dataset.table("kernels").column("cause").to_pylist()) == {"graph_unmapped"}


def test_one_lost_record_leaves_no_graph_of_its_batch_certain(parsed: Parse) -> None:
    lines = [captured(number) for number in (0, 1)]
    lines += [written(0, 1105, numbered=True), written(1, 1105, numbered=True, originals=range(2, 4))]
    dataset = parsed("\n".join([*lines, replayed(0, numbered=True)]))
    assert set(dataset.table("kernels").column("cause").to_pylist()) == {"graph_unmapped"}


def test_what_is_recorded_after_a_whole_batch_is_certain_again(parsed: Parse) -> None:
    lines = [captured(number) for number in range(3)]
    lines += [written(number, 1105, numbered=False) for number in (0, 1)]
    lines += [written(2, 2105, numbered=False), replayed(2, numbered=False)]
    actual = parsed("\n".join(lines)).table("kernels").column("module").to_pylist()
    assert actual == ["top2.a", "top2.b", "top2.b"]


KERNELS = CAPTURE.replace("cudaMemsetAsync_v3020", "cudaLaunchKernel_v7000")
REPLAY_OF_KERNELS = REPLAY.replace("memset!12 1 310 311  #7 64", "kernel!12 1 310 311  #7 relu")
CROSSED = REPLAY_OF_KERNELS.replace("!12 ", "!x ").replace("!13 ", "!12 ").replace("!x ", "!13 ")


@pytest.mark.parametrize("records", [LATE, FROM_THE_START])
@pytest.mark.parametrize(
    ("replays", "mapped"),
    [
        (REPLAY_OF_KERNELS, True),
        (CROSSED, False),
        (REPLAY_OF_KERNELS + other(CROSSED, 1000, 3), False),  # one replay is enough
    ],
)
def test_a_replay_that_contradicts_the_order_of_ids_on_its_stream_maps_nothing(
    parsed: Parse, records: str, replays: str, mapped: bool
) -> None:
    """All are kernels: nothing but the order in which they ran tells that ids did not rise in the capture."""
    dataset = parsed(KERNELS + records + replays)
    causes = {None if mapped else "graph_unmapped"}
    assert set(dataset.table("kernels").column("cause").to_pylist()) == causes


@pytest.mark.parametrize(("last", "mapped"), [("#2", True), ("#3", False)])
def test_a_graph_capture_of_nothing_claims_no_nodes_if_no_call_of_it_is_missing(
    parsed: Parse, last: str, mapped: bool
) -> None:
    empty = f"""
        launch 1 -90 -89 #1 cudaStreamBeginCapture_v10000
        launch 1 -80 -79 {last} cudaStreamEndCapture_v10000
    """
    later = CAPTURE.replace("#", "#7")
    dataset = parsed(empty + later + LATE + REPLAY)
    check(dataset, "kernels", MAPPED if mapped else UNMAPPED)
