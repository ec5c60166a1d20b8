"""The command line: one short file per command, which parses, calls and prints."""

from specrun.cli.app import main

__all__ = ["main"]
