"""Texts after a prompt of thousands of tokens: with trees, padded by `--exact`, they are plain decoding's bits."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from tests.engines import engine, first_difference, write

_TREE = SPECEXEC.plan(16, 8)
_ROOM = 64  # cells for a tree and its padding


@dataclass
class Outcome:
    """What was compared. wrong: where a text differs from plain decoding's."""

    n_prompt: int
    tokens: int = 0
    passes: int = 0
    wrong: str | None = None


def compare(target: Path, draft: Path, n_prompt: int, n_tokens: int, seed: int = 0) -> Outcome:
    """Write `n_tokens` tokens after a prompt of code plainly and with trees, greedily and at T=0.8."""
    done = Outcome(n_prompt)
    with engine(target, draft, _TREE, ctx_size=n_prompt + n_tokens + _ROOM, exact=True) as pair:
        prompt = pair.target.context.model.tokenize(_code(16 * n_prompt), add_special=False)[:n_prompt]
        for temperature in (0.0, 0.8):
            sampling = SamplingParameters(temperature=temperature, seed=seed)
            plain = write(pair, prompt, sampling, OFF.plan(), n_tokens)
            drafted = write(pair, prompt, sampling, _TREE, n_tokens)
            done.tokens += len(drafted.tokens)
            done.passes += drafted.n_passes
            done.wrong = done.wrong or first_difference(drafted, plain)
    return done


def _code(n: int) -> str:
    """At least `n` characters of Python's standard library."""
    text = ""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_text(encoding="utf-8")
        if len(text) > n:
            break
    return text
