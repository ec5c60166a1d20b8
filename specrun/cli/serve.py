"""`specrun serve`: an HTTP server for the programs that talk with OpenAI's or llama.cpp's."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from specrun.cli import output
from specrun.errors import INTERRUPTED_EXIT_CODE, SpecrunError
from specrun.interrupts import InterruptFlag
from specrun.options.expand import expanded
from specrun.options.machine_options import MachineOptions
from specrun.options.model_options import ModelOptions
from specrun.options.sampling_options import ChatSamplingOptions
from specrun.options.speculation_options import SpeculationOptions
from specrun.views import answer_report as report

_option = partial(typer.Option, rich_help_panel="Server")


@expanded
def serve(
    host: Annotated[
        str, _option("--host", metavar="ADDRESS", help="The address to listen on. 0.0.0.0 is reachable from outside.")
    ] = "127.0.0.1",
    port: Annotated[int, _option("--port", min=0, max=65535, metavar="N", help="The port; 0 takes a free one.")] = 8080,
    alias: Annotated[
        str | None,
        _option("--alias", "-a", metavar="NAME", help="The model's name for clients. By default the target's."),
    ] = None,
    queue: Annotated[
        int, _option("--queue", min=0, metavar="N", help="Most requests that wait; further ones are told to come back.")
    ] = 32,
    *,
    models: ModelOptions,
    speculation: SpeculationOptions,
    sampling: ChatSamplingOptions,
    machine: MachineOptions,
) -> int:
    """Answer HTTP requests in the shapes of OpenAI and llama-server.

    The sampling options are what a request gets that says nothing else. Ctrl-C ends the answers that are being written
    and the server.
    """
    from specrun.cli import unusable_gpu
    from specrun.cli.pulling import AskingFetcher
    from specrun.engine.model import open_model
    from specrun.engine.request import make_request
    from specrun.llama import chat_template
    from specrun.serving.app import make_app
    from specrun.serving.http_server import HttpServer, listening_socket, url
    from specrun.serving.job_queue import JobQueue
    from specrun.serving.prompts import Prompts
    from specrun.serving.service import LoadedService, Service
    from specrun.serving.worker import Worker

    speculation.check_constrained(sampling.grammar, sampling.json_schema)
    jobs = JobQueue(queue)
    service = Service(jobs, make_request(sampling))
    with listening_socket(host, port) as bound, HttpServer(make_app(service), bound) as http:
        chat_template.prepare()
        fetcher = AskingFetcher(models.pull)
        with open_model(
            models, speculation, machine, sampling.temp, fetcher, output.note, progress=output.progress
        ) as model:
            for notice in model.notices:
                output.note(notice)
            unusable_gpu.say_once()
            output.hint(report.plan_line(model.plans.at(sampling.temp), sampling.temp))
            name = alias or models.target or model.llama_model.name
            prompts = Prompts(model)
            service.begin(LoadedService(model, prompts, name))
            with InterruptFlag() as interrupted:
                output.note(f"{name} listens on {url(host, bound)}; Ctrl-C ends it")
                Worker(model, prompts, jobs, _report).run(lambda: interrupted() or not http.is_running)
                http.stop()  # its threads use the model, which is closed next
    return INTERRUPTED_EXIT_CODE


def _report(error: Exception) -> None:
    """Say that a request failed for a reason that is none of the client's."""
    if output.debug:
        output.traceback(error)
    else:
        output.error(str(SpecrunError(f"an answer failed ({type(error).__name__}: {error}); --debug says where")))
