"""Measurements in the terminal: a profile as a report, with the options that ask for the chosen plan by hand; benchmark
rows as a table, and as Markdown or JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specrun.bench.rows import Row
from specrun.catalog.file_names import telling_name
from specrun.display_text import counted, rate_text, size_text
from specrun.kept_facts import fingerprint
from specrun.llama_settings import LlamaSettings
from specrun.loading import exact_passes
from specrun.profiles.profile import Profile, TunedPlan
from specrun.speculation.method import Plan
from specrun.speculation.planning.costs import CostTable
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PLAIN_ONLY
from specrun.views.output import FittingTable, facts

_TWICE = 2.0  # times plain decoding
_COMPARED = {ANY_SIZE: "any size", PLAIN_ONLY: "not every size", None: "not compared"}
_ERRORS = 2.0  # standard errors on either side of a rate that its range takes in


def render(profile: Profile) -> Group:
    """The whole report."""
    parts: list[RenderableType] = [_head(profile), Text()]
    if profile.picture:
        parts += [Text(profile.picture), Text()]
    if len(profile.tried) > 1:
        parts += [_tried(profile), Text()]
    parts += [_costs(profile), Text(), *_conclusion(profile)]
    parts += [Text(f"note: {notice}", style="yellow") for notice in profile.notices]
    return Group(*parts)


def _head(profile: Profile) -> Table:
    lines = list(zip(("target", "draft"), _names(profile), strict=True))
    lines += [(name, str(value)) for name, value in profile.hardware.get("summary", {}).items()]
    if profile.regime:
        lines.append(("weights", profile.regime))
    if profile.residency.mode != "off":
        lines.append(("streaming", str(profile.residency)))
    lines.append(("settings", "; ".join(settings_words(profile.settings)) or "llama.cpp's defaults"))
    if profile.prompt_ms:
        rates = [f"{rate_text(1e3 / ms)} in passes of {n}" for n, ms in sorted(profile.prompt_ms.items())]
        lines.append(("prompts", f"tokens/s: {', '.join(rates)}"))
    if profile.origin == "tuned":
        lines.append(("exactness", exactness(profile)))
    else:
        lines.append(("origin", "learned while writing; `specrun tune` measures more"))
    lines.append(("measured" if profile.origin == "tuned" else "learned", when(profile)))
    return facts(lines)


def _names(profile: Profile) -> tuple[str, str]:
    """What target and draft are called."""
    target, draft = map(telling_name, (profile.target, profile.draft), profile.folders)
    return target, draft if profile.draft else "none"


def profiles_table(profiles: Sequence[Profile]) -> FittingTable:
    """A row for each profile, below a line for its target. `tune --show` has the whole plan, at each temperature."""
    head = ("draft", "measured", "weights", "tokens/s", "times plain", "plan", "profile")
    table = FittingTable(*head, right=("tokens/s", "times plain"), optional=("profile", "plan", "weights"))
    by_target: dict[str, list[Profile]] = {}
    for profile in profiles:
        target = _names(profile)[0] + ("" if profile.origin == "tuned" else ", learned while writing")
        by_target.setdefault(target, []).append(profile)
    for target, group in by_target.items():
        table.add_heading(target)
        for profile in group:
            plan = profile.plans[0]
            rate, times = rate_text(plan.plain_tokens_per_second), "plain"
            if profile.costs.draft:
                rate = _range(plan, plan.plan, plan.predicted_tokens_per_second).replace(" to ", "-")
                times = _ratio(plan).replace(" to ", "-") if plan.plan.depth else "off"
            row = [_names(profile)[1], when(profile), profile.regime, rate, times]
            table.add_row(*row, str(plan.plan), fingerprint(profile.identity))
    return table


def when(profile: Profile) -> str:
    """When the profile was made, to the minute, in the time of this machine."""
    return datetime.fromisoformat(profile.created).astimezone().strftime("%Y-%m-%d %H:%M")


def settings_words(settings: LlamaSettings) -> list[str]:
    """The settings that `specrun tune` decides, in words; those that are not decided are left out."""
    k, v, repack, offload = settings.type_k, settings.type_v, settings.repack, settings.op_offload
    least = settings.offload_min_batch
    words = {
        counted(settings.threads or 0, "thread"): settings.threads,
        f"{counted(settings.threads_batch or 0, 'thread')} for passes over several tokens": settings.threads_batch,
        f"{settings.batch_size} tokens of a prompt at a time": settings.batch_size,
        f"prompts in passes of {settings.prompt_pass} tokens": settings.ubatch_size,
        f"weights {'re-ordered for this CPU' if repack else 'in the order of the file'}": repack is not None,
        f"passes of {settings.file_order_from} tokens and more in that of the file": settings.file_order_from,
        f"tiled kernels {settings.tiled}": settings.tiled,
        f"tiled kernels in passes of {settings.tiled_from} tokens and more": settings.tiled_from,
        f"flash attention {settings.flash_attn}": settings.flash_attn,
        f"KV cache in {k if k == v else f'{k} and {v}'}": k and v,
        f"weights loaded by {settings.load_mode}": settings.load_mode,
        f"weights in RAM are {'copied to the GPU' if offload else 'multiplied where they are'}": offload is not None,
        f"copies from passes of {least} tokens on": least,
    }
    return [text for text, is_decided in words.items() if is_decided]


def exactness(profile: Profile) -> str:
    """Whether the text equals that of plain decoding to the last bit of its logits."""
    passes = exact_passes.of_profile(profile)
    return str(passes) if passes.is_exact else f"{passes}; --exact prevents that"


def _tried(profile: Profile) -> Group:
    sizes = sorted({n for tried in profile.tried for n in tried.ms})
    figures = (*map(str, sizes), "prompt tokens/s")
    rare = [str(n) for n in sizes if n not in (1, 4, 16, 64)]
    table = FittingTable("settings", *figures, "bit-exact with", right=figures, optional=rare)
    for tried in profile.tried:
        cells = [tried.ms.get(n) for n in sizes]
        exact = _COMPARED.get(tried.exact_sizes, str(tried.exact_sizes))
        row = [tried.name, *map(_ms_text, cells)]
        table.add_row(*row, rate_text(1e3 / tried.prompt_ms) if tried.prompt_ms else "", exact)
    return Group(Text("settings tried, ms by tokens of a pass"), table)


def _costs(profile: Profile) -> FittingTable:
    target, draft = profile.costs.target, profile.costs.draft
    contexts = sorted({t.ctx for t in target.times})
    of_target = [f"target ms, context {ctx}" for ctx in contexts]
    figures = ("tokens", *of_target, "times a pass of 1", *(["draft ms"] if draft else []))
    table = FittingTable(*figures, right=figures)
    plain = target.ms(1, contexts[0])
    for n in target.sizes:
        row = [str(n), *(_cell(target, n, ctx) for ctx in contexts), f"{target.ms(n, contexts[0]) / plain:.2f}"]
        if draft:
            row.append(_cell(draft, n, draft.times[0].ctx))
        table.add_row(*row)
    return table


def _cell(table: CostTable, n: int, ctx: int) -> str:
    return _ms_text(next((t.ms for t in table.times if t.n == n and t.ctx == ctx), None))


def _ms_text(ms: float | None) -> str:
    return "" if ms is None else f"{ms:.{2 if ms < 10 else 1 if ms < 100 else 0}f}"


def _conclusion(profile: Profile) -> list[Text]:
    lines = []
    for plan in profile.plans:
        lines.append(Text(f"temperature {plan.temperature:g}: {sentence(profile, plan)}", style="bold"))
        if plan.ratio_by_kind:
            kinds = sorted(plan.ratio_by_kind.items(), key=lambda item: item[1])
            said = ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in kinds)
            lines.append(Text(f"by kind of text: {said} times plain decoding"))
        if profile.origin == "tuned" and profile.acceptance and profile.costs.draft:
            agreement = profile.acceptance_at(plan.temperature).calibration.agreement
            guide, ctx = profile.guide(plan.temperature), profile.costs.target.times[0].ctx
            enough = next((share for share in range(1, 100) if guide.chain_rate(share / 100, ctx) >= _TWICE), None)
            needed = f"for twice the speed a chain needs {enough} %"
            needed = needed if enough else "no agreement doubles the speed here"
            lines.append(Text(f"the draft's first choice is the target's {agreement:.0%} of the time; {needed}"))
    if profile.costs.draft:
        lines.append(Text(f"the same by hand: {profile.plans[0].plan.options}"))
    return lines


def sentence(profile: Profile, plan: TunedPlan) -> str:
    """The plan, the range of its expected rate, and how that compares with plain decoding."""
    if not profile.costs.draft:
        rate = rate_text(plan.plain_tokens_per_second)
        return f"no draft model: {rate} tokens/s plainly, and more where the text repeats itself"
    rate = f"{_range(plan, plan.plan, plan.predicted_tokens_per_second)} tokens/s"
    if not plan.plan.depth:
        text = f"speculation does not pay here, off: {rate}"
        for best in [one for one in plan.expected if one.plan.drafts][:1]:
            text += f" (the best with it, {best.plan}: {_range(plan, best.plan, best.tokens_per_second)} tokens/s)"
        return text
    texts = " on most texts, more where they repeat themselves" if plan.ratio_range else ""
    ratio = f"{_ratio(plan)} times plain decoding{texts}"
    return f"{plan.plan}: {rate}, {ratio}, {plan.predicted_tokens_per_pass:.1f} tokens a pass"


def _ratio(plan: TunedPlan) -> str:
    """How many times plain decoding's rate is expected: the range of most texts, or else the mean."""
    if plan.ratio_range:
        return "{:.1f} to {:.1f}".format(*plan.ratio_range)
    return f"{plan.predicted_tokens_per_second / plan.plain_tokens_per_second:.2f}"


def _range(tuned: TunedPlan, plan: Plan, rate: float) -> str:
    """The range of tokens/s that is expected of a plan: of most texts, or of the mean of several. Where the tuned plan
    is `off`, the range of texts is that of runs that leave trees where these lose, and says nothing of trees alone.
    """
    if tuned.plan.drafts and tuned.ratio_range:
        low, high = (ratio * tuned.plain_tokens_per_second for ratio in tuned.ratio_range)
        return f"{rate_text(low)} to {rate_text(high)}"
    error = next((one.error for one in tuned.expected if one.plan == plan), 0.0)
    if not error:
        return rate_text(rate)
    return f"{rate_text(max(rate - _ERRORS * error, 0.0))} to {rate_text(rate + _ERRORS * error)}"


_BENCH_HEAD = ("kind", "method", "plan", "tokens/s", "(range)", "ratio", "tok/pass", "by depth", "predicted", "first",
         "memory")  # fmt: skip
_BENCH_OPTIONAL = ("memory", "first", "by depth", "predicted", "(range)")
_MOST_DEPTHS = 6  # of the column "by depth"


def bench_table(rows: Sequence[Row]) -> FittingTable:
    """A table for the terminal, with a heading for each kind of text; the fastest row of each is bold."""
    figures = [name for name in _BENCH_HEAD[1:] if name not in ("method", "plan")]
    table = FittingTable(*_BENCH_HEAD[1:], right=figures, optional=_BENCH_OPTIONAL)
    for kind in dict.fromkeys(row.kind for row in rows):
        of_kind = [row for row in rows if row.kind == kind]
        fastest = max(of_kind, key=lambda row: row.tokens_per_second)
        table.add_heading(kind)
        for row in of_kind:
            table.add_row(*_row_cells(row)[1:], style="bold" if row is fastest else None)
    return table


def bench_text(rows: Sequence[Row], form: str) -> str:
    """The rows as JSON, or as a table in Markdown. form: json or md."""
    if form == "json":
        return json.dumps([row.as_json() for row in rows], indent=1) + "\n"
    lines = [_BENCH_HEAD, ["---"] * len(_BENCH_HEAD), *map(_row_cells, rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _row_cells(row: Row) -> list[str]:
    predicted = row.predicted_tokens_per_second
    return [
        row.kind,
        row.method,
        row.plan if row.method != "auto" else "",
        rate_text(row.tokens_per_second),
        f"({rate_text(row.tokens_per_second_min)}-{rate_text(row.tokens_per_second_max)})",
        f"{row.ratio:.2f}",
        f"{row.tokens_per_pass:.2f}",
        " ".join(f"{100 * share:.0f}" for share in row.acceptance_by_depth[:_MOST_DEPTHS]),
        "" if predicted is None else rate_text(predicted),
        f"{row.first_token_seconds * 1e3:.0f} ms",
        size_text(row.memory_bytes),
    ]
