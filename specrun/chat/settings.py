"""`/set`: the settings of a chat, by the names of their options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from specrun.errors import UsageError
from specrun.session import Session
from specrun.speculation import Plan

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


def show(session: Session) -> str:
    """Every setting and its value, a line each."""
    values: dict[str, Any] = {name: getattr(session.sampling, field) for name, field in _SAMPLING.items()}
    values["max-tokens"] = "no limit" if session.max_tokens is None else session.max_tokens
    values |= {"speculate": session.plan.method, "budget": session.plan.budget, "depth": session.plan.depth}
    width = max(map(len, values))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in values.items())


def change(session: Session, largest: Plan, name: str, value: str) -> None:
    """Set one setting. largest: the plan that the contexts were made for; a bigger one does not fit them.

    Raises UsageError for an unknown name or a value that cannot be.
    """
    if name in _SAMPLING:
        number = _parse(int if name in _INTEGERS else float, name, value)
        session.sampling = replace(session.sampling, **{_SAMPLING[name]: number})
    elif name == "max-tokens":
        number = _parse(int, name, value)
        if number < 1 and number != -1:
            raise UsageError(f"max-tokens must be 1 or more (-1 is no limit); got {number}")
        session.max_tokens = None if number == -1 else number
    elif name == "speculate":
        session.plan = _plan_of_method(value, session.plan if session.plan.depth else largest, largest)
    elif name in ("budget", "depth"):
        number = _parse(int, name, value)
        session.plan = _fitting(replace(session.plan, **{name: number}), largest)
    else:
        raise UsageError(f"no setting {name}; there are {', '.join(NAMES)}")


def _plan_of_method(method: str, current: Plan, largest: Plan) -> Plan:
    if method == "off":
        return Plan.off()
    if method == "chain":
        return _fitting(Plan.chain(current.depth), largest)
    if method == "tree":
        return _fitting(Plan.tree(largest.budget, current.depth), largest)
    raise UsageError(f"speculate is off, chain or tree; got {method}")


def _fitting(plan: Plan, largest: Plan) -> Plan:
    if largest.method == "off":
        raise UsageError("this chat was started without speculation; start it with --draft and --speculate tree")
    if plan.method == "tree" and largest.method != "tree":
        raise UsageError("this chat was started for a chain; start it with --speculate tree")
    if plan.budget > largest.budget:
        raise UsageError(f"this chat was started for {largest.budget} nodes; start it with a larger --budget")
    if plan.method == "chain":
        return Plan.chain(plan.depth)
    return Plan.tree(plan.budget, plan.depth)


def _parse(kind: Callable[[str], Any], name: str, value: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise UsageError(f"{name} is a number; got {value}") from None
