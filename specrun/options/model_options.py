"""From the options that name and shape a pair to what `specrun.engine.loading.Runtime` loads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specrun.errors import UsageError
from specrun.options.common_options import Speculate
from specrun.options.machine_options import MachineOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from specrun.engine.run_options import RuntimeOptions
    from specrun.speculation import Plan

# What `auto` tries where no profile says more.
_DEFAULT_BUDGET = 16
_DEFAULT_DEPTH = 8
_DEFAULT_CHAIN = 4


@dataclass(frozen=True)
class ModelOptions:
    """The options of one command that decide what is loaded."""

    target: str | None
    draft: str | None
    speculate: Speculate
    budget: int | None
    depth: int | None
    machine: MachineOptions
    pull: bool = False
    method: str | None = None
    growth_map: Path | None = None
    datastore: Path | None = None
    history: bool = False
    overlap: bool | None = None

    def plans(self) -> tuple[Plan, ...]:
        """The plan these options ask for; with `auto`, those to choose from."""
        from specrun.speculation import Plan
        from specrun.speculation.plan import MAX_BUDGET

        if self.depth is not None and not 0 <= self.depth < MAX_BUDGET:
            raise UsageError(f"--depth must be between 0 and {MAX_BUDGET - 1}; got {self.depth}")
        if self.method is not None:
            return (self._plan_of_method(),)
        if self.growth_map:
            raise UsageError("--growth-map goes with --method sequoia or sequoia-match")
        if self.speculate == "off" or self.budget == 1:
            return (Plan.off(),)
        chain = Plan.chain(self.depth if self.depth is not None else _DEFAULT_CHAIN)
        if self.speculate == "chain":
            return (chain,)
        budget = self.budget if self.budget is not None else _DEFAULT_BUDGET
        tree = Plan.tree(budget, self.depth if self.depth is not None else _DEFAULT_DEPTH)
        return (tree,) if self.speculate == "tree" else (tree, Plan.off(), chain)

    def _plan_of_method(self) -> Plan:
        from specrun.speculation import registry as methods
        from specrun.speculation.method import DATASTORE
        from specrun.speculation.shape import TreeShape

        if self.speculate != "auto":
            raise UsageError("--method and --speculate exclude each other; choose one")
        assert self.method
        method = methods.find(self.method)
        if DATASTORE in method.needs and self.datastore is None:
            raise UsageError(f"--method {self.method} needs a --datastore; `specrun datastore` makes one")
        if self.overlap and not method.can_overlap:
            raise UsageError(
                f"--overlap goes with methods that have a draft model, and sample and match; {self.method} does not"
            )
        if self.growth_map is None:
            return method.plan(self.budget, self.depth)
        if not method.wants_shape or self.budget is not None or self.depth is not None:
            raise UsageError("--growth-map goes with --method sequoia or sequoia-match, without --budget and --depth")
        try:
            return method.plan().shaped(TreeShape.from_text(self.growth_map.read_text(encoding="utf-8")))
        except OSError as error:
            raise UsageError(f"{self.growth_map} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise UsageError(f"{self.growth_map} is no growth map: {error}") from error

    def check_constrained(self, grammar: Path | None, json_schema: Path | None) -> None:
        """Raises UsageError for a grammar with a method that draws its trees, whatever a grammar allows."""
        from specrun.speculation import registry as methods

        if (grammar or json_schema) and self.method and methods.find(self.method).samples:
            option = "--grammar" if grammar else "--json-schema"
            raise UsageError(f"{option} goes with methods that sample and match, not with {self.method}")

    def runtime_options(self, largest: Plan | None = None) -> RuntimeOptions:
        """What `specrun.engine.loading.Runtime` needs, profiles left aside. largest: a plan that the contexts must hold
        besides those asked for.

        Missing models are fetched, if the user agrees. Raises UsageError for options that cannot be, MissingModelError
        and HubError for models that cannot be had.
        """
        from specrun.cli.pulling import local_pair
        from specrun.engine.run_options import RuntimeOptions
        from specrun.speculation import registry as methods
        from specrun.speculation.method import DRAFT

        if self.target is None and self.draft not in (None, "none"):
            raise UsageError("--draft needs the --target it drafts for")
        plans = self.plans()
        wants_draft = any(plan.depth and DRAFT in methods.METHODS[plan.method].needs for plan in plans)
        target, draft = local_pair(self.target, self.draft, wants_draft, self.pull)
        return RuntimeOptions(
            target=target,
            draft=draft,
            plans=plans,
            largest=largest,
            ctx_size=self.machine.ctx_size,
            settings=self.machine.target_settings(),
            draft_settings=self.machine.draft_settings(),
            exact=self.machine.exact,
            datastore=self.datastore,
            remember=self.history,
            overlap=self.overlap,
        )

    def tuned(self, note: Callable[[str], None], temperature: float, largest: Plan | None = None) -> RuntimeOptions:
        """The same with the profile of this pair on this machine, if there is one: with its settings in any case, as
        the text may hang on them, and with its plans where these are left to specrun. `note` is told why there is none
        although there was one. Raises UsageError for a method that cannot do without.
        """
        options = self.runtime_options(largest)
        follow = self.speculate == "auto" and self.method is None and self.budget is None and self.depth is None
        from specrun.engine import growth_maps
        from specrun.profiles import lookup
        from specrun.speculation import registry as methods
        from specrun.speculation.method import PROFILE

        if options.draft is None:
            return replace(options, profile=lookup.of_target(options), follow=follow)
        found = lookup.find(lookup.identify(options))
        if found.notice and (follow or self.method):
            note(found.notice)
        plan = options.plans[0]
        if self.method and found.profile is None and PROFILE in methods.METHODS[plan.method].needs:
            raise UsageError(f"--method {self.method} needs a profile of this pair; run `specrun tune` first")
        if self.method and found.profile:
            is_open = self.budget is None and self.depth is None
            options = replace(options, plans=(growth_maps.by_profile(plan, found.profile, temperature, is_open),))
        return replace(options, profile=found.profile, follow=follow)
