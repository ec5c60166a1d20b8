"""`specrun tune` from options to a profile: settings chosen, models loaded, everything measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from specrun.bench.prompts import BenchPrompt
from specrun.formatting import chat_template, single_turn_tokens
from specrun.hardware import machine
from specrun.hardware.machine import Machine
from specrun.llama import devices
from specrun.runtime import Runtime, RuntimeOptions
from specrun.speculation import Plan
from specrun.tuning import profile
from specrun.tuning.partial import Partial
from specrun.tuning.tuner import Effort, Tuner, as_json, largest_plan

GB = 1e9


def tune(
    options: RuntimeOptions,
    identity: Mapping[str, Any],
    effort: Effort,
    temperatures: Sequence[float],
    texts: Sequence[BenchPrompt] | None,
    raw: bool,
    progress: Callable[[str], None],
    notice: Callable[[str], None],
) -> profile.Profile:
    """Measure a pair and make its profile, which is not saved yet.

    identity: what the profile depends on. texts: the user's own prompts, continued as they are with `raw`. `notice`
    is told what differs from what was asked for.
    """
    fingerprint = machine.fingerprint(identity)
    key = f"{effort} {list(temperatures)} {[text.text for text in texts] if texts else ''} {raw}"
    partial = Partial(fingerprint, key)
    progress("looking at this machine")
    here = Machine.read(options.target, devices.devices(), devices.system_info())
    with Runtime(replace(options, plans=(Plan.off(), largest_plan(effort)))) as runtime:
        for text in runtime.notices:
            notice(text)
        if partial.is_resumed:
            notice("going on with what an earlier run has measured")
        tuner = Tuner(runtime, effort, temperatures, partial, progress)
        template = None if raw else chat_template(runtime.model)
        prompts = [(t.kind, single_turn_tokens(runtime.model, t.text, template)) for t in texts] if texts else None
        result = tuner.run(prompts)
        n_bytes = runtime.model.n_bytes
    partial.forget()
    return profile.Profile(
        fingerprint=fingerprint,
        identity=dict(identity),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        target=options.target.name,
        draft=options.draft.name if options.draft and result.costs.draft else "",
        hardware={"summary": _summary(here), **here.as_json()},
        settings={},
        regime=_regime(here, n_bytes),
        exact_up_to=result.exact_up_to,
        costs=result.costs,
        acceptance=result.acceptance,
        plans=result.plans,
        validation=[validated.as_json() for validated in result.validated],
        predictions=as_json(result),
        notices=result.notices,
    )


def _summary(here: Machine) -> dict[str, str]:
    """The machine in a few lines."""
    summary = {
        "cpu": f"{here.cpu.name}, {here.cpu.n_physical} cores, {here.cpu.n_usable} used",
        "memory": f"{here.memory.total_bytes / GB:.1f} GB, {here.memory.available_bytes / GB:.1f} GB available",
    }
    for i, device in enumerate(here.gpus):
        free, total = device.free_bytes / GB, device.total_bytes / GB
        summary[f"gpu {i}"] = f"{device.description}, {total:.1f} GB, {free:.1f} GB free"
    if here.storage and here.storage.bytes_per_second:
        summary["storage"] = f"{here.storage.device}, reads {here.storage.bytes_per_second / GB:.2f} GB/s"
    return summary


def _regime(here: Machine, n_bytes: int) -> str:
    if n_bytes > here.memory.total_bytes:
        return f"streamed from storage: {n_bytes / GB:.2f} GB of weights, {here.memory.total_bytes / GB:.2f} GB of RAM"
    return f"in RAM: {n_bytes / GB:.2f} GB"
