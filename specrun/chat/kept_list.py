"""The conversations of the last chats as a list, from which `/load` takes one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from specrun.chat import conversation_file
from specrun.chat.picker import EMBEDDED
from specrun.errors import SpecrunError


def listed(paths: Sequence[Path]) -> Table:
    """A numbered table: when each was written, with which model, how many messages it has, and the last question."""
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    for number, path in enumerate(paths, start=1):
        try:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(path.stat().st_mtime))
            conversation = conversation_file.read(path)
        except (OSError, SpecrunError) as error:
            table.add_row(str(number), "", "", str(error))
            continue
        asked = [message["content"] for message in conversation.messages if message["role"] == "user"]
        question = asked[-1].splitlines()[0] if asked and asked[-1] else ""
        n_messages = f"{len(conversation.messages)} messages"
        table.add_row(str(number), when, conversation.target or EMBEDDED, n_messages, question)
    return table
