"""`--exact`: measuring which sizes of passes give the same bits as plain decoding, and keeping to these sizes."""

from __future__ import annotations

from collections.abc import Sequence

from specrun.llama import TargetContext
from specrun.llama.invariance import exact_up_to
from specrun.speculation.method import OFF
from specrun.speculation.plan import Plan

_CTX = 600  # tokens before the compared passes: from 512 cells on, llama.cpp uses other kernels
_COMPARED = 4  # positions compared for each size; chosen by hand


def measured_limit(target: TargetContext, plans: Sequence[Plan], ctx_size: int) -> int:
    """Measure up to how many tokens a pass gives plain decoding's bits; 1 if even two do not. Empties the cache."""
    budgets = [plan.budget for plan in plans if plan.drafts]
    sizes = sorted({size for size in (2, 4, *budgets) if size <= max(budgets)})
    ctx = max(1, min(_CTX, ctx_size - sizes[-1] - _COMPARED))
    limit = exact_up_to(target, range(1, 32), sizes, ctx, _COMPARED)
    target.reset()
    return limit


def keep_exact(target: TargetContext, plans: tuple[Plan, ...], limit: int) -> tuple[tuple[Plan, ...], list[str]]:
    """Let the target refuse passes over more than `limit` tokens. Returns the plans that can still run, and notices."""
    target.largest_pass = limit
    if limit == 1:
        return (OFF.plan(),), ["--exact: speculation is off, because any larger pass changes a token's last bits here"]
    if limit < max(plan.budget for plan in plans):
        notice = f"--exact: passes have at most {limit} tokens, because larger ones change a token's last bits here"
        return plans, [notice]
    return plans, []
