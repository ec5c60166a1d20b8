"""`/set`: the settings of a chat, by the names of their options."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from specrun.engine.session import Session
from specrun.errors import UsageError
from specrun.speculation import FixedPlan, Plan, PlanChooser
from specrun.speculation.method import PROFILE
from specrun.speculation.registry import ALIASES, METHODS

# name in `/set` -> field of SamplingParameters
_SAMPLING = {
    "temp": "temperature",
    "top-k": "top_k",
    "top-p": "top_p",
    "min-p": "min_p",
    "repeat-penalty": "repeat_penalty",
    "presence-penalty": "presence_penalty",
    "frequency-penalty": "frequency_penalty",
    "repeat-last-n": "repeat_last_n",
    "seed": "seed",
}
_INTEGERS = {"top-k", "repeat-last-n", "seed"}
NAMES = [*_SAMPLING, "max-tokens", "speculate", "budget", "depth"]


def values(session: Session) -> dict[str, Any]:
    """Every setting by its name."""
    values: dict[str, Any] = {name: getattr(session.sampling, field) for name, field in _SAMPLING.items()}
    values["max-tokens"] = "no limit" if session.max_tokens is None else session.max_tokens
    plan = session.plans.current
    method = _word(plan) if isinstance(session.plans, FixedPlan) else "auto"
    return values | {"speculate": method, "budget": plan.budget, "depth": plan.depth}


def show(session: Session) -> str:
    """Every setting and its value, a line each."""
    width = max(map(len, NAMES))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in values(session).items())


def change(
    session: Session, candidates: Sequence[Plan], auto: Callable[[], PlanChooser], name: str, value: str
) -> None:
    """Set one setting. candidates: the plans that the contexts were made for; a bigger one does not fit them. auto:
    makes what chooses among them.

    Raises UsageError for an unknown name or a value that cannot be.
    """
    if name in _SAMPLING:
        number = _parse(int if name in _INTEGERS else float, name, value)
        if name == "seed" and number == -1:
            number = secrets.randbits(63)
        session.sampling = replace(session.sampling, **{_SAMPLING[name]: number})
    elif name == "max-tokens":
        number = _parse(int, name, value)
        if number < 1 and number != -1:
            raise UsageError(f"max-tokens must be 1 or more (-1 is no limit); got {number}")
        session.max_tokens = None if number == -1 else number
    elif name == "speculate":
        session.plans = _plans_of_method(value, candidates, auto)
    elif name in ("budget", "depth"):
        number = _parse(int, name, value)
        if not (isinstance(session.plans, FixedPlan) and session.plans.current.depth):
            raise UsageError(f"/set speculate chain or tree comes before /set {name}")
        session.plans = FixedPlan(_resized(session.plans.current, candidates, name, number))
    else:
        raise UsageError(f"no setting {name}; /set alone lists them")


def _word(plan: Plan) -> str:
    """What `--speculate` calls it, or its method's name."""
    return "tree" if plan.method == ALIASES["tree"] else plan.method


def _plans_of_method(method: str, candidates: Sequence[Plan], auto: Callable[[], PlanChooser]) -> PlanChooser:
    if method == "auto" and len(candidates) > 1:
        return auto()
    # An adaptive plan is weighed with a profile's tables, so it is for `auto` alone.
    fixed = [plan for plan in (*candidates, Plan.off()) if PROFILE not in METHODS[plan.method].needs]
    for plan in fixed:
        if method in (plan.method, _word(plan)):
            return FixedPlan(plan)
    possible = sorted({_word(plan) for plan in fixed} | ({"auto"} if len(candidates) > 1 else set()))
    raise UsageError(f"speculate can be {', '.join(possible)} in this chat; got {method}")


def _resized(plan: Plan, candidates: Sequence[Plan], name: str, number: int) -> Plan:
    largest = max(candidate.budget for candidate in candidates)
    if plan.shape and METHODS[plan.method].wants_shape:
        raise UsageError(f"the trees of {plan.method} have a fixed shape in a chat; start it with another --{name}")
    if plan.is_chain:
        plan = METHODS[plan.method].plan(depth=number if name == "depth" else number - 1)
    else:
        sizes = (number, plan.depth) if name == "budget" else (plan.budget, number)
        plan = METHODS[plan.method].plan(*sizes)
    if plan.budget > largest:
        raise UsageError(f"this chat was started for {largest} nodes; start it with a larger --budget")
    return plan


def _parse(kind: Callable[[str], Any], name: str, value: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise UsageError(f"{name} is a number; got {value}") from None
