"""Reading what a request brings, within bounds of size, depth and time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import ClientDisconnect, Request

from specrun.serving.api_error import TIMED_OUT, TOO_LARGE, ApiError

MOST_BYTES = 16 * 2**20  # conversations of a million tokens are a fraction of it
MOST_SECONDS = 60.0


async def read_json(request: Request) -> dict[str, Any]:
    """The JSON object that a request brings. Raises ApiError for anything else, too large or too slow bodies."""
    try:
        data = await asyncio.wait_for(_read(request), MOST_SECONDS)
    except asyncio.TimeoutError:
        raise ApiError(f"the body was not complete after {MOST_SECONDS:.0f} s", TIMED_OUT) from None
    except ClientDisconnect:
        raise ApiError("the body is not complete") from None
    try:
        value = json.loads(data)
    except UnicodeDecodeError:
        raise ApiError("the body is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ApiError(f"the body is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise ApiError("the body is nested too deeply") from None
    except ValueError:  # Python refuses integers with thousands of digits
        raise ApiError("the body has a number that is too long") from None
    if not isinstance(value, dict):
        raise ApiError("the body must be a JSON object")
    return value


async def _read(request: Request) -> bytes:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MOST_BYTES:
            # The rest of the body is not read, so nothing else can follow on this connection.
            raise ApiError(
                f"the body is larger than {MOST_BYTES >> 20} MiB", TOO_LARGE, headers={"Connection": "close"}
            )
    return bytes(data)
