"""Values that Nsight's SQLite files hold: ids, texts, domains, payloads, and what is none of our business."""

import json

import pytest

from tests.golden import expect
from tests.readers.files import Rewrite, rows
from tracekit.views.summary import advice

pytestmark = pytest.mark.releases

PLAIN = "range 1 0 100 outer\nrun 1 20 25 gemm"
EVERY_ID = """
    UPDATE NVTX_EVENTS SET globalTid = globalTid | ({top});
    UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET globalTid = globalTid | ({top});
    UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = globalPid | ({top});
"""


@pytest.mark.parametrize("top", [-1 << 63, 0x7F << 56], ids=hex)
def test_ids_are_signed_numbers_of_64_bits(rewritten: Rewrite, top: int) -> None:
    dataset = rewritten(EVERY_ID.format(top=top), "range 7/9 0 100 {'Module': 'top'}\nrun 7/9 20 25 gemm")
    expect(dataset, "kernels")("name  pid  tid  module\ngemm  7  9  top")
    expect(dataset, "ranges")("pid  tid  gpu_op_count\n7  9  1")


def test_text_is_inline_or_registered_or_both_or_neither(rewritten: Rewrite) -> None:
    dataset = rewritten(
        """
        INSERT INTO StringIds VALUES (-7, 'registered'), (900, '');
        UPDATE NVTX_EVENTS SET text = NULL, textId = -7 WHERE start = 10;
        UPDATE NVTX_EVENTS SET textId = -7 WHERE start = 20;
        UPDATE NVTX_EVENTS SET text = NULL, textId = 12345 WHERE start = 30;
        UPDATE NVTX_EVENTS SET text = NULL, textId = 900 WHERE start = 40;
        UPDATE NVTX_EVENTS SET text = CAST(x'61ff62' AS TEXT) WHERE start = 50;
        UPDATE NVTX_EVENTS SET text = '', textId = -7 WHERE start = 60;
        UPDATE NVTX_EVENTS SET text = '', textId = 12345 WHERE start = 70;
        """,
        """
        range 1  0 99 outer
        range 1 10 11 x
        range 1 20 21 inline
        range 1 25 26
        range 1 30 31 x
        range 1 40 41 x
        range 1 50 51 x
        range 1 60 61 x
        range 1 70 71 x
        """,
    )
    ranges = dataset.table("ranges", ["text", "parent_range_id"]).to_pydict()
    assert ranges["text"] == ["outer", "registered", "inline", None, None, "", "a\ufffdb", "registered", ""]
    assert ranges["parent_range_id"] == [None, *[0] * 8]


def test_what_is_no_range_and_no_launch_is_counted_for_what_it_is(rewritten: Rewrite) -> None:
    dataset = rewritten(
        """
        UPDATE NVTX_EVENTS SET eventType = 34 WHERE start IN (1, 2);
        UPDATE NVTX_EVENTS SET eventType = 36 WHERE start = 3;
        UPDATE NVTX_EVENTS SET eventType = 76 WHERE start = 4;
        UPDATE NVTX_EVENTS SET eventType = 39 WHERE start = 5;
        """,
        """
        domain  1 -9 - 2 NCCL
        range   1  1 9 mark
        range   1  2 9 mark
        range   1  3 9 pop
        range   1  4 9 destroyed
        range   1  5 9 thread
        range@2 1  6 9 range
        launch  1  7 8 #-
        """,
    )
    left_out = [row for row in dataset.table("coverage").to_pylist() if "left out" in row["what"]]
    assert {row["advice"] for row in left_out} == {""}
    assert [(row["what"].partition(":")[0], row["detail"], row["count"]) for row in left_out] == [
        ("events", "NVTX mark", 2),
        ("events", "begin or end event of a complete range", 1),
        ("events", "other event", 1),
        ("launches", "API call without a correlation id", 1),
    ]
    assert not any("left out" in line for line in advice(dataset))


def test_domains_are_named_per_process_by_the_first_row_that_creates_them(rewritten: Rewrite) -> None:
    dataset = rewritten(
        """
        INSERT INTO StringIds VALUES (77, 'through textId');
        UPDATE NVTX_EVENTS SET text = NULL, textId = 77 WHERE eventType = 75 AND start = -4;
        """,
        """
        domain  7/1 -9  - 1 NCCL
        domain  7/2 -8  - 1 again
        domain  8/1 -7  - 1 cuBLAS
        domain  8/1 -4  - 2 x
        range@1 7/1  0  9 a
        range@1 7/2  0  9 b
        range@2 7/1 10 19 c
        range@1 8/5  0  9 d
        range@2 8/5 10 19 e
        range   8/5 20 29 f
        """,
    )
    expect(dataset, "ranges")("""
        text  pid  tid  domain
        a     7    1    NCCL
        c     7    1    domain#2
        b     7    2    NCCL
        d     8    5    cuBLAS
        e     8    5    through textId
        f     8    5    -
    """)


def test_payloads_of_every_kind_are_kept(rewritten: Rewrite) -> None:
    values = [
        "int64Value = -5",
        "uint64Value = -1",
        "int32Value = -7",
        "uint32Value = 4294967295",
        "doubleValue = 0.25",
    ]
    values += ["floatValue = 1e300", "jsonText = '{\"a\": [1]}'", "jsonTextId = 500", "int64Value = NULL"]
    sets = [f"UPDATE NVTX_EVENTS SET {one} WHERE start = {at};" for at, one in enumerate(values)]  # noqa: S608
    strings = "INSERT INTO StringIds VALUES (500, '{\"b\": 2}');"
    lines = "\n".join(f"range 1 {at} {at} r{at}" for at in range(len(values)))
    dataset = rewritten(strings + "".join(sets), lines)
    expect(dataset, "ranges")("""
        text  payload_int  payload_float  payload_json
        r0    -5           -              -
        r1    -1           -              -
        r2    -7           -              -
        r3    4294967295   -              -
        r4    -            0.25           -
        r5    -            1e+300         -
        r6    -            -              {"a": [1]}
        r7    -            -              {"b": 2}
        r8    -            -              -
    """)


def test_nothing_of_the_recorded_machines_environment_is_kept(rewritten: Rewrite) -> None:
    dataset = rewritten(
        """
        CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
        INSERT INTO META_DATA_CAPTURE VALUES ('ENVIRONMENT_VARIABLE', 'TOKEN=hunter2');
        INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PARAM_OUTPUT_FILE', '/home/hunter2/x.sqlite');
        INSERT INTO PROCESSES VALUES (281474993487872, 1, '/home/hunter2/bin/python3');
        """,
        PLAIN,
    )
    assert "hunter2" not in json.dumps([rows(dataset), dataset.manifest], default=str)
    assert dataset.manifest["processes"] == [{"pid": 1, "name": "python3"}]
