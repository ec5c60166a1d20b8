"""Widen and deepen a llama-architecture GGUF model without changing what it computes.

The result costs as much as a real model of its size and writes what the small one writes: a target of one, three or
seven billion parameters without a download. docs/widening.md explains the recipe. Sizes that are not given stay as
they are in the source.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import gguf
from widening import check
from widening.blocks import TYPES, Type
from widening.recipe import Recipe, Tensor
from widening.shape import Shape, Source, WideningError, check_sizes, read_source

from specrun.errors import SpecrunError
from specrun.hardware.cpu import usable_cores
from specrun.making import quantizing
from specrun.making.candidates import FILE_TYPES, SAME, Candidate

USAGE_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130
HEADER_BYTES = 64_000_000  # room that we ask for besides the weights: metadata, and something to spare
MIXTURES = tuple(name for name in FILE_TYPES if name not in ("q8_0", SAME))  # several types in a file, by llama.cpp
SUPERBLOCK = 256  # weights of a row that K-quants encode together
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


def write(recipe: Recipe, tensors: list[Tensor], destination: Path) -> None:
    """Write the wider model; until it is whole, only a file named `....partial` exists."""
    partial = destination.with_name(f"{destination.name}.{os.getpid()}.partial")
    writer = gguf.GGUFWriter(partial, "llama")
    try:
        recipe.add_metadata(writer, n_parameters(tensors))
        for tensor in tensors:
            writer.add_tensor_info(tensor.name, tensor.shape, None, tensor.n_bytes, raw_dtype=tensor.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        progress = Progress(sum(tensor.n_bytes for tensor in tensors))
        for tensor in tensors:
            writer.write_tensor_data(tensor.make())
            progress.add(tensor.n_bytes)
        writer.close()
        partial.replace(destination)
    except BaseException:
        writer.close()
        partial.unlink(missing_ok=True)
        raise


def is_quantized(source: Source, name: str) -> bool:
    """Whether llama.cpp's quantizer makes the file, as its type stands for a mixture that the source does not have."""
    types = {tensor.tensor_type for tensor in source.tensors.values() if len(tensor.shape) == 2}
    return name in MIXTURES and types != {TYPES.get(name)}


def unrounded_type(source: Source) -> Type:
    """A type that we can write and that holds the source's matrices as they are: their own, or F16."""
    kind = source.tensors["blk.0.attn_q.weight"].tensor_type
    return kind if kind in TYPES.values() else Type.F16


def write_quantized(recipe: Recipe, tensors: list[Tensor], destination: Path, kind: str) -> None:
    """Write the wider model in the source's type, and from that the destination with llama.cpp's quantizer."""
    wide, partial = (destination.with_name(f"{destination.name}.{os.getpid()}.{part}") for part in ("wide", "partial"))
    n_layers = recipe.target.layers
    try:
        write(recipe, tensors, wide)
        quantizing.write(wide, partial, Candidate(kind, tuple(range(n_layers)), n_layers), wait=lambda: None)
        partial.replace(destination)
    finally:
        wide.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)


def n_parameters(tensors: list[Tensor]) -> int:
    """Weights of all tensors."""
    return sum(math.prod(tensor.shape) for tensor in tensors)


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


def check_superblocks(target: Shape, kind: str) -> None:
    """Raise `WideningError` where llama.cpp's quantizer would give some matrices another type."""
    widths = {"--embd": target.embd, "--ff": target.ff, "the width of all --heads": target.heads * target.head_dim}
    for name, width in widths.items():
        if width % SUPERBLOCK:
            raise WideningError(
                f"{name} {width} is not a multiple of {SUPERBLOCK}, as {kind} needs; give {width + -width % SUPERBLOCK}"
            )


def check_space(folder: Path, n_bytes: int) -> None:
    """Raise `WideningError` if the disk has no room for the file."""
    free = shutil.disk_usage(folder).free
    if free < n_bytes + HEADER_BYTES:
        raise WideningError(
            f"{folder} has {free / 1e6:,.0f} MB free and the model needs {n_bytes / 1e6:,.0f} MB; "
            "make room or choose smaller sizes"
        )


def widen(options: argparse.Namespace) -> int:
    """Do what the options say; the exit code."""
    started = time.perf_counter()
    source = read_source(options.source)
    names = ("embd", "layers", "ff", "heads", "kv_heads", "vocab")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    target = replace(source.shape, **given)
    check_sizes(source.shape, target)
    check_destination(options.source, options.destination, options.force)
    quantized = is_quantized(source, options.type)
    if quantized:
        check_superblocks(target, options.type)
    kind = unrounded_type(source) if quantized else TYPES[options.type]
    recipe = Recipe(source, target, kind, options.seed)
    tensors = list(recipe.tensors())
    check_space(options.destination.parent, sum(tensor.n_bytes for tensor in tensors) * (2 if quantized else 1))
    keeps_weights = recipe.keeps_weights and not quantized
    if warning := closeness(recipe, options.type, keeps_weights):
        print(f"widen_gguf.py: note: {warning}", file=sys.stderr)
    if quantized:
        write_quantized(recipe, tensors, options.destination, options.type)
    else:
        write(recipe, tensors, options.destination)
    n_bytes, seconds = options.destination.stat().st_size, time.perf_counter() - started
    print(
        f"{options.destination}: {n_parameters(tensors):,} parameters, {n_bytes:,} bytes, {seconds:.1f} s", flush=True
    )
    if not options.check:
        return 0
    report = check.compare(options.source, options.destination, options.threads)
    print("\n".join(report.lines()))
    failure = report.failure(TOLERANCE_OF_COPIES if keeps_weights else float("inf"))
    if failure:
        print(f"check failed: {failure}", file=sys.stderr)
    return int(failure is not None)


def closeness(recipe: Recipe, kind: str, keeps_weights: bool) -> str | None:
    """Why the logits will not be those of the source bit for bit, or None."""
    if not keeps_weights:
        return f"not all matrices of the source are {kind.upper()}; with other roundings, logits will differ"
    if not recipe.keeps_rounding:
        embd = recipe.source.shape.embd
        return f"logits will differ a little by rounding; for the same bits choose --embd {4 * embd} or {16 * embd}"
    return None


class Parser(argparse.ArgumentParser):
    """Like argparse's, with errors of one line."""

    def error(self, message: str) -> NoReturn:
        """End with the message alone."""
        self.exit(USAGE_EXIT_CODE, f"{self.prog}: {message}; see --help\n")


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """The options."""
    parser = Parser(prog="widen_gguf.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a llama-architecture GGUF file")
    parser.add_argument("destination", type=Path, help="the file to write")
    parser.add_argument("--embd", type=int, metavar="N", help="width, a multiple of 32")
    parser.add_argument("--layers", type=int, metavar="N", help="number of layers")
    parser.add_argument("--ff", type=int, metavar="N", help="width of the feed-forward layers, a multiple of 32")
    parser.add_argument("--heads", type=int, metavar="N", help="query heads, each as wide as the source's")
    parser.add_argument("--kv-heads", type=int, metavar="N", help="key/value heads, a divisor of the query heads")
    parser.add_argument("--vocab", type=int, metavar="N", help="tokens; added ones are never chosen")
    parser.add_argument(
        "--type",
        choices=tuple(dict.fromkeys((*TYPES, *MIXTURES))),
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
    except (WideningError, SpecrunError) as error:
        print(f"widen_gguf.py: {error}", file=sys.stderr)
    except OSError as error:
        print(f"widen_gguf.py: {options.destination} cannot be written: {error.strerror}", file=sys.stderr)
    except KeyboardInterrupt:
        print("widen_gguf.py: interrupted, nothing written", file=sys.stderr)
        return INTERRUPTED_EXIT_CODE
    return USAGE_EXIT_CODE


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(INTERRUPTED_EXIT_CODE))
    sys.exit(main())
