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
    """A response with its conversation: the items of its input, with those before it, and of its output.

    Both are kept as JSON, whose size is what they take; as objects they would take many times as much.
    item_ids: of the response's output.
    """

    json: bytes
    item_ids: tuple[str, ...]

    def read(self) -> tuple[Json, list[Json]]:
        """The response and the conversation."""
        response, conversation = json.loads(self.json)
        return response, conversation


class KeptResponses:
    """Responses by their ids. Safe to use from several threads. most_bytes: those kept longest go first beyond it."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._n_bytes = 0
        self._kept: dict[str, Kept] = {}
        self._by_item: dict[str, Kept] = {}  # the same, by the ids of the items of their outputs
        self._in_use = threading.Lock()

    def keep(self, response: Json, conversation: list[Json]) -> None:
        ids = tuple(item["id"] for item in response["output"])
        kept = Kept(json.dumps([response, conversation]).encode(), ids)
        if len(kept.json) > self._most_bytes:
            return
        with self._in_use:
            self._kept[response["id"]] = kept
            self._by_item |= dict.fromkeys(ids, kept)
            self._n_bytes += len(kept.json)
            while self._n_bytes > self._most_bytes:
                self._drop(next(iter(self._kept)))

    def find(self, id_: str) -> Kept | None:
        return self._kept.get(id_)

    def item(self, id_: str) -> Json | None:
        """An item that an answer consisted of."""
        kept = self._by_item.get(id_)
        return next(item for item in kept.read()[0]["output"] if item["id"] == id_) if kept else None

    def forget(self, id_: str) -> None:
        with self._in_use:
            if id_ in self._kept:
                self._drop(id_)

    def _drop(self, id_: str) -> None:
        kept = self._kept.pop(id_)
        self._n_bytes -= len(kept.json)
        for item_id in kept.item_ids:
            del self._by_item[item_id]
