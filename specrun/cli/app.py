"""The `specrun` command: its subcommands, `--version`, and the place where errors become messages and exit codes."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from specrun import interrupts
from specrun.cli import models
from specrun.cli.chat import chat
from specrun.cli.command import CONTEXT_SETTINGS, Command, Group, told
from specrun.cli.comparing import bench, methods, verify
from specrun.cli.demo import demo
from specrun.cli.doctor import doctor, unusable_gpu
from specrun.cli.generate import generate
from specrun.cli.serve import serve
from specrun.cli.tune import tune
from specrun.errors import INTERRUPTED_EXIT_CODE, SpecrunError, UsageError
from specrun.views import output

_BROKEN_PIPE_EXIT_CODE = 128 + signal.SIGPIPE if hasattr(signal, "SIGPIPE") else 1

app = typer.Typer(
    name="specrun",
    cls=Group,
    add_completion=True,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=CONTEXT_SETTINGS,
)
# What is in a panel stands in this order in the help.
_PANELS: dict[str, tuple[Callable[..., Any] | typer.Typer, ...]] = {
    "Use": (chat, generate, serve, models.pull, models.app, demo),
    "Make faster": (tune, verify, doctor),
    "Research": (bench, methods),
}
for panel, commands in _PANELS.items():
    for command in commands:
        if isinstance(command, typer.Typer):
            app.add_typer(command, rich_help_panel=panel)
        else:
            app.command(cls=Command, rich_help_panel=panel)(command)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    from specrun import __version__
    from specrun.hardware.machine import offload_devices
    from specrun.llama import devices, library

    print(f"specrun {__version__}")
    print(f"llama-cpp-python {library.bindings_version()}")
    print(f"llama.cpp {library.build()}, backends: {', '.join(library.backends())}")
    for device in offload_devices(devices.devices()):
        print(device)
    if finding := unusable_gpu():
        output.note(f"{finding.detail}; {finding.fix}")
    raise typer.Exit


@app.callback()
def specrun(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Show versions and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show llama.cpp's log, and tracebacks of errors.")] = False,
) -> None:
    """Run a language model that does not fit your GPU, several times faster, with the text unchanged.

    A small draft model grows a tree of likely continuations. The large target model checks the whole tree in one pass
    and keeps what it would have written itself.

        specrun chat
        specrun chat qwen-14b "Why is the sky blue?"
        specrun generate "A limerick about trees" --target qwen-14b
    """
    del version
    output.debug = debug
    if debug:
        from specrun.llama import library

        library.show_log()
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


def run() -> int:
    """Run the command line. Returns the exit code (see `specrun.errors`)."""
    code = 0
    _open_stdout()
    try:
        result = app(prog_name="specrun", standalone_mode=False)
        code = result if isinstance(result, int) else 0
        sys.stdout.flush()
    except SpecrunError as error:
        code = error.exit_code
        _say_why(error)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED_EXIT_CODE
    except (BrokenPipeError, SystemExit) as error:
        # What reads stdout has ended, as in `| head`. click and rich turn that into a SystemExit.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        code = _BROKEN_PIPE_EXIT_CODE
        _abandon(sys.stdout)
    except OSError as error:
        _abandon(sys.stdout)
        if error.errno == errno.EINVAL and sys.platform == "win32" and not error.filename:
            return _BROKEN_PIPE_EXIT_CODE  # as Windows says that what reads stdout has ended
        if error.errno == errno.EIO and interrupts.is_ending():  # the terminal is gone, as SIGHUP says
            return INTERRUPTED_EXIT_CODE
        why, code = error.strerror or str(error), 1
        if error.filename:
            why = f"{error.filename}: {why}"
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            why = f"stdout cannot be written: {why}; free some room, or send it elsewhere"
        _say_why(SpecrunError(why))
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        # A usage error from click. Newer versions of typer contain their own click, so there is no one class to catch.
        if hasattr(error, "format_message"):
            code = getattr(error, "exit_code", 2)
            _say_why(UsageError(told(error)))
        else:
            code = SpecrunError.exit_code
            _say_why(error)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream:  # stderr is None where it was closed (`2>&-`)
                stream.flush()
        except OSError:
            _abandon(stream)
    return code


def _open_stdout() -> None:
    """Make stdout accept any text, even if it was closed (`>&-`) or its encoding lacks a character."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open until the process ends
    if isinstance(sys.stdout, TextIOWrapper):
        # Windows gives pipes and files the encoding of its old consoles, which lacks most of the world's letters.
        is_old = sys.platform == "win32" and not sys.stdout.isatty() and "PYTHONIOENCODING" not in os.environ
        sys.stdout.reconfigure(encoding="utf-8" if is_old else None, errors="replace")


def _abandon(stream: TextIO) -> None:
    """Drop the rest of the output. Otherwise Python would report an error again when it flushes the stream at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _say_why(error: Exception) -> None:
    """Say on stderr why the command failed; with --debug, and for a fault of specrun itself, also where."""
    try:
        if isinstance(error, SpecrunError) and not (output.debug and error.__traceback__):
            output.error(str(error))
        else:
            output.traceback(error)
    except OSError:  # nobody reads it any more
        _abandon(sys.stderr)
