"""The exceptions that a user can cause, each with the exit code of the program.

Ctrl-C ends with 130, SIGTERM with 143 and SIGHUP with 129, as in every shell. A message is one line: what is wrong,
then what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

INTERRUPTED_EXIT_CODE = 130


def words_of(error: OSError) -> str:
    """What the system says; numpy, which writes arrays past Python's files, leaves that out."""
    return error.strerror or "no more could be written, as on a full disk"


class SpecrunError(Exception):
    """Base of all errors that the user can correct; `str(error)` is the complete message (exit code 1)."""

    exit_code = 1


@contextmanager
def disk_errors(what: str, path: Path | None = None, kind: type[SpecrunError] = SpecrunError) -> Iterator[None]:
    """An OSError inside the block becomes an error of this kind: that `path`, or the error's own, cannot be `what`.

    what: as "deleted"; what comes after a semicolon follows the system's words.
    """
    try:
        yield
    except OSError as error:
        done, _, advice = what.partition(";")
        why = f"{path or error.filename} cannot be {done}: {words_of(error)}"
        raise kind(f"{why};{advice}" if advice else why) from error


class UsageError(SpecrunError):
    """An invalid option or argument (exit code 2)."""

    exit_code = 2


class ModelFileError(SpecrunError):
    """A model file that is missing, unreadable or not a usable GGUF model (exit code 3)."""

    exit_code = 3


class PairError(SpecrunError):
    """A draft that cannot draft for this target (exit code 4)."""

    exit_code = 4


class PromptError(SpecrunError):
    """A prompt that is empty, not UTF-8, or longer than the context (exit code 5)."""

    exit_code = 5


class LlamaError(SpecrunError):
    """llama.cpp failed: out of memory, or a failed pass (exit code 6)."""

    exit_code = 6


class CrashError(LlamaError):
    """A child process that llama.cpp ended, with a signal or without an answer."""


class OutOfMemoryError(LlamaError):
    """Weights, KV cache or compute buffers that do not fit RAM or VRAM."""


class ContextFullError(LlamaError):
    """No room left in the KV cache for another pass."""


class MissingModelError(SpecrunError):
    """A model that is not on this machine, and that nobody agreed to fetch (exit code 7)."""

    exit_code = 7


class HubError(SpecrunError):
    """A model that cannot be fetched: no network, refused, not there, damaged, disk full (exit code 8).

    `wait_s` is the time in seconds after which the same request may succeed, or None if repeating it cannot help.
    """

    exit_code = 8

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class NoHubError(HubError):
    """The hub cannot be asked: there is no connection, or HF_HUB_OFFLINE is set."""


class ProfileError(SpecrunError):
    """A profile that cannot be read, written or used (exit code 9)."""

    exit_code = 9


class VerificationError(SpecrunError):
    """Text with speculation that is not what the target alone writes, found by `specrun verify` (exit code 11)."""

    exit_code = 11
