"""``tracekit whatif``: what the steps of a dataset would take if something changed."""

import argparse

from tracekit.cli.base import add_dataset, console, flag, opened, option, repeatable

NAME = "whatif"
HELP = "predict the time of a step after changes"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add_dataset(parser)
    meaning = (
        "multiply the device time of modules by F. A pattern such as top.layers.*.mlp is a path from the root, with "
        "the modules below: * matches one part; as the first part, any prefix; as the whole pattern, everything. "
        "PATTERN:kernel=GLOB=F changes only kernels with such names"
    )
    repeatable(parser, "--scale PATTERN=F", meaning, type=_scaled)
    repeatable(parser, "--host-scale PATTERN=F", "multiply the time of host code between CUDA calls by F", type=_scaled)
    meaning = "nothing in these modules waits for the device: blocking copies become asynchronous, with pinned memory"
    repeatable(parser, "--no-sync PATTERN", meaning)
    meaning = "CUDA calls in these modules take no time, except those that block"
    repeatable(parser, "--no-launch-cost PATTERN", meaning)
    meaning = "each call of these modules launches its work as one CUDA graph, if nothing waits inside (see --no-sync)"
    repeatable(parser, "--as-graph PATTERN", meaning)
    flag(parser, "--overlap-communication", "only the next step waits for collectives, nothing else")
    option(parser, "--interconnect F", "collectives move their data F times as fast", type=_factor)
    flag(parser, "--like-fastest-rank", "all ranks take as long as the fastest one, and none waits")
    flag(parser, "--json", "print the prediction as JSON")


def _factor(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number such as 0.5, got {text!r}") from None


def _scaled(text: str) -> tuple[str, float]:
    pattern, _, factor = text.rpartition("=")
    if not pattern:
        raise argparse.ArgumentTypeError(f"expected PATTERN=F such as 'top.layers.*.mlp=0.5', got {text!r}")
    return pattern, _factor(factor)


def run(args: argparse.Namespace) -> int:
    """Predicts and prints; several changes are made at once."""
    from tracekit.arrays.own_process import without_pandas

    without_pandas()
    from tracekit.steptime.whatif import Changes, predict
    from tracekit.views import whatif as view
    from tracekit.views.budget import window
    from tracekit.views.formatting import printed_json

    changes = Changes(
        scale=tuple(args.scale),
        host_scale=tuple(args.host_scale),
        no_sync=tuple(args.no_sync),
        no_launch_cost=tuple(args.no_launch_cost),
        as_graph=tuple(args.as_graph),
        overlap_communication=args.overlap_communication,
        interconnect=args.interconnect,
        like_fastest_rank=args.like_fastest_rank,
    )
    dataset = opened(args.dataset)
    prediction = predict(dataset, changes)
    if args.json:
        print(printed_json(view.as_json(prediction), indent=2))
    else:
        terminal = console()
        terminal.print(view.as_text(prediction, window(dataset), terminal.width))
    return 0
