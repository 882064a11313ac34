"""The recorded models: their calls, products and replays are known beforehand.

Hooks that know nothing of tracekit's markers are put on before tracekit marks a model. When the process ends, what it
knows is in the folder ``truth`` of where it began, if there is one. Everything runs on a GPU if there is one. Functions
without arguments are targets of ``tracekit capture``; run as a program, the first argument names what is done.
"""

import atexit
import json
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.profiler import record_function
from torch.utils import collect_env
from typing_extensions import override

from tracekit.selftest.programs import CAPTURE, PREFIX, PROGRAMS, REPLAY, WORKERS

#: The folder for what processes know.
_FOLDER = Path("truth").absolute()
#: Sizes of the features between the Linears. They are multiplied, more on a GPU, so that kernels take longer than their
#: launches. No width is as large as the rows of the input, so that products show which of their sizes are the weight's.
_WIDTHS, _SIZES = (4, 5, 6, 7, 8), {"cuda": (64, 192), "cpu": (2, 3)}

_truth: dict[str, Any] = {}


def device() -> torch.device:
    """Where the models run."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def synchronize() -> None:
    """Waits until the GPU has done everything."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def record_truth(**facts: object) -> None:
    """Adds to what this process knows, and has it written when the process ends."""
    if not _truth:
        atexit.register(_write)
    _truth.update(facts)


def _write() -> None:
    if _FOLDER.is_dir():
        (_FOLDER / f"{os.getpid()}.json").write_text(json.dumps({"pid": os.getpid(), **_truth}), "utf-8")


def observe(model: nn.Module) -> nn.Module:
    """Puts hooks on a model that note its calls: path by the calls around it, and the shape of its first input.

    Returns the model.
    """
    #: One list for each call of the model: all calls in it, in order, itself first.
    calls: list[list[tuple[str, list[int] | None]]] = []
    opened: list[tuple[str, nn.Module, record_function]] = []

    def before(module: nn.Module, args: tuple[Any, ...]) -> None:
        path = type(module).__name__
        if opened:
            above, around, _ = opened[-1]
            path = next(f"{above}.{name}" for name, part in around.named_modules() if part is module)
        else:
            calls.append([])
        calls[-1].append((path, list(args[0].shape) if args and isinstance(args[0], Tensor) else None))
        span = record_function(f"{PREFIX}{path}")
        span.__enter__()  # type: ignore[no-untyped-call]
        opened.append((path, module, span))

    def after(*_: object) -> None:
        opened.pop()[2].__exit__(None, None, None)

    record_truth(calls=calls, linears=linears(model))
    for module in model.modules():
        module.register_forward_pre_hook(before)
        module.register_forward_hook(after, always_call=True)
    return model


def linears(model: nn.Module) -> dict[str, list[int]]:
    """The two sizes of every Linear's weight by path. No two are alike, so a product identifies its module."""
    top = type(model).__name__
    sizes = {
        f"{top}.{name}": sorted(module.weight.shape)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }
    assert len({tuple(pair) for pair in sizes.values()}) == len(sizes)
    return sizes


class Chain(nn.Module):
    """Two layers that share an activation, and a square Linear that is called twice. All weights differ in shape."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        times, self.rows = _SIZES[device().type]
        a, b, c, d, e = (width * times for width in _WIDTHS)
        self.layers = nn.ModuleList(
            nn.Sequential(OrderedDict(up=nn.Linear(first, inside), act=act, down=nn.Linear(inside, last)))
            for first, inside, last in ((a, b, c), (c, d, e))
        )
        self.again, self.features = nn.Linear(e, e), a

    @override
    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        y: Tensor = self.again(self.again(x))
        return y

    def example(self, *, requires_grad: bool = False) -> Tensor:
        """An input."""
        return torch.randn(self.rows, self.features, device=device(), requires_grad=requires_grad)


def chain(act: nn.Module | None = None) -> Chain:
    """The model on its device, the same each time."""
    torch.manual_seed(0)
    model = Chain(act or nn.ReLU()).to(device())
    record_truth(rows=model.rows)
    return model


def make() -> tuple[nn.Module, Tensor]:
    """The model with hooks, and an input that needs a gradient, so that every Linear has two products backwards."""
    model = chain()
    return observe(model), model.example(requires_grad=True)


def make_compiled() -> tuple[nn.Module, Tensor]:
    """The model compiled in place. It has no hooks: compiled code would not run them.

    Without a GPU its activation does nothing, because Inductor would need a compiler of C++ for half a minute.
    """
    model = chain(None if device().type == "cuda" else nn.Identity())
    record_truth(linears=linears(model))
    model.compile()
    return model, model.example()


def cuda_graph(model: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    """Captures a call of the model as a CUDA graph. Returns the function that replays it.

    Before, the model runs on a side stream: cuBLAS asks for its memory at its first call.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(x)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result: Tensor = model(x)

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


@torch.no_grad()
def _replay(program: str) -> None:
    from tracekit.capture import step  # noqa: PLC0415 - scripts do without

    row = next(row for row in PROGRAMS if row.name == program)
    model = chain()
    x = model.example()
    replay: Callable[[], Tensor]
    with step(row.warmup[0]):
        expected = model(x)
        synchronize()
    observe(model)
    right = True
    for kind in (*row.warmup[1:], *row.steps):
        with step(kind):
            if kind == CAPTURE:
                replay = cuda_graph(model, x)
            else:
                right &= same(replay() if kind == REPLAY else model(x), expected)
            synchronize()
    record_truth(right=right)


def same(result: object, expected: Tensor) -> bool:
    """Whether two results are the same but for rounding."""
    return isinstance(result, Tensor) and torch.allclose(result, expected, rtol=1e-2, atol=1e-3)


#: Replay a CUDA graph that is captured in the warm-up, and one whose capture is recorded, too.
replay_in_warmup, replay_in_window = partial(_replay, "graph_in_warmup"), partial(_replay, "graph_in_window")


def pieces(*, copy_inputs: bool = True) -> tuple[Chain, nn.Module]:
    """The model as it is, and in compiled pieces that are captured as CUDA graphs; without a GPU, graphs are counted.

    Between them its activation runs separately, as attention does in models that are served.
    """
    from tracekit.capture.compile import CompileConfig, compile_model  # noqa: PLC0415 - takes a second

    model = chain().eval()
    config = CompileConfig(
        splitting_ops=("aten::relu",),
        cudagraph_sizes=(model.rows,),
        copy_inputs=copy_inputs,
        graph_capture="cuda" if device().type == "cuda" else "record",
        use_cache=False,
    )
    return model, compile_model(model, config)


@torch.no_grad()
def run_pieces() -> None:
    """Compiles in the first step; captures and replays in the later ones, each with an input at another address."""
    from tracekit.capture import step  # noqa: PLC0415 - scripts do without
    from tracekit.capture.compile import counters  # noqa: PLC0415 - as above
    from tracekit.capture.compile.cudagraph import graph_captures_on_hold  # noqa: PLC0415 - as above

    plain, model = pieces()
    inputs = [plain.example() for _ in range(4)]
    before = counters.snapshot()
    with step("compile"), graph_captures_on_hold():
        model(inputs[0])  # before the plain model, which would take its name
        expected = [plain(x) for x in inputs]
        synchronize()
    right = True
    for x, result in zip(inputs, expected, strict=True):
        with step("piecewise"):
            right &= same(model(x), result)
            synchronize()
    counts = {name: number - before[name] for name, number in counters.snapshot().items()}
    record_truth(counters=counts, linears=linears(plain), right=right)


def _script(calls: str) -> None:
    model, x = make()
    with torch.no_grad():
        if torch.cuda.is_available():
            # What libraries copy and fill at their first product is not a module's work.
            ones = torch.ones(64, 64, device=device())
            nn.functional.linear(ones, ones, ones[0])
            synchronize()
        for _ in range(int(calls)):
            model(x)
    synchronize()


def _workers() -> None:
    running = [subprocess.Popen([sys.executable, __file__, "script", str(calls)]) for calls in WORKERS]
    sys.exit(max(abs(process.wait()) for process in running))


def about(place: str) -> None:
    """Writes torch's description of itself and of the GPUs as JSON, after it has used one: some fail only then."""
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    if gpus:
        x = torch.ones(64, 64, device="cuda")
        (x @ x).sum().item()
    try:
        nvtx = version("nvtx")
    except PackageNotFoundError:
        nvtx = None
    nccl = None
    if gpus and dist.is_available() and dist.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    driver = collect_env.get_nvidia_driver_version(collect_env.run)  # type: ignore[no-untyped-call]
    versions = {"torch": str(torch.__version__), "cuda": torch.version.cuda, "nvtx": nvtx, "nccl": nccl}
    Path(place).write_text(json.dumps({**versions, "driver": driver, "gpus": gpus}), "utf-8")


_COMMANDS: dict[str, Callable[..., None]] = {"about": about, "script": _script, "workers": _workers}

if __name__ == "__main__":
    _COMMANDS[sys.argv[1]](*sys.argv[2:])
