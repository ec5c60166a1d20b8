"""Measure what passes, trees, bits and memory are on a graphics card, and write a page about it.

    scripts/bench_gpu [--only PART ...] [--minutes M] [--quick] [--parameters B] [--target T.gguf --draft D.gguf]
                      [--layers LIST] [--sms LIST] [--work DIR] [--build-dir DIR] [--output PAGE.md]

Parts: passes (their time by tokens, layers in VRAM, and how weights in RAM are held and copied), exactness (which
passes give the same bits), memory (planned and taken), tune (what it chose beside a grid), peers (llama.cpp's tools,
which are built once). Each gets a share of the minutes, and leaves out what it has no time for. The models are made
here unless given. A later run replaces the parts that it measures. Everything is measured on the cards that llama.cpp
sees; CUDA_VISIBLE_DEVICES and the like choose.
"""

from __future__ import annotations

import argparse
import math
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from gpu_bench import beside, bits, memory, passes, tuned
from gpu_bench.bench import FIT, HALF, Bench
from gpu_bench.machine import Here
from gpu_bench.models import Models
from gpu_bench.page import page
from gpu_bench.record import PARTS, Record
from specrun.errors import INTERRUPTED_EXIT_CODE, SpecrunError, UsageError
from specrun.long_run import Run

# The share of the minutes that each part gets of what is left, by the weights of the parts that are left.
WEIGHTS = {"passes": 11, "exactness": 4, "memory": 2, "tune": 9, "peers": 9}
MEASURES: dict[str, Callable[[Bench], Iterator[dict[str, Any]]]] = {
    "passes": passes.rows, "exactness": bits.rows, "memory": memory.rows, "tune": tuned.rows, "peers": beside.rows,
}  # fmt: skip
OF_TEXTS = ("tune", "peers")  # parts that need a draft
OUTPUT = Path(__file__).parents[2] / "docs" / "benchmarks" / "gpu.md"
WORK = Path.home() / ".cache" / "specrun-bench-gpu"


class Parser(argparse.ArgumentParser):
    """Like argparse's, with errors of one line."""

    def error(self, message: str) -> NoReturn:
        """End with the message alone."""
        self.exit(UsageError.exit_code, f"{self.prog}: {message}; see --help\n")


def arguments() -> argparse.Namespace:
    """The options, checked as far as that needs no card."""
    parser = Parser(prog="scripts/bench_gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--only",
        action="append",
        choices=PARTS,
        metavar="PART",
        help=f"a part to measure: {', '.join(PARTS)}; all without it",
    )
    add("--minutes", type=float, default=35.0, metavar="M", help="of all parts together (35)")
    add("--quick", action="store_true", help="a few rows of each part, to see whether all works here")
    add("--parameters", type=float, default=7.0, metavar="B", help="billions, of the models that are made (7)")
    add("--target", type=Path, metavar="GGUF", help="a model to measure instead")
    add("--draft", type=Path, metavar="GGUF", help="its draft, for tune and peers")
    layers = f"in VRAM in tune and peers: {HALF}, {FIT} (as many as fit), or numbers ({HALF},{FIT})"
    add("--layers", default=f"{HALF},{FIT}", metavar="LIST", help=layers)
    sms = (
        "numbers of multiprocessors for exactness, such as 24,46,82,128. Only for CUDA, and only with a build of "
        "llama.cpp whose ggml-cuda.cu was changed so that nsm is taken from the environment variable NSM"
    )
    add("--sms", default="", metavar="LIST", help=sms)
    add("--work", type=Path, default=WORK, metavar="DIR", help=f"where models and profiles are made ({WORK})")
    add("--build-dir", type=Path, metavar="DIR", help="where llama.cpp's tools are, or are built (as scripts/peers.py)")
    add("--output", type=Path, default=OUTPUT, metavar="PAGE.md", help="the page; raw/PAGE.json lies beside it")
    options = parser.parse_args()
    options.parts = [name for name in PARTS if name in (options.only or PARTS)]
    options.layers = tuple(options.layers.split(","))
    if not all(one in (HALF, FIT) or one.isdecimal() for one in options.layers):
        parser.error(f"--layers is a list of {HALF}, {FIT} and numbers; got {','.join(options.layers)}")
    if not all(one.isdecimal() and int(one) for one in options.sms.split(",") if options.sms):
        parser.error(f"--sms is a list of numbers; got {options.sms}")
    options.sms = tuple(int(one) for one in options.sms.split(",") if options.sms)
    if not (options.minutes > 0 and 0 < options.parameters < math.inf):
        parser.error("--minutes and --parameters must be above 0")
    _check_models(parser, options)
    return options


def _check_models(parser: Parser, options: argparse.Namespace) -> None:
    if options.draft and not options.target:
        parser.error("--draft needs a --target")
    if options.target and not options.draft and (wanting := [name for name in options.parts if name in OF_TEXTS]):
        parser.error(f"{' and '.join(wanting)} need a --draft beside --target; or name other parts with --only")
    for path in (options.target, options.draft):
        if path and not path.is_file():
            parser.error(f"{path}: no such file")


def command_of(name: str, options: argparse.Namespace) -> str:
    """The command that measures one part again."""
    words = ["scripts/bench_gpu", "--only", name, *["--quick"] * options.quick]
    if options.target:
        draft = ["--draft", options.draft.name] if options.draft and name in OF_TEXTS else []
        words += ["--target", options.target.name, *draft]
    else:
        words += ["--parameters", f"{options.parameters:g}"]
    if name in OF_TEXTS:
        words += ["--layers", ",".join(options.layers)]
    if name == "exactness" and options.sms:
        words += ["--sms", ",".join(map(str, options.sms))]
    return shlex.join(words)


def measure(options: argparse.Namespace) -> int:
    """Measure the parts and write both files. The exit code: 1 if a part has no rows."""
    deadline = time.perf_counter() + 60 * options.minutes
    here = Here.read()
    if options.sms and here.backend != "CUDA":
        raise UsageError(f"--sms is for CUDA, and this build of llama.cpp has {here.backend}")
    record = Record(options.output.parent / "raw" / f"{options.output.stem}.json", here.machine)
    given = (options.target, options.draft) if options.target else None
    models = Models(options.work, 1e9 * options.parameters, given)
    empty = []
    for i, name in enumerate(options.parts):
        left = options.parts[i:]
        seconds = (deadline - time.perf_counter()) * WEIGHTS[name] / sum(WEIGHTS[one] for one in left)
        run = Run(_say, partial(_say, name)).stage(seconds)
        bench = Bench(
            models, run, options.work, here.backend, options.layers, options.sms, options.build_dir, options.quick
        )
        if not _measured(name, bench, record, options, here):
            empty.append(name)
    print(options.output)
    return 1 if empty else 0


def _measured(name: str, bench: Bench, record: Record, options: argparse.Namespace, here: Here) -> bool:
    """Measure a part, and write both files after every row. Whether there are rows."""
    started, rows = time.perf_counter(), list[dict[str, Any]]()
    about = {
        "command": command_of(name, options),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "software": here.software,
        "models": str(bench.models),
        "notes": bench.notes,
    }

    def keep() -> None:
        if rows:
            record.put(name, {**about, "seconds": round(time.perf_counter() - started, 1)}, rows)
            options.output.write_text(page(record.data), encoding="utf-8")

    try:
        for row in MEASURES[name](bench):
            rows.append(row)
            keep()
    except KeyboardInterrupt:
        bench.note("interrupted here")
        raise
    finally:
        keep()  # the last notes, too
    if not rows:
        bench.note("nothing was measured")
    return bool(rows)


def _say(*words: str) -> None:
    print("bench_gpu:", ": ".join(words), file=sys.stderr, flush=True)


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = arguments()
    try:
        return measure(options)
    except SpecrunError as error:
        _say(str(error))
        return error.exit_code
    except OSError as error:
        _say(f"{error.filename or options.output}: {error.strerror}")
        return UsageError.exit_code
    except KeyboardInterrupt:
        _say("interrupted; what was measured is kept")
        return INTERRUPTED_EXIT_CODE


if __name__ == "__main__":
    sys.exit(main())
