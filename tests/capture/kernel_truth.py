"""What a compiled run of a model really did: the libraries' products in their order, with the tensors they were given.

It is seen from the side: the functions that compiled code calls are replaced by ones that note their arguments. Nothing
here knows how maps are made.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from tracekit.capture import layer_markers
from tracekit.capture.emit import MemoryEmitter, routed_to
from tracekit.markers.base import CompiledGraphMarker, KernelMapMarker, MappedKernel
from tracekit.trace.decoding import decode

_PRODUCTS = ("addmm", "mm", "bmm", "baddbmm", "convolution")


class Product(NamedTuple):
    """One call of a library: where its inputs and its result are in memory, and how many events were before it."""

    name: str
    inputs: frozenset[int]
    output: int
    events: int
    #: The tensors, so that no others take their place in memory.
    kept: tuple[Any, ...]


@contextmanager
def true_products(listed: MemoryEmitter) -> Iterator[list[Product]]:
    """The products that compiled code runs in the block, each with the number of events that were listed before."""
    from torch._inductor import config as inductor_config
    from torch._inductor.select_algorithm import extern_kernels

    products: list[Product] = []
    originals = {name: getattr(extern_kernels, name) for name in _PRODUCTS}
    # Else a product's memory may become the gradient that another kernel makes later.
    reuse, inductor_config.allow_buffer_reuse = inductor_config.allow_buffer_reuse, False

    def spy(name: str, original: Any) -> Any:
        def product(*args: Any, **kwargs: Any) -> Any:
            inputs = frozenset(map(memory, filter(lambda item: isinstance(item, Tensor), args)))
            result = original(*args, **kwargs)
            out = kwargs.get("out", result)
            products.append(Product(name, inputs, memory(out), len(listed.events), (args, out)))
            return result

        return product

    for name, original in originals.items():
        setattr(extern_kernels, name, spy(name, original))
    try:
        yield products
    finally:
        inductor_config.allow_buffer_reuse = reuse
        for name, original in originals.items():
            setattr(extern_kernels, name, original)


def memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def owners(model: nn.Module, top: str = "top", *, gradients: bool = False) -> dict[int, set[str]]:
    found: defaultdict[int, set[str]] = defaultdict(set)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        tensor = parameter.grad if gradients else parameter
        if tensor is not None:
            found[memory(tensor)].add(".".join(filter(None, (top, name.rpartition(".")[0]))))
    return found


class Run(NamedTuple):
    """One run of a compiled graph, its map's kernels under absolute paths, and the number of the event of its start."""

    phase: str
    kernels: list[MappedKernel]
    first: int


def runs(listed: MemoryEmitter) -> list[Run]:
    """All runs of compiled graphs that were told, in order. Every one must have been told its map before."""
    parts: dict[str, dict[int, KernelMapMarker]] = {}
    found = []
    decoded = decode([event.text or "" for event in listed.events])
    for number, row in enumerate(decoded.of_text.tolist()):
        marker = decoded.markers[row] if row >= 0 else None
        if isinstance(marker, KernelMapMarker):
            parts.setdefault(marker.map_id, {})[marker.part] = marker
        elif isinstance(marker, CompiledGraphMarker):
            told = parts[marker.map_id]
            assert sorted(told) == list(range(1, told[1].parts + 1))
            root = told[1].root if marker.root is None else marker.root
            kernels = [_absolute(kernel, root) for part in sorted(told) for kernel in told[part].kernels]
            found.append(Run(marker.phase, kernels, number))
    return found


class Watched(NamedTuple):
    """A model whose compiled code ran: what was told meanwhile, and the products that it really ran."""

    model: nn.Module
    listed: MemoryEmitter
    products: list[Product]

    @property
    def runs(self) -> list[Run]:
        return runs(self.listed)

    @property
    def kernels(self) -> list[MappedKernel]:
        return [kernel for run in self.runs for kernel in run.kernels]

    @property
    def unmapped(self) -> list[str]:
        return [event.text for event in self.listed.events if event.text and "Unmapped" in event.text]

    @property
    def wrong(self) -> list[object]:
        return wrong_owners(self, owners(self.model), owners(self.model, gradients=True))


@contextmanager
def watched(model: nn.Module, **options: Any) -> Iterator[Watched]:
    listed = MemoryEmitter()
    with routed_to(listed), layer_markers(model, **options), true_products(listed) as products:
        yield Watched(model, listed, products)


def _absolute(kernel: MappedKernel, root: str) -> MappedKernel:
    modules = tuple((".".join(filter(None, (root, path))), weight) for path, weight in kernel.modules)
    return MappedKernel(kernel.name, kernel.generated, modules, kernel.flops, kernel.recomputes)


def products_of(run: Run, following: Run | None, products: Sequence[Product]) -> list[tuple[MappedKernel, Product]]:
    """The products of a run beside the kernels that the map has for them; they must be as many, of the same names."""
    end = following.first if following is not None else float("inf")
    real = [product for product in products if run.first < product.events <= end]
    names = {f"extern_kernels.{name}" for name in _PRODUCTS}
    mapped = [kernel for kernel in run.kernels if kernel.name in names]
    assert [kernel.name for kernel in mapped] == [f"extern_kernels.{product.name}" for product in real]
    return list(zip(mapped, real, strict=True))


def heaviest(kernel: MappedKernel) -> str | None:
    return max(kernel.modules, key=lambda item: item[1])[0] if kernel.modules else None


def wrong_owners(seen: Watched, weights: dict[int, set[str]], gradients: dict[int, set[str]]) -> list[object]:
    """Products whose module in the map owns neither their weight nor, in a backward pass, the gradient they make."""
    told = seen.runs
    wrong: list[object] = []
    for run, following in zip(told, [*told[1:], None], strict=True):
        for kernel, product in products_of(run, following, seen.products):
            true = {owner for item in product.inputs for owner in weights.get(item, ())}
            if run.phase == "backward" and not true:
                true = gradients.get(product.output, set())
            if true and heaviest(kernel) not in true:
                wrong.append((run.phase, kernel, sorted(true)))
    return wrong
