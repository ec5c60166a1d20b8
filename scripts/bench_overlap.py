"""Tokens a pass of a draft with another tokenizer, by how much of the target's text both tokenizers share.

    python scripts/bench_overlap.py TARGET.gguf DRAFT.gguf [--shares 99,95,80] [--tokens 64] [--texts 5] [-t THREADS]
                                    [--keep DIR]

DRAFT has the target's tokenizer (scripts/real_pair.py makes such a pair). It drafts as it is, with its tokens in
another order, and without some of them, so that it has these percent of the tokens that the target writes after the
prompts that ship with `specrun tune`. Tokens a pass are those of a chain of 4 and of a tree of 16 nodes, 4 deep,
greedily and at T=0.8, with --exact: all texts of a temperature must be the same, and in another order the draft must
bring the same tokens a pass, or the script fails. --keep leaves the drafts in DIR, as permuted.gguf and
share-95.gguf, so that `specrun bench` can measure their speed in RAM and, with scripts/capped.py, streamed.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from other_vocabularies import in_another_order, without_tokens

import specrun
from specrun.catalog.gguf_file import GgufFile
from specrun.decoding import calibration_texts
from specrun.decoding.generation import Request
from specrun.loading.model import Model
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan

PLANS = (CHAIN.plan(depth=4), SPECEXEC.plan(16, 4))
TEMPERATURES = (0.0, 0.8)
Texts = list[list[int]]


def drafts(asked: argparse.Namespace, texts: Texts, folder: Path) -> Iterator[tuple[str, Path]]:
    """The drafts with their names in the table."""
    yield "its own", asked.draft
    yield "the same in another order", in_another_order(asked.draft, folder / "permuted.gguf")
    n_vocab = GgufFile.read(asked.draft).n_vocab
    counts = np.bincount(np.concatenate(texts), minlength=n_vocab).tolist()
    for share in asked.shares:
        path = without_tokens(asked.draft, folder / f"share-{share}.gguf", counts, share / 100)
        yield f"without {n_vocab - GgufFile.read(path).n_vocab:,} tokens, {share} % of the text", path


def measured(model: Model, plan: Plan, asked: argparse.Namespace) -> list[tuple[Texts, float]]:
    """By temperature: the texts, and the tokens that a pass commits."""
    return [write(model, plan, temperature, asked.texts, asked.tokens) for temperature in TEMPERATURES]


def write(model: Model, plan: Plan, temperature: float, n_texts: int, n_tokens: int) -> tuple[Texts, float]:
    """The texts, and the tokens that a pass commits."""
    texts, passes = [], 0
    for text in calibration_texts.shipped("validate")[:n_texts]:
        parameters = SamplingParameters(temperature=temperature, seed=1)
        done = model.complete(Request(model.prompt_tokens(text.prompt), parameters, n_tokens), FixedPlan(plan)).run()
        texts.append(list(done.token_ids))
        passes += done.statistics.passes
    return texts, sum(map(len, texts)) / passes


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--shares", type=numbers, default=[99, 95, 80], metavar="LIST", help="percent of the text")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="of a text (%(default)s)")
    parser.add_argument("--texts", type=int, default=5, metavar="N", help="at a temperature (%(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the drafts there")
    parser.add_argument("-t", "--threads", type=int, metavar="N")
    asked = parser.parse_args()
    options = {"speculate": "tree", "budget": 16, "depth": 4, "exact": True, "learn": False, "threads": asked.threads}
    columns = ["shared, as told", *(f"{kind}, T={t:g}" for kind in ("chain", "tree") for t in TEMPERATURES)]
    print("| draft | " + " | ".join(columns) + " |\n| --- |" + " ---: |" * len(columns), flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with specrun.load(asked.target, asked.draft, **options) as model:
            plain = [texts for texts, _ in measured(model, OFF.plan(), asked)]
        own: list[float] = []
        for name, path in drafts(asked, [text for texts in plain for text in texts], folder):
            with specrun.load(asked.target, path, **options) as model:
                done = [one for plan in PLANS for one in measured(model, plan, asked)]
                told = "".join(re.findall(r"shares (\d+%)", " ".join(model.notices)))
            if [texts for texts, _ in done] != plain * len(PLANS):
                raise SystemExit(f"with {name} the text is another one")
            rates = [rate for _, rate in done]
            own = own or rates
            if path.name == "permuted.gguf" and rates != own:
                raise SystemExit(f"in another order {rates} tokens a pass came instead of {own}")
            print(f"| {name} | {told} | " + " | ".join(f"{rate:.2f}" for rate in rates) + " |", flush=True)


if __name__ == "__main__":
    main()
