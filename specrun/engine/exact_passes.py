"""The sizes of passes whose logits are the same bits as those of plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from specrun.llama import TargetContext
from specrun.llama.invariance import exact_up_to
from specrun.speculation.method import OFF
from specrun.speculation.plan import Plan

_CTX = 600  # tokens in front of the compared passes: from 512 cells on llama.cpp takes other kernels
_COMPARED = 4  # rows compared for each size


def measured_limit(target: TargetContext, plans: Sequence[Plan], ctx_size: int) -> int:
    """Most tokens of a pass up to which these contexts give plain decoding's bits, measured now. Empties the cache."""
    budgets = [plan.budget for plan in plans if plan.drafts]
    sizes = sorted({size for size in (2, 4, *budgets) if size <= max(budgets)})
    ctx = max(1, min(_CTX, ctx_size - sizes[-1] - _COMPARED))
    limit = exact_up_to(target, range(1, 32), sizes, ctx, _COMPARED)
    target.reset()
    return limit


def keep_exact(target: TargetContext, plans: tuple[Plan, ...], limit: int) -> tuple[tuple[Plan, ...], list[str]]:
    """Let the target refuse passes over more than `limit` tokens; the plans that can still run, and what to say."""
    target.largest_pass = limit
    if limit == 1:
        return (OFF.plan(),), ["--exact: decoding plainly, as any larger pass changes a token's last bits here"]
    if limit < max(plan.budget for plan in plans):
        return plans, [f"--exact: passes of at most {limit} tokens, larger ones change a token's last bits here"]
    return plans, []
