"""What a trimmed draft saves and costs: milliseconds of draft passes over 1, 4 and 16 nodes, and tokens a pass.

    python scripts/bench_trim.py TARGET.gguf DRAFT.gguf [--vocabs 49152,151936,262144] [--kept 8192,16384,32768]
                                 [--tokens 64] [--texts 5] [--rounds 21] [-t THREADS]

DRAFT is measured with each vocabulary: its own, and larger ones with tokens that the target never writes. Full and
trimmed drafts take turns. Tokens a pass are those of a tree of 16 nodes, 4 deep, after the prompts that ship with
`specrun tune`, greedily and at T=0.8, with --exact: all texts of a temperature must be the same, or the script fails.
TARGET must have more bytes than every draft; docs/make-draft.md makes one.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import gguf
from other_vocabularies import with_more_tokens

import specrun
from specrun.catalog.gguf_file import GgufFile
from specrun.decoding import calibration_texts
from specrun.decoding.request import Request
from specrun.loading.model import Model
from specrun.making.trimming import trim
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import Plan
from specrun.tuning.pass_timer import DraftTimer

NODES = (1, 4, 16)
PLAN = SPECEXEC.plan(max(NODES), 4)
TEMPERATURES = (0.0, 0.8)


@dataclass
class Measured:
    """A row: a draft with `kept` of its tokens. ms: milliseconds of a pass by its nodes, one for each round."""

    kept: int
    model: Model
    ms: dict[int, list[float]] = field(default_factory=lambda: {n: [] for n in NODES})
    tokens_per_pass: list[float] = field(default_factory=list)  # by temperature

    def cells(self) -> list[str]:
        times = [f"{statistics.median(self.ms[n]):.2f}" for n in NODES]
        return [f"{self.kept:,}", *times, *(f"{each:.2f}" for each in self.tokens_per_pass)]


def with_vocabulary(draft: Path, n_vocab: int, folder: Path) -> Path:
    """The draft with so many tokens."""
    n_added = n_vocab - GgufFile.read(draft).n_vocab
    if n_added == 0:
        return draft
    added = [f"[PAD{i}]" for i in range(n_added)]
    return with_more_tokens(draft, folder / f"draft-{n_vocab}.gguf", added, gguf.TokenType.UNUSED)


def time_passes(rows: list[Measured], n_rounds: int) -> None:
    """Time all drafts in turn, in each of the rounds; the first round is the warm-up."""
    text = rows[0].model.prompt_tokens(calibration_texts.together())
    timers = [DraftTimer(row.model.engine, text) for row in rows]
    for timer in timers:
        timer.fill(256)
    for i in range(n_rounds + 1):
        for n in NODES:
            for row, timer in zip(rows, timers, strict=True):
                ms = timer.ms(n)
                if i:
                    row.ms[n].append(ms)


def write(model: Model, plan: Plan, temperature: float, n_texts: int, n_tokens: int) -> tuple[list[list[int]], float]:
    """The texts, and the tokens that a pass commits."""
    texts, passes = [], 0
    for text in calibration_texts.shipped("validate")[:n_texts]:
        parameters = SamplingParameters(temperature=temperature, seed=1)
        done = model.complete(Request(model.prompt_tokens(text.prompt), parameters, n_tokens), FixedPlan(plan)).run()
        texts.append(list(done.token_ids))
        passes += done.statistics.passes
    return texts, sum(map(len, texts)) / passes


def measure(asked: argparse.Namespace, n_vocab: int, folder: Path) -> list[Measured]:
    """The rows of a vocabulary: the full draft, and the trimmed ones."""
    whole = with_vocabulary(asked.draft, n_vocab, folder)
    options = {"speculate": "tree", "budget": PLAN.budget, "depth": PLAN.depth, "exact": True, "learn": False}
    options |= {"threads": asked.threads}
    with ExitStack() as stack:
        rows = [Measured(n_vocab, stack.enter_context(specrun.load(asked.target, whole, **options)))]
        for kept in (kept for kept in asked.kept if kept < n_vocab):
            path = folder / f"trimmed-{n_vocab}-{kept}.gguf"
            trim(whole, kept, path)
            rows.append(Measured(kept, stack.enter_context(specrun.load(asked.target, path, **options))))
        time_passes(rows, asked.rounds)
        for temperature in TEMPERATURES:
            expected = None
            for row in rows:
                texts, tokens_per_pass = write(row.model, PLAN, temperature, asked.texts, asked.tokens)
                if texts != (expected := expected or texts):
                    raise SystemExit(f"with {row.kept:,} of {n_vocab:,} tokens the text is another one")
                row.tokens_per_pass.append(tokens_per_pass)
    return rows


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--vocabs", type=numbers, default=[49152, 151936, 262144], metavar="LIST")
    parser.add_argument("--kept", type=numbers, default=[8192, 16384, 32768], metavar="LIST", help="tokens that stay")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="of a text (%(default)s)")
    parser.add_argument("--texts", type=int, default=5, metavar="N", help="at a temperature (%(default)s)")
    parser.add_argument("--rounds", type=int, default=21, metavar="N")
    parser.add_argument("-t", "--threads", type=int, metavar="N")
    asked = parser.parse_args()
    columns = ["vocabulary", "kept", *(f"ms of {n}" for n in NODES), *(f"a pass, T={t:g}" for t in TEMPERATURES)]
    print("| " + " | ".join(columns) + " |\n|" + " ---: |" * len(columns), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for n_vocab in asked.vocabs:
            for row in measure(asked, n_vocab, Path(folder)):
                print(f"| {n_vocab:,} | " + " | ".join(row.cells()) + " |", flush=True)


if __name__ == "__main__":
    main()
