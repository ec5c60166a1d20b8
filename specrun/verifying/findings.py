"""What `specrun verify` found: one finding for each prompt, temperature and plan, and a sentence about all of them;
and how little a row of logits must change for the sampler to take another token from it. These distances are
differences of two logits, so a change of every logit by at most e bridges distances of up to 2 e.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specrun.display_text import counted
from specrun.sampling import filters
from specrun.sampling.adjustments import SamplingParameters
from specrun.sampling.filters import Logits
from specrun.sampling.sampler import Sampler


def near_tie_gap(
    sampler: Sampler, logits: Logits, position: int, recent: Sequence[int], token: int, other: int
) -> float:
    """How far `logits` are from giving `other` at `position` instead of `token`, which the sampler takes from them.

    When greedy this is the difference of their logits, else that of their scores logit / T + noise. Where a filter
    decides between them, it is how far the token is from passing it or from being cut, divided by T. Biases and
    penalties are applied first. For samplers without constraint. logits: float32[n_vocab]. recent: as for `sample`.
    """
    logits = sampler.adjusted(logits, recent)
    scores = sampler.scores(logits, position, np.array([token, other], np.int64))
    between = float(scores[0] - scores[1])
    temperature = sampler.parameters.temperature
    if temperature == 0:
        return abs(between)
    own, its = (_margin(logits, one, sampler.parameters) / temperature for one in (token, other))
    # The other token has to pass the filters, and either to have the higher score or to see the token cut.
    if its < 0:
        return max(min(max(between, 0.0), abs(own)), -its)
    return min(abs(between), abs(own))


def _margin(logits: Logits, token: int, parameters: SamplingParameters) -> float:
    """How far the token is from being cut by a filter; if one cuts it, minus how far it is from passing."""
    margins, k = [_top_p_margin(logits, token, parameters)], parameters.top_k
    if 0 < k < len(logits):
        ranked = filters.top_k(logits, k + 1)
        margins.append(float(logits[token] - logits[ranked[k] if token in ranked[:k] else ranked[k - 1]]))
    if parameters.min_p > 0:
        margins.append(float(logits[token] - logits.max()) - math.log(parameters.min_p))
    return min(margins)


def _top_p_margin(logits: Logits, token: int, parameters: SamplingParameters) -> float:
    """By the log odds of the probability before the token, which a change of all logits by e moves by 2 e at most.

    The order may change too: tokens that are within the distance may come before the token, or no longer do.
    """
    p = parameters.top_p
    if p == 1:
        return math.inf
    survivors = filters.top_k(logits, parameters.top_k or len(logits))
    others = survivors[survivors != token]
    ahead = logits[others].astype(np.float64) - float(logits[token])  # falling
    weights = np.exp(ahead - max(ahead[0], 0.0)) if len(ahead) else ahead
    total = float(weights.sum()) + math.exp(-max(ahead[0], 0.0) if len(ahead) else 0.0)
    cumulative = np.concatenate([[0.0], np.cumsum(weights)]) / total  # [n]: probability of the first n others
    n_before = int((ahead > 0).sum())
    odds = _log_odds(cumulative) - _log_odds(np.array([p]))[0]
    if cumulative[n_before] < p:  # it passes; further tokens would have to come before it
        return float(np.maximum(np.append(0.0, -ahead[n_before:]), -odds[n_before:]).min())
    return -float(np.maximum(np.append(ahead[:n_before], 0.0), odds[: n_before + 1]).min())


def _log_odds(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(shares) - np.log1p(-np.minimum(shares, 1.0)))


# The probability with which a correct method is taken for a wrong one, for each prompt and temperature. Twelve tests
# together are wrong about once in a thousand runs.
P_BOUND = 1e-4

_LEAST_EXPECTED = 5  # counts that a cell must expect; the usual bound for the approximation of Pearson's test

Outcome = Literal["identical", "near-tie", "different", "same distribution", "other distribution"]


@dataclass(frozen=True)
class Divergence:
    """Where the text with speculation leaves the plain text."""

    at: int  # index of the first token of the answer that differs, from 0
    # How far the target's logits there are, in plain decoding, from giving the other token (`near_tie_gap`); None if
    # one text only ends earlier.
    gap: float | None
    explained: float  # largest gap that batched arithmetic explains; 0 where passes are bit-exact
    plain: str  # the plain text around it, some tokens before and after
    speculated: str  # the same of the text with speculation


@dataclass(frozen=True)
class SeedTest:
    """How often a method wrote each beginning of an answer, over many seeds."""

    observed: tuple[int, ...]  # seeds that began in each way; the last entry counts what the target would never write
    expected: tuple[float, ...]  # the counts by the target's own distribution

    @property
    def p_value(self) -> float:
        """Probability of counts at least as far from the target's distribution, if the method follows it."""
        return chi_square_p_value(self.observed, self.expected)


@dataclass(frozen=True)
class Finding:
    """What came of one prompt at one temperature with one plan."""

    kind: str  # of the text
    prompt: str
    temperature: float
    seed: int  # the first, for a test over seeds
    plan: str  # the name of the plan that speculated
    n_tokens: int = 0  # of the text with speculation
    n_passes: int = 0  # target passes that wrote it
    n_drafted: int = 0  # number of these passes whose tree had more than the root
    is_lossy: bool = False  # whether the plan changes the distribution by design
    divergence: Divergence | None = None  # None where the texts are the same, and for a test over seeds
    test: SeedTest | None = None  # None where texts are compared

    @property
    def outcome(self) -> Outcome:
        if self.test:
            return "same distribution" if self.test.p_value >= P_BOUND else "other distribution"
        if self.divergence is None:
            return "identical"
        gap = self.divergence.gap
        return "near-tie" if gap is not None and gap <= self.divergence.explained else "different"

    @property
    def is_failure(self) -> bool:
        """Whether the answer is not the target's."""
        return self.outcome in ("different", "other distribution")

    @property
    def is_shown(self) -> bool:
        """Whether it has a row. One that is the same and in which no pass drafted shows nothing."""
        return self.n_drafted > 0 or self.divergence is not None or self.is_failure

    def as_json(self) -> dict[str, Any]:
        """The finding as `--json` prints it. A test over seeds compares no texts, so `identical` is null."""
        divergence, test = self.divergence, self.test
        return {
            "kind": self.kind,
            "prompt": self.prompt,
            "temp": self.temperature,
            "seed": self.seed,
            "plan": self.plan,
            "outcome": self.outcome,
            "identical": None if test else divergence is None,
            "first_divergence": divergence and divergence.at,
            "logit_gap": divergence and divergence.gap,
            "explained_gap": divergence and divergence.explained,
            "plain_text": divergence and divergence.plain,
            "speculative_text": divergence and divergence.speculated,
            "tokens": self.n_tokens,
            "passes": self.n_passes,
            "drafted_passes": self.n_drafted,
            "seeds": test and sum(test.observed),
            "p_value": test and test.p_value,
            "test": test and asdict(test),
        }


def verdict(findings: Sequence[Finding]) -> str:
    """The answer to "does it change the answers?", in a sentence or two, and how many findings have no row."""
    shown = [finding for finding in findings if finding.is_shown]
    n_hidden = len(findings) - len(shown)
    why = "no pass drafted: nothing was guessed, or it was not expected to pay."
    if not shown:
        return (
            f"This shows nothing, so there is no table. In {counted(n_hidden, 'result')} {why} With a draft model, "
            "--speculate tree drafts in every pass."
        )
    rest = f" In {n_hidden} more, which the table leaves out, {why}" if n_hidden else ""
    failures = [finding for finding in findings if finding.is_failure]
    n_failures = f"{len(failures)} of {len(shown)}"
    if failures and all(finding.is_lossy for finding in failures):
        return f"Yes, by design: {failures[0].plan} changes the answers, here in {n_failures} tests.{rest}"
    if failures:
        return f"Yes: of {len(shown)} results {len(failures)} cannot be what the target alone writes.{rest}"
    compared = [finding for finding in shown if not finding.test]
    tests = [finding.test for finding in shown if finding.test]
    answer = "No, apart from rounding" if any(finding.divergence for finding in compared) else "No"
    parts = [*([_about_texts(compared)] if compared else []), *([_about_tests(tests)] if tests else [])]
    return f"{answer}: {'; '.join(parts)}.{rest}"


def _about_texts(compared: Sequence[Finding]) -> str:
    ties = [finding.divergence for finding in compared if finding.divergence]
    n, n_ties = len(compared), len(ties)
    rate = sum(finding.n_tokens for finding in compared) / sum(finding.n_passes for finding in compared)
    if not ties:
        which = f"all {n} texts" if n > 1 else "the one text"
        return f"{which} with speculation came out the same, at {rate:.1f} tokens a pass"
    widest = max(ties, key=lambda tie: tie.gap or 0.0)
    return (
        f"{n - n_ties} of {counted(n, 'text')} with speculation came out the same, at {rate:.1f} tokens a pass, and "
        f"{n_ties} {'parts' if n_ties == 1 else 'part'} where two tokens were nearly equal (by {widest.gap:.2g} at "
        f"most, where the sizes of passes explain {widest.explained:.2g}); --exact prevents that"
    )


def _about_tests(tests: Sequence[SeedTest]) -> str:
    least, n = min(test.p_value for test in tests), sum(tests[0].observed)
    return (
        f"over {n} seeds, answers begin as often with each token as the target alone begins them (smallest p-value of "
        f"{len(tests)}: {least:.2g}), although a single seed gives another text than plain decoding"
    )


def failure(failures: Sequence[Finding]) -> str:
    """The error for findings that are failures: what the first one is, and what to do."""
    first = failures[0]
    where = f"{first.plan}, {first.kind}, T={first.temperature:g}"
    if first.test:
        what = f"answers do not follow the target's distribution ({where}, p-value {first.test.p_value:.2g})"
    else:
        at = first.divergence.at if first.divergence else 0
        what = f"a text with speculation is wrong from token {at} on ({where})"
    if first.is_lossy:
        return f"{what}; this method is lossy, and all others of `specrun methods` keep the answers"
    return f"{what}; please report it with the command, its output and `specrun --version`, and use --speculate off"


def chi_square_p_value(observed: ArrayLike, expected: ArrayLike) -> float:
    """Pearson's chi-square test, without scipy: the probability of counts at least as far from `expected` as these, by
    the Wilson-Hilferty approximation.

    Cells that expect fewer than five are pooled. Counts where nothing at all was expected have probability 0.
    observed, expected: float64[n_cells], with equal sums.
    """
    observed, expected = np.asarray(observed, np.float64), np.asarray(expected, np.float64)
    small = expected < _LEAST_EXPECTED
    if small.any():
        observed = np.append(observed[~small], observed[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
    if expected[-1] == 0:
        if observed[-1] > 0:
            return 0.0
        observed, expected = observed[:-1], expected[:-1]
    freedom = len(expected) - 1
    if freedom == 0:
        return 1.0
    statistic = float(((observed - expected) ** 2 / expected).sum())
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2))
