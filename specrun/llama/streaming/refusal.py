"""Why weights are not streamed."""

from __future__ import annotations


class CannotStreamError(Exception):
    """This system, file or model does not allow it; `str(error)` is the reason, as it stands behind "because"."""
