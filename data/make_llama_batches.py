"""Makes llama_batches.sqlite; run it with ``python -m data.make_llama_batches``.

Eager prefills of 128 to 2,048 tokens and decode steps of 1 to 128 sequences that attend to 1,024 tokens each.
The times are simulated, not measured.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from data.simulated_gpu import Process
from data.simulated_llama import Llama, Tokens

PREFILLS = [Tokens(1, new, new) for new in (128, 512, 2_048)]
DECODES = [Tokens(size, 1, 1_024) for size in (1, 4, 16, 64, 128)]


def make(folder: Path) -> None:
    """Writes the report into a folder."""
    llama = Llama(Process(), layers=2)
    for index, tokens in enumerate([*PREFILLS, *DECODES]):
        llama.step(index, tokens, partial(llama.forward, tokens))
    llama.process.write(folder / "llama_batches.sqlite")


if __name__ == "__main__":
    make(Path(__file__).parent)
