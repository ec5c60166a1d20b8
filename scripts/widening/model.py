"""Widen and deepen a llama-architecture GGUF model without changing what it computes.

The result costs as much as a real model of its size and writes what the small one writes: a target of one, three or
seven billion parameters without a download. docs/widening.md explains the recipe. Sizes that are not given stay as
they are in the source.
"""

from __future__ import annotations

import argparse
import math
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from specrun.errors import SpecrunError
from specrun.hardware.cpu import usable_cores
from specrun.making.widening import WiderModel

from . import compare as check
from . import mix_of_types
from .any_model import TYPES, AnyWiderModel
from .checks import WideningError, checked
from .experts import ROUTER, WiderMixture, has_experts

USAGE_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130
SIZES = ("embd", "layers", "ff", "heads", "kv_heads", "head_dim", "vocab")
HEADER_BYTES = 64_000_000  # room that we ask for besides the weights: metadata, and something to spare
TOLERANCE_OF_COPIES = 0.1  # of the spread of logits, where the weights are the same and only sums round differently


class Progress:
    """A line on stderr that says how far the writing is; silent where stderr is not a terminal."""

    def __init__(self, n_bytes: int) -> None:
        self.total = n_bytes
        self.done = 0
        self.started = time.perf_counter()

    def add(self, n_bytes: int) -> None:
        """Count bytes that were written."""
        self.done += n_bytes
        if sys.stderr.isatty():
            speed = self.done / max(time.perf_counter() - self.started, 1e-3)
            end = "\n" if self.done == self.total else ""
            line = f"\r{self.done / 1e6:,.0f} of {self.total / 1e6:,.0f} MB, {speed / 1e6:,.0f} MB/s "
            print(line, end=end, file=sys.stderr, flush=True)


def check_destination(source: Path, destination: Path, force: bool) -> None:
    """Raise `WideningError` if the file cannot be written there."""
    if not destination.parent.is_dir():
        raise WideningError(f"{destination.parent}: no such folder; make it first")
    if destination.is_dir():
        raise WideningError(f"{destination} is a folder; give the name of a file")
    if destination.exists() and destination.samefile(source):
        raise WideningError(f"{destination} is the source itself; give another destination")
    if destination.exists() and not force:
        raise WideningError(f"{destination} exists; --force replaces it")


def widen(options: argparse.Namespace) -> int:
    """Do what the options say; the exit code."""
    started = time.perf_counter()
    given = {name: getattr(options, name) for name in SIZES if getattr(options, name) is not None}
    source, target = checked(options.source, given)
    is_mixture = mix_of_types.is_mixture(source, options.type)
    if is_mixture:
        mix_of_types.check_superblocks(target, options.type)
    kind = mix_of_types.unrounded_kind(source) if is_mixture else options.type
    model = (WiderMixture if has_experts(source) else AnyWiderModel)(options.source, given, kind, options.seed)
    check_destination(options.source, options.destination, options.force)
    check_space(options.destination.parent, model.n_bytes * (2 if is_mixture else 1))
    kept = not is_mixture and keeps_weights(model)
    is_close = kept and is_power_of_two(model.query_factor)
    if warning := closeness(model, options.type, kept):
        print(f"widening.model: note: {warning}", file=sys.stderr)
    progress = Progress(model.n_bytes)
    if is_mixture:
        mix_of_types.write(model, options.type, options.destination, lambda n_bytes: progress.add(n_bytes))
    else:
        model.write(options.destination, lambda n_bytes: progress.add(n_bytes))
    n_bytes, seconds = options.destination.stat().st_size, time.perf_counter() - started
    print(f"{options.destination}: {model.n_parameters:,} parameters, {n_bytes:,} bytes, {seconds:.1f} s", flush=True)
    if not options.check:
        return 0
    report = check.compare(options.source, options.destination, options.threads)
    print("\n".join(report.lines()))
    failure = report.failure(TOLERANCE_OF_COPIES if is_close else float("inf"))
    if failure:
        print(f"check failed: {failure}", file=sys.stderr)
    return int(failure is not None)


def check_space(folder: Path, needed: int) -> None:
    """Raise WideningError if the disk has no room for `needed` bytes of weights."""
    free = shutil.disk_usage(folder).free
    if free < needed + HEADER_BYTES:
        raise WideningError(
            f"{folder} has {free / 1e6:,.0f} MB free and the model needs {needed / 1e6:,.0f} MB; "
            "make room or choose smaller sizes"
        )


def keeps_weights(model: WiderModel) -> bool:
    """Whether all matrices hold the very weights of the source, block by block."""
    tensors = model.source.tensors.items()
    matrices = [tensor for name, tensor in tensors if len(tensor.shape) > 1 and ROUTER not in name]
    return all(tensor.tensor_type == model.kind for tensor in matrices)


def is_power_of_two(factor: float) -> bool:
    """Whether a product with this factor is rounded as the number itself was."""
    return math.frexp(factor)[0] == 0.5


def closeness(model: AnyWiderModel, kind: str, keeps_weights: bool) -> str | None:
    """Why the logits will not be those of the source bit for bit, or None."""
    if not keeps_weights:
        return f"not all matrices of the source are {kind.upper()}; with other roundings, logits will differ"
    if not is_power_of_two(model.scale):
        embd = model.source.shape.embd
        return f"logits will differ a little by rounding; for the same bits choose --embd {4 * embd} or {16 * embd}"
    head_dim = model.source.shape.head_dim
    if not is_power_of_two(model.query_factor):
        return f"queries are rounded otherwise, and logits will differ; --head-dim {4 * head_dim} is closer"
    if model.target.head_dim > head_dim:
        return (
            "logits may differ a little by rounding, as some CPUs add up narrow heads in another order than wide ones"
        )
    return None


class Parser(argparse.ArgumentParser):
    """Like argparse's, with errors of one line."""

    def error(self, message: str) -> NoReturn:
        """End with the message alone."""
        self.exit(USAGE_EXIT_CODE, f"{self.prog}: {message}; see --help\n")


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """The options."""
    parser = Parser(prog="widening.model", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a llama-architecture GGUF file, or one with experts like Mixtral's")
    parser.add_argument("destination", type=Path, help="the file to write")
    parser.add_argument("--embd", type=int, metavar="N", help="width, a multiple of 32")
    parser.add_argument("--layers", type=int, metavar="N", help="number of layers")
    parser.add_argument(
        "--ff", type=int, metavar="N", help="width of the feed-forward layers, or of an expert, a multiple of 32"
    )
    parser.add_argument("--heads", type=int, metavar="N", help="query heads")
    parser.add_argument("--kv-heads", type=int, metavar="N", help="key/value heads, a divisor of the query heads")
    parser.add_argument("--head-dim", type=int, metavar="N", help="width of a head, a multiple of 32")
    parser.add_argument("--vocab", type=int, metavar="N", help="tokens; added ones are never chosen")
    parser.add_argument(
        "--type",
        choices=tuple(dict.fromkeys((*TYPES, *mix_of_types.MIXTURES))),
        default="q8_0",
        help="type of the matrices (default: q8_0)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the weights that have no effect (default: 0)")
    parser.add_argument("--force", action="store_true", help="replace the destination if it exists")
    parser.add_argument(
        "--check", action=argparse.BooleanOptionalAction, default=True, help="compare both models' logits and texts"
    )
    parser.add_argument("--threads", type=int, default=usable_cores(), metavar="N", help="of the check")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Widen, check, report."""
    options = parse_arguments(arguments)
    try:
        return widen(options)
    except SpecrunError as error:
        print(f"widening.model: {error}", file=sys.stderr)
    except OSError as error:
        print(f"widening.model: {options.destination} cannot be written: {error.strerror}", file=sys.stderr)
    except KeyboardInterrupt:
        print("widening.model: interrupted, nothing written", file=sys.stderr)
        return INTERRUPTED_EXIT_CODE
    return USAGE_EXIT_CODE


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(INTERRUPTED_EXIT_CODE))
    sys.exit(main())
