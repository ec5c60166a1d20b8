"""Access to the Hugging Face hub through its own client. No other room imports huggingface_hub.

HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE and proxy variables therefore work as in other programs.
Every failure becomes a HubError with a message of one line.
"""

from __future__ import annotations

from pathlib import Path

from specrun.display_text import without_secrets


def cache_dir() -> Path:
    """The folder of the Hugging Face cache."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def endpoint() -> str:
    """The hub's address."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def address() -> str:
    """The hub's address as messages show it: without a password."""
    return without_secrets(endpoint())


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE is set."""
    from huggingface_hub import constants

    return bool(constants.is_offline_mode())


def max_http_bytes() -> int:
    """The largest file that the hub sends by plain HTTP, in bytes."""
    from huggingface_hub import constants

    return int(constants.MAX_HTTP_DOWNLOAD_SIZE)
