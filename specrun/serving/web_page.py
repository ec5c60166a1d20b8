"""The page at /: its files, and what a browser may let it do."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import PurePosixPath

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# It may load its own files and ask this server, and nothing else. No text may become a script or an element.
_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


async def page(request: Request) -> Response:
    """A page to chat in a browser, or a file of it. Raises HTTPException if there is none of this name."""
    name = PurePosixPath(request.path_params.get("name", "index.html"))
    content = _files().get(name)
    if content is None:
        raise HTTPException(404)
    return Response(content, headers=_HEADERS, media_type=_TYPES[name.suffix])


@cache
def _files() -> dict[PurePosixPath, bytes]:
    """What the page consists of: its own files, and the libraries in `vendor`."""
    top = resources.files("specrun.serving") / "web"
    return {
        PurePosixPath(prefix, file.name): file.read_bytes()
        for prefix in ("", "vendor")
        for file in (top / prefix).iterdir()
        if PurePosixPath(file.name).suffix in _TYPES
    }
