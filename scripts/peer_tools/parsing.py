"""What llama.cpp's tools print about their speed, read back.

All give tokens that target passes after the prompt produced, and the seconds of those passes with everything around
them. A token that is sampled from the logits of the prompt's own pass costs no pass and is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from peer_tools.errors import ToolError


@dataclass(frozen=True)
class Measured:
    """One text, or several added up."""

    tokens: int
    seconds: float
    passes: int

    def __add__(self, other: Measured) -> Measured:
        return Measured(self.tokens + other.tokens, self.seconds + other.seconds, self.passes + other.passes)

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


Parser = Callable[[str], Measured]


def completion(output: str) -> Measured:
    """`llama-completion`: from where it starts on the prompt to its statistics, less the prompt's pass.

    It prints no time of generation as a whole: its "eval time" leaves out sampling, text and printing, which is a
    large part with a small model or a busy machine.
    """
    _check_passes(output)
    start, end = _clock(r"\w+: n_ctx = \d+, n_batch", output), _clock(r"common_perf_print: +sampling time", output)
    prompt = float(_find(r"prompt eval time = +([\d.]+) ms", output)[1]) / 1e3
    tokens = int(_find(r"(?<!prompt )eval time = +[\d.]+ ms / +(\d+) runs", output)[1])
    return _measured(tokens, end - start - prompt, tokens)


def speculative_simple(output: str) -> Measured:
    """`llama-speculative-simple`: the last token of the prompt is in its first pass, so every token counts."""
    tokens, seconds, accepted = _decoded(output)
    return _measured(tokens, seconds, tokens - accepted)


def speculative(output: str) -> Measured:
    """`llama-speculative` and `llama-lookup`: the first token is sampled from the prompt's pass."""
    tokens, seconds, accepted = _decoded(output)
    return _measured(tokens - 1, seconds, tokens - 1 - accepted)


def server(timings: dict[str, Any]) -> Measured:
    """`timings` of a `llama-server` response: its clock starts with the first token, which it counts all the same."""
    tokens = int(timings["predicted_n"]) - 1
    return _measured(tokens, float(timings["predicted_ms"]) / 1e3, tokens - int(timings.get("draft_n_accepted", 0)))


def _decoded(output: str) -> tuple[int, float, int]:
    """Tokens, seconds and accepted tokens that the speculative examples print."""
    _check_passes(output)
    decoded = _find(r"decoded +(\d+) tokens in +[\d.]+ seconds, speed: +([\d.]+) t/s", output)
    # The seconds are rounded to milliseconds, the speed is not.
    return int(decoded[1]), int(decoded[1]) / float(decoded[2]), int(_find(r"n_accept += (\d+)", output)[1])


def _check_passes(output: str) -> None:
    """The tools do not look whether a pass failed, and are fast when passes do."""
    failures = re.findall(r"[EW] (decode: failed .*)", output)
    if failures:
        raise ToolError(f"had {len(failures)} passes that failed ({failures[0]})")


def _clock(line: str, output: str) -> float:
    """Seconds since its start at which the tool logged a line; it writes minutes.seconds.ms.us before each."""
    minutes, seconds, ms, us = _find(rf"(?m)^(\d+)\.(\d\d)\.(\d\d\d)\.(\d\d\d) I {line}", output).groups()
    return int(minutes) * 60 + int(seconds) + int(ms) / 1e3 + int(us) / 1e6


def _find(pattern: str, output: str) -> re.Match[str]:
    """The last match, so that nothing in the text that the model wrote is taken for it."""
    matches = list(re.finditer(pattern, output))
    if not matches:
        raise ToolError(f"printed no timings ({last_words(output)})")
    return matches[-1]


def _measured(tokens: int, seconds: float, passes: int) -> Measured:
    if tokens < 1 or seconds <= 0 or passes < 1:
        raise ToolError("wrote nothing that can be timed; ask for more tokens")
    return Measured(tokens, seconds, passes)


def last_words(output: str) -> str:
    """The line that most probably says what went wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b|failed|ASSERT", line, re.IGNORECASE)]
    return (errors or lines or ["no output"])[-1][:200]
