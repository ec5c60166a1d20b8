"""`specrun bench`: measure plans against plain decoding, on the user's own pair."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from specrun.cli import output
from specrun.errors import UsageError
from specrun.options.expand import expanded
from specrun.options.machine_options import MachineOptions
from specrun.options.model_options import ModelOptions
from specrun.options.sampling_options import MinP, Seed, Temperature, TopK, TopP
from specrun.options.speculation_options import Datastore, GrowthMap, SpeculationOptions, read_growth_map

if TYPE_CHECKING:
    from specrun.bench.rows import Row

app = typer.Typer(invoke_without_command=True, rich_markup_mode="rich")

Format = Literal["table", "md", "csv", "json", "jsonl"]

OutputFormat = Annotated[Format, typer.Option("--output", "-o", help="Format of the result on stdout.")]


@dataclass(frozen=True)
class BenchOptions:
    """What is measured, as the user gave it."""

    kinds: Annotated[
        str,
        typer.Option(
            "--kinds", metavar="LIST", help="Kinds of shipped prompts: code, chat, prose, structured, edit, summary."
        ),
    ] = "code,chat,prose,structured"
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Your own prompts: JSONL of {"prompt"}, or MT-bench\'s question.jsonl.',
            show_default=False,
        ),
    ] = None
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            metavar="LIST",
            help="Rows beside off: chain, tree, auto, names of `specrun methods`, NAME+overlap, or all.",
        ),
    ] = "chain,tree,auto"
    datastore: Datastore = None
    growth_map: GrowthMap = None
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Measure each row's method on a grid of budgets and depths instead.")
    ] = False
    budgets: Annotated[
        str | None,
        typer.Option(
            "--budgets", metavar="LIST", help="Nodes of the trees of that grid, such as 4,16,64.", show_default=False
        ),
    ] = None
    depths: Annotated[
        str | None,
        typer.Option(
            "--depths", metavar="LIST", help="Drafted tokens on a path in that grid, such as 4,8.", show_default=False
        ),
    ] = None
    repeat: Annotated[int, typer.Option("--repeat", metavar="N", help="Repetitions of every row.")] = 3
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", metavar="N", help="Tokens of every answer.")] = 64
    temp: Temperature = 0.0
    top_k: TopK = 40
    top_p: TopP = 0.95
    min_p: MinP = 0.05
    seed: Seed = 0
    raw: Annotated[bool, typer.Option("--raw", help="No chat template: continue the prompts as they are.")] = False


@app.callback()
@expanded
def bench(
    context: typer.Context,
    *,
    what: BenchOptions,
    form: OutputFormat = "table",
    share: Annotated[
        bool, typer.Option("--share", help="One row and a footnote to paste for others instead of the table.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the rows (.png, .svg).", show_default=False)
    ] = None,
    models: ModelOptions,
    machine: MachineOptions,
) -> None:
    """Measure plans against plain decoding, on your own pair.

    The best chain and the best tree are chosen on the first prompt of each kind, which is also the warm-up, and all
    rows are measured on the others, in turn. The KV caches are emptied before each. All rows write the same tokens.
    """
    if context.invoked_subcommand:
        return
    from specrun.bench import bench_prompts
    from specrun.bench import settings as bench_settings
    from specrun.bench import share as bench_share
    from specrun.bench.runner import Bench
    from specrun.cli.pulling import AskingFetcher
    from specrun.engine.opening import open_model
    from specrun.long_run import Run
    from specrun.sampling import SamplingParameters
    from specrun.speculation.drafters.specexec import SPECEXEC
    from specrun.views import bench_plot, bench_table, plot_file

    allowed = tuple(dict.fromkeys((*bench_settings.ROWS, *bench_settings.ALL, *bench_settings.OVERLAPPED)))
    chosen = bench_settings.ALL if what.methods == "all" else _listed(what.methods, allowed, "--methods")
    texts = (
        bench_prompts.load(what.prompts)
        if what.prompts
        else bench_prompts.shipped(_listed(what.kinds, bench_prompts.KINDS, "--kinds"))
    )
    if plot:
        plot_file.check(plot)
    if share and form != "table":
        raise UsageError("--share has a form of its own; leave --output out")
    if what.repeat < 1 or what.max_tokens < 2:
        raise UsageError("--repeat must be 1 or more and --max-tokens 2 or more")
    sampling = SamplingParameters(what.temp, what.top_k, what.top_p, what.min_p, seed=max(what.seed, 0))
    is_sweep = what.sweep or bool(what.budgets or what.depths)
    budgets = _numbers(what.budgets, "--budgets", 2) if what.budgets else bench_settings.SWEEP_BUDGETS
    depths = _numbers(what.depths, "--depths", 1) if what.depths else bench_settings.SWEEP_DEPTHS
    growth_map = read_growth_map(what.growth_map) if what.growth_map else None
    if growth_map and not any(map(bench_settings.takes_growth_map, chosen)):
        raise UsageError("--growth-map goes with --methods sequoia or sequoia-match")
    settings = bench_settings.BenchSettings(
        sampling, what.max_tokens, what.repeat, chosen, budgets, depths, growth_map, what.raw
    )
    speculation = SpeculationOptions(datastore=what.datastore, learn=False)
    sizes = [*budgets, *(d + 1 for d in depths)] if is_sweep else [budget for budget, _ in bench_settings.TREE_SIZES]
    largest = SPECEXEC.plan(max(*sizes, growth_map.n_nodes if growth_map else 1), 16)
    fetcher = AskingFetcher(models.pull)
    with (
        open_model(models, speculation, machine, what.temp, fetcher, output.note, largest, output.progress) as model,
        output.progress() as display,
    ):
        for notice in model.notices:
            output.note(notice)
        if model.exactness.is_exact and not machine.exact:
            output.note(str(model.exactness))
        runner = Bench(model, settings, Run(display, output.note))
        rows = runner.sweep(texts) if is_sweep else runner.run(texts)
        shared = (bench_share.cells(rows, model), bench_share.footnote(rows, model, settings)) if share else None
    if shared:
        output.write(bench_table.markdown(bench_share.HEAD, shared[:1]) + f"\n{shared[1]}\n")
    else:
        _print(rows, form)
    if plot:
        bench_plot.plot(rows, plot)


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(metavar="A.json")],
    after: Annotated[Path, typer.Argument(metavar="B.json")],
) -> None:
    """Set two results of `specrun bench -o json` side by side."""
    from specrun.views import bench_table

    lines = bench_table.compare(_read_rows(before), _read_rows(after))
    if not lines:
        raise UsageError(f"{before} and {after} have no row in common")
    output.write(bench_table.markdown(bench_table.COMPARE_HEAD, lines))


def _listed(text: str, allowed: tuple[str, ...], option: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or not set(names) <= set(allowed):
        raise UsageError(f"{option} is a list of {', '.join(allowed)}; got {text}")
    return names


def _numbers(text: str, option: str, least: int) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    numbers = tuple(dict.fromkeys(int(part) for part in parts if part.isdecimal()))
    if not all(map(str.isdecimal, parts)) or min(numbers) < least:
        raise UsageError(f"{option} is a list of numbers from {least} on, such as 4,16; got {text}")
    return numbers


def _print(rows: list[Row], form: Format) -> None:
    from specrun.views import bench_table

    if form == "table":
        output.print_table(bench_table.as_table(rows))
    else:
        output.write(bench_table.as_text(rows, form))


def _read_rows(path: Path) -> list[dict[str, Any]]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return [row for row in rows if row["kind"] and row["method"] and row["tokens_per_second"] and row["ratio"]]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UsageError(f"{path} is not a result of `specrun bench -o json`") from error
