"""A model that gathers from all ranks in one of its modules, with NCCL on a GPU, else with gloo. There is one rank."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from typing_extensions import override

from tracekit.proof.programs.observed import device, observed, synchronize, told
from tracekit.proof.programs.plans import GATHERING

if TYPE_CHECKING:
    from torch import Tensor

_ROWS, _WIDTH = 48, 64


class Gather(nn.Module):
    """Gathers its input from all ranks."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        """The inputs of all ranks, one below the other."""
        out = torch.empty(x.shape[0] * dist.get_world_size(), x.shape[1], device=x.device)
        dist.all_gather_into_tensor(out, x)
        return out


class Ranks(nn.Module):
    """A Linear, and what gathers its results."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Linear(_WIDTH, _WIDTH)
        self.gather = Gather()

    @override
    def forward(self, x: Tensor) -> Tensor:
        """The results of all ranks."""
        y: Tensor = self.gather(self.own(x))
        return y


@torch.no_grad()
def main() -> None:
    """Calls the model; the outcome must be that of the Linear, because there is one rank."""
    backend = "nccl" if device().type == "cuda" else "gloo"
    with tempfile.TemporaryDirectory() as folder:
        # A file needs no network, whose interfaces a container may lack.
        dist.init_process_group(backend, init_method=f"file://{Path(folder) / 'ranks'}", world_size=1, rank=0)
        try:
            _run(backend)
        finally:
            dist.destroy_process_group()


def _run(backend: str) -> None:
    model = Ranks().to(device())
    x = torch.randn(_ROWS, _WIDTH, device=device())
    # Not a call of a module, which would be recorded.
    expected = nn.functional.linear(x, model.own.weight, model.own.bias)
    observed(model)
    told(backend=backend)
    right = [torch.allclose(model(x), expected, rtol=1e-3, atol=1e-4) for _ in range(GATHERING)]
    synchronize()
    told(right=all(right))


if __name__ == "__main__":
    main()
