"""What both of OpenAI's endpoints that write share: the head of an object, and log-probabilities as JSON."""

from __future__ import annotations

import secrets
import time
from typing import Any

from specrun import __version__


def head(kind: str, model_name: str) -> dict[str, Any]:
    """The fields that all objects of one answer have in common. kind: the beginning of its id."""
    return {
        "id": f"{kind}-{secrets.token_hex(16)}",
        "created": int(time.time()),
        "model": model_name,
        "system_fingerprint": f"specrun-{__version__}",
    }
