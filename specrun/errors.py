"""The exceptions that a user can cause, each with the exit code it ends in.

    SpecrunError                  1  anything below that has no code of its own
    |-- UsageError                2  an option or argument that cannot be right
    |-- ModelFileError            3  a file that is missing, unreadable or not a usable GGUF model
    |-- PairError                 4  a draft that cannot draft for this target
    |-- PromptError               5  a prompt that is empty, not UTF-8, or longer than the context
    |-- LlamaError                6  llama.cpp refused: out of memory, a failed pass
    |   `-- OutOfMemoryError      6  weights, KV cache or buffers that do not fit
    |-- ContextFullError          6  no room left in the KV cache for another pass
    |-- MissingModelError         7  a model that is not on this machine and may not be fetched unasked
    |-- HubError                  8  a model that cannot be fetched: no network, refused, not there, damaged, disk full
    |-- ProfileError              9  a profile that cannot be read, written or used
    `-- DraftSourceError         10  a datastore, history or table of drafts that cannot be read, written or used

130 is Ctrl-C, as in every shell. A message is one line: what is wrong, then what to do about it.
"""

from __future__ import annotations

INTERRUPTED_EXIT_CODE = 130


class SpecrunError(Exception):
    """Base of every error that is the user's to mend; `str(error)` is the whole message."""

    exit_code = 1


class UsageError(SpecrunError):
    """An option or argument that cannot be right."""

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
    """llama.cpp refused: out of memory, or a pass that failed."""

    exit_code = 6


class OutOfMemoryError(LlamaError):
    """Weights, KV cache or compute buffers that do not fit RAM or VRAM."""


class ContextFullError(LlamaError):
    """No room left in the KV cache for another pass."""


class MissingModelError(SpecrunError):
    """A model that is not on this machine, and that nobody agreed to fetch."""

    exit_code = 7


class HubError(SpecrunError):
    """A model that cannot be fetched. `wait_s`: None, or the seconds after which the same request may succeed."""

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
