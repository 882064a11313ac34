"""FLOPs, bytes and peaks by module, beside the trace that they are worked out from."""

from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.answers.golden import check
from tests.command import ROOT
from tests.golden import Parse, expect_frame
from tests.sqlite import writing
from tests.trace_lines import report
from tracekit.answers import memory as traffic, roofline, shapes as modules_by_shape
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError
from tracekit.flops.peaks import gpu_named, stated
from tracekit.views.formatting import records

#: What goes into a Linear of bfloat16 from 4 to 6, and what comes out.
LINEAR = (
    '{"Module": "top.up", "Class": "Linear", "TrainableParams": {"weight": {"shape": [6, 4], "dtype": "bfloat16"}}, '
    '"Inputs": [[8, 4]], "Types": ["bfloat16 cuda:0"]}'
)
RESULT = '{"Module": "top.up", "Class": "Linear", "Outputs": [[8, 6]], "Types": ["bfloat16 cuda:0"]}'
NORM = (
    '{"Module": "top.norm", "Class": "RMSNorm", "TrainableParams": {"weight": {"shape": [4], "dtype": "float32"}}, '
    '"Inputs": [[8, 4]], "Types": ["float32 cuda:0"]}'
)
NORMED = '{"Module": "top.norm", "Class": "RMSNorm", "Outputs": [[8, 4]], "Types": ["bfloat16 cuda:0"]}'
STEP = f"""
range  1     0   500  {{"Module": "top", "Class": "Top", "Inputs": [[8, 4]]}}
range  1    10   100  {NORM}
launch 1    20    30  #1
range  1   110   111  {NORMED}
range  1   120   200  {LINEAR}
launch 1   130   140  #2
range  1   210   211  {RESULT}
launch 1   220   230  #3
kernel 1   300   400  #1  rms_norm_kernel
kernel 1   400   600  #2  sm90_xmma_gemm_bf16
kernel 1   600   700  #3  vectorized_elementwise_kernel
"""
H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "memoryBandwidth": 3_200_000_000_000, "smCount": 132}


@pytest.fixture
def on_gpu(tmp_path: Path) -> Parse:
    def parse(lines: str, *gpus: dict[str, Any]) -> Dataset:
        path = tmp_path / "report.sqlite"
        path.unlink(missing_ok=True)
        report(path, lines)
        with writing(path) as db:
            db.execute("CREATE TABLE TARGET_INFO_GPU (id, name, smCount, memoryBandwidth, computeMajor, computeMinor)")
            for gpu in gpus:
                names, marks = ", ".join(gpu), ", ".join("?" * len(gpu))
                query = f"INSERT INTO TARGET_INFO_GPU ({names}) VALUES ({marks})"  # noqa: S608
                db.execute(query, tuple(gpu.values()))
        return tracekit.parse(path, tmp_path / "out", force=True)

    return parse


def row_of(dataset: Dataset, path: str, **options: Any) -> dict[str, Any]:
    return next(row for row in records(roofline.frame(dataset, **options)) if row["path"] == path)


def test_calls_tell_the_types_of_what_goes_in_and_out(on_gpu: Parse) -> None:
    kwargs = '"Kwargs": {"mask": [[8]]}, "KwargTypes": {"mask": ["bool cuda:0"]}'
    table = on_gpu(f"""
        range  1    0  10  {NORM[:-1]}, {kwargs}}}
        range  1   11  12  {NORMED}
        range  1   20  30  {{"Module": "top.other", "Inputs": [[8, 4]]}}
    """).table("calls", ["module", "input_types", "output_types", "kwarg_types"])
    assert table.to_pylist() == [
        {
            "module": "top.norm",
            "input_types": ["float32 cuda:0"],
            "output_types": ["bfloat16 cuda:0"],
            "kwarg_types": [("mask", ["bool cuda:0"])],
        },
        {"module": "top.other", "input_types": None, "output_types": None, "kwarg_types": None},
    ]


def test_devices_are_described_as_far_as_the_report_does(on_gpu: Parse) -> None:
    unknown = {"id": 1, "name": "Tesla V100-SXM2-16GB", "smCount": 2**32 - 1, "memoryBandwidth": 0}
    found = on_gpu(STEP, {**H100, "computeMajor": 9, "computeMinor": 0}, unknown).manifest["devices"]
    nothing = {"multiprocessors": None, "memory_bytes": None, "memory_bytes_per_s": None, "clock_hz": None}
    assert found == [
        {
            "device": 0,
            "name": H100["name"],
            "compute_capability": "9.0",
            **nothing,
            "multiprocessors": 132,
            "memory_bytes_per_s": 3_200_000_000_000,
        },
        {"device": 1, "name": unknown["name"], "compute_capability": None, **nothing},
    ]


def test_peaks_are_those_of_the_device(on_gpu: Parse) -> None:
    expect_frame(roofline.frame(on_gpu(STEP, H100)))("""
        path      peak_tflops_per_s  peak_gb_per_s  peak_flops_share  peak_bandwidth_share  roof_share  bound   subtree_peak_share
        top.up    989.4              3200           1.941e-06         0.000325              0.000325    memory  1.941e-06
        top       -                  3200           -                 -                     -           -       9.703e-07
        top.norm  -                  3200           -                 0.00065               0.00065     memory  -
    """)  # noqa: E501


def test_a_module_that_reuses_what_it_reads_is_bound_by_what_the_device_multiplies(on_gpu: Parse) -> None:
    row = row_of(on_gpu(STEP, H100), "top.up", peaks=["bfloat16=0.004", "memory=2000"])
    assert (row["bound"], row["peak_tflops_per_s"], row["roof_share"]) == ("compute", 0.004, pytest.approx(0.48))
    assert row["peak_bandwidth_share"] == pytest.approx(1.04 / 2000)


@pytest.mark.parametrize(
    ("kernel", "dtype", "peak"),
    [
        ("ampere_sgemm_32x32_tn", "float32", 66.9),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn", "tfloat32", 494.7),
        ("nvjet_tss_gemm", "float32", None),
    ],
)
def test_float32_has_the_peak_that_its_kernels_name(on_gpu: Parse, kernel: str, dtype: str, peak: float) -> None:
    dataset = on_gpu(
        STEP.replace("bfloat16 cuda", "float32 cuda")
        .replace('"bfloat16"', '"float32"')
        .replace("sm90_xmma_gemm_bf16", kernel),
        H100,
    )
    row = row_of(dataset, "top.up")
    assert (row["dtype"], row["peak_tflops_per_s"]) == (dtype, peak)
    row = row_of(dataset, "top.up", peaks=["fp32=10", "tf32=20"])
    assert row["peak_tflops_per_s"] == {"float32": 10, "tfloat32": 20}[dtype]


#: As vLLM and SGLang write them: no class, no dtypes.
SERVED = """
range  1    10   100  {'Module': 'top.embed_tokens', 'TrainableParams': {'weight': [100, 4]}, 'Inputs': [[8]]}
launch 1    20    30  #1
range  1   110   111  {'Module': 'top.embed_tokens', 'TrainableParams': {'weight': [100, 4]}, 'Outputs': [[8, 4]]}
range  1   120   200  {'Module': 'top.qkv_proj', 'TrainableParams': {'weight': [6, 4]}, 'Inputs': [[8, 4]]}
launch 1   130   140  #2
range  1   210   211  {'Module': 'top.qkv_proj', 'TrainableParams': {'weight': [6, 4]}, 'Outputs': [[8, 6]]}
range  1   220   300  {'Module': 'top.attn', 'Inputs': [[8, 2], [8, 2], [8, 2]]}
launch 1   230   240  #3
range  1   310   311  {'Module': 'top.attn', 'Outputs': [[8, 2]]}
range  1   320   400  {'Module': 'top.norm', 'TrainableParams': {'weight': [4, 4]}, 'Inputs': [[8, 4]]}
launch 1   330   340  #4
range  1   410   411  {'Module': 'top.norm', 'TrainableParams': {'weight': [4, 4]}, 'Outputs': [[8, 4]]}
kernel 1   300   400  #1  embedding_kernel
kernel 1   400   600  #2  nvjet_tst_192x192
kernel 1   600   700  #3  flash_fwd_splitkv_kernel
kernel 1   700   800  #4  layernorm_kernel
"""


def test_markers_without_class_are_understood_by_their_shapes(on_gpu: Parse) -> None:
    dataset = on_gpu(SERVED)
    expect_frame(
        roofline.frame(dataset, peaks=["H100 SXM"], dtype="bf16")[
            ["path", "dtype", "flops", "bytes", "source", "peak_tflops_per_s"]
        ]
    )("""
        path              dtype     flops  bytes  source   peak_tflops_per_s
        top.qkv_proj      bfloat16  384    208    module   989.4
        top.embed_tokens  -         0      -      kernels  -
        top.attn          -         -      -      -        -
        top.norm          -         -      -      -        -
    """)
    assert "flash_fwd_splitkv_kernel" in row_of(dataset, "top.attn")["unknown"]
    row = row_of(dataset, "top.qkv_proj")
    assert (row["flops"], row["dtype"], row["bytes"], row["peak_tflops_per_s"]) == (384, None, None, None)


def test_the_dtype_of_the_product_is_that_which_comes_out_under_autocast(on_gpu: Parse) -> None:
    lines = STEP.replace(
        '"Types": ["bfloat16 cuda:0"]}\nlaunch 1   130', '"Types": ["float32 cuda:0"]}\nlaunch 1   130'
    )
    assert lines != STEP
    assert row_of(on_gpu(lines.replace('"dtype": "bfloat16"', '"dtype": "float32"')), "top.up")["dtype"] == "bfloat16"
    assert row_of(on_gpu(lines.replace('"dtype": "bfloat16"', '"dtype": "int8"')), "top.up")["dtype"] is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("kernel 1   400   600  #2  sm90_xmma_gemm_bf16", ""), "none of its work is recorded"),
        (("sm90_xmma_gemm_bf16", "reduce_kernel"), "its shapes are those of a Linear, its kernels are not"),
        (
            ('"Inputs": [[8, 4]], "Types": ["bfloat16', '"Inputs": [[8, 5]], "Types": ["bfloat16'),
            "a Linear whose shapes do not fit its weight, or are not known",
        ),
        (
            ('"Class": "Linear"', '"Class": "Mine"'),
            "it may multiply matrices itself, in sm90_xmma_gemm_bf16; record operators (--ops)",
        ),
        (
            ('"Class": "Linear"', '"Class": "Sequential"'),
            "it may multiply matrices itself, in sm90_xmma_gemm_bf16; record operators (--ops)",
        ),
        (('"Class": "Linear"', '"Class": "ReLU"'), "a class that multiplies no matrices runs sm90_xmma_gemm_bf16"),
        (('"Class": "Linear"', '"Class": "LSTM"'), "torch counts LSTM differently per device, or not at all"),
        (
            ('[8, 4]], "Types": ["bfloat16', '[4611686018427387904, 4]], "Types": ["bfloat16'),
            "a Linear whose shapes do not fit its weight, or are not known",
        ),
    ],
)
def test_what_is_not_known_is_null_with_its_reason_here_and_above(
    on_gpu: Parse, change: tuple[str, str], why: str
) -> None:
    assert change[0] in STEP
    rows = {row["path"]: row for row in records(roofline.frame(on_gpu(STEP.replace(*change))))}
    assert (rows["top.up"]["flops"], rows["top.up"]["source"], rows["top.up"]["unknown"]) == (None, None, why)
    top = rows["top"]
    assert (top["flops"], top["subtree_flops"], top["unknown"]) == (0, None, f"top.up: {why}")
    assert top["known_flops"] == 0


WHOLE = f"""
launch 1    1    2  #9 cudaStreamBeginCapture
made   1    1    1  graph 1
range  1    5  240  {{"Module": "top", "Class": "Sequential", "Inputs": [[8, 4]]}}
range  1   10  100  {NORM}
launch 1   20   30  #1
range  1  110  111  {NORMED}
range  1  120  200  {LINEAR}
launch 1  130  140  #2
range  1  210  211  {RESULT}
launch 1  300  310  #3 cudaStreamEndCapture
made   1  311  311  exec 2 of 1
launch 1  400  410  #4 cudaGraphLaunch
graph  1  420  520  #4  exec 2 of 1
launch 1  530  540  #5 cudaGraphLaunch
graph  1  550  650  #5  exec 2 of 1
"""
EAGER = f"""
range  1  700  800  {LINEAR}
launch 1  710  720  #6
kernel 1  730  740  #6  sm90_xmma_gemm_bf16
range  1  810  811  {RESULT}
"""


def test_no_module_s_time_is_taken_for_that_of_flops_in_a_graph_traced_as_a_whole(on_gpu: Parse) -> None:
    """The Linear ran twice in the graph and once by itself, the time of which is too short for all three."""
    dataset = on_gpu(WHOLE + EAGER)
    row = row_of(dataset, "top.up")
    assert (row["runs"], row["flops"], row["self_ns"]) == (3, 3 * 384, 10)
    assert {row[name] for name in ("tflops_per_s", "gb_per_s", "roof_share", "subtree_tflops_per_s")} == {None}
    assert row_of(dataset, "top")["subtree_tflops_per_s"] == pytest.approx(3 * 384 / 210 / 1e3)
    speeds = {(row["path"], row["phase"]): row["tflops_per_s"] for row in records(modules_by_shape.frame(dataset))}
    assert speeds["top.up", "capture"] is None
    assert speeds["top.up", "forward"] == pytest.approx(384 / 10 / 1e3)
    memory = {row["path"]: row["gb_per_s"] for row in records(traffic.frame(dataset))}
    assert memory["top.up"] is None


OPS = """
range  1     0   900  {"Module": "a", "Class": "Attention", "Inputs": [[2, 4]]}
range  1    10   100  aten::matmul, seq = 1, op_id = 7, sizes = [[2, 4], [4, 8]]
range  1    20    90  aten::mm, seq = 1, op_id = 8, sizes = [[2, 4], [4, 8]]
range  1    30    80  aten::bmm, seq = 1, op_id = 9, sizes = [[1, 2, 4], [1, 4, 8]]
launch 1    40    50  #1
range  1   200   300  {"Module": "a.b", "Class": "Other", "Inputs": [[2, 4]]}
range  1   210   290  aten::mm, seq = 2, op_id = 10, sizes = [[2, 4], [4, 3]]
launch 1   220   230  #2
range  1   400   500  aten::softmax, op_id = 11, sizes = [[2, 8], [], []]
launch 1   410   420  #3
kernel 1  1000  1100  #1  gemm
kernel 1  1100  1200  #2  gemm
kernel 1  1200  1300  #3  softmax_warp_forward
"""


#: What is true of a trace, the trace, and answers about it.
GOLDENS = {
    "flops and bytes of a module and of all below it": f"""{STEP}
      roofline:
        path      dtype     runs  self_ns  flops  bytes  tflops_per_s  gb_per_s  flops_per_byte  subtree_ns  subtree_flops  known_share  source
        top.up    bfloat16  1     200      384    208    0.00192       1.04      1.846           200           384              1            module
        top       -         1     100      0      -      0             -         -               400           384              1            kernels
        top.norm  -         1     100      0      208    0             2.08      0               100           0                1            module
    """,  # noqa: E501
    "an embedding reads the rows that it looks up": """
        range  1    10   100  {"Module": "e", "Class": "Embedding", "TrainableParams": {"weight": {"shape": [100, 4], "dtype": "float16"}}, "Inputs": [[8]], "Types": ["int64 cuda:0"]}
        launch 1    20    30  #1
        range  1   110   111  {"Module": "e", "Class": "Embedding", "Outputs": [[8, 4]], "Types": ["float16 cuda:0"]}
        kernel 1   200   300  #1  vectorized_gather_kernel
      roofline:
        path  flops  bytes
        e     0      192
    """,  # noqa: E501
    "work that nobody owns leaves its module unknown": """
        range  1    10   100  {"Module": "top", "Class": "Top", "Inputs": [[8]]}
        launch 1    20    30  #1 cudaGraphLaunch_v10000
        range  1   200   300  {"Module": "idle", "Class": "Other", "Inputs": [[8]]}
        graph  1    40    90  #1
      roofline:
        path  flops  bytes  unknown
        top   -      -      its work is inside a CUDA graph traced as a whole: nsys profile --cuda-graph-trace=node
        idle  0      0      -
    """,
    "operators of a captured call count for every replay": """
        launch 1    1    2  #1 cudaStreamBeginCapture_v10000
        range  1    5   80  {"Module": "a", "Class": "Attention", "Inputs": [[2, 4]]}
        range  1    6   60  aten::mm, op_id = 8, sizes = [[2, 4], [4, 8]]
        launch 1   10   20  #2
        node!5 1   15   15
        launch 1   90   94  #3 cudaStreamEndCapture_v10000
        node!6 1   96   96  5
        launch 1  110  120  #4 cudaGraphLaunch_v10000
        kernel!6 1 130  170  #4  gemm
        launch 1  410  420  #5 cudaGraphLaunch_v10000
        kernel!6 1 430  490  #5  gemm
      roofline:
        path  runs  flops  source
        a     2     256    operators
    """,
    "of operators inside each other the outermost that counts does": f"""{OPS}
      roofline:
        path  self_ns  flops  subtree_flops  source
        a     200      128    176              operators
        a.b   100      48     48               operators
    """,
    "a captured call ran as often as its graph was replayed": f"""
        launch 1    1    2  #1 cudaStreamBeginCapture_v10000
        range  1    5   80  {{"Module": "top", "Class": "Sequential", "Inputs": [[8, 4]]}}
        range  1    6   60  {LINEAR}
        launch 1   10   20  #2
        node!5 1   15   15
        launch 1   22   28  #9
        node!7 1   25   25
        range  1   61   62  {RESULT}
        launch 1   90   94  #3 cudaStreamEndCapture_v10000
        node!6 1   96   96  5
        node!8 1   96   96  7
        launch 1  110  120  #4 cudaGraphLaunch_v10000
        kernel!6 1 130  170  #4  gemm
        kernel!8 1 170  180  #4  splitKreduce_kernel
        launch 1  410  420  #5 cudaGraphLaunch_v10000
        kernel!6 1 430  490  #5  gemm
        kernel!8 1 490 500 #5 splitKreduce_kernel
      roofline:
        path    runs  self_ns  flops  bytes  subtree_flops  tflops_per_s
        top.up  2     120      768    416    768              0.0064
        top     2     0        0      0      768              -
      shapes:
        path    calls  gpu_time_ns  flops_per_call  tflops_per_s
        top     1      120          384    0.0064
        top.up  1      120          384    0.0064
      memory:
        path    runs  param_bytes  subtree_param_bytes  input_bytes  output_bytes  bytes
        top     2     0            48                     -            -             0
        top.up  2     48           48                     128          192           416
    """,
    "flops of a graph traced as a whole are those of everything in its call": f"""{WHOLE}
      roofline:
        path      runs  self_ns  flops  tflops_per_s  subtree_ns  subtree_flops  subtree_tflops_per_s  known_share
        top       2     200      0      -             200           768              0.00384                 1
        top.norm  2     0        0      -             0             0                -                       -
        top.up    2     0        768    -             0             768              -                       -
      shapes:
        path      calls  gpu_time_ns  flops_per_call  tflops_per_s
        top       1      200          384             0.00384
        top.norm  1      0            0               -
        top.up    1      0            384             -
    """,
    "memory is that of parameters tensors and copies": f"""{STEP}
        launch 1 240 250 #4
        memcpy 1 700 750 #4 64
      memory:
        path      runs  self_ns  param_bytes  subtree_param_bytes  input_bytes  output_bytes  bytes  gb_per_s  copied_bytes  copied_ns
        top       1     150      0            64                     -            -             -      -         64            50
        top.up    1     200      48           48                     64           96            208    1.04      0             0
        top.norm  1     100      16           16                     128          64            208    2.08      0             0
    """,  # noqa: E501
}


@pytest.mark.parametrize("claim", GOLDENS)
def test_answers_about_a_trace(on_gpu: Parse, claim: str) -> None:
    check(on_gpu, GOLDENS[claim])


def test_a_captured_call_whose_kernels_were_replayed_unequally_often_has_no_flops(on_gpu: Parse) -> None:
    lines = GOLDENS["a captured call ran as often as its graph was replayed"].split("  roofline:")[0]
    answer = """roofline:
        path    runs  flops  subtree_flops  unknown
        top.up  -     -      -              how often its graph was replayed is unknown
        top     -     0      -              top.up: how often its graph was replayed is unknown
    """
    check(on_gpu, f"{lines.replace('kernel!8 1 490 500 #5 splitKreduce_kernel', '')}  {answer}")


UNCLEAR = (
    "operators that are not understood or may have been stopped, work outside of operators, or no operators recorded"
)


@pytest.mark.parametrize(
    "more",
    [
        "range 1 600 700 aten::mv, op_id = 12, sizes = [[2, 4], [4]]",
        "range 1 600 700 vllm::unified_attention, op_id = 12, sizes = [[2, 4], [4]]",
        "range 1 600 700 aten::mm, op_id = 12, sizes = [[2, 4], [5]]",
        "launch 1 600 700 #4\nkernel 1 1400 1500 #4 gemm",
    ],
)
def test_an_operator_that_is_not_understood_leaves_its_call_unknown(on_gpu: Parse, more: str) -> None:
    row = row_of(on_gpu(OPS + more), "a")
    assert (row["flops"], row["subtree_flops"], row["known_flops"]) == (None, None, 48)
    assert row["unknown"] == UNCLEAR


def test_operators_of_backward_calls_tell_their_flops(on_gpu: Parse) -> None:
    backward = '{"Module": "a", "Class": "Linear", "Phase": "backward"}'
    lines = f"""
        range  1     0   900  {backward}
        range  1    10   100  AddmmBackward0, seq = 1, op_id = 7, sizes = [[2, 4]]
        range  1    20    90  aten::mm, op_id = 8, sizes = [[2, 4], [4, 8]]
        launch 1    40    50  #1
        kernel 1  1000  1100  #1  gemm
    """
    assert row_of(on_gpu(lines), "a")["flops"] == 128
    without = "\n".join(line for line in lines.splitlines() if "op_id" not in line)
    row = row_of(on_gpu(without), "a")
    assert (row["flops"], row["unknown"]) == (
        None,
        "backward work: markers record no shapes of it; record operators (--ops)",
    )


REFUSED = "bfloat16 bfloat16= bfloat16=x bfloat16=-1 bfloat16=nan bfloat16=inf x=3 =3 memory=0 H100"


@pytest.mark.parametrize("peaks", [*REFUSED.split(), "", "bf16=1 bfloat16=2", "T4 L4"])
def test_a_peak_that_is_none_is_refused(peaks: str) -> None:
    with pytest.raises(UsageError, match=r"^--peak .*(expected DTYPE=TFLOPS|give each peak once)"):
        stated(peaks.split() or [""])


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 80GB HBM3"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("Tesla T4", "T4"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10G", None),
        ("NVIDIA H100", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("", None),
    ],
)
def test_a_gpu_is_known_by_its_whole_name(name: str, known: str | None) -> None:
    gpu = gpu_named(name)
    assert (gpu and gpu.names[0]) == known


def test_each_call_has_the_limit_of_its_own_shape(tmp_path: Path) -> None:
    """Decode steps are bound by memory, long prefills by products: averages over both would be bound by neither."""
    dataset = tracekit.parse(ROOT / "data" / "llama_batches.sqlite", tmp_path / "llama")
    path = "LlamaForCausalLM.model.layers.0.mlp.down_proj"
    calls = dataset.calls(["module", "inputs", "outputs", "gpu_self_time_ns"])
    ideal, words, taken = 0.0, set(), 0
    for call in calls[calls.module == path].itertuples():
        [given], [result] = call.inputs, call.outputs
        rows, inner, outer = given[0] * given[1], given[2], result[2]
        computing = 2 * rows * inner * outer / 312e3
        moving = 2 * (rows * inner + rows * outer + inner * outer) / 2039
        ideal += max(computing, moving)
        words.add("compute" if computing > moving else "memory")
        taken += call.gpu_self_time_ns
    row = row_of(dataset, path, peaks=["bfloat16=312", "memory=2039"])
    assert words == {"compute", "memory"}
    assert row["bound"] == "mixed"
    assert row["roof_share"] == pytest.approx(ideal / taken)
    part = row_of(dataset, path.replace("down", "gate_up"), peaks=["bfloat16=1e9", "memory=2039"])
    assert part["bound"] == "memory"


@pytest.mark.parametrize(("kernel", "flops"), [("", 3), ("launch 1 350 352 #4\nkernel 1 640 660 #4 gemm", 4)])
def test_a_recomputation_that_stopped_in_its_last_product_is_known_by_its_kernels(
    on_gpu: Parse, kernel: str, flops: int
) -> None:
    """Where no call tells what it returned."""
    product = "aten::mm, op_id = 1, sizes = [[2, 3], [3, 4]]"
    dataset = on_gpu(f"""
        range  1    0 100 nn.Module: Net_0
        range  1   10  40 nn.Module: Linear_0
        range  1   20  30 {product}
        launch 1   22  24 #1
        range  1   50  80 nn.Module: Linear_1
        range  1   60  70 {product}
        launch 1   62  64 #2
        range  1  200 400 TanhBackward0, op_id = 2, sizes = []
        range  1  205 390 nn.Module: Net_0, recompute
        range  1  210 240 nn.Module: Linear_0, recompute
        range  1  220 230 {product}
        launch 1  222 224 #3
        range  1  300 380 nn.Module: Linear_1, recompute
        range  1  340 360 {product}
        {kernel}
        kernel 1  500 520 #1 gemm
        kernel 1  520 540 #2 gemm
        kernel 1  620 640 #3 gemm
    """)
    assert row_of(dataset, "Net_0.Linear_0")["subtree_flops"] == 2 * 48
    assert row_of(dataset, "Net_0")["subtree_flops"] == flops * 48
