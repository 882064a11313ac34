"""Analyses, views and exports of reports without module markers: their rows are plain ranges or operators."""

import json
from itertools import product
from pathlib import Path

import pytest

import tracekit
from tests.command import ROOT, command
from tests.golden import Parse
from tests.readers.kineto.traces import event, kernel, launch, trace
from tests.trace_lines import report
from tests.views.printing import printed
from tracekit.aggregates import nodes
from tracekit.answers import Analysis, classes, layers, memory, modules, roofline, shapes, tree as module_tree
from tracekit.views import answers, summary, tree
from tracekit.views.formatting import nouns, records

ROOT_NAME = 'train "v1.5"; a/b: x->y * größe'
MARKED = """
    range  1   0 900 {'Module': 'top', 'Inputs': [[2]]}
    range  1  10  90 attention
    launch 1  30  40 #1
    kernel 1 100 150 #1 gemm
"""


def training(root: str = ROOT_NAME, layers: int = 3, slow_ns: int = 0, slow: tuple[int, ...] = (1,)) -> str:
    """Some batches of a loop, each with alike layers and a range whose name holds what formats treat specially."""
    lines, at = [f"range 1 0 100000 {root}"], 10
    for batch in range(8):
        lines.append(f"range 1 {at} {at + 5000} batch {batch}")
        for layer in range(layers):
            begin, number = at + 10 + layer * 600, 1 + batch * 10 + layer
            lines.append(f"range 1 {begin} {begin + 500} layer_{layer}")
            lines.append(f"range 1 {begin + 10} {begin + 400} soft.max[0]; 1.5")
            lines.append(f"launch 1 {begin + 20} {begin + 30} #{number}")
            end = begin + 140 + batch % 3 + (slow_ns if layer in slow else 0)
            lines.append(f"kernel 1 {begin + 40} {end} #{number} gemm")
        at += 6000
    return "\n".join([*lines, "launch 1 200000 200010 #999", "kernel 1 200020 200050 #999 copy"])


def test_the_tree_says_what_its_rows_are_and_folds_ranges_of_a_series(parsed: Parse) -> None:
    dataset = parsed(training())
    text = printed(tree.of_dataset(dataset, module_tree.columns(dataset), 100))
    assert text.startswith(
        "This report has no module markers, so the rows are NVTX ranges. Record with tracekit capture"
    )
    heading, first, *rest = [line.split("  ")[0].strip() for line in text.splitlines()[3:] if line.strip()]
    assert heading == "range"
    assert first.startswith("───")
    assert rest == [ROOT_NAME, "", "", "", "(outside_ranges)"]
    assert list(module_tree.frame(dataset).label) == [ROOT_NAME, "batch *", "layer_0 … 2", "soft.max[0]; 1.5"]
    assert list(classes.frame(dataset).name) == ["soft.max[0]; 1.5", ROOT_NAME, "batch *", "layer_*"]


def test_summary_and_its_json_say_it_too(parsed: Parse) -> None:
    dataset = parsed(training())
    text = printed(summary.as_text(dataset, 100))
    assert "57 calls of 8 ranges" in text
    assert "GPU time by range\nThis report has no module markers" in text
    assert "annotate more of the program" in text
    about = summary.as_json(dataset)["hierarchy"]
    assert (about["by"], about["row"]) == (["ranges"], "range")
    assert about["why"] == nodes.why(dataset)


@pytest.mark.parametrize(
    ("lines", "by", "noun", "begin"),
    {
        "marked": (MARKED, "auto", "module", None),
        "marked, ranges": (MARKED, "ranges", "node", "Rows are NVTX ranges, and modules where they are marked"),
        "operators": ("range 1 0 9 aten::mm, op_id = 3", "auto", "operator", "This report has neither module markers"),
        "asked": ("range 1 0 9 aten::mm, op_id = 3", "operators", "operator", "Rows are operators because of --rows"),
        "nothing": ("launch 1 1 2 #1\nkernel 1 3 9 #1 gemm", "auto", "module", None),
    }.values(),
)
def test_rows_have_the_word_for_what_they_are(parsed: Parse, lines: str, by: str, noun: str, begin: str | None) -> None:
    dataset = parsed(lines, rows=by)
    assert nouns(dataset).node == noun
    why = nodes.why(dataset)
    assert len(why) == (0 if begin is None else 1)
    assert all(sentence.startswith(begin or "") for sentence in why)


def test_reports_that_differ_are_named(tmp_path: Path) -> None:
    paths = [report(tmp_path / "marked.sqlite", MARKED)]
    paths += [report(tmp_path / f"plain{number}.sqlite", training()) for number in range(5)]
    dataset = tracekit.parse(paths, tmp_path / "run")
    assert nodes.why(dataset) == [
        "marked: rows are modules.",
        "plain0, plain1, plain2 and 2 more: no module markers, so the rows are NVTX ranges. "
        "Record with tracekit capture to see modules.",
    ]
    assert nouns(dataset).node == "node"


def test_of_a_chrome_trace_they_are_annotations_and_no_advice_is_about_nsys(tmp_path: Path) -> None:
    events = [event("user_annotation", "epoch", 0, 50), event("user_annotation", "layer", 10, 20), launch(15, 1)]
    path = trace(tmp_path / "run.json", *events, kernel(30, 1), launch(60, 2), kernel(70, 2))
    dataset = tracekit.parse(path, tmp_path / "run")
    [sentence] = nodes.why(dataset)
    assert "so the rows are annotations (record_function) and operators. Record with" in sentence
    advice = " ".join(summary.advice(dataset))
    assert "record_function" in advice
    assert "nsys" not in advice
    text = printed(summary.as_text(dataset, 100))
    assert "no range: outside_ranges" in text
    assert "run.json  torch.profiler" in text


@pytest.mark.parametrize(
    ("lines", "by", "advice"),
    [
        (training(), "modules", "read its ranges with tracekit parse --rows auto"),
        (training(), "operators", "no operators are marked: read it with tracekit parse --rows auto"),
        (
            "launch 1 1 2 #1\nkernel 1 3 9 #1 gemm",
            "auto",
            "kernels, gaps, copies and launches can be asked for (tracekit show kernels)",
        ),
    ],
)
def test_without_any_row_there_is_one_line_that_says_why(parsed: Parse, lines: str, by: str, advice: str) -> None:
    dataset = parsed(lines, rows=by)
    assert advice in " ".join(summary.advice(dataset))
    assert advice in printed(answers.nothing("tree", module_tree.columns(dataset), dataset), 300)


@pytest.mark.parametrize("analysis", [module_tree, modules], ids=["tree", "modules"])
@pytest.mark.parametrize(("by", "kinds"), [("ranges", ["module", "range"]), ("auto", ["module"])])
def test_rows_say_of_what_kind_they_are_in_the_terminal_where_that_differs(
    parsed: Parse, analysis: Analysis, by: str, kinds: list[str]
) -> None:
    dataset = parsed(MARKED, rows=by)
    rows = json.loads(command("show", analysis.NAME, dataset.folder, "--json").out)
    assert [row["kind"] for row in rows] == kinds
    text = printed(answers.as_text(analysis.columns(dataset), nouns(dataset), 300, answers.Choice()), 300)
    assert ("kind" in text) == (len(kinds) > 1)


def test_a_path_with_anything_in_it_can_be_asked_for(parsed: Parse) -> None:
    dataset = parsed(training())
    path = f"{ROOT_NAME}.batch *.layer_1"
    done = command("show", "modules", dataset.folder, "--path", path, "--json")
    assert (done.code, done.err) == (0, "")
    assert [row["path"] for row in json.loads(done.out)] == [path, f"{path}.soft.max[0]; 1.5"]
    refused = command("show", "modules", dataset.folder, "--path", "layer_1")
    assert refused.err.endswith(f": has no range layer_1; did you mean {path}?\n")


def test_exports_take_names_from_the_hierarchy_not_from_paths(parsed: Parse, tmp_path: Path) -> None:
    dataset = parsed(training(layers=1))
    assert command("export", dataset.folder, "--format", "stacks", "-o", tmp_path / "stacks", "-q").code == 0
    root = ROOT_NAME.replace(";", ",")
    assert (tmp_path / "stacks").read_text("utf-8").splitlines() == [
        f"{root};batch *;layer_0;soft.max[0], 1.5;gemm 807",
        "[outside_ranges];copy 30",
    ]
    assert command("export", dataset.folder, "--format", "chrome", "-o", tmp_path / "chrome", "-q").code == 0
    events = json.loads((tmp_path / "chrome").read_text("utf-8"))["traceEvents"]
    assert {event["name"] for event in events if event.get("cat") == "module"} == {
        ROOT_NAME,
        "batch *",
        "layer_0",
        "soft.max[0]; 1.5",
    }
    assert "ranges of thread 1" in [event["args"].get("name") for event in events if event["ph"] == "M"]


def test_two_runs_are_compared_by_range_also_if_their_roots_differ(tmp_path: Path) -> None:
    before = tracekit.parse(report(tmp_path / "a.sqlite", training("run v1.0")))
    after = tracekit.parse(report(tmp_path / "b.sqlite", training("run v1.1", slow_ns=60)))
    done = command("diff", before.folder, after.folder, "--json")
    comparison = json.loads(done.out)
    changed = {row["path"]: row["status"] for row in comparison["rows"] if row["status"] != "same"}
    below = "run v1.0.batch *.layer_1"
    places = ("run v1.0", "run v1.0.batch *", below, f"{below}.soft.max[0]; 1.5")
    assert changed == dict.fromkeys(("step", *places), "slower")
    assert comparison["notes"][0] == "The root run v1.1 of the second dataset is matched with run v1.0 of the first."
    assert command("diff", before.folder, after.folder).out.splitlines()[-1].startswith("Ranges: ")


def test_modules_are_not_compared_with_ranges(tmp_path: Path) -> None:
    plain = tracekit.parse(report(tmp_path / "a.sqlite", training()))
    marked = tracekit.parse(ROOT / "data" / "llama_eager.sqlite", tmp_path / "marked")
    done = command("diff", plain.folder, marked.folder)
    assert done.code == 1
    assert done.err == (
        f"tracekit: {marked.folder}: its hierarchy is keyed by modules, that of {plain.folder} by ranges; "
        "parse both with the same --rows\n"
    )


def test_what_ranges_do_not_tell_is_unknown_rather_than_zero(parsed: Parse) -> None:
    dataset = parsed(training())
    sizes = memory.frame(dataset)
    assert sizes[["param_bytes", "subtree_param_bytes", "input_bytes", "output_bytes"]].isna().all(axis=None)
    costs = roofline.frame(dataset)
    assert costs.flops[costs.self_ns > 0].isna().all()
    assert shapes.frame(dataset).flops_per_call.isna().all()
    assert "no steps are known" in printed(answers.nothing("steps", {}, dataset), 300)


#: How programs spell a layer, and what is inside by the depth of each line: ``k`` its number, ``t`` that of the step.
SPELLINGS = {
    "full paths": "top.layers.{k}\n top.layers.{k}.attn\n  top.layers.{k}.attn.qkv\n top.layers.{k}.mlp",
    "full paths of parts alone": "top.layers.{k}.attn.fc1\ntop.layers.{k}.attn.fc2\ntop.layers.{k}.mlp",
    "with experts": "h.{k}\n h.{k}.experts.0\n h.{k}.experts.1\n h.{k}.experts.2\n h.{k}.norm",
    "steps behind": "layer_{k}_token_{t}\n layer_{k}_attn_token_{t}\n layer_{k}_mlp_token_{t}",
    "a number each": "layer_{k}\n attn_{k}\n mlp_{k}\n  up\n  down",
    "fsdp": "FSDP::pre_forward (blocks.{k})\n FSDP::all_gather (blocks.{k})\nFSDP::post_forward (blocks.{k})",
    "series that alternate": "pre_forward (blocks.{k})\n unshard (blocks.{next})\npost_forward (blocks.{k})",
    "lightning": "[pl][module]my.Block: model.layers.{k}\n [pl][module]my.MLP: model.layers.{k}.mlp",
    "with_stack": "nn.Module: Block_{k}\n nn.Module: Attention_{k}\n nn.Module: MLP_{k}\n  nn.Module: Linear_{next}",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_layers_fold_however_their_names_are_spelled(parsed: Parse, spelling: str) -> None:
    lines, at, size = [], 10, SPELLINGS[spelling].count("\n") + 1
    for step, layer in product(range(4), range(16)):
        texts = SPELLINGS[spelling].format(k=layer, t=step, next=layer + 1).splitlines()
        for place, text in enumerate(texts):
            depth = len(text) - len(text.lstrip())
            inside = texts[place + 1 :]
            below = next((n for n, other in enumerate(inside) if other[: depth + 1].strip()), len(inside))
            lines.append(f"range 1 {at} {at + 40 * below + 25 - depth} {text.strip()}")
            lines += [f"launch 1 {at + 10} {at + 11} #{at}", f"kernel 1 {at + 12} {at + 19} #{at} gemm"]
            at += 40
    dataset = parsed("\n".join([f"range 1 0 {at} run", *lines]), rows="ranges")
    found, known = module_tree.frame(dataset), layers.frame(dataset)
    assert len(found) <= 1 + size
    assert known.modules.sum() == 16 * size
    assert found.subtree_ns[0] == known.self_ns.sum() == 4 * 16 * 7 * size


def test_types_and_patterns_know_the_numbers_that_parts_of_layers_repeat(parsed: Parse) -> None:
    lines = [f"range 1 {at}00 {at}90 h.{at % 3}\nrange 1 {at}10 {at}20 h.{at % 3}.mlp" for at in range(3, 9)]
    dataset = parsed("\n".join(lines))
    assert set(classes.frame(dataset).name) == {"h.*", "h.*.mlp"}
    assert list(module_tree.frame(dataset).label) == ["h.0 … 2", "h.0 … 2.mlp"]


def test_ranges_without_device_work_have_their_time_on_the_host(tmp_path: Path) -> None:
    turns = (
        f"range 1 {at} {at + 900} step {at}\nrange 1 {at + 10} {at + 400} load\nrange 1 {at + 20} {at + 100} disk"
        for at in range(1000, 6000, 1000)
    )
    dataset = tracekit.parse(report(tmp_path / "report.sqlite", "\n".join(turns)))
    for analysis in (module_tree, modules):
        rows = {row["path"]: row for row in records(analysis.frame(dataset))}
        times = {path: (row["host_ns"], row["subtree_host_ns"], row["subtree_ns"]) for path, row in rows.items()}
        assert times == {"step *": (2550, 4500, 0), "step *.load": (1550, 1950, 0), "step *.load.disk": (400, 400, 0)}
    shown = command("show", "tree", dataset.folder).out
    assert "host share" in shown
    assert "43.3 %" in shown
    assert "subtree host" in command("show", "modules", dataset.folder).out
    assert "Host time by range" in command("parse", tmp_path / "report.sqlite", "--force").out
