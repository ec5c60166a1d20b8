"""Answers of /v1/responses that later requests may name: the latest ones, in RAM, and gone when the server ends."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Any

MOST_BYTES = 32 * 2**20  # of all that is kept, as JSON

Json = dict[str, Any]


@dataclass(frozen=True)
class Kept:
    """A response, and its conversation: the items of its input, with those before it, and of its output.

    n_bytes: of both as JSON.
    """

    response: Json
    conversation: list[Json]
    n_bytes: int


class KeptResponses:
    """Responses by their ids. Safe to use from several threads. most_bytes: those kept longest go first beyond it."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._n_bytes = 0
        self._kept: dict[str, Kept] = {}
        self._items: dict[str, Json] = {}  # of their outputs, by their ids
        self._in_use = threading.Lock()

    def keep(self, response: Json, conversation: list[Json]) -> None:
        kept = Kept(response, conversation, len(json.dumps([response, conversation])))
        if kept.n_bytes > self._most_bytes:
            return
        with self._in_use:
            self._kept[response["id"]] = kept
            self._items |= {item["id"]: item for item in response["output"]}
            self._n_bytes += kept.n_bytes
            while self._n_bytes > self._most_bytes:
                self._drop(next(iter(self._kept)))

    def find(self, id_: str) -> Kept | None:
        return self._kept.get(id_)

    def item(self, id_: str) -> Json | None:
        """An item that an answer consisted of."""
        return self._items.get(id_)

    def forget(self, id_: str) -> bool:
        """Whether there was such a response."""
        with self._in_use:
            return id_ in self._kept and self._drop(id_)

    def _drop(self, id_: str) -> bool:
        kept = self._kept.pop(id_)
        self._n_bytes -= kept.n_bytes
        for item in kept.response["output"]:
            del self._items[item["id"]]
        return True
