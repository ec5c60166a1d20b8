"""What specrun relies on in llama.cpp beyond its public header, each fact with a check for the build that runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from specrun import kept_facts
from specrun.hardware.cpu import read_flags
from specrun.llama import library


def refusal(check: str, version: int, find_out: Callable[[], str | None], **further: Any) -> str:
    """Why a check of this build of llama.cpp failed on this kind of processor, as a clause; empty if it passed.

    The check runs once, and its result is kept; what it raises is raised, and not kept. No backend starts by this.
    version: of the check and of what it checks. further: what else the result depends on, as JSON values.
    """
    processor = hashlib.sha256(" ".join(sorted(read_flags())).encode()).hexdigest()[:16]
    of = {"check": check, "version": version, **library.identity(), "processor": processor, **further}
    return kept_facts.once("facts", of, lambda: find_out() or "", str)
