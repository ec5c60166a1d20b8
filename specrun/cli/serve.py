"""`specrun serve`: an HTTP server for the programs that talk with other services or servers."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING

from specrun.display_text import utf8
from specrun.errors import INTERRUPTED_EXIT_CODE
from specrun.interrupts import InterruptFlag
from specrun.options.expand import expanded, option
from specrun.options.machine_options import MachineOptions
from specrun.options.sampling_options import ChatSamplingOptions, prompt_cache_option
from specrun.options.speculation_options import ModelOptions, SpeculationOptions
from specrun.views import answer_report, output

if TYPE_CHECKING:
    from specrun.serving.refusals import Access

_MOST_CACHE_BYTES = 8 << 30  # llama-server's default
_MOST_PARALLEL = 16  # answers at a time: of twice as many, each could draft two leaf paths only (`run_options`)

_option = partial(option, rich_help_panel="Server")


# fmt: off
@dataclass(frozen=True)
class ServerOptions:
    """Where the server listens, who may ask, and how much it does at a time."""

    host: str = _option("127.0.0.1", "ADDRESS", "The address to listen on. 0.0.0.0 is reachable from outside.")
    port: int = _option(8080, "N", "The port; 0 takes a free one.", min=0, max=65535)
    api_key: str | None = _option(
        None, "KEY", "What clients must send as their key. The variable keeps it out of the list of processes.",
        envvar="SPECRUN_API_KEY"
    )
    cors_origin: list[str] | None = _option(
        None, "ORIGIN", "Let pages of this origin ask from a browser, as https://chat.example. May be given several "
        "times; * is all."
    )
    alias: str | None = _option(None, "NAME", "The model's name for clients. By default the target's.", "-a")
    queue: int = _option(32, "N", "Most requests that wait; further ones are told to come back.", min=0)
    parallel: int = _option(
        8, "N", "Most answers that are written at the same time; they share the model's passes and one --ctx-size.",
        "-np", min=1, max=_MOST_PARALLEL
    )
    cache_ram: int | None = _option(
        None, "MIB", "Memory in MiB for the caches of other conversations than the present one; 0 keeps none. By "
        "default a tenth of what is free, at most 8192.", "-cram", min=0
    )
    prompt_cache: bool | None = prompt_cache_option()
# fmt: on


@expanded
def serve(
    *,
    models: ModelOptions,
    server: ServerOptions,
    speculation: SpeculationOptions,
    sampling: ChatSamplingOptions,
    machine: MachineOptions,
) -> int:
    """Answer HTTP requests as OpenAI, Anthropic, llama-server and Ollama do.

    The sampling options apply to requests that do not set them. Ctrl-C ends the answers that are being written and the
    server. Without --target it asks which model shall answer, where there is a terminal.

        specrun serve --target qwen-14b
        specrun serve --target qwen-14b --host 0.0.0.0 --api-key SECRET
    """
    from specrun.cli.opening import opened, target_of
    from specrun.decoding.generation import make_request
    from specrun.decoding.together import Conversations
    from specrun.hardware.memory import Memory
    from specrun.llama import chat_template
    from specrun.serving.app import HttpServer, chat_url, listening_socket, make_app, url
    from specrun.serving.prompts import Prompts
    from specrun.serving.request_fields import Defaults
    from specrun.serving.service import JobQueue, LoadedService, Service
    from specrun.serving.worker import Worker

    speculation.check_constrained(sampling.grammar, sampling.json_schema)
    service = Service(JobQueue(server.queue), Defaults(make_request(sampling), sampling.seed))
    with ExitStack() as stack:
        bound = stack.enter_context(listening_socket(server.host, server.port))
        models = replace(models, target=target_of(models.target))
        app = make_app(service, _access(server, bound), _report)
        http = stack.enter_context(HttpServer(app, bound))
        chat_template.prepare()
        asked = models, speculation, machine, sampling.temp
        model = stack.enter_context(
            opened(*asked, is_chat=True, parallel=server.parallel, keeps_prompts=server.prompt_cache is not False)
        )
        stack.callback(http.stop)  # before the model is closed, which its threads use
        output.hint(f"plan: {answer_report.plan_words(model, sampling.temp)}")
        name = server.alias or (Path(models.target).name if models.target else model.llama_model.name)
        prompts = Prompts(model)
        if notice := prompts.format.system_notice:
            output.note(notice)
        service.begin(LoadedService(model, prompts, utf8(name)))
        with InterruptFlag() as interrupted:
            output.note(f"chat: {chat_url(bound)}")
            output.note(f"{name} listens on {url(server.host, bound)}; Ctrl-C ends it")
            free = Memory.read().available_bytes  # what the model has left
            cache_bytes = min(free // 10, _MOST_CACHE_BYTES) if server.cache_ram is None else server.cache_ram << 20
            conversations = Conversations(model.slots.engines, cache_bytes, model.prompt_states)
            Worker(service, conversations, _report).run(lambda: interrupted() or not http.is_running)
            http.stop()
    return INTERRUPTED_EXIT_CODE


def _access(options: ServerOptions, bound: socket) -> Access:
    """Who may ask. Says so if everybody may."""
    from specrun.serving.refusals import Access, is_loopback

    only_local = is_loopback(bound.getsockname()[0])
    if not (only_local or options.api_key):
        reach = f"everybody who reaches {options.host} can use this server"
        output.note(f"{reach}; --api-key or SPECRUN_API_KEY sets a key")
    return Access(options.api_key or None, only_local, options.cors_origin or ())


def _report(error: Exception) -> None:
    """Tell the user about a request that failed through no fault of the client."""
    if output.debug:
        output.traceback(error)
    else:
        output.error(f"an answer failed ({type(error).__name__}: {error}); --debug says where")
