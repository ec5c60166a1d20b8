"""The headline tables: specrun beside llama.cpp's own speculation, by type of the weights, in RAM and streamed.

    python scripts/bench_headline.py --work DIR [--pair real|embedded] [--types LIST] [--places LIST] [--temps LIST]
                                     [--rows FILE.json]
    python scripts/bench_headline.py --rows FILE.json --print | --page docs/benchmarks/headline.md

The real pair is that of scripts/real_pair.py, which writes English and Python; it gets a prompt of each kind of
`specrun bench` through its chat template. The embedded pair is the embedded target, widened to a billion parameters
(docs/widening.md), and continues code. At each place (all weights in RAM; streamed, under a memory cap of half the
file) the pair is tuned, once for each --work folder. Then these run in turn on
the same prompts: llama.cpp's plain decoding, its draft decoding with all lengths and p-min, then twice specrun
without a profile and with it, and llama.cpp's plain decoding and its best setting once more. Means of both runs count,
and ratios are to llama.cpp's plain decoding. llama.cpp's tool counts what its last pass writes beyond a text's end,
specrun does not, so short texts are in favour of llama.cpp. --rows keeps what was measured in a file with their plans
and forecasts: a later call replaces the rows that it measures again, and prints all.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import real_pair
from peer_tools import tools
from widening import model as widening

from specrun.bench import USUAL, shipped
from specrun.catalog import embedded

TYPES = ("q4_k_m", "q8_0", "f16")
PAIRS = ("real", "embedded")
PLACES = ("ram", "streamed")
SHAPE = ["--embd", "2048", "--layers", "22", "--ff", "5632", "--heads", "64", "--kv-heads", "8", "--vocab", "32000"]
# llama.cpp's tools want a draft with the target's own vocabulary.
DRAFT_SHAPE = ["--embd", "288", "--vocab", "32000"]
N_TOKENS = {"ram": 96, "streamed": 40}
LENGTHS = {"ram": "2,3,4,8,16", "streamed": "3,8,16"}
DEFAULT = ("3", "0.0")  # llama.cpp's own length and p-min
# Bytes of a process beside the weights of the target: code, caches, buffers, the draft. The real pair has 49,152
# tokens, a draft of 92 MB, and 115 kB of K and V for each token of the context.
OWN_MEMORY = {"embedded": 160 * 2**20, "real": 512 * 2**20}
CTX_SIZE = {"embedded": "4096", "real": "2048"}
SCRIPTS = Path(__file__).parent
# Around the tables of the page.
BEGIN = {pair: f"<!-- the {pair} pair, made by scripts/bench_headline.py -->\n" for pair in PAIRS}
END = "<!-- end of what it made -->"
COLUMNS = {  # of the tables: what stands above them, and the rows that they show
    "llama.cpp, plain": "llama.cpp, plain",
    "its best chain": "llama.cpp, best of the sweep",
    "off": "specrun untuned, off",
    "auto, first run": "specrun untuned, auto",
    "off, tuned": "specrun tuned, off",
    "chain, tuned": "specrun tuned, chain",
    "tree, tuned": "specrun tuned, tree",
    "auto, tuned": "specrun tuned, auto",
}


@dataclass(frozen=True)
class Row:
    """One line of a table.

    rate: tokens/s. predicted: what was expected of the passes before each was made, 0 for nothing.
    """

    weights: str
    place: str
    temperature: float
    name: str
    plan: str
    rate: float
    tokens_per_pass: float
    predicted: float = 0.0
    pair: str = "embedded"

    @property
    def table(self) -> tuple[str, str, str, float]:
        """What the rows of a table have in common."""
        return self.pair, self.weights, self.place, self.temperature


@dataclass(frozen=True)
class Bench:
    """One type of weights at one place."""

    weights: str
    place: str
    target: Path
    draft: Path
    work: Path
    n_tokens: int = 0  # of each text; 0 is as many as the place has
    lengths: str = ""  # of llama.cpp's chains; "" are those of the place
    methods: str = "chain,tree,auto"  # of specrun with a profile
    pair: str = "embedded"

    @property
    def _length(self) -> str:
        return str(self.n_tokens or N_TOKENS[self.place])

    @property
    def tuned(self) -> Path:
        """The data folder with the profile."""
        return self.work / f"profile-{self.weights}-{self.place}"

    def tune(self, temperatures: Sequence[float]) -> None:
        """Make the profile, if there is none yet."""
        temps = ",".join(f"{t:g}" for t in temperatures)
        options = ["--show"] if self.tuned.exists() else ["--temp", temps]
        if self.pair == "embedded":
            options.append("--raw")
        report = json.loads(self.specrun(self.tuned, "tune", *options, "--json"))
        settings = {name: value for name, value in report["settings"].items() if value is not None}
        print(f"{self.weights}, {self.place}: settings {settings}", file=sys.stderr)

    def rows(self, temperatures: Sequence[float]) -> Iterator[Row]:
        """Tune, then measure at each temperature."""
        self.tune(temperatures)
        for temperature in temperatures:
            yield from self._measured(temperature)

    def _measured(self, temperature: float) -> Iterator[Row]:
        sampling = ["--temp", f"{temperature:g}"]
        swept = self._peers("0,0.75", self.lengths or LENGTHS[self.place], sampling)
        plain = [one for one in swept if one["tool"] == "llama-completion"]
        chains = sorted((one for one in swept if one not in plain), key=lambda one: -one["tokens_per_second"])
        once, again = (self._both(sampling) for _ in range(2))
        length, p_min = tools.length_and_p_min(chains[0]["settings"].split())
        last = self._peers(p_min, length, sampling)
        plain += [one for one in last if one["tool"] == "llama-completion"]
        same = [chains[0], *(one for one in last if one not in plain)]

        def row(name: str, plan: str, found: Sequence[dict[str, Any]]) -> Row:
            def mean(figure: str) -> float:
                return statistics.mean(one.get(figure) or 0.0 for one in found)

            rate, per_pass = mean("tokens_per_second"), mean("tokens_per_pass")
            predicted, described = mean("predicted_tokens_per_second"), found[0].get("plan", plan)
            return Row(self.weights, self.place, temperature, name, described, rate, per_pass, predicted, self.pair)

        yield row("llama.cpp, plain", "off", plain)
        default = [one for one in chains if tools.length_and_p_min(one["settings"].split()) == DEFAULT]
        if default:
            yield row("llama.cpp, default chain", "chain of 3", default)
        yield row("llama.cpp, best of the sweep", f"chain of at most {length}, p-min {p_min}", same)
        for state, *both in zip(("untuned", "tuned"), once, again, strict=True):
            for found in zip(*both, strict=True):
                method = found[0]["method"]
                yield row(f"specrun {state}, {method}", method, found)

    def _peers(self, p_min: str, lengths: str, sampling: Sequence[str]) -> list[dict[str, Any]]:
        command = [
            SCRIPTS / "peers.py", "--target", self.target, "--draft", self.draft, *self._prompts(warm_up=False),
            "-o", "json", "--tools", "speculative-simple", "--depths", lengths, "--p-min", p_min, "--repeat", "1",
            "-n", self._length, "--ctx-size", CTX_SIZE[self.pair], *sampling,
            # Re-ordered weights would have to lie in RAM.
            *(["--no-repack"] if self.place == "streamed" else []),
        ]  # fmt: skip
        found: list[dict[str, Any]] = json.loads(self._run(command, os.environ))
        return found

    def _both(self, sampling: Sequence[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The rows of specrun without anything kept, and with its profile."""
        with tempfile.TemporaryDirectory(dir=self.work) as empty:
            untuned = self._bench(Path(empty), "auto", sampling)
        return untuned, self._bench(self.tuned, self.methods, sampling)

    def _bench(self, data: Path, methods: str, sampling: Sequence[str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(
            self.specrun(
                data, "bench", "--raw", *self._prompts(warm_up=True), "--methods", methods, "--repeat", "1",
                "-o", "json", "-n", self._length, *sampling,
            )
        )  # fmt: skip
        return found

    def _prompts(self, warm_up: bool) -> list[str]:
        """The options for the prompts. warm_up: whether the first of each kind is for `specrun bench` to choose on."""
        if self.pair == "embedded":
            return ["--kinds", "code"]
        path = self.work / f"prompts-{'with' if warm_up else 'without'}-warm-up.jsonl"
        by_kind = [shipped((kind,)) for kind in USUAL]
        prompts = [by_kind[0][0]] * warm_up + [of_kind[1] for of_kind in by_kind]
        path.write_text("".join(json.dumps({"prompt": real_pair.chat(prompt.text)}) + "\n" for prompt in prompts))
        return ["--prompts", str(path)]

    def specrun(self, data: Path, command: str, *options: str) -> str:
        """The standard output of a command that keeps its data in `data`."""
        data.mkdir(exist_ok=True)
        models = ["--target", self.target, "--draft", self.draft, "--ctx-size", CTX_SIZE[self.pair]]
        return self._run(["-m", "specrun", command, *models, *options], {**os.environ, "SPECRUN_DATA_DIR": str(data)})

    def _run(self, arguments: Sequence[object], environment: Any) -> str:
        """The standard output of a Python process, under the memory cap where the place wants one."""
        words = [sys.executable, *map(str, arguments)]
        if self.place == "streamed":
            cap = str(OWN_MEMORY[self.pair] + self.target.stat().st_size // 2)
            words = [sys.executable, str(SCRIPTS / "capped.py"), cap, "--evict", str(self.target), "--", *words]
        print("$", " ".join(words), file=sys.stderr, flush=True)
        return subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def ensure_models(work: Path, weights: str, pair: str = "embedded") -> tuple[Path, Path]:
    """The target with weights of this type and the draft, made in `work` if they are not there."""
    if pair == "real":
        folder = work / f"real-{weights}"
        return real_pair.files(folder) or real_pair.make(folder, weights, agreement=70)
    work.mkdir(parents=True, exist_ok=True)
    target, draft = work / f"target-{weights}.gguf", work / "draft.gguf"
    for source, path, shape in (
        (embedded.TARGET, target, [*SHAPE, "--type", weights]),
        (embedded.DRAFT, draft, DRAFT_SHAPE),
    ):
        if not path.exists():
            widening.main([str(source), str(path), *shape, "--no-check"])
    return target, draft


def table(rows: Sequence[Row], pair: str) -> str:
    """A Markdown table of a pair: ratios to llama.cpp's plain decoding, with the tokens of a pass."""
    lines = [f"| weights, place, T | {' | '.join(COLUMNS)} |", "| --- |" + " ---: |" * len(COLUMNS)]
    tables = dict.fromkeys(row.table for row in rows if row.pair == pair)
    for key in sorted(tables, key=lambda key: (TYPES.index(key[1]), -PLACES.index(key[2]), key[3])):
        own = {row.name: row for row in rows if row.table == key}
        plain, *others = (own.get(name) for name in COLUMNS.values())
        assert plain
        ratios = [f"{one.rate / plain.rate:.2f} ({one.tokens_per_pass:.1f})" if one else "" for one in others]
        about = f"{key[1].upper()}, {'in RAM' if key[2] == 'ram' else key[2]}, {key[3]:g}"
        lines.append(f"| {about} | {' | '.join([f'{plain.rate:.2f} tokens/s', *ratios])} |")
    return "\n".join(lines) + "\n"


def document(text: str, rows: Sequence[Row]) -> str:
    """The page with the present tables of both pairs in place of those that it has."""
    for pair in PAIRS:
        before, begin, rest = text.partition(BEGIN[pair])
        text = f"{before}{begin}\n{table(rows, pair)}\n{END}{rest.partition(END)[2]}"
    return text


def read_rows(path: Path) -> list[Row]:
    """The rows that are kept in a file; none if there is none yet."""
    return [Row(**one) for one in json.loads(path.read_text())] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, help="folder for the models and profiles, some gigabytes")
    parser.add_argument("--pair", choices=PAIRS, default=PAIRS[0])
    parser.add_argument("--types", default=",".join(TYPES), metavar="LIST")
    parser.add_argument("--places", default=",".join(PLACES), metavar="LIST")
    parser.add_argument("--temps", default="0,0.8", metavar="LIST")
    lengths = f"of llama.cpp's chains ({LENGTHS['ram']}; streamed {LENGTHS['streamed']})"
    parser.add_argument("--lengths", default="", metavar="LIST", help=lengths)
    parser.add_argument(
        "--methods", default="chain,tree,auto", metavar="LIST", help="of specrun with a profile (%(default)s)"
    )
    parser.add_argument("-n", type=int, default=0, metavar="N", help="tokens of a text (96; streamed 40)")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="JSON file that keeps what was measured")
    parser.add_argument("--print", action="store_true", help="measure nothing, print what --rows keeps")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="measure nothing, renew the table of a page")
    options = parser.parse_args()
    kept = read_rows(options.rows) if options.rows else []
    if options.page:
        options.page.write_text(document(options.page.read_text(encoding="utf-8"), kept), encoding="utf-8")
        return
    if not options.print:
        if options.work is None:
            parser.error("--work is missing")
        temperatures = [float(t) for t in options.temps.split(",")]
        for weights in options.types.split(","):
            target, draft = ensure_models(options.work, weights, options.pair)
            for place in options.places.split(","):
                extent = options.n, options.lengths, options.methods, options.pair
                for row in Bench(weights, place, target, draft, target.parent, *extent).rows(temperatures):
                    key = (row.table, row.name)
                    kept = [one for one in kept if (one.table, one.name) != key] + [row]
                    if options.rows:
                        options.rows.write_text(json.dumps([asdict(one) for one in kept], indent=1) + "\n")
    for pair in dict.fromkeys(row.pair for row in kept):
        print(f"## The {pair} pair\n\n{table(kept, pair)}")


if __name__ == "__main__":
    main()
