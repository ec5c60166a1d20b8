"""`specrun chat`: a conversation on a terminal, or line by line through a pipe."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from specrun.cli import output
from specrun.options import common_options as o
from specrun.options.expand import expanded
from specrun.options.machine_options import MachineOptions
from specrun.options.model_options import ModelOptions
from specrun.views import answer_report as report


@expanded
def chat(
    system: Annotated[
        str | None, typer.Option("--system", "-sys", metavar="TEXT", help="System message.", show_default=False)
    ] = None,
    target: o.Target = None,
    draft: o.Draft = None,
    pull: o.Pull = False,
    speculate: o.SpeculateOption = "auto",
    method: o.Method = None,
    growth_map: o.GrowthMap = None,
    datastore: o.Datastore = None,
    history: o.History = False,
    overlap: o.Overlap = None,
    budget: o.Budget = None,
    depth: o.Depth = None,
    max_tokens: o.MaxTokens = None,
    temp: o.Temperature = 0.8,
    top_k: o.TopK = 40,
    top_p: o.TopP = 0.95,
    min_p: o.MinP = 0.05,
    repeat_penalty: o.RepeatPenalty = 1.0,
    presence_penalty: o.PresencePenalty = 0.0,
    frequency_penalty: o.FrequencyPenalty = 0.0,
    repeat_last_n: o.RepeatLastN = 64,
    seed: o.Seed = -1,
    stop: o.Stop = None,
    grammar: o.GrammarFile = None,
    json_schema: o.JsonSchemaFile = None,
    *,
    machine: MachineOptions,
) -> None:
    """Talk with a model.

    In the chat, /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.

    Without a terminal on stdin every line is a message, and only the answers go to stdout.
    """
    models = ModelOptions(
        target, draft, speculate, budget, depth, machine, pull, method, growth_map, datastore, history, overlap
    )
    sampling = o.sampling_parameters(
        temp, top_k, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty, repeat_last_n, seed
    )
    limit = o.check_max_tokens(max_tokens)

    from specrun.chat import ChatLoop, PipeReader, TerminalReader
    from specrun.constraints import read_grammar
    from specrun.engine.loading import Runtime
    from specrun.engine.session import Session
    from specrun.llama.grammar import check_grammar, loaded_grammar
    from specrun.locations import data_dir

    models.check_constrained(grammar, json_schema)
    gbnf = check_grammar(read_grammar(grammar, json_schema))
    runtime_options = models.tuned(output.note, temp)
    with Runtime(runtime_options) as runtime, loaded_grammar(gbnf, runtime.model) as constraint:
        runtime.settle(temp)
        for notice in runtime.notices:
            output.note(notice)
        session = Session(runtime.engine, sampling, runtime.plans, limit, stop or [], constraint)
        session.system = system
        reader = TerminalReader(data_dir() / "chat_history") if sys.stdin.isatty() else PipeReader()
        if sys.stdin.isatty():
            output.note(f"{runtime.model.name}, {report.plan_line(runtime.plans, temp)}; /help lists the commands")
        ChatLoop(session, reader, output.stdout, output.stderr, runtime.candidates, runtime.chooser).run()
