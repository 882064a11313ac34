"""A dimension that a marker gives as a symbol is null, the others stay; no figure is made of it."""

from tests.command import command
from tests.golden import Parse, expect, expect_frame
from tracekit.answers import memory as traffic, roofline, shapes as modules_by_shape

LINES = """
    range  1   0  50 {"Module": "m.fc", "Class": "Linear", "TrainableParams": {"weight": {"shape": [32, 64], "dtype": "float16"}}, "Inputs": [["s0", 64]], "Types": ["float16 cuda:0"], "Kwargs": {"mask": [[8], ["s0"]]}}
    range  1  51  52 {"Module": "m.fc", "Class": "Linear", "Outputs": [["s0", 32]], "Types": ["float16 cuda:0"]}
    launch 1  10  20 #1
    kernel 1  60  70 #1 gemm
    range  1 100 150 {"Module": "m.act", "Class": "ReLU", "Inputs": [["s0", 64]], "Types": ["float16 cuda:0"]}
    launch 1 110 120 #2
    kernel 1 160 170 #2 at::native::vectorized_elementwise_kernel
    range  1 200 250 {"Module": "m.fc", "Class": "Linear", "Inputs": [[4, 64]], "Types": ["float16 cuda:0"]}
    launch 1 210 220 #3
    kernel 1 260 270 #3 gemm
"""  # noqa: E501


def test_a_symbolic_dimension_costs_that_dimension_alone_makes_no_figure_and_is_shown(parsed: Parse) -> None:
    dataset = parsed(LINES)
    expect(dataset, "calls")("""
        module  start_ns  inputs        outputs       kwargs
        m.fc    0         [[None, 64]]  [[None, 32]]  [('mask', [[8], [None]])]
        m.fc    200       [[4, 64]]     -             []
        m.act   100       [[None, 64]]  -             []
    """)
    counted = [row for row in dataset.table("coverage").to_pylist() if row["what"] == "ranges"]
    assert {row["cause"]: row["count"] for row in counted} == {"marker": 1, "marker_incomplete": 3}
    shapes = modules_by_shape.frame(dataset)
    expect_frame(shapes[["path", "inputs", "flops_per_call"]])("""
        path   inputs        flops_per_call
        m.fc   [[None, 64]]  -
        m.fc   [[4, 64]]     16384
        m.act  [[None, 64]]  0
    """)
    figures = roofline.frame(dataset).set_index("path")
    assert figures["bytes"].isna().all()
    assert figures["flops"].isna().to_dict() == {"m.fc": True, "m.act": False}
    assert figures.loc["m.fc", "unknown"] == ("a Linear whose shapes do not fit its weight, or are not known")
    memory = traffic.frame(dataset).set_index("path")
    assert memory["input_bytes"].isna().to_dict() == {"m": False, "m.fc": True, "m.act": True}
    assert memory.loc["m.fc", "param_bytes"] == 32 * 64 * 2
    page = dataset.folder.parent / "page.html"
    for arguments in (("show", "shapes", dataset.folder), ("html", dataset.folder, "-o", page)):
        found = command(*arguments)
        assert (found.code, found.err) == (0, ""), arguments
