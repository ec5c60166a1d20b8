"""`specrun methods`: the methods that `--method` can name, and the tree shapes of Sequoia's."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated

import typer

from specrun.cli.command import Command, Group
from specrun.errors import UsageError
from specrun.options.expand import expanded
from specrun.options.machine_options import MachineOptions
from specrun.options.sampling_options import Temperature
from specrun.options.speculation_options import Budget, Depth, ModelOptions, SpeculationOptions
from specrun.views import output

_KINDS = {
    "plain": "without drafts",
    "chain": "chains",
    "tree": "trees",
    "planner": "a size for every tree",
    "draft source": "without a draft model",
    "acceptance rule": "other rules of accepting",
}

app = typer.Typer(name="methods", cls=Group, invoke_without_command=True)


@app.callback()
def methods(
    context: typer.Context, json: Annotated[bool, typer.Option("--json", help="A JSON list of objects.")] = False
) -> None:
    """List the methods of drafting and accepting. The table says what each needs, where it pays, and its paper."""
    if context.invoked_subcommand:
        return
    from specrun.speculation.registry import METHODS

    if json:
        keys = ("name", "paper", "kind", "needs", "lossless", "pays")
        objects = [{key: getattr(method, key) for key in keys} for method in METHODS.values()]
        output.write(jsonlib.dumps(objects, indent=1) + "\n")
        return
    table = output.table("name", "pays", "needs", "paper", optional=("paper",))
    for kind in dict.fromkeys(method.kind for method in METHODS.values()):
        table.add_heading(_KINDS[kind])
        for method in METHODS.values():
            if method.kind == kind:
                name = method.name if method.lossless else f"{method.name} (lossy)"
                table.add_row(name, method.pays, ", ".join(method.needs), method.paper)
    output.print_table(table)


@app.command("growth-map", cls=Command)
@expanded
def growth_map(
    method: Annotated[str, typer.Option("--method", metavar="NAME", help="sequoia or sequoia-match.")] = "sequoia",
    budget: Budget = None,
    depth: Depth = None,
    temp: Temperature = 0.8,
    *,
    models: ModelOptions,
    machine: MachineOptions,
) -> None:
    """Measure how often each child of a node is accepted, and show the tree that is best for it.

    Its size is chosen by the profile of `specrun tune`, if there is one, else --budget and --depth bound it.
    """
    from specrun.cli.opening import opened
    from specrun.engine import growth_maps
    from specrun.speculation.registry import find
    from specrun.views import tree_view

    if not find(method).wants_shape:
        raise UsageError(f"--method is sequoia or sequoia-match here; got {method}")
    speculation = SpeculationOptions(method=method, budget=budget, depth=depth)
    with opened(models, speculation, machine, temp, is_measured=True) as model:
        if model.engine.draft is None:
            raise UsageError("a growth map depends on the draft; give a --draft")
        plans = model.plans
        with output.progress() as show:
            show("measuring how often each child of a node is accepted")
            acceptance = growth_maps.acceptance(model.engine, plans.profile, temp)
            shape = plans.candidates[0].shape or growth_maps.best(plans.candidates[0], acceptance, model.engine)
    output.print_table(tree_view.static_tree(shape, acceptance))
