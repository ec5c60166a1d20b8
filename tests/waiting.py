"""Waiting for what another process or thread does, for as long as it takes and no longer."""

from __future__ import annotations

import threading
from collections.abc import Callable

TIMEOUT_S = 300  # far more than anything here needs, so that only a hang fails
_POLL_S = 0.01


def wait_until(condition: Callable[[], object], what: str, timeout: float = TIMEOUT_S) -> None:
    """Return once `condition()` is true. what: describes it in the AssertionError raised after `timeout` seconds."""
    pause = threading.Event()  # not time.sleep, which some tests replace
    for _ in range(int(timeout / _POLL_S)):
        if condition():
            return
        pause.wait(_POLL_S)
    raise AssertionError(f"waited {timeout} s in vain: {what}")
