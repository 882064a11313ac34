"""vLLM on the CPU, recorded: every call and every iteration is what hooks of its own saw."""

from __future__ import annotations

import json
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pytest

from tests.capture.vllm_runs import LAYERS, OPTIONS, OUTPUTS, PROMPTS, Engine, finished

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.capture.vllm_runs import Run

pytestmark = pytest.mark.vllm

#: vLLM's operators of linear layers on the CPU: which of them it takes is up to the processor.
_PRODUCTS = ("_C::onednn_mm", "_C::weight_packed_linear")
#: The linear layers in the order of their calls.
_LINEARS = [
    f"layers.{layer}.{name}"
    for layer in range(LAYERS)
    for name in ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
]


def eager_in_one_process(engine: Engine) -> Run:
    target = ("generate.py", "--engine", "torch", "-o", "eager.sqlite", "--", str(engine.model), "eager")
    return finished(engine, engine.started("capture", *target, one_process=True), "eager.sqlite", compiled=False)


def compiled_in_a_child_process(engine: Engine) -> Run:
    return _compiled(engine)


def compiled_before(engine: Engine) -> Run:
    return _compiled(engine)


def _compiled(engine: Engine) -> Run:
    command = (
        "--force",
        "--engine",
        "torch",
        "-o",
        "compiled.sqlite",
        "--",
        "python",
        "generate.py",
        str(engine.model),
    )
    return finished(engine, engine.started("capture", *command), "compiled.sqlite")


def served(engine: Engine) -> Run:
    options = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
    command = ("vllm", "serve", str(engine.model), f"--port={(port := _free_port())}", *options)
    server = engine.started("capture", "--engine", "torch", "-o", "served.sqlite", "--", *command)
    address = f"http://localhost:{port}"
    _wait_for(server, f"{address}/health")
    with ThreadPoolExecutor() as requests:
        list(requests.map(lambda length: _ask(address, str(engine.model), length), PROMPTS))
    server.send_signal(signal.SIGINT)
    return finished(engine, server, "served.sqlite", code=128 + signal.SIGINT)


def _free_port() -> int:
    with socket.create_server(("localhost", 0)) as server:
        return int(server.getsockname()[1])


def _wait_for(server: subprocess.Popen[str], address: str) -> None:
    while True:
        try:
            with urlopen(address):
                return
        except OSError:
            if server.poll() is not None:
                pytest.fail(server.communicate()[0])
            time.sleep(0.2)


def _ask(address: str, model: str, length: int) -> None:
    prompt = " ".join(f"w{token}" for token in range(3, 3 + length))
    asked = {"model": model, "prompt": prompt, "max_tokens": OUTPUTS, "ignore_eos": True}
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"{address}/v1/completions", json.dumps(asked).encode(), headers)) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == OUTPUTS


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine(tmp_path_factory.mktemp("vllm"))


@pytest.fixture(scope="module", params=[eager_in_one_process, compiled_in_a_child_process, compiled_before, served])
def run(request: pytest.FixtureRequest, engine: Engine) -> Run:
    record: Callable[[Engine], Run] = request.param
    return record(engine)


def test_every_call_is_as_hooks_saw_it(run: Run) -> None:
    assert run.calls == run.calls_seen
    assert len(run.calls) == 1
    assert "(0 lost)" in run.output


def test_every_iteration_is_one_step_with_kind_batch_size_and_tokens(run: Run) -> None:
    assert run.iterations == run.iterations_seen
    assert sum(tokens for *_, tokens in run.iterations) == sum(PROMPTS) + len(PROMPTS) * (OUTPUTS - 1)
    assert {"prefill", "decode"} <= {kind for kind, *_ in run.iterations}


def test_all_work_of_modules_but_that_of_the_warm_up_lies_in_steps(run: Run) -> None:
    steps = len(run.iterations)
    calls = run.dataset.table("calls", ["module", "step_id"]).to_pylist()
    in_steps = [call["module"] for call in calls if call["step_id"] is not None]
    for root in ("LlamaForCausalLM", "LlamaForCausalLM.logits_processor", "Sampler"):
        assert in_steps.count(root) == steps


def test_work_of_compiled_graphs_is_that_of_modules_of_layers(run: Run) -> None:
    kernels = [kernel for kernel in run.dataset.table("kernels").to_pylist() if kernel["method"] == "compiled"]
    assert bool(kernels) == run.compiled
    if not run.compiled:
        return
    assert not any(kernel["cause"] == "compiled_unmatched" for kernel in run.dataset.table("kernels").to_pylist())
    of_layers = sum(kernel["dur_ns"] for kernel in kernels if ".model.layers." in kernel["module"])
    assert of_layers >= 0.95 * sum(kernel["dur_ns"] for kernel in kernels)
    products = sorted((kernel for kernel in kernels if kernel["name"] in _PRODUCTS), key=itemgetter("start_ns"))
    order = [module.partition(".model.")[2] for module, _ in groupby(map(itemgetter("module"), products))]
    assert order == _LINEARS * (len(order) // len(_LINEARS))
    assert len(order) >= len(run.iterations) * len(_LINEARS)


def test_compilation_is_in_no_step(run: Run) -> None:
    assert not any(step["compile_ns"] for step in run.dataset.table("steps").to_pylist())
