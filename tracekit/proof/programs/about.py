"""Writes as JSON what torch says of itself and of the GPUs here, after it has used one: some fail only then."""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch


def about() -> dict[str, object]:
    """What is said. A GPU that cannot multiply raises."""
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    if gpus:
        x = torch.ones(64, 64, device="cuda")
        torch.cuda.synchronize()
        if float((x @ x)[0, 0]) != x.shape[0]:
            raise RuntimeError(f"{gpus[0]} multiplies wrongly")
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "nvtx": _version("nvtx"),
        "nccl": _nccl(),
        "gpus": gpus,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _nccl() -> str | None:
    """The version of NCCL, in builds of torch that have it."""
    if not (torch.cuda.is_available() and torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return None
    return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(about()), "utf-8")
