"""Makes small_llama.sqlite; run it with ``python -m data.make_small_llama``.

What a serving engine with layer-wise markers would leave of two prefills and eight decode steps of a Llama of four
layers, in the shape of an export of Nsight Systems. The times are simulated, not measured.
"""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.serving_report import Program, write_program

LAYERS = 4
STEPS = [("prefill", 512), ("prefill", 128), *[("decode", tokens) for tokens in (1, 2, 4, 8, 8, 8, 16, 16)]]
#: Time that does not depend on the tokens, and time per token.
NANOSECONDS = {
    "embedding_kernel": (2_100, 4),
    "input_layernorm_kernel": (1_900, 6),
    "qkv_proj_kernel": (9_000, 60),
    "attn_kernel": (3_200, 45),
    "o_proj_kernel": (6_500, 40),
    "post_attention_layernorm_kernel": (1_900, 6),
    "gate_up_proj_kernel": (17_000, 95),
    "down_proj_kernel": (15_500, 90),
    "argmax_kernel": (6_000, 3),
}


class SmallLlama(Program):
    """Four layers, and sampling outside of the model, which no module marker covers."""

    tokens = 0

    def step(self, kind: str, tokens: int) -> None:
        """One step; kernels take longer for more tokens."""
        self.tokens = tokens
        super().step(kind, tokens)

    def duration(self, kernel: str, number: int) -> int:
        """Time of one kernel, with a little noise."""
        fixed, each = NANOSECONDS[kernel]
        return fixed + each * self.tokens + 29 * (number % 13)

    def sample(self, tokens: int) -> None:
        """The next tokens are chosen."""
        del tokens
        self.launch(1, "argmax_kernel")


def make(folder: Path) -> None:
    """Writes the report into a folder."""
    report = folder / "small_llama.sqlite"
    report.unlink(missing_ok=True)
    write_program(report, SmallLlama(layers=LAYERS), STEPS)


if __name__ == "__main__":
    make(Path(__file__).parent)
