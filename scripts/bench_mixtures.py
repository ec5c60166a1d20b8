"""What a mixture of experts that does not fit writes: llama.cpp, and specrun with experts in the page cache or its own.

    python scripts/bench_mixtures.py MIXTURE.gguf DRAFT.gguf [--shares 75,50,25] [--temps 0,0.8] [-n 96]
        [--kinds LIST] [--lengths 2,4,8] [--p-min 0,0.75] [--read-ahead KIB] [--rows FILE.json]

Every process runs under a memory cap, page cache included, that leaves room for so many percent of the experts beside
all other weights, the draft and a process's own memory. The prompts are one of each kind of `specrun bench`, through
ChatML. In turn: llama.cpp's plain decoding and its chains (of which the fastest counts), specrun without speculation
with experts in the page cache (--residency off) and in memory of its own, `auto` without a profile and with one of
`specrun tune --quick`, and plain decoding with experts in memory of its own once more, of which the mean counts. Rows
that read through the page cache write a third as many tokens.

`hits` is the share of the experts that passes used which were in memory. `MB a token` is what passes read, where that
is known, and `MB of the run` what the whole process read from storage, loading included. --read-ahead sets how far the
page cache reads ahead (root; restored afterwards). --rows keeps what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import real_pair
from capped import bytes_read
from peer_tools import tools
from read_ahead import read_ahead

from specrun.bench import USUAL, shipped
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.layer_states import expert_pages, n_bytes
from specrun.llama.streaming.address_space import PAGE

SCRIPTS = Path(__file__).parent
OWN_MEMORY = 200 * 2**20  # of a process, beside weights and the draft: code, caches, buffers, what specrun leaves free
CTX_SIZE = "1024"


@dataclass(frozen=True)
class Row:
    """One line of a table. run_bytes: read from storage by the whole process; of several runs, by the first."""

    share: int  # percent of the experts for which there is room
    temperature: float
    name: str
    rate: float  # tokens/s
    tokens_per_pass: float
    run_bytes: int
    bytes_per_token: float = 0.0
    hit_rate: float | None = None


@dataclass(frozen=True)
class Bench:
    """One cap."""

    options: argparse.Namespace
    share: int
    prompts: Path  # JSON lines
    tuned: Path  # data folder with a profile
    empty: Path  # data folder without one

    def rows(self) -> Iterator[Row]:
        """Tune, then measure at each temperature."""
        self._specrun(self.tuned, "tune", "--quick", "--temp", self.options.temps)
        for temperature in map(float, self.options.temps.split(",")):
            yield from self._llama_cpp(temperature)
            yield self._generate("specrun off, page cache", temperature, "off", residency="off")
            first = self._generate("specrun off", temperature, "off")
            autos = [
                self._generate("specrun auto, untuned", temperature, "auto"),
                self._generate("specrun auto, tuned", temperature, "auto", is_tuned=True),
            ]
            again = self._generate("specrun off", temperature, "off")
            yield replace(first, rate=(first.rate + again.rate) / 2)
            yield from autos

    def _llama_cpp(self, temperature: float) -> list[Row]:
        output, _ = self._capped(
            SCRIPTS / "peers.py", "--target", self.options.target, "--draft", self.options.draft, "--prompts",
            self.prompts, "-o", "json", "--tools", "speculative-simple", "--depths", self.options.lengths, "--p-min",
            self.options.p_min, "--repeat", "1", "-n", self._n_tokens(is_cached=True), "--ctx-size", CTX_SIZE,
            "--temp", f"{temperature:g}", "--no-repack",
        )  # fmt: skip
        found = json.loads(output)
        plain = next(one for one in found if one["tool"] == "llama-completion")
        best = max((one for one in found if one is not plain), key=lambda one: float(one["tokens_per_second"]))
        length, p_min = tools.length_and_p_min(best["settings"].split())
        names = {"llama.cpp, plain": plain, f"llama.cpp, chain of {length}, p-min {p_min}": best}
        return [
            Row(self.share, temperature, name, one["tokens_per_second"], one["tokens_per_pass"], 0)
            for name, one in names.items()
        ]

    def _generate(
        self, name: str, temperature: float, speculate: str, residency: str = "auto", is_tuned: bool = False
    ) -> Row:
        output, n_read = self._specrun(
            self.tuned if is_tuned else self.empty, "generate", "--residency", residency, "--speculate", speculate,
            "--raw", "--no-learn", "--seed", "3", "--temp", f"{temperature:g}", "-n",
            self._n_tokens(is_cached=residency == "off"), "--jsonl", "--file", self.prompts,
        )  # fmt: skip
        answers: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines()]
        tokens, passes = (sum(one[what] for one in answers) for what in ("completion_tokens", "passes"))
        rate = tokens / sum(one["seconds"] for one in answers)
        read = sum(one["bytes_read_per_pass"] * one["passes"] for one in answers)
        hits = [one["expert_hit_rate"] for one in answers if one["expert_hit_rate"] is not None]
        hit_rate = sum(hits) / len(hits) if hits else None
        return Row(self.share, temperature, name, rate, tokens / passes, n_read, read / tokens, hit_rate)

    def _n_tokens(self, is_cached: bool) -> int:
        """Of a text; is_cached: whether the page cache reads experts."""
        n: int = self.options.n
        return n // 3 if is_cached else n

    def _specrun(self, data: Path, command: str, *options: object) -> tuple[str, int]:
        models = ["--target", self.options.target, "--draft", self.options.draft, "--ctx-size", CTX_SIZE]
        return self._capped("-m", "specrun", command, *models, *options, data=data)

    def _capped(self, *arguments: object, data: Path | None = None) -> tuple[str, int]:
        """The standard output of a Python process under the cap, and bytes that it read from storage."""
        target = self.options.target
        cap = str(cap_bytes(target, self.options.draft, self.share))
        words = [sys.executable, str(SCRIPTS / "capped.py"), cap, "--evict", str(target), "--", sys.executable]
        words += map(str, arguments)
        print("$", " ".join(words), file=sys.stderr, flush=True)
        environment = {**os.environ, "SPECRUN_DATA_DIR": str(data)} if data else dict(os.environ)
        run = subprocess.run(words, env=environment, capture_output=True, text=True)
        print(run.stderr, file=sys.stderr, flush=True)
        if run.returncode:
            sys.exit(f"bench_mixtures.py: a command ended with exit code {run.returncode}")
        return run.stdout, bytes_read(run.stderr)


def cap_bytes(target: Path, draft: Path, share: int) -> int:
    """The memory of a process that has room for a share of the experts, in percent."""
    pages = expert_pages(GgufFile.read(target), PAGE)
    return OWN_MEMORY + draft.stat().st_size + n_bytes(pages.dense) + n_bytes(pages.experts) * share // 100


def as_tables(rows: Sequence[Row]) -> str:
    """A Markdown table for each share and temperature; ratios are to its first row."""
    lines = []
    for key in dict.fromkeys((row.share, row.temperature) for row in rows):
        own = [row for row in rows if (row.share, row.temperature) == key]
        sampling = "greedy" if key[1] == 0 else f"T={key[1]:g}"
        lines += [f"Room for {key[0]} % of the experts, {sampling}:", ""]
        lines += ["| row | tokens/s | ratio | tokens a pass | hits | MB a token | MB of the run |"]
        lines += ["| --- |" + " ---: |" * 6]
        for row in own:
            hits = "" if row.hit_rate is None else f"{row.hit_rate:.1%}"
            a_token = "" if row.hit_rate is None else f"{row.bytes_per_token / 1e6:.0f}"
            of_run = f"{row.run_bytes / 1e6:.0f}" if row.run_bytes else ""
            cells = f"{row.rate:.2f} | {row.rate / own[0].rate:.2f} | {row.tokens_per_pass:.2f}"
            lines.append(f"| {row.name} | {cells} | {hits} | {a_token} | {of_run} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--shares", default="75,50,25", metavar="LIST", help="of the experts, percent (%(default)s)")
    parser.add_argument("--temps", default="0,0.8", metavar="LIST")
    parser.add_argument("--lengths", default="2,4,8", metavar="LIST", help="of llama.cpp's chains (%(default)s)")
    parser.add_argument("--p-min", default="0,0.75", metavar="LIST", help="of them (%(default)s)")
    parser.add_argument("--kinds", default=",".join(USUAL), metavar="LIST", help="of prompts (%(default)s)")
    parser.add_argument("-n", type=int, default=96, metavar="N", help="tokens of a text (%(default)s)")
    parser.add_argument("--read-ahead", type=int, metavar="KIB", help="by default as it is")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="JSON file that keeps what was measured")
    options = parser.parse_args()
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory() as name,
        read_ahead(options.target, options.read_ahead) if options.read_ahead else nullcontext(),
    ):
        folder = Path(name)
        prompts = folder / "prompts.jsonl"
        texts = [real_pair.chat(shipped((kind,))[1].text) for kind in options.kinds.split(",")]
        prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
        for share in map(int, options.shares.split(",")):
            for row in Bench(options, share, prompts, folder / f"tuned-{share}", folder / "empty").rows():
                rows.append(row)
                if options.rows:
                    options.rows.write_text(json.dumps([asdict(one) for one in rows], indent=1) + "\n")
    print(as_tables(rows))


if __name__ == "__main__":
    main()
