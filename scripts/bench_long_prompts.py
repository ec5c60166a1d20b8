"""Speed after long prompts: how fast they are read, plain decoding, `auto`, and how much of them a draft should hold.

    python scripts/bench_long_prompts.py TARGET.gguf DRAFT.gguf [--lengths 4000,8000] [--kinds docs,code,chat]
                                         [--tokens 48] [--temp 0] [--holds LIST] [--no-peer]

The prompts are this project's documentation, modules of Python's standard library, and a conversation about both, cut
to each length, through the target's chat template. Everything is written after one reading of the prompt. llama-bench,
which is built once (scripts/peers.py), reads and writes as many tokens. The second table drafts a chain of 8 in every
pass with drafts that hold the last 256, 512, ... tokens of the text, or all of it. Whatever profile there is counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from peer_tools import build

import specrun
from specrun.decoding.generation import Request
from specrun.hardware.cpu import usable_cores
from specrun.llama import draft as draft_module
from specrun.loading.model import Model
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.method import OFF
from specrun.tuning.pass_timer import DraftTimer

ROOT = Path(__file__).parents[1]
ALL = 1 << 30  # tokens; more than any text has
CHAIN_DEPTH = 8
MORE = 512  # tokens of the context after the longest prompt
TIMED = 5  # draft passes


def _docs() -> Iterator[str]:
    return (path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))


def _code() -> Iterator[str]:
    folder = Path(sysconfig.get_path("stdlib"))
    names = ("argparse", "calendar", "configparser", "datetime", "functools", "heapq")
    return ((folder / f"{name}.py").read_text(encoding="utf-8") for name in names)


def _chat() -> Iterator[str]:
    for about, text in (("documentation", next(_docs())), ("code", next(_code()))):
        parts = text.split("\n\n")
        for i in range(0, len(parts), 3):
            part = "\n\n".join(parts[i : i + 3])
            yield f"User: Please show me part {i // 3 + 1} of the {about}.\n\nAssistant: Here it is.\n\n{part}"


KINDS: dict[str, tuple[Callable[[], Iterator[str]], str]] = {
    "docs": (_docs, "Summarize the text above in detail."),
    "code": (_code, "Explain what the code above does, with an example of its use."),
    "chat": (_chat, "What were the most important things in this conversation?"),
}


def prompt(model: Model, kind: str, length: int) -> list[int]:
    """A prompt of about `length` tokens."""
    texts, question = KINDS[kind]
    whole = model.llama_model.tokenize("\n\n".join(texts()), add_special=False)
    beginning = b"".join(model.llama_model.token_bytes(token) for token in whole[: length - 64])
    return model.prompt_tokens(f"{beginning.decode('utf-8', errors='ignore')}\n\n{question}")


def speeds(model: Model, tokens: list[int], n: int, temperature: float) -> dict[str, float]:
    """Tokens/s of reading, off and `auto`, in turn; tokens of a pass; and milliseconds of a draft pass."""
    request = Request(tokens, SamplingParameters(temperature=temperature, seed=3), n)
    model.engine.reset()
    # First, because it has to know how much of the prompt a draft would have to read.
    auto = model.complete(request).run().statistics
    off = [model.complete(request, FixedPlan(OFF.plan())).run().statistics for _ in range(2)]
    timer = DraftTimer(model.engine, tokens)
    timer.fill(len(tokens))
    return {
        "reading": auto.prompt_tokens_decoded / auto.prefill_seconds,
        "off": statistics.mean(one.tokens_per_second for one in off),
        "auto": auto.tokens_per_second,
        "a pass": auto.tokens_per_pass,
        "draft ms": statistics.median(timer.ms(1) for _ in range(TIMED)),
    }


def with_holding(model: Model, tokens: list[int], n: int, temperature: float, last: int) -> tuple[float, float, float]:
    """Tokens of a pass and milliseconds of drafting in it with a chain, and seconds in which the draft reads the text.

    last: tokens of the end of the text that the draft holds.
    """
    request = Request(tokens, SamplingParameters(temperature=temperature, seed=3), n)
    before = draft_module._LAST
    draft_module._LAST = last
    assert model.engine.draft
    model.engine.draft.reset()
    try:
        done = model.complete(request, FixedPlan(CHAIN.plan(depth=CHAIN_DEPTH))).run().statistics
    finally:
        draft_module._LAST = before
    return done.tokens_per_pass, 1e3 * done.draft_seconds / done.passes, done.prefill_seconds


def peer(target: Path, length: int, n: int) -> tuple[float, float]:
    """Tokens/s with which llama-bench reads so many tokens, and writes `n` after them."""
    program = build.programs(build.default_folder(), ["llama-bench"], os.cpu_count() or 1)["llama-bench"]
    command = [str(program), "-m", str(target), "-t", str(usable_cores()), "-r", "1", "-o", "json"]
    rates = []
    for extent in (["-p", str(length), "-n", "0"], ["-p", "0", "-n", str(n), "-d", str(length)]):
        found: list[dict[str, Any]] = json.loads(subprocess.check_output([*command, *extent], text=True))
        rates.append(float(found[0]["avg_ts"]))
    return rates[0], rates[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--lengths", default="4000,8000", metavar="LIST", help="tokens of the prompts (%(default)s)")
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="LIST")
    parser.add_argument("--tokens", type=int, default=48, metavar="N", help="of a text")
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--holds", default="256,512,1024,2048,all", metavar="LIST", help="of a draft (%(default)s)")
    parser.add_argument("--no-peer", action="store_true", help="leave out llama-bench")
    asked = parser.parse_args()
    lengths = [int(length) for length in asked.lengths.split(",")]
    holds = [(name, ALL if name == "all" else int(name)) for name in asked.holds.split(",") if name]
    peers = {} if asked.no_peer else {length: peer(asked.target, length, asked.tokens) for length in lengths}
    first = [
        "| text | tokens | reading: llama.cpp, specrun | writing: llama.cpp, off, auto | a pass | draft pass, ms |"
    ]
    second = ["| text | tokens | " + " | ".join(f"holds {name}" for name, _ in holds) + " |"]
    first.append("| --- |" + " ---: |" * 5)
    second.append("| --- | ---: |" + " --- |" * len(holds))
    with specrun.load(asked.target, asked.draft, learn=False, ctx_size=max(lengths) + MORE) as model:
        for length in lengths:
            for kind in asked.kinds.split(","):
                tokens = prompt(model, kind, length)
                found = speeds(model, tokens, asked.tokens, asked.temp)
                read, write = (f"{rate:.2f}" for rate in peers[length]) if peers else ("", "")
                first.append(
                    f"| {kind} | {len(tokens)} | {read}, {found['reading']:.2f} | {write}, {found['off']:.2f}, "
                    f"{found['auto']:.2f} | {found['a pass']:.2f} | {found['draft ms']:.1f} |"
                )
                print(first[-1], flush=True)
                cells = []
                for _, last in holds:
                    a_pass, ms, seconds = with_holding(model, tokens, asked.tokens, asked.temp, last)
                    cells.append(f"{a_pass:.2f} a pass, {ms:.0f} ms, read in {seconds:.1f} s")
                second.append(f"| {kind} | {len(tokens)} | {' | '.join(cells)} |")
    print()
    print("\n".join([*first, "", *second]))


if __name__ == "__main__":
    main()
