"""What an agent can call: each tool is a command of the same name, bounded and read-only."""

from collections.abc import Callable
from pathlib import Path

from tracekit import answers as all_answers
from tracekit.comparison.difference import compare_with_several, part_of
from tracekit.dataset.opening import Dataset, load
from tracekit.errors import UsageError, did_you_mean
from tracekit.mcp.bounds import Answer, Folders, bounded
from tracekit.pipeline import parse as parse_reports
from tracekit.steptime.whatif import Changes, predict
from tracekit.storage.locations import Location
from tracekit.tables import TABLES
from tracekit.views import answers, asking, difference, schema as table_schema, summary
from tracekit.views.formatting import records

#: Rows of an answer unless others are asked for; datasets before a change, each of which takes a comparison.
_ROWS, _MOST_BEFORE = 20, 32


class Tools:
    """The tools, and what they may read. Agents read their docstrings."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        #: The datasets of reports that were given in place of one.
        self._parsed: dict[tuple[Path, int], Location] = {}

    @property
    def all(self) -> list[Callable[..., Answer]]:
        """Every tool."""
        return [self.files, self.parse, self.questions, self.ask, self.diff, self.whatif, self.schema]

    def files(self) -> Answer:
        """Lists the datasets and reports that can be read."""
        return bounded(self._folders.listed(), ["ls", "-R", *self._folders.folders])

    def parse(self, reports: list[str], rows: str = "auto") -> Answer:
        """Reads reports of Nsight Systems, torch.profiler or nvprof, one per rank, and summarizes them.

        The answer names a temporary dataset for the other tools; the command makes one that stays.

        Args:
            reports: Paths of the reports, or patterns such as rank*.sqlite.
            rows: What the hierarchy is made of: auto, modules, ranges or operators.
        """
        if not reports:
            raise UsageError("which reports? the tool files lists them")
        paths = self._folders.paths(reports)
        out = self._folders.new_dataset(paths[0])
        dataset = parse_reports(paths if len(paths) > 1 else paths[0], out, rows=rows)
        place = [] if len(paths) == 1 else ["-o", f"{paths[0].parent.name or 'run'}.tracekit"]
        option = [] if rows == "auto" else ["--rows", rows]
        return bounded(summary.as_json(dataset), ["tracekit", "parse", *paths, *place, *option])

    def questions(self) -> Answer:
        """Lists the questions that can be asked of a dataset, with the columns that answer them and their options."""
        every = [
            {"name": name, "question": text, "answer": [*analysis.ANSWER], "options": [*asking.options_of(analysis)]}
            for (name, text), analysis in zip(all_answers.questions().items(), all_answers.ANALYSES, strict=True)
        ]
        return bounded(every, ["tracekit", "show", "--list"])

    def ask(  # noqa: PLR0913 - the options of tracekit show
        self,
        dataset: str,
        question: str,
        path: str | None = None,
        by: str | None = None,
        sort: str | None = None,
        top: int = _ROWS,
        columns: list[str] | None = None,
        depth: int | None = None,
        min_share: float | None = None,
        dtype: str | None = None,
        peaks: list[str] | None = None,
    ) -> Answer:
        """Answers a question about a dataset with rows: see the tool questions. Times are in nanoseconds.

        Args:
            dataset: Folder of the dataset, as the tools parse and files name it, or a report.
            question: Such as tree, kernels, launches or budget.
            path: Only this module, or those of a pattern (top.layers.*), and those below; shares are of their time.
            by: rank, report or host: the figures of each of them.
            sort: Sort by this column, the largest first.
            top: At most so many rows.
            columns: Only these columns; the answer names the others.
            depth: At most so many levels of modules.
            min_share: Only rows of at least this share, from 0 to 1.
            dtype: For roofline and memory: the dtype where markers record none.
            peaks: For roofline: peak throughput of the device, such as bfloat16=989 or memory=3350.
        """
        options = {name: value for name, value in (("dtype", dtype), ("peaks", peaks)) if value is not None}
        analysis = asking.question(question, by, options)
        opened, place = self._load(dataset)
        part = opened if path is None else opened.subtree(path)
        choice = answers.Choice(depth, min_share, sort, max(0, top), columns)
        answer, rows, asked = asking.overview(part, analysis, choice, by, options)
        shown = choice._replace(columns=columns or [name for name in asked if name in rows])
        picked = answers.picked(question, rows, shown)
        content: Answer = {"rows": records(picked), "rows_in_all": answers.rows_of(answer)}
        content["other_columns"] = [name for name in rows if name not in picked]
        if answers.is_empty(question, answer):
            content["why_empty"] = str(answers.nothing(question, answer, part))
        command = ["tracekit", "show", question, place, *_flags(path=path, by=by, sort=sort, depth=depth)]
        command += _flags(min_share=min_share, dtype=dtype, peak=peaks)
        result = bounded(content, [*command, "--json"])
        result["complete"] = bool(result["complete"]) and answers.rows_of(rows) == answers.rows_of(answer)
        return result

    def diff(
        self,
        before: str | list[str],
        after: str,
        path: str | None = None,
        min_share: float = 0.0,
        strip_root: bool = False,  # noqa: FBT001, FBT002 - an agent names its arguments
        ignore_shapes: bool = False,  # noqa: FBT001, FBT002 - as above
    ) -> Answer:
        """Compares two datasets: whole steps, and the modules whose time in a step changed by more than chance.

        Args:
            before: Folder of the dataset before the change, or its report; several show how much equal runs differ.
            after: Folder of the dataset after it, or its report.
            path: Only whole steps, and this module or those of a pattern, and those below.
            min_share: Leave out modules with less of the time in steps, from 0 to 1.
            strip_root: Ignore the first part of all paths.
            ignore_shapes: Compare calls whatever the shapes of their inputs.
        """
        named = [*([before] if isinstance(before, str) else before), after]
        if not 1 < len(named) <= _MOST_BEFORE + 1:
            raise UsageError(f"which datasets before, at most {_MOST_BEFORE}? the tool files lists them")
        (*baselines, new), places = zip(*map(self._load, named), strict=True)
        whole = compare_with_several(baselines, new, strip_root=strip_root, shapes=not ignore_shapes)
        found = part_of(whole, path, min_share)
        rows = records(found.rows)
        changes = sorted(difference.changed_parts(rows), key=lambda row: -abs(row["change_ns"]))
        content = {
            "notes": found.notes,
            "wall_clocks": difference.wall_clocks(found),
            "steps": difference.whole_steps(rows),
            "changes": changes,
        }
        flags = _flags(path=path, min_share=min_share or None, strip_root=strip_root, ignore_shapes=ignore_shapes)
        return bounded(content, ["tracekit", "diff", *places, *flags, "--json"])

    def whatif(  # noqa: PLR0913 - all changes that there are
        self,
        dataset: str,
        scale: dict[str, float] | None = None,
        host_scale: dict[str, float] | None = None,
        no_sync: list[str] | None = None,
        no_launch_cost: list[str] | None = None,
        as_graph: list[str] | None = None,
        overlap_communication: bool = False,  # noqa: FBT001, FBT002 - an agent names its arguments
        interconnect: float | None = None,
        like_fastest_rank: bool = False,  # noqa: FBT001, FBT002 - as above
    ) -> Answer:
        """Predicts the time of a step and its budget after changes. Patterns name modules: top.layers.*.mlp.

        Args:
            dataset: Folder of the dataset, or a report.
            scale: Factors of device time by pattern; PATTERN:kernel=GLOB changes only kernels with such names.
            host_scale: Factors of the time of host code by pattern.
            no_sync: Patterns of modules that no longer wait for the device.
            no_launch_cost: Patterns of modules whose CUDA calls take no time, except those that block.
            as_graph: Patterns of modules of which each call launches its work as one CUDA graph.
            overlap_communication: Only the next step waits for collectives.
            interconnect: How many times as fast collectives move their data.
            like_fastest_rank: All ranks take as long as the fastest one.
        """
        patterns = {"no_sync": no_sync, "no_launch_cost": no_launch_cost, "as_graph": as_graph}
        opened, place = self._load(dataset)
        prediction = predict(
            opened,
            Changes(
                scale=tuple((scale or {}).items()),
                host_scale=tuple((host_scale or {}).items()),
                **{name: tuple(given or ()) for name, given in patterns.items()},
                overlap_communication=overlap_communication,
                interconnect=interconnect,
                like_fastest_rank=like_fastest_rank,
            ),
        )
        content = {name: getattr(prediction, name) for name in prediction.__slots__}
        scales = {
            name: [f"{pattern}={factor}" for pattern, factor in (factors or {}).items()]
            for name, factors in (("scale", scale), ("host_scale", host_scale))
        }
        flags = _flags(**scales, **patterns, interconnect=interconnect)
        flags += _flags(overlap_communication=overlap_communication, like_fastest_rank=like_fastest_rank)
        return bounded(content, ["tracekit", "whatif", place, *flags, "--json"])

    def schema(self, table: str | None = None) -> Answer:
        """Describes the tables of a dataset, or the columns of one table.

        Args:
            table: Name of the table; without it, all are named with what a row is.
        """
        specs = {one.SPEC.name: one.SPEC for one in TABLES}
        if table is None:
            return bounded({name: spec.doc for name, spec in specs.items()}, ["tracekit", "schema"])
        if table not in specs:
            raise UsageError(f"there is no table {table}; {did_you_mean(table, specs)}")
        return bounded(table_schema.as_json(specs[table]), ["tracekit", "schema", table, "--json"])

    def _load(self, given: str) -> tuple[Dataset, Path]:
        """A dataset, or that of a report, which is not written next to it; and the path that commands can name."""
        path = self._folders.path(given)
        if not path.is_file():
            return load(path), path
        state = path, path.stat().st_mtime_ns
        if state not in self._parsed:
            self._parsed[state] = parse_reports(path, self._folders.new_dataset(path)).folder
        return load(self._parsed[state]), path


def _flags(**options: object) -> list[object]:
    """Options as the command line takes them: a list repeats its option, what is False or None is left out."""
    words: list[object] = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif isinstance(value, list):
            words += [word for item in value for word in (option, item)]
        elif value is not None and value is not False:
            words += [option, value]
    return words
