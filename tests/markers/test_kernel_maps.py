"""Kernel maps of compiled graphs as texts: what capture writes is read back, in texts that fit a marker."""

import pytest
from hypothesis import given, strategies as st

from tracekit.causes import BROKEN, cause_without_map
from tracekit.markers.base import CompiledGraphMarker, Flops, KernelMapMarker, MappedKernel, RangeMarker, Unreadable
from tracekit.markers.formatting import MOST_CHARACTERS
from tracekit.markers.kernel_maps import compiled_graph, kernel_map, unmapped_graph
from tracekit.trace.decoding import decode

ID = "0123456789abcdef"

#: Texts beside what they say.
TEXTS = {
    f"{{'KernelMap': '{ID}', 'Part': 1, 'Parts': 1, 'Root': 'top', 'Modules': ['a', 'b'], 'Kernels': "
    "[['k', 1, [[0, 1, 64, 'bfloat16'], [1, 2, 0]]], ['l', 0, [[0, 1, -1, 'sizes']]], "
    "['m', 0, [[0, 1, 2], [1, 1]]]]}": KernelMapMarker(
        ID,
        1,
        1,
        "top",
        (
            MappedKernel("k", True, (("a", 1), ("b", 2)), (Flops(64, "bfloat16"), Flops(0))),
            MappedKernel("l", False, (("a", 1),), (Flops(-1, "sizes"),)),
            MappedKernel("m", False, (("a", 1), ("b", 1))),
        ),
    )
}
BROKEN_TEXTS = [
    *(
        f'{{"KernelMap": "{ID}", "Part": 1, "Parts": 1, "Root": "", "Modules": ["a"], '
        f'"Kernels": [["k", 1, [[0, 1, {more}]]]]}}'
        for more in ("-2", "-1", "4611686018427387904", "1.5", '1, "float32", 1', f'-1, "{"x" * 129}"')
    ),
    '{"CompiledGraph": "0123", "Pass": "forward"}',
    f'{{"CompiledGraph": "{ID}", "Pass": "sideways"}}',
    f'{{"CompiledGraph": "{ID}", "Pass": "forward", "Root": 7}}',
    f'{{"KernelMap": "{ID}", "Part": 2, "Parts": 1, "Root": "", "Modules": [], "Kernels": []}}',
    f'{{"KernelMap": "{ID}", "Part": 1, "Parts": 99999, "Root": "", "Modules": [], "Kernels": []}}',
    f'{{"KernelMap": "{ID}", "Part": 1, "Parts": 1, "Root": "", "Modules": ["a"], "Kernels": [["k", 1, [[1, 1]]]]}}',
    f'{{"KernelMap": "{ID}", "Part": 1, "Parts": 1, "Root": "", "Modules": ["a"], "Kernels": [["k", 1, [[0, 0]]]]}}',
    f'{{"KernelMap": "{ID}", "Part": 1, "Parts": 1, "Root": "", "Modules": ["a..b"], "Kernels": []}}',
    f'{{"KernelMap": "{ID}", "Part": 1, "Parts": 1, "Modules": [], "Kernels": []}}',
    '{"KernelMap": "0123", "Part": 1, "Parts": 1, "Root": "", "Modules": [], "Kernels": []}',
    f'{{"KernelMap": "{ID}"',
]
TEXTS |= dict.fromkeys(BROKEN_TEXTS, Unreadable(BROKEN))

PATHS = st.sampled_from(["", "norm", "layers.0.mlp", "layers.11.self_attn.o_proj", "a" * 300, 'it\'s "b"'])
FLOPS = st.one_of(
    st.builds(Flops, st.integers(0, 2**62 - 1), st.sampled_from(["", "float32", "bfloat16"])),
    st.builds(Flops, st.just(-1), st.sampled_from(["sizes", "vllm::attention", "x" * 128])),
)


@st.composite
def kernels_of_maps(draw: st.DrawFn) -> MappedKernel:
    served = draw(st.lists(st.tuples(PATHS, st.integers(1, 99)), max_size=8, unique_by=lambda one: one[0]))
    flops = draw(st.lists(FLOPS, min_size=len(served), max_size=len(served))) if draw(st.booleans()) else ()
    name, generated, recomputes = draw(st.text("kernl_0.é'", max_size=40)), draw(st.booleans()), draw(st.booleans())
    return MappedKernel(name, generated, tuple(served), tuple(flops), recomputes)


@pytest.mark.parametrize("text", TEXTS)
def test_text_says_what_stands_beside_it_and_one_that_is_none_of_ours_nothing(text: str) -> None:
    assert decode([text]).markers == [TEXTS[text]]


@given(root=PATHS, kernels=st.lists(kernels_of_maps(), max_size=60))
def test_map_is_read_as_it_was_written_and_each_of_its_texts_fits_a_marker(root: str, kernels) -> None:
    map_id, texts = kernel_map(root, kernels)
    parts = decode(texts).markers
    assert all(isinstance(part, KernelMapMarker) for part in parts)
    for number, part in enumerate(parts, 1):
        assert (part.map_id, part.part, part.parts, part.root) == (map_id, number, len(texts), root)
    assert [kernel for part in parts for kernel in part.kernels] == kernels
    assert all(len(text) <= MOST_CHARACTERS for text in texts)


def test_run_of_a_graph_is_read_as_it_was_written_and_maps_that_differ_in_a_weight_have_different_ids() -> None:
    for graph_pass, phase in (("inference", ""), ("forward", "forward"), ("backward", "backward")):
        [marker] = decode([compiled_graph(ID, graph_pass, "top.layers.3")]).markers
        assert marker == CompiledGraphMarker(ID, phase, "top.layers.3")
    one, same, other = (kernel_map("top", [MappedKernel("k", True, (("a", weight),))])[0] for weight in (1, 1, 2))
    assert one == same != other


def test_kernel_of_too_many_modules_for_a_text_is_told_without_them() -> None:
    many = MappedKernel("k", True, tuple((f"layers.{number}.{'m' * 50}", 1) for number in range(500)))
    _, texts = kernel_map("top", [many, MappedKernel("l", True, (("a", 1),))])
    (part,) = decode(texts).markers
    assert isinstance(part, KernelMapMarker)
    assert part.kernels == (MappedKernel("k", True, ()), MappedKernel("l", True, (("a", 1),)))


@pytest.mark.parametrize("reason", ["branches", "other_modules", "several_modules", "unseen", "failed"])
def test_run_without_a_map_says_why(reason: str) -> None:
    (marker,) = decode([unmapped_graph(reason, "backward")]).markers
    assert isinstance(marker, RangeMarker)
    assert (marker.phase, marker.compiled, marker.cause) == ("backward", True, cause_without_map(reason))
    assert marker.cause.advice
