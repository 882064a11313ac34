"""Golden tests of calls that block, and of other API calls: a trace, and the rows that it must give."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

import tracekit
from tests.golden import Parse, expect
from tracekit.dataset import manifest
from tracekit.errors import DatasetError, UsageError


def test_a_call_blocks_by_its_name_or_by_the_memory_that_it_copies(parsed: Parse) -> None:
    dataset = parsed("""
        range    1    0 200 ProfilerStep#1
        range    1    5 150 {'Module': 'top'}
        launch   1   10  20 #1
        kernel   1   30  50 #1
        launch   1   25  55 #2 cudaStreamSynchronize_v3020 stream=7
        launch   1   60  70 #3 cudaMemcpyAsync_v3020
        memcpy   1   62  68 #3 1024 from=0
        launch   1   70  72 #4 cudaMemcpyAsync_v3020
        memcpy   1   72  78 #4 1024
        launch   1   80  90 #5 cudaMemcpy_v3020
        memcpy   1   82  88 #5 1024
        launch   1   90  91 #55 cudaMemcpy_v3020
        memcpy   1   90  91 #55 1024 from=0
        launch   1   91  92 #6 cudaMalloc_v3020
        launch   1   93  94 #7 cudaMallocAsync_v11020
        launch   1   95  96 #8 cudaFree_v3020
        launch   1   97  98 #9 cuModuleLoadData
        launch   1   99 100 #10 cudaEventQuery_v3020 event=4
        launch   1  101 102 #11 cudaEventSynchronize_v3020 returns=719
        os       1  160 170 pthread_cond_wait
        os       1  171 172 write
        os     9/9  160 170 poll
    """)
    expect(dataset, "waits")("""
        kind            name                   tid  start_ns  dur_ns  module  call_id  step_id  kernel_id
        synchronize     cudaStreamSynchronize  1    25        30      top     0        0        0
        pageable_copy   cudaMemcpyAsync        1    60        10      top     0        0        1
        copy            cudaMemcpy             1    80        10      top     0        0        3
        pageable_copy   cudaMemcpy             1    90        1       top     0        0        4
        allocation      cudaMalloc             1    91        1       top     0        0        -
        free            cudaFree               1    95        1       top     0        0        -
        module_loading  cuModuleLoadData       1    97        1       top     0        0        -
        synchronize     cudaEventSynchronize   1    101       1       top     0        0        -
        os_wait         pthread_cond_wait      1    160       10      -       -        0        -
    """)
    expect(dataset, "api_calls")("""
        name             tid  start_ns  dur_ns  stream
        cudaMallocAsync  1    93        1       -
        cudaEventQuery   1    99        1       -
    """)
    assert [process["pid"] for process in dataset.manifest["processes"]] == [1]


def test_what_the_driver_loads_inside_a_call_that_first_needs_it_blocks_the_thread(parsed: Parse) -> None:
    dataset = parsed("""
        range    1    5 150 {'Module': 'top'}
        launch   1   10  60 #1
        overhead 1   12  50 Runtime Triggered Module Loading
        overhead 1   51  58 Lazy Function Loading
        overhead 1   58  59 CUPTI Buffer flush
        overhead 9   12  50 Lazy Function Loading
        kernel   1   70  90 #1
    """)
    expect(dataset, "waits")("""
        kind            name                              tid  start_ns  dur_ns  module  kernel_id
        module_loading  Runtime Triggered Module Loading  1    12        38      top     -
        module_loading  Lazy Function Loading             1    51        7       top     -
    """)


def test_what_a_call_waits_for_is_the_last_work_launched_before_on_its_stream_or_context(parsed: Parse) -> None:
    dataset = parsed("""
        launch    1    0   1 #1
        kernel+7  1   50  60 #1 first
        launch    1    2   3 #2
        kernel+8  1   50  90 #2 second
        launch    1    4   5 #3
        kernel+8  1   90  95 #3 third
        launch    1    6  60 #4 cudaStreamSynchronize stream=7
        launch    1   61  62 #5 cudaDeviceSynchronize
        launch    2   63  64 #6 cudaStreamSynchronize stream=9
        launch    2   64  65 #7 cudaStreamSynchronize
        launch    1   70  71 #8
        kernel+8  1   99 100 #8 later
    """)
    expect(dataset, "waits")("""
        name                   start_ns  kernel_id
        cudaStreamSynchronize  6         0
        cudaDeviceSynchronize  61        2
        cudaStreamSynchronize  63        -
        cudaStreamSynchronize  64        -
    """)


@pytest.mark.parametrize(("stream", "end", "known"), [(7, 91, "1"), (8, 91, "-"), (7, 89, "-")])
def test_a_process_with_one_stream_waits_for_that_if_none_is_recorded(parsed, stream, end, known) -> None:
    dataset = parsed(f"""
        launch           1   0   1 #1
        kernel+{stream}  1  50  60 #1 first
        launch           1   2   3 #2
        kernel+7         1  60  90 #2 second
        launch           1   4  {end} #3 cudaStreamSynchronize
    """)
    expect(dataset, "waits")(f"name  start_ns  kernel_id\ncudaStreamSynchronize  4  {known}")


@pytest.mark.parametrize("numbered", [True, False])
def test_waits_for_events_are_for_the_work_before_the_record(parsed: Parse, numbered: bool) -> None:
    lines = """
        launch    1    0   1 #1
        kernel+7  1   50  60 #1 first
        launch    1    2   3 #2 cudaEventRecord stream=7 event=1
        launch    1    4   5 #3
        kernel+7  1   60  80 #3 second
        launch    1    6   7 #4 cudaStreamWaitEvent stream=8 event=1
        launch    1    8   9 #5 cudaEventRecordWithFlags stream=7 event=2
        launch    1   10  11 #6 cudaEventSynchronize event=2
        launch    1   12  13 #7 cudaStreamWaitEvent stream=8 event=3
    """
    lines = lines if numbered else lines.replace("event=2", "handle=5").replace("event=1", "handle=5")
    dataset = parsed(lines if numbered else lines.replace("event=3", "handle=6"))
    expect(dataset, "api_calls")("""
        name                      stream  kernel_id
        cudaEventRecord           7       -
        cudaStreamWaitEvent       8       0
        cudaEventRecordWithFlags  7       -
        cudaStreamWaitEvent       8       -
    """)
    expect(dataset, "waits")("name  kernel_id\ncudaEventSynchronize  1")


def test_ranges_tell_the_phase_that_their_text_names_and_what_runs_in_a_garbage_collection_is_of_the_one_around_it(
    parsed: Parse,
) -> None:
    dataset = parsed("""
        range 1   0  99 {'Module': 'top'}
        range 1  10  40 {"GarbageCollection": 2}
        run   1  20  30 kernel
        range 1 100 109 enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
        range 1 110 119 Optimizer.step#SGD.step
        range 1 120 129 step 3
    """)
    expect(dataset, "ranges")("phase\n-\ngarbage_collection\ndata\noptimizer\n-")
    expect(dataset, "kernels")("phase  module\nforward  top")


def test_a_dataset_made_before_a_table_or_a_column_says_so(parsed: Parse) -> None:
    folder = Path(parsed("range 1 0 9 {'Module': 'top'}").folder)
    (folder / "waits.parquet").unlink()
    place = folder / "kernels.parquet"
    pq.write_table(pq.read_table(place).drop_columns(["source", "stack"]), place)
    fields = {name: value for name, value in manifest.read(folder).items() if name != manifest.ID}
    for name in ("rows", manifest.TABLE_IDS):
        fields[name] = {key: value for key, value in fields[name].items() if key != "waits"}
    fields[manifest.TABLE_IDS]["kernels"] = None
    manifest.write(folder, fields)
    dataset = tracekit.load(folder)
    with pytest.raises(DatasetError, match="has no table waits: it was made by an earlier tracekit; parse the report"):
        dataset.table("waits")
    with pytest.raises(DatasetError, match="has no column source of kernels: it was made by an earlier tracekit; "):
        dataset.ask("lines")
    with pytest.raises(DatasetError, match="has no column stack of kernels: it was made by an earlier tracekit; "):
        next(dataset.pieces("kernels", ["stack"]))
    with pytest.raises(UsageError, match="kernels has no column sourc; expected one of"):
        dataset.kernels(["sourc"])
