"""Real reports with torch's operators: how many kernels each launched equals a plain query of the report."""

import re
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

import tracekit
from tests.needs import TRACES

pytestmark = pytest.mark.traces

WITH_OPERATORS = "emit_nvtx_training_v2022.2.export_v2023.4.4", "fsdp_2rank_h100_v2026.2"

#: Text of the innermost range of torch around the launch of each kernel.
INNERMOST = """
SELECT (
  SELECT text FROM operators o
  WHERE o.globalTid = r.globalTid AND o.start <= r.start AND o.end >= r.end ORDER BY o.start DESC LIMIT 1
)
FROM CUPTI_ACTIVITY_KIND_KERNEL k LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
ON r.correlationId = k.correlationId AND r.globalTid >> 24 = k.globalPid >> 24
"""
OPERATORS = """
CREATE TEMP TABLE operators AS SELECT start, end, globalTid, text FROM (
  SELECT start, end, globalTid, coalesce(text, (SELECT value FROM StringIds WHERE id = textId)) AS text
  FROM NVTX_EVENTS WHERE eventType = 59 AND end IS NOT NULL
) WHERE text GLOB 'aten::*' OR text GLOB 'autograd::*' OR text GLOB 'torch::*' OR text GLOB '*Backward[0-9]*'
  OR text GLOB 'Optimizer.*#*' OR text LIKE '%, seq = %' OR text LIKE 'nccl:%'
  OR text LIKE '%, op_id = %' AND text NOT LIKE '% (%' AND text NOT GLOB '*[#]*';
CREATE INDEX temp.by_start ON operators (globalTid, start);
"""


def names_in(report: Path) -> Counter[str | None]:
    database = sqlite3.connect(f"file:{report}?immutable=1", uri=True)
    database.executescript(OPERATORS)
    texts = [text for (text,) in database.execute(INNERMOST)]
    database.close()
    return Counter(text and re.sub(r", (seq|op_id) = .*", "", text) for text in texts)


@pytest.mark.parametrize("name", WITH_OPERATORS)
def test_kernels_by_operator_equal_a_plain_query(name: str, tmp_path: Path) -> None:
    report = TRACES / "nsys" / f"{name}.sqlite"
    expected = names_in(report)
    assert len(expected) > 10
    for by in ("modules", "auto"):
        dataset = tracekit.parse(report, tmp_path / by, rows=by)
        kernels = dataset.table("kernels", ["kind", "op"]).to_pylist()
        assert Counter(row["op"] for row in kernels if row["kind"] == "kernel") == expected
