"""What a finished answer cost, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specrun.units import rate_text

if TYPE_CHECKING:
    from specrun.engine.completion import Completion
    from specrun.engine.statistics import Statistics
    from specrun.speculation.controllers.chooser import PlanChooser


def as_json(completion: Completion) -> dict[str, Any]:
    """The object that `--json` prints; times in seconds, milliseconds where a key says so."""
    s = completion.statistics
    return {
        "text": completion.text,
        "token_ids": completion.token_ids,
        "prompt_tokens": s.prompt_tokens,
        "completion_tokens": len(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "seconds": round(s.seconds, 6),
        "tokens_per_second": round(s.tokens_per_second, 3),
        "passes": s.passes,
        "tokens_per_pass": round(s.tokens_per_pass, 3),
        "prompt_tokens_decoded": s.prompt_tokens_decoded,
        "prompt_seconds": round(s.prefill_seconds, 6),
        "ms_per_pass": {part: round(ms, 3) for part, ms in _ms_per_pass(s).items()},
        "drafted_ahead": s.ready,
        "acceptance_by_depth": [round(rate, 4) for rate in _acceptance(s)],
    }


def as_text(completion: Completion) -> str:
    """The lines that `--stats` prints."""
    s = completion.statistics
    parts = ", ".join(f"{part} {ms:.2f}" for part, ms in _ms_per_pass(s).items())
    lines = [
        f"plan        {completion.plans}",
        f"prompt      {s.prompt_tokens} tokens, {s.prompt_tokens_decoded} decoded in {s.prefill_seconds:.2f} s",
        f"answer      {s.completion_tokens} tokens in {s.seconds:.2f} s, {s.tokens_per_second:.1f} tokens/s, "
        f"ended by {completion.finish_reason}",
        f"passes      {s.passes}, {s.tokens_per_pass:.2f} tokens a pass",
        f"ms a pass   {parts}",
    ]
    if s.overlapped_seconds:
        ms = 1e3 * s.overlapped_seconds / max(s.passes, 1)
        lines.append(f"overlap     {s.ready} of {s.passes} trees were ready; {ms:.2f} ms a pass of drafting beside it")
    if s.offered:
        rates = " ".join(f"{rate:.2f}" for rate in _acceptance(s))
        lines.append(f"accepted    {rates} (by depth)")
    return "\n".join(lines)


def off_notice(completion: Completion) -> str | None:
    """A sentence if speculation was tried, or measured by `specrun tune`, and found not to pay."""
    from specrun.speculation.controllers.chooser import FastestPlan
    from specrun.speculation.controllers.profiled import ByTemperature

    plans = completion.plans
    is_off = (isinstance(plans, FastestPlan) and plans.winner and not plans.winner.depth) or (
        isinstance(plans, ByTemperature) and plans.now.is_off
    )
    return f"speculation does not pay here, so it is off: {plans}" if is_off else None


def unfinished_notice(completion: Completion) -> str | None:
    """A sentence if the text ends where its grammar does not, since it will not parse."""
    if not completion.is_unfinished:
        return None
    return f"the text is cut off ({completion.finish_reason}): it is only the beginning of what the grammar asks for"


def plan_line(plans: PlanChooser, temperature: float) -> str:
    """Which plan is followed, why, and what it promises."""
    from specrun.speculation.controllers.chooser import FastestPlan, FixedPlan
    from specrun.speculation.controllers.profiled import ByTemperature

    if isinstance(plans, ByTemperature):
        plans.begin(temperature)
        tuned = plans.now
        plain = 1e3 / tuned.guide.plain_ms(0)
        expected = f"expects {rate_text(tuned.predicted)} tokens/s"
        if not tuned.plan.method.needs_draft and tuned.plan.drafts:
            return (
                f"plan: {tuned.plan}, each as large as pays by the profile; plain decoding {rate_text(plain)} tokens/s"
            )
        if tuned.plan.depth:
            return f"plan: {tuned.plan}, as tuned; {expected}, plain decoding {rate_text(plain)}"
        return f"plan: off, as tuned, since speculation does not pay here; {expected}"
    if isinstance(plans, FastestPlan):
        return "plan: found out while writing; `specrun tune` measures it once and for all"
    if isinstance(plans, FixedPlan):
        method = plans.current.method
        if method.samples and method.lossless and temperature > 0:
            return f"plan: {plans}; it draws a text of its own for a seed, from the target's distribution"
    return f"plan: {plans}"


def one_line(completion: Completion) -> str:
    """The dim line under a chat answer."""
    s = completion.statistics
    parts = [f"{s.completion_tokens} tokens", f"{s.tokens_per_second:.1f} tokens/s"]
    if s.offered:
        parts.append(f"{s.tokens_per_pass:.1f} tokens a pass")
    if completion.finish_reason == "interrupted":
        parts.append("interrupted")
    return ", ".join(parts)


def _ms_per_pass(s: Statistics) -> dict[str, float]:
    n = max(s.passes, 1)
    return {
        "target": s.target_seconds * 1e3 / n,
        "draft": s.draft_seconds * 1e3 / n,
        "other": s.other_seconds * 1e3 / n,
    }


def _acceptance(s: Statistics) -> list[float]:
    return [matched / offered for matched, offered in zip(s.matched, s.offered, strict=True) if offered]
