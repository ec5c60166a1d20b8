"""The command line: one short file per command, which parses, calls and prints."""

from __future__ import annotations

import sys

from specrun.errors import INTERRUPTED_EXIT_CODE

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its code (see `specrun.errors`)."""
    try:
        from specrun.cli.app import run
    except KeyboardInterrupt:  # Ctrl-C can come while Python is still importing
        sys.exit(INTERRUPTED_EXIT_CODE)
    run()
