"""The chat loop, its commands, and how both look on a terminal or in a pipe."""

from specrun.chat.loop import ChatLoop
from specrun.chat.reader import MessageReader, PipeReader, TerminalReader

__all__ = ["ChatLoop", "MessageReader", "PipeReader", "TerminalReader"]
