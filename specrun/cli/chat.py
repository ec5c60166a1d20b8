"""`specrun chat`: a conversation on a terminal, or line by line through a pipe."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from specrun.cli import output
from specrun.options.expand import expanded
from specrun.options.machine_options import MachineOptions
from specrun.options.model_options import ModelOptions
from specrun.options.sampling_options import ChatSamplingOptions
from specrun.options.speculation_options import SpeculationOptions
from specrun.views import answer_report as report


@expanded
def chat(
    system: Annotated[
        str | None, typer.Option("--system", "-sys", metavar="TEXT", help="The system message of the conversation.")
    ] = None,
    *,
    models: ModelOptions,
    speculation: SpeculationOptions,
    sampling: ChatSamplingOptions,
    machine: MachineOptions,
) -> None:
    """Talk with a model.

    In the chat, /help lists the commands, Ctrl-C stops an answer, and Ctrl-D leaves.

    If stdin is not a terminal, every line of it is a message. Only the answers go to stdout.
    """
    from specrun.chat import ChatLoop, PipeReader, TerminalReader
    from specrun.cli.pulling import AskingFetcher
    from specrun.engine.model import open_model
    from specrun.engine.request import make_request
    from specrun.locations import data_dir

    speculation.check_constrained(sampling.grammar, sampling.json_schema)
    request = make_request(sampling)
    fetcher = AskingFetcher(models.pull)
    with open_model(models, speculation, machine, sampling.temp, fetcher, output.note) as model:
        plans = model.plans.at(sampling.temp)
        for notice in model.notices:
            output.note(notice)
        session = model.session(request)
        session.system = system
        reader = TerminalReader(data_dir() / "chat_history") if sys.stdin.isatty() else PipeReader()
        if sys.stdin.isatty():
            plan_line = report.plan_line(plans, sampling.temp)
            output.note(f"{model.llama_model.name}, {plan_line}; /help lists the commands")
        ChatLoop(model, session, reader, output.stdout, output.stderr).run()
