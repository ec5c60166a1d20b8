"""What the references in a schema name, and whether a schema has a text that ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from specrun.constraints.keywords import whole

_MOST_DIGITS = 9  # of an index in a pointer
_MOST_PARTS = 100_000  # schemas in which an $anchor is looked for


def pointed_at(root: Any, pointer: str) -> Any:
    """The part of `root` that a pointer beginning with #, or # and an `$anchor`, names; None if there is none."""
    if pointer != "#" and not pointer.startswith("#/"):
        return _anchored(root, pointer[1:]) if pointer.startswith("#") else None
    value = root
    for part in unquote(pointer).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and key.isdecimal() and len(key) <= _MOST_DIGITS and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, dict) and key in value:
            value = value[key]
        else:
            return None
    return value


def _anchored(root: Any, name: str) -> Any:
    waiting, n_seen = [root], 0
    while waiting and n_seen < _MOST_PARTS:
        value, n_seen = waiting.pop(), n_seen + 1
        if isinstance(value, dict) and name in (value.get("$anchor"), value.get("$dynamicAnchor")):
            return value
        if isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value
    return None


class Ends:
    """Finds out which references name a schema with a text that ends; one that must contain itself has none."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._ending: set[str] = set()
        self._looked_at: set[str] = set()
        self._known: dict[int, bool] = {}  # by the schema's id, of this round

    def ends(self, pointer: str) -> bool:
        """Whether the schema at `pointer` has such a text. Wrong schemas have one: they are refused elsewhere."""
        while pointer not in self._ending:
            n_known, self._looked_at, self._known = len(self._ending), set(), {}
            self._reference(pointer)
            if len(self._ending) == n_known:
                return False
        return True

    def _reference(self, pointer: str) -> bool:
        if pointer not in self._ending and pointer not in self._looked_at:
            self._looked_at.add(pointer)
            if self._schema(pointed_at(self._root, pointer)):
                self._ending.add(pointer)
        return pointer in self._ending

    def _schema(self, schema: Any) -> bool:
        if not isinstance(schema, dict) or "const" in schema or "enum" in schema:
            return True
        if id(schema) not in self._known:
            self._known[id(schema)] = self._of_parts(schema)
        return self._known[id(schema)]

    def _of_parts(self, schema: dict[str, Any]) -> bool:
        if isinstance(schema.get("$ref"), str):
            return self._reference(schema["$ref"])
        for key, enough in (("anyOf", any), ("oneOf", any), ("allOf", all)):
            if isinstance(schema.get(key), list) and not enough([self._schema(part) for part in schema[key]]):
                return False
        kinds = schema.get("type", ["object" if "properties" in schema else "array" if "items" in schema else "null"])
        kinds = kinds if isinstance(kinds, list) else [kinds]
        inner = {"object": _must_have, "array": _must_contain}
        return any(kind not in inner or all(self._schema(s) for s in inner[kind](schema)) for kind in map(str, kinds))


def _must_have(schema: dict[str, Any]) -> Iterable[Any]:
    """The schemas of the values that an object must have."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return []
    others = schema.get("additionalProperties", True)
    return [properties.get(name, others) for name in dict.fromkeys(name for name in required if isinstance(name, str))]


def _must_contain(schema: dict[str, Any]) -> Iterable[Any]:
    """The schemas of the items that an array must contain."""
    least, leading = whole(schema.get("minItems")), schema.get("prefixItems")
    leading = leading if isinstance(leading, list) else []
    if not isinstance(least, int):
        return []
    return leading[:least] + [schema.get("items", True)] * (least > len(leading))
