"""Sizes of collectives: what Chrome traces record with kernels and NCCL in payloads, and the bandwidths from them."""

import gzip
import json
import sqlite3
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

import tracekit
from tests.command import command
from tests.golden import Parse, expect, expect_frame
from tests.needs import TRACES
from tests.readers.files import kernels, lacks
from tests.readers.kineto.traces import event, kernel, launch, trace
from tests.trace_lines import report
from tracekit.answers import communication

RANK = Path(__file__).parents[2] / "data/llama_ranks/rank0.sqlite"
LARGEST = 2**64 - 1
#: The fields of what is in a range.
Payload = dict[str, int]

LINES = """
    domain  1   0   -  2 NCCL
    range@2 1   1   2  ncclCommInitRank
    range   1   5  95  {'Module': 'top'}
    range@2 1  10  13  ncclAllGather
    launch  1  11  12  #1
    range@2 1  20  23  ncclAllReduce
    launch  1  21  22  #2
    range@2 1  30  33  ncclReduceScatter
    launch  1  31  32  #3
    range@2 1  40  41  ncclGroupStart
    range@2 1  41  42  ncclBroadcast
    range@2 1  42  45  ncclGroupEnd
    launch  1  43  44  #4
    range@2 1  50  51  ncclGroupStart
    range@2 1  51  52  ncclSend
    range@2 1  52  53  ncclRecv
    range@2 1  53  56  ncclGroupEnd
    launch  1  54  55  #5
    range@2 1  60  65  ncclAllReduce
    launch  1  61  62  #6
    launch  1  63  64  #7
    launch  1  70  72  #8
    kernel  1 100 200  #1  ncclDevKernel_AllGather_RING_LL
    kernel  1 200 300  #2  ncclDevKernel_AllReduce_Sum_f32_RING_LL
    kernel  1 300 400  #3  ncclDevKernel_ReduceScatter_Sum_f32_RING_LL
    kernel  1 400 500  #4  ncclDevKernel_Broadcast_RING_LL
    kernel  1 500 600  #5  ncclDevKernel_SendRecv
    kernel  1 600 700  #6  ncclDevKernel_AllReduce_Sum_f32_RING_LL
    kernel  1 700 800  #7  ncclDevKernel_AllReduce_Sum_f32_RING_LL
    kernel  1 800 900  #8  gemm
"""
PAYLOADS: dict[int, Payload] = {
    1: {"NCCL communicator ID": LARGEST, "No. of ranks": 4, "Rank": 1, "CUDA device": 1},
    10: {"NCCL communicator ID": LARGEST, "Message size [bytes]": 1_000},
    20: {"NCCL communicator ID": LARGEST, "Message size [bytes]": 3_000},
    30: {"NCCL communicator ID": 7, "Message size [bytes]": 3_000},  # how many ranks 7 has is not recorded
    41: {"Bytes": 5_000, "Peer rank": 0},
    51: {"Bytes": 10, "Peer rank": 1},
    52: {"Bytes": 10, "Peer rank": 1},
    60: {"NCCL communicator ID": LARGEST, "Message size [bytes]": 3_000},
}


def as_json(db: sqlite3.Connection, payloads: dict[int, Payload] = PAYLOADS, value: type = int) -> None:
    update = "UPDATE NVTX_EVENTS SET jsonText = ? WHERE start = ? AND domainId = 2"
    for start, fields in payloads.items():
        db.execute(update, (json.dumps({name: value(number) for name, number in fields.items()}), start))


as_texts_in_json = partial(as_json, value=str)


@pytest.fixture
def with_payloads(parsed: Parse) -> Parse:
    return lambda change, lines=LINES: parsed(lines, change=change)


@pytest.mark.parametrize("payloads", [as_json, as_texts_in_json])
def test_payloads_of_nccl_tell_sizes_where_one_call_launched_one_kernel(with_payloads: Parse, payloads) -> None:
    dataset = with_payloads(payloads)
    expect(dataset, "kernels")("""
        name                                         bytes  collective      group_size  communicator        dtype
        ncclDevKernel_AllGather_RING_LL              4000   all_gather      4           0xffffffffffffffff  -
        ncclDevKernel_AllReduce_Sum_f32_RING_LL      3000   all_reduce      4           0xffffffffffffffff  -
        ncclDevKernel_ReduceScatter_Sum_f32_RING_LL  -      reduce_scatter  -           0x7                 -
        ncclDevKernel_Broadcast_RING_LL              5000   broadcast       -           -                   -
        ncclDevKernel_SendRecv                       10     send_recv       -           -                   -
        ncclDevKernel_AllReduce_Sum_f32_RING_LL      -      all_reduce      -           -                   -
        ncclDevKernel_AllReduce_Sum_f32_RING_LL      -      all_reduce      -           -                   -
        gemm                                         -      -               -           -                   -
    """)
    assert "sizes of collectives" not in lacks(dataset)


def test_replays_have_the_size_that_was_recorded_at_their_graph_capture(with_payloads: Parse) -> None:
    dataset = with_payloads(
        as_json,
        """
        domain  1   0   -  2 NCCL
        launch  1   5   6  #1 cudaStreamBeginCapture_v10000
        range@2 1  20  25  ncclAllReduce
        launch  1  21  24  #2
        node!9  1  22  22
        launch  1  26  27  #3 cudaStreamEndCapture_v10000
        launch  1  60  65  #4 cudaGraphLaunch_v10000
        launch  1  70  75  #5 cudaGraphLaunch_v10000
        kernel!9 1 100 200 #4 ncclDevKernel_AllReduce_Sum_f32_RING_LL
        kernel!9 1 300 400 #5 ncclDevKernel_AllReduce_Sum_f32_RING_LL
    """,
    )
    assert kernels(dataset, "bytes") == [3_000, 3_000]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ("send 0, recv 0, send 1, recv 1", ("all_to_all", 20)),
        ("send 1, recv 1", ("send_recv", 10)),
        ("send 1, recv 1, send 1, recv 1", ("send_recv", 20)),
        ("send 0, send 1, recv 0", ("send_recv", 20)),
        ("recv 1", ("recv", 10)),
        ("send 0, allreduce 0", ("send_recv", None)),
        ("send 1, send 1, send 1", ("send_recv", 30)),
    ],
)
def test_a_group_is_what_its_calls_are_together(with_payloads, calls, expected) -> None:
    names = [one.split() for one in calls.split(", ")]
    lines = [f"range@2 1 {10 + at} {11 + at} nccl{name.capitalize()}" for at, (name, _) in enumerate(names)]
    peers = {10 + at: {"Bytes": 10, "Peer rank": int(peer)} for at, (_, peer) in enumerate(names)}
    before = ["domain 1 0 - 2 NCCL", "range@2 1 5 6 ncclGroupStart"]
    after = ["range@2 1 30 40 ncclGroupEnd", "launch 1 31 32 #1", "kernel 1 50 60 #1 ncclDevKernel_SendRecv"]
    dataset = with_payloads(partial(as_json, payloads=peers), "\n".join([*before, *lines, *after]))
    assert kernels(dataset, "collective", "bytes") == [expected]


def told(name: object, **changed: object) -> dict[str, object]:
    args = {"Collective name": name, "In msg nelems": 100, "Out msg nelems": 100, "Group size": 4, "dtype": "BFloat16"}
    args |= {"Process Group Name": "tp", "Process Group Ranks": "[0, 1, 2, 3]"}
    return args | {key.replace("_", " "): value for key, value in changed.items()}


def test_chrome_traces_record_collectives_with_their_kernels(tmp_path: Path) -> None:
    collectives = [
        told("allreduce"),
        told("_allgather_base", Out_msg_nelems=400, dtype="Float8_e4m3fn"),
        told("_reduce_scatter_base", In_msg_nelems=400, dtype="Float"),
        told("all_to_allv", dtype="Bool"),
        told("broadcast", dtype="Undefined"),
        told("allreduce_coalesced"),
        told("barrier", In_msg_nelems=0, Out_msg_nelems=0, dtype="Byte"),
        told("send", In_msg_nelems="100", Group_size=-1),
        told(7),
        {"dtype": [1], "Group size": {}, "In msg nelems": None, "Collective name": "recv"},
        {},
    ]
    events = [event("cpu_op", "aten::x", 0, 50)]
    for at, args in enumerate(collectives, 1):
        events += [launch(at, at), kernel(100 * at, at, "ncclDevKernel", **args)]
    expect(tracekit.parse(trace(tmp_path / "trace.json", *events)), "kernels")("""
        bytes  collective      dtype          group_size  communicator
        200    all_reduce      bfloat16       4           tp
        400    all_gather      float8_e4m3fn  4           tp
        1600   reduce_scatter  float32        4           tp
        100    all_to_all      bool           4           tp
        -      broadcast       undefined      4           tp
        -      all_reduce      bfloat16       4           tp
        -      barrier         uint8          4           tp
        200    send            bfloat16       -           tp
        -      unknown         -              -           -
        -      recv            -              -           -
        -      unknown         -              -           -
    """)


def test_bandwidths_are_those_of_nccl_tests(with_payloads: Parse) -> None:
    answer = communication.frame(with_payloads(as_json)).sort_values("name", kind="stable")
    expect_frame(answer)("""
        collective      communicator        group_size  path  kernels  bytes  algorithm_gb_per_s  bus_gb_per_s
        all_gather      0xffffffffffffffff  4           top   1        4000   40                  30
        all_reduce      -                   -           top   2        -      -                   -
        all_reduce      0xffffffffffffffff  4           top   1        3000   30                  45
        broadcast       -                   -           top   1        5000   50                  50
        reduce_scatter  0x7                 -           top   1        -      -                   -
        send_recv       -                   -           top   1        10     0.1                 0.1
    """)


@pytest.mark.traces
@pytest.mark.parametrize("name", ["nccl_collectives", "vllm_eager_b200"])
def test_real_chrome_traces_have_the_sizes_of_their_arguments(tmp_path: Path, name: str) -> None:
    path = TRACES / "kineto" / f"{name}.json.gz"
    widths = {"Float": 4, "Long": 8, "BFloat16": 2}
    rows = [row for row in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if row.get("cat") == "kernel"]
    expected = Counter(
        (row["name"], max(args["In msg nelems"], args["Out msg nelems"]) * widths[args["dtype"]], args["Group size"])
        for row in rows
        if "Collective name" in (args := row["args"])
    )
    found = kernels(tracekit.parse(path, tmp_path / "d"), "full_name", "bytes", "group_size")
    assert Counter(row for row in found if row[2]) == expected
    assert expected


@pytest.mark.traces
def test_a_real_report_without_payloads_says_so(tmp_path: Path) -> None:
    dataset = tracekit.parse(TRACES / "nsys" / "fsdp_2rank_h100_v2026.2.sqlite", tmp_path / "d")
    assert "sizes of collectives" in lacks(dataset)


def test_kernels_of_the_users_own_communicate_in_the_whole_dataset(tmp_path: Path) -> None:
    names = "my_ring", "my_ring_all_gather", "my_other", "cross_device_reduce_1stage"
    lines = "\n".join(f"run 1 {at} {at + 10} {name}" for at, name in zip(range(10, 50, 10), names, strict=True))
    path, out = report(tmp_path / "r.sqlite", lines), tmp_path / "d"
    assert command("parse", path, "-o", out, "--quiet", "--collective", "my_ring*").code == 0
    expect(tracekit.load(out), "kernels")("""
        name                collective
        my_ring             unknown
        my_ring_all_gather  all_gather
        my_other            -
        cross_device_reduce_1stage  all_reduce
    """)
    assert tracekit.load(out).manifest["collectives"] == ["my_ring*"]
    assert communication.frame(tracekit.load(out))["gpu_time_ns"].sum() == 30
    assert "sizes of collectives that are not NCCL's" in lacks(tracekit.load(out))


def test_process_groups_on_cpus_communicate(tmp_path: Path) -> None:
    operators = [("c10d::allreduce_", 0, 10), ("aten::mm", 50, 20), ("aten::linear", 45, 30)]
    events = [event("cpu_op", *operator) for operator in operators]
    events += [event("user_annotation", "gloo:all_reduce", 20, 60, 9), event("user_annotation", "my step", 0, 90)]
    expect_frame(communication.frame(tracekit.parse(trace(tmp_path / "trace.json", *events))))("""
        name             collective  kernels  gpu_time_ns  exposed_ns
        gloo:all_reduce  all_reduce  1        60000        40000
    """)
