"""How much do layers of the same kind differ?"""

from __future__ import annotations

import pandas as pd

from tracekit.answers import tree as module_tree
from tracekit.dataset.opening import Dataset

NAME = "layers"
ANSWER = ("pattern", "spread", "median_ns", "min_ns", "max_ns", "modules")

_COLUMNS = [
    *("pattern", "class_name", "modules", "subtree_ns", "share", "median_ns", "spread", "min_ns", "max_ns"),
    *("self_ns", "calls", "kernels"),
]


def frame(dataset: Dataset) -> pd.DataFrame:
    """Lines of the tree that stand for several modules, the most expensive first.

    Returns:
        A row per pattern: ``pattern`` (``top.layers.0…31.mlp``), ``class_name``, ``modules`` (how many), summed over
        them ``subtree_ns`` and ``share`` (of all GPU time); over the single modules, each with all below it,
        ``median_ns``, ``spread`` (largest minus smallest, divided by the median; NaN if that is 0), ``min_ns`` and
        ``max_ns``; and summed again ``self_ns``, ``calls``, ``kernels``.
    """
    tree = module_tree.frame(dataset)
    folded = tree[tree["modules"] > 1]
    answer = folded.assign(spread=module_tree.spread_of(folded))[_COLUMNS]
    return answer.sort_values("subtree_ns", ascending=False, kind="stable", ignore_index=True)
