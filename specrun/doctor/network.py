"""Whether the hub answers."""

from __future__ import annotations

import threading

from specrun.catalog.hub.client import ask_whether_there
from specrun.catalog.hub.settings import address, is_offline
from specrun.doctor.finding import Finding
from specrun.errors import HubError

_SECONDS = 2.0


class HubCheck:
    """Asks the hub from the moment that it is made, while other checks run."""

    def __init__(self) -> None:
        self._failure: str | None = f"no answer from {address()} within {_SECONDS:g} seconds"
        # A system's resolver may take longer than any limit that we set, and must not keep the command from ending.
        self._thread = threading.Thread(target=self._ask, daemon=True)
        if not is_offline():
            self._thread.start()

    def _ask(self) -> None:
        try:
            ask_whether_there(_SECONDS)
            self._failure = None
        except HubError as error:
            self._failure = str(error)

    def finding(self) -> Finding:
        """What it found. Waits for an answer, if that has not come yet."""
        if is_offline():
            return Finding("hub", "ok", "not asked, because HF_HUB_OFFLINE is set; models that are here can be used")
        self._thread.join(_SECONDS)
        if self._failure is None:
            return Finding("hub", "ok", f"{address()} answers")
        fix = f"check the network, the proxy and HF_ENDPOINT: `curl -I {address()}`"
        return Finding("hub", "warn", f"{self._failure}; only models that are here can be used", fix)
