"""Ends the process when llama.cpp does not come back from a grammar.

llama.cpp follows every way in which a text can be read by a grammar. A few short rules can have so many that one call
takes hours, and all memory: `r0 ::= r1 | r1 r1`, `r1 ::= r2 | r2 r2`, and so on. Whether a grammar is of this kind is
seen only while it is followed, and a call into C cannot be stopped from outside; so the process ends, in one line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from specrun.errors import UsageError
from specrun.llama import library

MOST_SECONDS = 5.0  # of a call; usual calls take microseconds, the largest schemas of the tests 0.1 s
_MOST_BYTES = 2**30  # that the process may grow by during one call
_LONG_SECONDS = 2.0  # after a call of this length the next one would take minutes, so the text ends with an error
_POLL_SECONDS = 0.2
_TOO_MUCH = (
    "the grammar takes too much time or memory: it is too large, or a text can be read by it in too many ways; "
    "give its alternatives different beginnings"
)

_started_at: dict[int, float] = {}  # by thread: when the call that it is in began
_watch: threading.Thread | None = None


@contextmanager
def watched() -> Iterator[None]:
    """Around a call. Raises UsageError after a long call; ends the process during a call that is too long."""
    global _watch
    if _watch is None:
        _watch = threading.Thread(target=_keep_watch, name="grammar watch", daemon=True)
        _watch.start()
    thread, began = threading.get_ident(), time.monotonic()
    _started_at[thread] = began
    try:
        yield
    finally:
        del _started_at[thread]
    if time.monotonic() - began > _LONG_SECONDS:
        raise UsageError(_TOO_MUCH)


def _keep_watch() -> None:
    process = psutil.Process()
    n_bytes_before, watching = 0, 0.0
    while True:
        time.sleep(_POLL_SECONDS)
        began = min(_started_at.copy().values(), default=0.0)
        if began and began == watching:  # a call that was there at the last look, too
            grown = process.memory_info().rss - n_bytes_before
            if time.monotonic() - began > MOST_SECONDS or grown > _MOST_BYTES:
                library.end_process(UsageError(_TOO_MUCH))
        elif began:
            n_bytes_before = process.memory_info().rss
        watching = began
