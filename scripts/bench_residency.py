"""What streaming by specrun brings where a target does not fit into RAM: three ways, one memory cap.

    python scripts/bench_residency.py --target T.gguf --draft D.gguf --cap 700M [-n 48] [--repeat 3] [--tune]

In turn: llama.cpp's plain decoding, specrun with weights read by the page cache (--residency off), and specrun with
weights that it streams, the last two without speculation and with `auto`. Each run is a process of its own under the
cap, with the target dropped from the page cache before. Beside the medians of tokens/s and of the milliseconds of a
pass stand the bytes that the whole run read from storage, loading included, and for streamed weights what each pass
read and how long it waited. --tune tunes the pair before, once for each way. The page cache reads more or less ahead
as `blockdev --setra` has set it for the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from peer_tools import build, tools
from peer_tools.tools import Job

from specrun.bench.bench_prompts import shipped
from specrun.hardware.cpu import usable_cores

CAPPED = Path(__file__).with_name("capped.py")
READ = re.compile(r"^capped\.py: read (\d+) bytes", re.MULTILINE)


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

    def rows(self) -> dict[str, list[Run]]:
        """Every row once, then every row again, and so on, so that whatever drifts hits all alike."""
        completion = build.programs(build.default_folder(), [tools.COMPLETION], usable_cores())[tools.COMPLETION]
        if self.options.tune:
            for residency in ("off", "auto"):
                self._specrun("tune", residency, "--quick", "--temp", "0")
        results: dict[str, list[Run]] = {}
        for _ in range(self.options.repeat):
            for name, run in self._once(completion):
                results.setdefault(name, []).append(run)
                print(f"{name}: {run.tokens_per_second:.2f} tokens/s", file=sys.stderr)
        return results

    def _once(self, completion: Path) -> Iterator[tuple[str, Run]]:
        yield "llama.cpp, plain", self._llama_cpp(completion)
        for speculate in ("off", "auto"):
            for residency, name in (("off", "page cache"), ("auto", "streamed")):
                yield f"specrun {speculate}, {name}", self._generate(speculate, residency)

    def _llama_cpp(self, completion: Path) -> Run:
        o = self.options
        job = Job(o.target, o.draft, o.max_tokens, 0.0, 0, o.threads, o.ctx_size, repack=False)
        output = self._run([*tools.one_shot_command(completion, tools.PLAIN, job, self.prompt)])
        measured = tools.PARSERS[tools.COMPLETION](output)
        return Run(measured.rate, 1e3 / measured.rate, 1.0, _bytes_read(output))

    def _generate(self, speculate: str, residency: str) -> Run:
        options = ["--speculate", speculate, "-n", str(self.options.max_tokens), "--temp", "0", "--raw", "--no-learn"]
        output = self._specrun("generate", residency, *options, "--json", "--file", str(self.prompt))
        answer = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
        return Run(
            answer["tokens_per_second"],
            answer["ms_per_pass"]["target"],
            answer["tokens_per_pass"],
            _bytes_read(output),
            answer["bytes_read_per_pass"],
            1e3 * answer["wait_seconds"] / answer["passes"],
        )

    def _specrun(self, command: str, residency: str, *options: str) -> str:
        o = self.options
        models = ["--target", str(o.target), "--draft", str(o.draft), "-t", str(o.threads), "-c", str(o.ctx_size)]
        return self._run([sys.executable, "-m", "specrun", command, *models, "--residency", residency, *options])

    def _run(self, command: Sequence[str]) -> str:
        """All that a command under the cap prints, and what `capped.py` says of it."""
        words = [sys.executable, str(CAPPED), self.options.cap, "--evict", str(self.options.target), "--", *command]
        environment = {**os.environ, "SPECRUN_DATA_DIR": str(self.data)}
        run = subprocess.run(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output = run.stdout.decode(errors="replace")
        if run.returncode:
            sys.exit(f"bench_residency.py: {' '.join(words)} ended with exit code {run.returncode}:\n{output}")
        return output


def _bytes_read(output: str) -> int:
    found = READ.findall(output)
    return int(found[-1]) if found else 0


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, metavar="GGUF", help="the model that writes")
    parser.add_argument("--draft", type=Path, required=True, metavar="GGUF", help="the model that drafts")
    parser.add_argument("--cap", required=True, metavar="SIZE", help="memory of each run, like 700M")
    parser.add_argument("--max-tokens", "-n", type=int, default=48, metavar="N", help="tokens of an answer")
    parser.add_argument("--ctx-size", "-c", type=int, default=1024, metavar="N")
    parser.add_argument("--threads", "-t", type=int, default=usable_cores(), metavar="N")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of every row")
    parser.add_argument("--tune", action="store_true", help="run `specrun tune --quick` before")
    parser.add_argument("--json", action="store_true", help="all runs as JSON")
    options = parser.parse_args()
    options.target, options.draft = options.target.absolute(), options.draft.absolute()
    with tempfile.TemporaryDirectory() as folder:
        prompt = Path(folder) / "prompt.txt"
        prompt.write_text(shipped(("code",))[1].text, encoding="utf-8")
        results = Bench(options, prompt, Path(folder) / "data").rows()
    if options.json:
        print(json.dumps({name: [asdict(run) for run in runs] for name, runs in results.items()}, indent=1))
    else:
        print(as_table(results))


if __name__ == "__main__":
    main()
