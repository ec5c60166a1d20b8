"""Reports on an answer: statistics as text and as JSON, notices about its plan, layers and its token tree."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text
from rich.tree import Tree

from specrun.display_text import counted, rate_text, size_text
from specrun.hardware.memory import held_bytes
from specrun.long_run import left_text

if TYPE_CHECKING:
    from specrun.decoding.completion import Completion
    from specrun.decoding.session import Session
    from specrun.decoding.statistics import Statistics
    from specrun.hardware.placement import PartName, Placement, Site
    from specrun.loading.model import Model
    from specrun.speculation.planning.guide import PassRecord

_LETTERS: dict[PartName, str] = {"draft": "d", "target": "t", "experts": "e", "KV cache": "k", "compute": "c"}
_WIDTH = 32  # characters of a bar


def as_json(completion: Completion, model: Model, answer: str, thinking: str) -> dict[str, Any]:
    """The object that `--json` prints. Times are in seconds, or in milliseconds under `ms_per_pass`.

    model: wrote the completion. answer, thinking: the parts of its text. Tokens and times are of both.
    """
    s = completion.statistics
    return {
        "text": answer,
        "thinking": thinking,
        "token_ids": completion.token_ids,
        "prompt_tokens": s.prompt_tokens,
        "completion_tokens": len(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "seconds": round(s.seconds, 6),
        "tokens_per_second": round(s.tokens_per_second, 3),
        "passes": s.passes,
        "tokens_per_pass": round(s.tokens_per_pass, 3),
        "padding_tokens": s.padding,
        "prompt_tokens_decoded": s.prompt_tokens_decoded,
        "prompt_tokens_restored": s.from_disk.n_tokens if s.from_disk else 0,
        "prompt_seconds": round(s.prefill_seconds, 6),
        "ms_per_pass": {part: round(ms, 3) for part, ms in _ms_per_pass(s).items()},
        "bytes_read_per_pass": s.bytes_read_per_pass,
        "wait_seconds": round(s.wait_seconds, 6),
        "expert_hit_rate": _rounded(s.expert_hit_rate),
        "memory": {"ram_bytes": held_bytes(), "vram_bytes": _vram_bytes(model)},
        "plan": _plan(completion),
        "drafted_tokens": s.drafted,
        "acceptance_rate": _rounded(s.acceptance_rate),
        "nodes_per_pass": round(1 + s.drafted / max(s.passes, 1), 3),
        "draft_passes": s.draft_passes,
        "draft_to_target": _rounded(s.draft_to_target),
        "acceptance_by_depth": [round(rate, 4) for rate in _acceptance(s)],
    }


def as_text(completion: Completion, model: Model) -> str:
    """The lines that `--stats` prints. model: wrote the completion."""
    exactness, residency, placement = model.exactness, model.residency, model.placement
    s, vram = completion.statistics, _vram_bytes(model)
    parts = ", ".join(f"{part} {ms:.2f}" for part, ms in _ms_per_pass(s).items())
    prompt, answer = counted(s.prompt_tokens, "token"), counted(s.completion_tokens, "token")
    lines = [
        f"plan        {_plan(completion)}",
        f"prompt      {prompt}, {s.prompt_tokens_decoded} decoded in {s.prefill_seconds:.2f} s",
        f"answer      {answer} in {s.seconds:.2f} s, {s.tokens_per_second:.1f} tokens/s, "
        + ("interrupted" if completion.finish_reason == "interrupted" else f"ended by {completion.finish_reason}"),
        f"passes      {s.passes}, {s.tokens_per_pass:.2f} tokens a pass",
        f"ms a pass   {parts}",
        f"memory      {size_text(held_bytes())} in RAM" + (f", {size_text(vram)} in VRAM" if vram else ""),
    ]
    if s.from_disk and s.from_disk.words:
        now = model.prompt_states.n_kept_bytes if model.prompt_states else 0
        words = s.from_disk.words if s.from_disk.n_tokens else f"read anew: {s.from_disk.words}"
        lines.insert(2, f"kept        {words}{f'; now kept, {size_text(now)}' if now else ''}")
    if model.n_threads:
        lines.append(f"threads     {model.n_threads}, as other programs hold cores")
    if placement and vram:
        lines.append(f"layers      {layers(placement)}")
    n_passes = max(s.passes, 1)
    if residency.mode != "off":
        ms, read = 1e3 * s.wait_seconds / n_passes, size_text(s.bytes_read_per_pass)
        found = "" if s.expert_hit_rate is None else f"; {s.expert_hit_rate:.1%} of its experts were in memory"
        lines += [f"weights     {residency}", f"reading     {read} a pass, which waited {ms:.2f} ms for it{found}"]
    if s.padding:
        lines.append(f"padding     {s.padding / n_passes:.1f} tokens a pass")
    if exactness.is_exact:
        lines.append(f"exactness   {exactness}")
    if s.acceptance_rate is not None:
        share = "" if s.draft_to_target is None else f"; a draft pass takes {s.draft_to_target:.2g} of a target pass"
        nodes = f"{1 + s.drafted / n_passes:.1f} nodes a pass"
        lines.append(f"drafted     {counted(s.drafted, 'token')}, {s.acceptance_rate:.0%} accepted, {nodes}{share}")
    if s.offered:
        lines.append(f"accepted    {' '.join(f'{rate:.2f}' for rate in _acceptance(s))} (by depth)")
    return "\n".join(lines)


def _plan(completion: Completion) -> str:
    """The plan. `auto` has the one at the end of the text, which may not draft as passes before did."""
    from specrun.speculation.controllers.auto import Auto

    plans, s = completion.plans, completion.statistics
    if not isinstance(plans, Auto) or plans.held.method.needs_draft:
        return str(plans)
    return f"at last {plans}" if s.draft_passes or (plans.is_off and s.drafted) else str(plans)


def _vram_bytes(model: Model) -> int:
    """Bytes of VRAM that are planned for both models; drivers do not all tell what is used."""
    return model.placement.vram_bytes if model.placement else 0


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


class Notices:
    """Sentences for the user about the answers of a model. What stays true from answer to answer is said once."""

    def __init__(self, model: Model, session: Session | None = None) -> None:
        """session: the conversation, if there is one."""
        self._model, self._session = model, session
        self._before = [model.threads_notice] if model.threads_notice else []  # said when the model was loaded

    def after(self, completion: Completion, answer: str, full: str = "") -> list[str]:
        """The sentences after an answer. answer: the completion's text without what the model thought. full: the
        sentence for a text that the context ended, where nothing else says so.
        """
        from specrun.speculation.controllers.auto import Auto

        of_system = self._session.system_notice if self._session else None
        lasting = [notice for notice in (self._model.weights_notice, self._model.threads_notice, of_system) if notice]
        plans = completion.plans
        if isinstance(plans, Auto) and plans.gave_up:
            what = "speculation is off" if plans.is_off else "the draft model is not asked"
            lasting.append(f"{what}, because it does not pay here ({plans.source})")
        new, self._before = [notice for notice in lasting if notice not in self._before], lasting
        reason = completion.finish_reason
        bound = {"length": "--max-tokens", "context": "--ctx-size"}.get(reason)
        if bound and completion.text and not answer:
            how = "give a larger one, or ask it not to think (--think off)"
            new.insert(0, f"{bound} ended the text while the model was thinking; {how}")
        elif completion.is_unfinished:  # the text will not parse
            how = f"; give a larger {bound}" if bound else ""
            new.insert(0, f"the text is cut off ({reason}): it is only the beginning of what the grammar asks for{how}")
        elif reason == "context" and full:
            new.insert(0, full)
        return new


def plan_words(model: Model, temperature: float) -> str:
    """The plan that is followed at first, where it comes from, and the rate that is expected of it."""
    from specrun.speculation.controllers.auto import Auto
    from specrun.speculation.controllers.chooser import FixedPlan

    plans = model.plans.at(temperature)
    if isinstance(plans, Auto):
        if not plans.knows_rate:
            # Beside busy programs what it measures would not be followed.
            advice = "" if model.threads_notice else "; `specrun tune` measures it once for all texts"
            return f"whatever is fastest, learned while writing{advice}"
        rate, plain = map(rate_text, plans.rates)
        if plans.is_off:
            return f"at first no drafts ({plans.source}); {plain} tokens/s expected"
        return f"at first {plans}; expected {rate} tokens/s, plain decoding {plain} tokens/s"
    method = plans.plan().method if isinstance(plans, FixedPlan) else None
    if method and method.samples and method.lossless and temperature > 0:
        return f"{plans}; a seed's text differs from plain decoding's, but has the same distribution"
    return str(plans)


def chat_line(target: str | None, model: Model, temperature: float, way: str | None) -> str:
    """The line at the start of a chat: who answers and who drafts, in plain words.

    target: its name; None is the embedded one. way: what gets a draft, where there is none.
    """
    from specrun.speculation.controllers.auto import Auto

    is_path = target and (target.endswith(".gguf") or Path(target).is_file())
    name = "the embedded pair" if target is None else Path(target).name if is_path else target
    plans, draft = model.plans.at(temperature), model.draft
    own = "its draft" if target is None else "its own MTP layers"
    is_own = draft and (target is None or draft == model.llama_model.path)
    drafting = f"drafts by {own if is_own else draft.stem}" if draft else "drafts from the text itself"
    if not isinstance(plans, Auto):
        fixed = f"{drafting}, {plan_words(model, temperature)}"
        return f"{name}: {fixed if plans.plan().drafts else 'no speculation'}"
    if draft is None and way:
        return f"{name}: no draft; {way}"
    if not plans.knows_rate:
        return f"{name}: {drafting} where that pays"
    if plans.is_off:
        return f"{name}: {plan_words(model, temperature)}"
    rate, plain = plans.rates
    if not plans.held.method.needs_draft:
        drafting = "drafts from the text itself"
    times = f"{rate / plain:.1f} times as fast as without"
    return f"{name}: {drafting}; expected {rate_text(rate)} tokens/s, {times}"


def status(completion: Completion, started: float) -> str:
    """A line about an answer that is being written since `started`, a moment of `time.perf_counter()`."""
    s = completion.statistics
    if s.passes:
        done = f"{counted(s.completion_tokens, 'token')}, {rate_text(s.tokens_per_second)} tokens/s"
        return f"{done}, the first after {s.first_token_seconds:.1f} s, Ctrl-C stops"
    seconds, n_read, n = time.perf_counter() - started, completion.prompt_tokens_read, s.prompt_tokens
    if not n_read:
        return f"reading {n:,} tokens, {seconds:.0f} s"
    return f"reading, {n_read:,} of {n:,} tokens{left_text(seconds * (n - n_read) / n_read)}"


def one_line(completion: Completion) -> str:
    """The line under an answer in a chat."""
    s = completion.statistics
    parts = [counted(s.completion_tokens, "token"), f"{s.tokens_per_second:.1f} tokens/s"]
    parts += [f"{s.tokens_per_pass:.1f} tokens a pass"] if s.offered else []
    parts += ["interrupted"] if completion.finish_reason == "interrupted" else []
    return ", ".join(parts)


def _ms_per_pass(s: Statistics) -> dict[str, float]:
    seconds = {"target": s.target_seconds, "draft": s.draft_seconds, "other": s.other_seconds}
    return {part: 1e3 * taken / max(s.passes, 1) for part, taken in seconds.items()}


def _acceptance(s: Statistics) -> list[float]:
    return [matched / offered for matched, offered in zip(s.matched, s.offered, strict=True) if offered]


def picture(placement: Placement) -> str:
    """For each device a bar and the size of its parts, and below where the target's layers lie."""
    sites = (*placement.gpus, placement.ram)
    used = [f"{size_text(site.used_bytes)} of {size_text(site.free_bytes)}" for site in sites]
    names_width, used_width = max(len(site.name) for site in sites), max(map(len, used))
    lines = []
    for site, size in zip(sites, used, strict=True):
        parts = ", ".join(f"{name} {size_text(site.parts[name])}" for name in _LETTERS if name in site.parts)
        lines.append(f"{site.name:<{names_width}} {bar(site)} {size:<{used_width}} {parts}".rstrip())
    where, regime = _target(placement), placement.regime
    return "\n".join([*lines, where if where.endswith(regime) else f"{where}, {regime}"])


def layers(placement: Placement) -> str:
    """A sentence that says where the target's layers lie, and the draft."""
    return f"{_target(placement)}{'; draft in VRAM' if placement.draft_in_vram else ''}"


def _target(placement: Placement) -> str:
    n_layers = len(placement.layer_gpus) - 1
    if not placement.n_gpu_layers:
        return f"target: all {n_layers} layers in RAM"
    in_vram = min(placement.n_gpu_layers, n_layers + 1) - 1
    text = f"target: {in_vram} of {n_layers} layers and the output in VRAM"
    if placement.request.target.is_moe and placement.n_cpu_moe:
        text += f", experts of {placement.n_cpu_moe} layers in RAM"
    if hosts := [site.description for site in placement.gpus if site.is_remote and site.parts]:
        text += f" or on {', '.join(hosts)}"
    return text


def bar(site: Site) -> str:
    """How full a device is. Each part gets a letter at least; what does not fit is cut off."""
    text = ""
    for name, letter in _LETTERS.items():
        share = site.parts.get(name, 0) / max(site.free_bytes, 1)
        text += letter * min(max(round(share * _WIDTH), 1 if share else 0), _WIDTH - len(text))
    return text.ljust(_WIDTH, ".")


def pass_tree(drafted: PassRecord, token_bytes: Callable[[int], bytes]) -> Tree:
    """The tree of one pass. Accepted nodes are bold and say so; the others are dim and show their expected chance.

    Words say everything that the colours say, and colour-blind people can tell cyan from grey.
    """
    tree, accepted = drafted.tree, set(drafted.accepted.path)

    def shown(token: int) -> str:
        return repr(token_bytes(token).decode("utf-8", errors="replace"))

    def label(node: int) -> Text:
        text = shown(int(tree.tokens[node]))
        if node in accepted:
            return Text(f"{text}  accepted", style="bold cyan")
        return Text(f"{text}  {min(math.exp(float(tree.scores[node])), 1.0):.2f}", style="dim")

    root = Tree(Text(shown(int(tree.tokens[0])), style="bold"))
    branches = [root]
    for node in range(1, len(tree)):
        branches.append(branches[int(tree.parents[node])].add(label(node)))
    own = shown(drafted.accepted.tokens[-1])
    branches[drafted.accepted.path[-1]].add(Text(f"{own}  the target's own", style="bold"))
    return root
