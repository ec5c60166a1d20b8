"""What both of OpenAI's endpoints that write share: the head of an object, and log-probabilities as JSON."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from specrun import __version__
from specrun.sampling.logprobs import TokenLogprob

TokenBytes = Callable[[int], bytes]
"""Gives the bytes of a token."""


def head(kind: str, model_name: str) -> dict[str, Any]:
    """The fields that all objects of one answer have in common. kind: the beginning of its id."""
    return {
        "id": f"{kind}-{secrets.token_hex(16)}",
        "created": int(time.time()),
        "model": model_name,
        "system_fingerprint": f"specrun-{__version__}",
    }


def chat_logprobs(logprobs: Sequence[TokenLogprob], token_bytes: TokenBytes) -> dict[str, Any]:
    """`logprobs` of a message: for each token its own and those of the likeliest ones. llama-server adds the ids."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        data = token_bytes(token)
        return {"id": token, "token": _text(data), "bytes": list(data), "logprob": logprob}

    content = [
        {**one(written.token, written.logprob), "top_logprobs": [one(*other) for other in written.top]}
        for written in logprobs
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(logprobs: Sequence[TokenLogprob], begin: int, token_bytes: TokenBytes) -> dict[str, Any]:
    """`logprobs` of a text completion, as four lists. begin: characters of the text before the first token."""
    tokens = [_text(token_bytes(written.token)) for written in logprobs]
    offsets = [begin + sum(map(len, tokens[:i])) for i in range(len(tokens))]
    return {
        "tokens": tokens,
        "token_logprobs": [written.logprob for written in logprobs],
        "top_logprobs": [{_text(token_bytes(token)): value for token, value in written.top} for written in logprobs],
        "text_offset": offsets,
    }


def _text(data: bytes) -> str:
    """The text of a token; of a part of a character, U+FFFD."""
    return data.decode("utf-8", errors="replace")
