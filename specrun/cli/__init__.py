"""The command line: files of commands, which parse, call and print."""

from __future__ import annotations

import sys

from specrun import interrupts
from specrun.errors import INTERRUPTED_EXIT_CODE, OutOfMemoryError, SpecrunError

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its code (see `specrun.errors`)."""
    interrupts.catch_endings()
    try:
        from specrun.cli.app import run

        code = run()
        interrupts.ignore_all()
    except KeyboardInterrupt:  # it can come while Python is still importing, or while an error is reported
        interrupts.ignore_all()
        code = INTERRUPTED_EXIT_CODE
    except (ImportError, MemoryError) as error:
        code = _without_memory(error)
    sys.exit(interrupts.exit_code() if code == INTERRUPTED_EXIT_CODE else code)


def _without_memory(error: ImportError | MemoryError) -> int:
    """Say why Python itself cannot go on. Nothing may be imported for it."""
    if "--debug" in sys.argv:
        raise error
    if isinstance(error, MemoryError):
        print("specrun: there is not enough memory; close other programs, or choose a smaller model", file=sys.stderr)
        return OutOfMemoryError.exit_code
    why = " ".join(str(error).split())
    print(f"specrun: {why}; install specrun again, or free some memory if it says `failed to map`", file=sys.stderr)
    return SpecrunError.exit_code
