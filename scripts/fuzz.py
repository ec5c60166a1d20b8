"""Break model files in thousands of ways, and load each in a process of its own as a user would.

    python scripts/fuzz.py --cases 10000 --seed 0

Each case is a small model of one of six architectures, or a file that holds no model (tests/foreign_files.py), broken
in one or a few ways (tests/broken_files.py). A child process reads what specrun itself reads of a file, then loads it
and writes two tokens. It prints how the cases ended: written (the change did no harm), refused (in one line), and what
must not happen: a traceback, a signal, another number of lines, or no end within 20 seconds. The exit code is 1 if that
happened; --keep keeps these files.

A long run can be made in parts, with --first, --seconds and --json, and reported on as a whole with --report.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests import foreign_files, models
from tests.broken_files import broken, taken_apart

_MOST_SECONDS = 20  # of a case
_TRACEBACK = 99  # exit code of a child that ended with one
_LONGEST_LINE = 600  # characters of an error
_LONGEST_SHOWN = 700  # characters of what a case says that ended otherwise than it should

_MODELS: dict[str, Callable[[Path], Path]] = {
    "llama": lambda path: models.random_llama(path, n_layer=1),
    "gemma3": lambda path: models.random_gemma3(path, window=8),
    "qwen3moe": lambda path: models.random_qwen3_moe(path, n_layer=1),
    "mamba": models.random_mamba,
    "bert": models.random_bert,
    "t5": models.random_t5,
}
# The parts of big-endian files are not taken apart.
_FOREIGN = {name: make for name, make in foreign_files.GGUFS.items() if name != "big-endian"}
_FOREIGN_SHARE = 0.2  # of the cases


@dataclass(frozen=True)
class Case:
    """How a case ended. outcome: written, refused, traceback, signal, hang or lines."""

    number: int
    model: str
    way: str
    outcome: str
    message: str
    seconds: float


def run(folder: Path, seed: int, numbers: range, keep: Path | None) -> list[Case]:
    """The cases with these numbers, one after the other."""
    for module in ("loading.opening", "catalog.info", "catalog.pairs"):  # not again in every child
        importlib.import_module(f"specrun.{module}")
    parts = {name: taken_apart(folder / f"{name}.gguf") for name in (*_MODELS, *_FOREIGN)}
    results = []
    for number in numbers:
        rng = random.Random(f"{seed} {number}")
        name = rng.choice(list(_FOREIGN if rng.random() < _FOREIGN_SHARE else _MODELS))
        data, way = broken(parts[name], rng)
        path = folder / f"broken-{os.getpid()}.gguf"
        path.write_bytes(data)
        started = time.perf_counter()
        outcome, message = in_child(path)
        results.append(Case(number, name, way, outcome, message, time.perf_counter() - started))
        if keep and outcome not in ("written", "refused"):
            (keep / f"{seed}-{number}.gguf").write_bytes(data)
    return results


def in_child(path: Path) -> tuple[str, str]:
    """How reading and loading a file ends, and what it says."""
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            signal.alarm(_MOST_SECONDS)
            for descriptor in (1, 2):
                os.dup2(said.fileno(), descriptor)
            code = _TRACEBACK
            try:
                code = _load(path)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        said.seek(0)
        text = said.read().decode("utf-8", errors="replace").strip()
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return ("hang", "") if number == signal.SIGALRM else ("signal", f"{signal.Signals(number).name} {text[-300:]}")
    code = os.WEXITSTATUS(status)
    if code == 0:
        return "written", ""
    if code == _TRACEBACK:
        return "traceback", text[-1500:]
    lines = text.splitlines()
    return ("refused", lines[0]) if len(lines) == 1 else ("lines", text[-500:])


def _load(path: Path) -> int:
    """What a user does with a file; the exit code."""
    import specrun
    from specrun.catalog.gguf_file import GgufFile
    from specrun.catalog.heads import block_of, head_in, own_head
    from specrun.catalog.info import facts, lines
    from specrun.catalog.layer_states import expert_pages, weight_pages
    from specrun.catalog.pairs import read_vocabulary
    from specrun.catalog.resolve import Model
    from specrun.errors import SpecrunError

    try:
        try:
            lines(facts(Model(str(path), path)))
            file = GgufFile.read(path)
            len(read_vocabulary(file).tokens)
            weight_pages(file, 4096)
            expert_pages(file, 4096)
            if (head := head_in(file)) and head.kind == "dflash":
                block_of(file)
            own_head(file)
        except SpecrunError as error:
            _check_line(error)
        with specrun.load(path, threads=1, ctx_size=64, speculate="off") as model:
            model.generate("x y", raw=True, max_tokens=2)
    except SpecrunError as error:
        _check_line(error)
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _check_line(error: Exception) -> None:
    text = str(error)
    if "\n" in text or len(text) > _LONGEST_LINE or not text.isprintable():
        raise AssertionError(f"not one printable line: {text!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case, to go on with a long run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further cases after this time")
    parser.add_argument("--keep", type=Path, help="a folder for the files that ended otherwise than they should")
    parser.add_argument("--json", type=Path, help="append the results to this file, one object a line")
    parser.add_argument("--report", type=Path, help="run nothing; report on the results in this file")
    arguments = parser.parse_args()
    if arguments.report:
        sys.exit(_report([Case(**json.loads(line)) for line in arguments.report.read_text().splitlines()]))
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    started, size = time.perf_counter(), 20
    cases: list[Case] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ |= {f"SPECRUN_{kind}_DIR": str(folder / kind.lower()) for kind in ("DATA", "CONFIG", "CACHE")}
        for name, make in (*_MODELS.items(), *_FOREIGN.items()):
            make(folder / f"{name}.gguf")
        with ProcessPoolExecutor(arguments.jobs, get_context("spawn")) as pool:
            at, end = arguments.first, arguments.first + arguments.cases
            while at < end and time.perf_counter() - started < arguments.seconds:
                pending = []
                for _ in range(arguments.jobs):
                    numbers = range(at, min(at + size, end))
                    pending.append(pool.submit(run, folder, arguments.seed, numbers, arguments.keep))
                    at = numbers.stop
                for future in pending:
                    cases += future.result()
    if arguments.json:
        with arguments.json.open("a") as file:
            file.writelines(json.dumps(case.__dict__) + "\n" for case in cases)
    print(f"{len(cases)} cases from {arguments.first} on in {time.perf_counter() - started:.0f} s")
    sys.exit(_report(cases))


def _report(cases: list[Case]) -> int:
    """Print how the cases ended. Returns the exit code: 1 if one ended as none should."""
    for outcome, count in Counter(case.outcome for case in cases).most_common():
        print(f"{count:8} {outcome}")
    slowest = max(cases, key=lambda case: case.seconds)
    print(
        f"slowest: {slowest.seconds:.2f} s (case {slowest.number}, {slowest.model}, {slowest.way}, {slowest.outcome})"
    )
    print("refused, by the reason:")
    for kind, count in Counter(_kind(case.message) for case in cases if case.outcome == "refused").most_common():
        print(f"{count:8} {kind}")
    bad = [case for case in cases if case.outcome not in ("written", "refused")]
    for case in bad:
        print(f"case {case.number}, {case.model}, {case.way}: {case.outcome}\n{case.message[-_LONGEST_SHOWN:]}")
    return 1 if bad else 0


def _kind(message: str) -> str:
    """A message without what differs from file to file."""
    return re.sub(r"\d+", "N", re.sub(r"'[^']*'|\([^)]*\)", "_", re.sub(r"\S*broken-\d+\.gguf", "FILE", message)))[:110]


if __name__ == "__main__":
    main()
