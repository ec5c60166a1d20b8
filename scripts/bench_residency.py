"""What streaming by specrun brings where a target does not fit into RAM, under one memory cap.

    python scripts/bench_residency.py --target T.gguf --draft D.gguf --cap 700M [-n 48] [--repeat 3] [--tune]
        [--read-ahead 8192,128] [--lengths 3,8,16 --p-min 0,0.75]
    python scripts/bench_residency.py --target T.gguf --cap 700M --passes [--read-ahead 8192,128]

In turn: llama.cpp's plain decoding, its best chain, specrun with weights read by the page cache (--residency off), and
specrun with weights that it streams, the last two without speculation and with `auto`. Each run is a process of its
own under the cap, with the target dropped from the page cache before. Beside the medians of tokens/s and of the
milliseconds of a pass stand the bytes that the whole run read from storage, loading included, and for streamed weights
what each pass read and how long it waited. Rows without speculation write a third as many tokens.

The best chain is the fastest of all --lengths and --p-min, tried once under the first read-ahead; the draft must have
the target's vocabulary for it. --tune tunes the pair before, once for each way. --read-ahead lists KiB that the page
cache reads ahead of page faults on the target's disk: everything is measured under each of them (root; restored
afterwards). --passes times passes of the target over 1 and 64 tokens instead: in RAM without the cap, by the page
cache, and streamed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from capped import bytes_read
from peer_tools import build, tools
from peer_tools.tools import Job, Row
from read_ahead import ReadAheadError, read_ahead

from specrun.bench import shipped
from specrun.hardware.cpu import usable_cores

CAPPED = Path(__file__).with_name("capped.py")
TIME_PASSES = Path(__file__).with_name("time_passes.py")


@dataclass(frozen=True)
class Run:
    """One answer. Bytes are 0 where they are not known."""

    tokens_per_second: float
    ms_per_pass: float
    tokens_per_pass: float
    bytes_of_run: int
    bytes_per_pass: int = 0
    wait_ms_per_pass: float = 0.0


@dataclass(frozen=True)
class Bench:
    """What all rows have in common."""

    options: argparse.Namespace
    prompt: Path  # file
    data: Path  # folder for profiles

    def tables(self) -> Iterator[tuple[str, dict[str, list[Run]]]]:
        """For each read-ahead its name and all runs by row: every row once, then every row again, and so on, so that
        whatever drifts hits all alike.
        """
        o = self.options
        names = [tools.COMPLETION, tools.SPECULATIVE_SIMPLE]
        programs = build.programs(build.default_folder(), names, usable_cores())
        chain: Row | None = None
        for kib in o.read_ahead or [None]:
            with read_ahead(o.target, kib) if kib else nullcontext():
                if chain is None:
                    if o.tune:
                        for residency in ("off", "auto"):
                            self._specrun("tune", residency, "--quick", "--temp", "0")
                    chain = self._best_chain(programs)
                results: dict[str, list[Run]] = {}
                for _ in range(o.repeat):
                    for name, run in self._once(programs, chain):
                        results.setdefault(name, []).append(run)
                        print(f"{name}: {run.tokens_per_second:.2f} tokens/s", file=sys.stderr, flush=True)
                yield f"read-ahead {kib} KiB" if kib else "", results

    def _best_chain(self, programs: dict[str, Path]) -> Row:
        """The fastest of llama.cpp's chains, each tried once."""
        o = self.options
        rows = tools.rows(tools.SPECULATIVE_SIMPLE, False, True, o.lengths, o.p_min)
        rates = {row: self._llama_cpp(programs, row).tokens_per_second for row in rows}
        for row, rate in rates.items():
            print(f"{row}: {rate:.2f} tokens/s", file=sys.stderr, flush=True)
        return max(rows, key=lambda row: rates[row])

    def _once(self, programs: dict[str, Path], chain: Row) -> Iterator[tuple[str, Run]]:
        yield "llama.cpp, plain", self._llama_cpp(programs, tools.PLAIN)
        length, p_min = tools.length_and_p_min(chain.settings)
        yield f"llama.cpp, chain of {length}, p-min {p_min}", self._llama_cpp(programs, chain)
        for speculate in ("off", "auto"):
            for residency, name in (("off", "page cache"), ("auto", "streamed")):
                yield f"specrun {speculate}, {name}", self._generate(speculate, residency)

    def _n_tokens(self, speculates: bool) -> int:
        n: int = self.options.max_tokens
        return n if speculates else max(n // 3, 8)

    def _llama_cpp(self, programs: dict[str, Path], row: Row) -> Run:
        o = self.options
        n = self._n_tokens(row != tools.PLAIN)
        job = Job(o.target, o.draft, n, 0.0, 0, o.threads, o.ctx_size, repack=False)
        output = self._run([*tools.one_shot_command(programs[row.tool], row, job, self.prompt)])
        measured = tools.PARSERS[row.tool](output)
        per_pass = measured.tokens / max(measured.passes, 1)
        return Run(measured.rate, 1e3 * per_pass / measured.rate, per_pass, bytes_read(output))

    def _generate(self, speculate: str, residency: str) -> Run:
        options = [
            "--speculate",
            speculate,
            "-n",
            str(self._n_tokens(speculate == "auto")),
            "--temp",
            "0",
            "--raw",
            "--no-learn",
        ]
        output = self._specrun("generate", residency, *options, "--json", "--file", str(self.prompt))
        answer = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
        return Run(
            answer["tokens_per_second"],
            answer["ms_per_pass"]["target"],
            answer["tokens_per_pass"],
            bytes_read(output),
            answer["bytes_read_per_pass"],
            1e3 * answer["wait_seconds"] / answer["passes"],
        )

    def _specrun(self, command: str, residency: str, *options: str) -> str:
        o = self.options
        models = ["--target", str(o.target), "--draft", str(o.draft), "-t", str(o.threads), "-c", str(o.ctx_size)]
        return self._run([sys.executable, "-m", "specrun", command, *models, "--residency", residency, *options])

    def _run(self, command: Sequence[str]) -> str:
        """All that a command under the cap prints, and what `capped.py` says of it."""
        words = _capped(self.options, command)
        environment = {**os.environ, "SPECRUN_DATA_DIR": str(self.data)}
        return _output(words, environment)


def _capped(options: argparse.Namespace, command: Sequence[str]) -> list[str]:
    return [sys.executable, str(CAPPED), options.cap, "--evict", str(options.target), "--", *command]


def _output(words: Sequence[str], environment: dict[str, str] | None = None) -> str:
    """All that a command prints. Ends this script if it fails."""
    run = subprocess.run(
        words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output = run.stdout.decode(errors="replace")
    if run.returncode:
        sys.exit(f"bench_residency.py: {' '.join(words)} ended with exit code {run.returncode}:\n{output}")
    return output


def as_table(results: dict[str, list[Run]]) -> str:
    """Medians in Markdown; ratios are to the first row."""
    lines = [
        "| row | tokens/s | ratio | tokens a pass | ms a pass | MB the run read | MB a pass read | ms it waited |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    first = None
    for name, runs in results.items():
        columns = zip(*(asdict(run).values() for run in runs), strict=True)
        median = Run(*(statistics.median(values) for values in columns))
        first = first or median
        is_streamed = median.bytes_per_pass > 0
        cells = (
            name,
            f"{median.tokens_per_second:.2f}",
            f"{median.tokens_per_second / first.tokens_per_second:.2f}",
            f"{median.tokens_per_pass:.2f}",
            f"{median.ms_per_pass:.0f}",
            f"{median.bytes_of_run / 1e6:.0f}",
            f"{median.bytes_per_pass / 1e6:.0f}" if is_streamed else "",
            f"{median.wait_ms_per_pass:.0f}" if is_streamed else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def passes(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Times of passes by where the weights are, as scripts/time_passes.py gives them: medians over runs in turn."""

    def timed(residency: str, is_capped: bool) -> dict[str, Any]:
        words = [sys.executable, str(TIME_PASSES), str(options.target), "--residency", residency]
        words += ["-t", str(options.threads), "-c", str(options.ctx_size)]
        output = _output(_capped(options, words) if is_capped else words)
        found: dict[str, Any] = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
        return found

    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(options.repeat):
        found.setdefault("in RAM", []).append(timed("off", is_capped=False))
        for kib in options.read_ahead or [None]:
            with read_ahead(options.target, kib) if kib else nullcontext():
                name = f"page cache{f', read-ahead {kib} KiB' if kib else ''}"
                found.setdefault(name, []).append(timed("off", is_capped=True))
        found.setdefault("streamed", []).append(timed("auto", is_capped=True))
    return {name: _medians(runs) for name, runs in found.items()}


def _medians(runs: Sequence[Any]) -> Any:
    """The medians of values in the same places of several JSON objects; what is no number is that of the first."""
    first = runs[0]
    if isinstance(first, dict):
        return {key: _medians([run[key] for run in runs]) for key in first}
    return statistics.median(runs) if isinstance(first, (int, float)) else first


def as_pass_table(rows: dict[str, dict[str, Any]]) -> str:
    """Markdown, and below what streamed passes would cost at best."""
    in_ram, streamed = rows["in RAM"], rows["streamed"]
    sizes = list(in_ram["ms"])
    head = [cell for n in sizes for cell in (f"ms of {n} token{'s' * (n != '1')}", "MB read")]
    lines = [f"| weights | {' | '.join(head)} |", f"| --- {'| --- ' * len(head)}|"]
    for name, row in rows.items():
        cells = [cell for n in sizes for cell in (f"{row['ms'][n]:.0f}", f"{row['bytes'][n] / 1e6:.0f}")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    rate = streamed["disk_bytes_per_second"]
    if rate and streamed["mode"] == "ring":
        reading = 1e3 * streamed["streamed_bytes"] / rate
        lines += [
            "",
            f"{streamed['resident_bytes'] / 1e6:.0f} MB of {streamed['weight_bytes'] / 1e6:.0f} MB are resident, "
            f"{streamed['streamed_bytes'] / 1e6:.0f} MB streamed. The disk reads {rate / 1e6:.0f} MB/s, "
            f"so that reading takes {reading:.0f} ms.",
        ]
        for n in sizes:
            least = max(reading, in_ram["ms"][n])
            lines.append(
                f"{n}: max(read, compute) is {least:.0f} ms, of which {streamed['ms'][n] / least:.2f} is taken."
            )
    return "\n".join(lines)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--target", type=Path, required=True, metavar="GGUF", help="the model that writes")
    add("--draft", type=Path, metavar="GGUF", help="the model that drafts")
    add("--cap", required=True, metavar="SIZE", help="memory of each run, like 700M")
    add("--max-tokens", "-n", type=int, default=48, metavar="N", help="tokens of an answer")
    add("--ctx-size", "-c", type=int, default=1024, metavar="N")
    add("--threads", "-t", type=int, default=usable_cores(), metavar="N")
    add("--repeat", type=int, default=3, metavar="N", help="runs of every row")
    add("--lengths", type=_numbers, default=[3, 8, 16], metavar="LIST", help="of llama.cpp's chains")
    add("--p-min", type=lambda text: [float(one) for one in text.split(",")], default=[0.0, 0.75], metavar="LIST")
    add("--read-ahead", type=_numbers, metavar="LIST", help="KiB; by default as it is")
    add("--tune", action="store_true", help="run `specrun tune --quick` before")
    add("--passes", action="store_true", help="time passes only")
    add("--json", action="store_true", help="all runs as JSON")
    options = parser.parse_args()
    if not options.passes and not options.draft:
        parser.error("--draft is missing")
    options.target = options.target.absolute()
    options.draft = options.draft and options.draft.absolute()
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that the read-ahead is restored
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        if options.passes:
            rows = passes(options)
            print(json.dumps(rows, indent=1) if options.json else as_pass_table(rows))
            return
        with tempfile.TemporaryDirectory() as folder:
            prompt = Path(folder) / "prompt.txt"
            prompt.write_text(shipped(("code",))[1].text, encoding="utf-8")
            tables = dict(Bench(options, prompt, Path(folder) / "data").tables())
    except ReadAheadError as error:
        sys.exit(f"bench_residency.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    if options.json:
        as_lists = {name: {row: [asdict(run) for run in runs] for row, runs in t.items()} for name, t in tables.items()}
        print(json.dumps(as_lists, indent=1))
        return
    for name, results in tables.items():
        print(*([f"{name}:", ""] if name else []), as_table(results), "", sep="\n")


if __name__ == "__main__":
    main()
