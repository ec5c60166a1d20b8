"""The chat loop and its commands, on a terminal or through a pipe."""

from specrun.chat.loop import ChatLoop, Surroundings
from specrun.chat.reader import MessageReader, PipeReader, TerminalReader

__all__ = ["ChatLoop", "MessageReader", "PipeReader", "Surroundings", "TerminalReader"]
