"""Models of others from end to end: recorded eager, compiled, and compiled in pieces, cold and from the cache.

The truth is what libraries were really given: which parameter, by its place in memory, each product multiplies by.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd
import pytest
import torch
from torch import nn

import tracekit
from tests.capture.kernel_truth import Product, owners, true_products
from tests.capture.others import OTHERS, Other
from tests.capture.places import Place
from tracekit.capture import MemoryEmitter

pytestmark = [pytest.mark.torch, pytest.mark.models, pytest.mark.filterwarnings("ignore")]

#: Models, and where they are split.
SPLIT = {"llama": "aten::scaled_dot_product_attention", "resnet": "aten::batch_norm"}
_PRODUCTS = {f"aten::{name}": name for name in ("addmm", "mm", "bmm", "baddbmm", "convolution")}
_GRAPH = re.compile(r"^graph_\d+_")
_TARGET = f"""
from {__name__} import at_hand

def make():
    return at_hand[-1].model, at_hand[-1].inputs
"""
#: The model that is recorded now.
at_hand: list[Other] = []


@pytest.fixture(autouse=True)
def _target(hollow: None, place: Place) -> Iterator[None]:
    place.write(_TARGET, "other.py")
    yield
    at_hand.clear()


class Recorded(NamedTuple):
    """Kernels in order, their weights by module, and the products of libraries beside who owns their parameters."""

    kernels: pd.DataFrame
    weights: dict[int, dict[str, float]]
    products: list[Product]
    owners: dict[int, set[str]]


def recorded(place: Place, name: str, *options: object, whole: bool = False) -> Recorded:
    """Records two steps of a new model."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    at_hand.append(other := OTHERS[name]())
    for part in other.model.eval().modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    if whole:
        other.model.compile()
    report = place.folder / f"{len(at_hand)}.sqlite"
    with true_products(MemoryEmitter()) as products:
        outcome = place.capture("--steps", 2, "--warmup", 1, "-o", report, *options, "other.py:make")
    assert outcome.code == 0, outcome
    dataset = tracekit.parse(report)
    shares = dataset.kernel_modules().merge(dataset.modules(["module_id", "path"]), on="module_id")
    weights: dict[int, dict[str, float]] = {}
    for kernel, path, weight in shares[["kernel_id", "path", "weight"]].itertuples(index=False):
        weights.setdefault(kernel, {})[path] = weight
    known = owners(other.model, type(other.model).__name__)
    return Recorded(dataset.kernels().sort_values("start_ns"), weights, products, known)


def multiplying(found: Recorded) -> pd.DataFrame:
    return found.kernels[found.kernels.name.isin(_PRODUCTS)]


def calling(found: Recorded, operator: str) -> list[str]:
    modules: list[str] = found.kernels[found.kernels.name == operator].module.tolist()
    return modules


def check_products(found: Recorded) -> None:
    kernels = multiplying(found)
    real = found.products[-len(kernels) :]
    assert [_PRODUCTS[name] for name in kernels.name] == [product.name for product in real]
    true = [{owner for item in product.inputs for owner in found.owners.get(item, ())} for product in real]
    pairs = zip(kernels.kernel_id, kernels.module, true, strict=True)
    wrong = [(kernel, module, owner) for kernel, module, owner in pairs if owner and module not in owner]
    assert wrong == []
    assert sum(map(bool, true)) >= 4


def check_shares(found: Recorded) -> None:
    kernels = found.kernels
    generated = kernels[kernels.name.str.match(_GRAPH)]
    assert len(generated) >= 4
    assert set(generated.method) == {"compiled"}
    assert kernels[kernels.module.isna()].name.tolist() == []
    assert set(kernels.kernel_id) == set(found.weights)
    assert {round(sum(weights.values()), 9) for weights in found.weights.values()} == {1.0}


def shares(found: Recorded) -> list[tuple[str, dict[str, float]]]:
    kernels = found.kernels[found.kernels.method == "compiled"]
    names = kernels.name.str.replace(_GRAPH, "", regex=True)
    return [(name, found.weights[kernel]) for name, kernel in zip(names, kernels.kernel_id, strict=True)]


def hits() -> int:
    from torch._dynamo.utils import counters

    return int(counters["aot_autograd"]["autograd_cache_hit"])


def loaded() -> int:
    from tracekit.capture.compile import counters

    return int(counters.artifacts_loaded)


@pytest.mark.parametrize("name", SPLIT)
def test_compiled_work_is_of_the_modules_that_do_it_in_eager_runs(place: Place, name: str) -> None:
    eager = recorded(place, name)
    pieces = ("--compile", "--split", SPLIT[name], "--cache-dir", "pieces")
    for options, whole, cache in (((), True, hits), (pieces, False, loaded)):
        before = cache()
        cold = recorded(place, name, *options, whole=whole)
        assert cache() == before
        warm = recorded(place, name, *options, whole=whole)
        assert cache() > before
        for found in (cold, warm):
            check_shares(found)
            check_products(found)
            assert set(multiplying(found).module) == set(multiplying(eager).module)
            if not whole:
                assert calling(found, SPLIT[name]) == calling(eager, SPLIT[name]) != []
        assert shares(cold) == shares(warm)
