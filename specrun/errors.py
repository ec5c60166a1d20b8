"""The exceptions that a user can cause, each with the exit code of the program.

    SpecrunError                  1  any error without a more specific class
    |-- UsageError                2  an invalid option or argument
    |-- ModelFileError            3  a file that is missing, unreadable or not a usable GGUF model
    |-- PairError                 4  a draft that cannot draft for this target
    |-- PromptError               5  a prompt that is empty, not UTF-8, or longer than the context
    |-- LlamaError                6  llama.cpp failed: out of memory, or a failed pass
    |   |-- CrashError            6  a child process that llama.cpp ended
    |   `-- OutOfMemoryError      6  weights, KV cache or buffers that do not fit into memory
    |-- ContextFullError          6  no room left in the KV cache for another pass
    |-- MissingModelError         7  a model that is not on this machine, and that nobody agreed to fetch
    |-- HubError                  8  a model that cannot be fetched: no network, refused, not there, damaged, disk full
    |-- ProfileError              9  a profile that cannot be read, written or used
    |-- DraftSourceError         10  a datastore, history or successor table that cannot be read, written or used
    `-- VerificationError        11  text with speculation that is not what the target alone writes

Ctrl-C ends with 130, SIGTERM with 143 and SIGHUP with 129, as in every shell. A message is one
line: what is wrong, then what to do about it.
"""

from __future__ import annotations

INTERRUPTED_EXIT_CODE = 130


class SpecrunError(Exception):
    """Base of all errors that the user can correct; `str(error)` is the complete message."""

    exit_code = 1


class UsageError(SpecrunError):
    """An invalid option or argument."""

    exit_code = 2


class ModelFileError(SpecrunError):
    """A model file that is missing, unreadable or not a usable GGUF model."""

    exit_code = 3


class PairError(SpecrunError):
    """A draft that cannot draft for this target."""

    exit_code = 4


class PromptError(SpecrunError):
    """A prompt that is empty, not UTF-8, or longer than the context."""

    exit_code = 5


class LlamaError(SpecrunError):
    """llama.cpp failed: out of memory, or a failed pass."""

    exit_code = 6


class CrashError(LlamaError):
    """A child process that llama.cpp ended, with a signal or without an answer."""


class OutOfMemoryError(LlamaError):
    """Weights, KV cache or compute buffers that do not fit RAM or VRAM."""


class ContextFullError(LlamaError):
    """No room left in the KV cache for another pass."""


class MissingModelError(SpecrunError):
    """A model that is not on this machine, and that nobody agreed to fetch."""

    exit_code = 7


class HubError(SpecrunError):
    """A model that cannot be fetched.

    `wait_s` is the time in seconds after which the same request may succeed, or None if repeating it cannot help.
    """

    exit_code = 8

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class ProfileError(SpecrunError):
    """A profile that cannot be read, written or used."""

    exit_code = 9


class DraftSourceError(SpecrunError):
    """A datastore, history or successor table that cannot be read, written or used."""

    exit_code = 10


class VerificationError(SpecrunError):
    """Text with speculation that is not what the target alone writes, found by `specrun verify`."""

    exit_code = 11
