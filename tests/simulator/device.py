"""What devices do with the work they are given: every stream runs its work in order, later than the launch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulator.events import Work

if TYPE_CHECKING:
    from random import Random

    from tests.simulator.events import Launch, Node, ThreadId

KERNELS = (
    ("ampere_sgemm_64x32_sliced1x4_nt", "ampere_sgemm_64x32_sliced1x4_nt"),
    (
        "vectorized_elementwise_kernel",
        "void at::native::vectorized_elementwise_kernel<(int)4, float>(int, T1)",
    ),
    (
        "flash_fwd_kernel",
        "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128>>(Flash_fwd_params)",
    ),
)
HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, MIGRATION = 1, 2, 8, 11
COPIES = {
    HOST_TO_DEVICE: "[CUDA memcpy HtoD]",
    DEVICE_TO_HOST: "[CUDA memcpy DtoH]",
    DEVICE_TO_DEVICE: "[CUDA memcpy DtoD]",
    MIGRATION: "[CUDA Unified Memory memcpy HtoD]",
}


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream of one process on one device; context ids repeat between processes, as real ones do."""

    process: ThreadId
    device: int
    context: int
    number: int


@dataclass(slots=True)
class Devices:
    """The devices of a program: until when each stream is busy."""

    rng: Random
    busy_until: dict[Stream, int] = field(default_factory=dict)
    done: list[Work] = field(default_factory=list)

    def run(
        self, kind: str, stream: Stream, launch: Launch | None, *, not_before: int, node: Node | None = None
    ) -> Work:
        """Runs one piece of work on ``stream`` when the stream is free, some time after ``not_before``.

        What a graph's node runs was decided at its capture.
        """
        rng = self.rng
        ready = not_before + rng.choice((1, 2, 900, 40_000))
        start = max(ready, self.busy_until.get(stream, ready) + rng.choice((0, 0, 1, 700)))
        end = start + rng.choice((1, 37, 2_000, rng.randrange(1, 90_000)))
        self.busy_until[stream] = end
        name, full_name, copy = (node.name, node.full_name, node.copy_kind) if node else chosen(rng, kind)
        work = Work(
            kind=kind,
            name=name,
            full_name=full_name,
            start_ns=start,
            end_ns=end,
            process=stream.process,
            device=stream.device,
            context=stream.context,
            stream=stream.number,
            correlation=launch.correlation if launch else None,
            launch=launch,
            bytes=rng.choice((0, 4, 95_846_400, 5 << 32)) if kind in {"memcpy", "memset"} else 0,
            copy_kind=copy,
            node=node,
        )
        self.done.append(work)
        if launch:
            launch.work.append(work)
        return work

    def migrate(self, stream: Stream, *, now: int) -> Work:
        """A unified-memory migration: a copy that no API call asked for."""
        work = self.run("memcpy", stream, None, not_before=now)
        work.copy_kind = MIGRATION
        work.name = work.full_name = COPIES[MIGRATION]
        return work


def chosen(rng: Random, kind: str) -> tuple[str, str, int]:
    """Short and full name and direction of some work of a kind."""
    if kind == "kernel":
        return *rng.choice(KERNELS), 0
    copy = 0
    if kind == "memcpy":
        copy = rng.choice((HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE))
    name = {"memcpy": COPIES.get(copy, ""), "memset": "[CUDA memset]", "graph": "CUDA graph"}[kind]
    return name, name, copy
