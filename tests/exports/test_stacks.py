"""Collapsed stacks beside the trace; ``tests/answers/test_sums.py`` sees that nothing is lost in any program."""

from pathlib import Path

from tests.command import command
from tests.golden import Parse
from tracekit.dataset.opening import Dataset
from tracekit.exports.base import Target
from tracekit.exports.stacks import write


def stacks(dataset: Dataset, out: Path) -> str:
    outcome = command("export", dataset.folder, "--format", "stacks", "-o", out, "--quiet", "--force")
    assert outcome == (0, "", "")
    return out.read_text("utf-8")


def test_a_stack_is_the_path_and_the_kernel_with_its_own_time(parsed: Parse, tmp_path: Path) -> None:
    dataset = parsed("""
        range  1   0 100 {'Module': 'top'}
        range  1  10  50 {'Module': 'top.layers.0'}
        launch 1  20  24 #1
        kernel 1 900 910 #1 gemm
        kernel 1 910 925 #1 gemm
        kernel 1 925 926 #1 relu
        range  1  60  70 {'Module': 'top.layers.1'}
        launch 1  61  68 #3
        kernel 1 955 958 #3 gemm
        launch 1  80  81 #4
        memcpy 1 960 970 #4 64
        kernel 1 980 981 #9 orphan
    """)
    assert stacks(dataset, tmp_path / "out") == (
        "top;[CUDA memcpy Host-to-Device] 10\n"
        "top;layers;0;gemm 25\n"
        "top;layers;0;relu 1\n"
        "top;layers;1;gemm 3\n"
        "[no_launch];orphan 1\n"
    )
    shares: list[tuple[str, float]] = []
    write(dataset, Target(str(tmp_path / "again"), force=False), lambda *share: shares.append(share))
    assert shares[-1] == ("exporting", 1.0)


def test_what_would_break_a_stack_is_replaced(parsed: Parse, tmp_path: Path) -> None:
    dataset = parsed("""
        range  1   0 100 {'Module': 'top.a;b\\n'}
        launch 1  20  24 #1
        kernel 1 900 910 #1 void f<a;b>(int) [clone 3]
    """)
    text = stacks(dataset, tmp_path / "out")
    assert text == "top;a,b\N{REPLACEMENT CHARACTER};void f<a,b>(int) [clone 3] 10\n"


def test_the_time_of_a_fused_kernel_is_that_of_all_modules_that_it_serves(parsed: Parse, tmp_path: Path) -> None:
    kernel, graph = "triton_poi_up_act_1", "0123456789abcdef"
    fused = f"'Root': 'top', 'Modules': ['up', 'act'], 'Kernels': [['{kernel}', 1, [[0, 1], [1, 3]]]]"
    dataset = parsed(f"""
        range  1  0   1 {{'KernelMap': '{graph}', 'Part': 1, 'Parts': 1, {fused}}}
        range  1  2  50 {{'CompiledGraph': '{graph}', 'Pass': 'inference'}}
        launch 1  5   7 #1
        kernel 1 60 100 #1 {kernel}
    """)
    assert stacks(dataset, tmp_path / "out") == f"top;up;{kernel} 10\ntop;act;{kernel} 30\n"
