"""The fields of a request's JSON, read with their types and bounds. A field that is null is as absent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn, TypeGuard

from specrun.serving.api_error import ApiError


class Fields:
    """An object of a request. Whatever is not asked for is ignored.

    values: the object. path: its own name and a dot, for messages.

    Every method raises ApiError, which names the field, for a value of another type or out of bounds.
    """

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self._values = values
        self._path = path

    @property
    def values(self) -> Mapping[str, Any]:
        """All of them, as they are in the JSON."""
        return self._values

    def raw(self, name: str) -> Any:
        """The value as it is in the JSON; None if it is absent."""
        return self._values.get(name)

    def number(self, name: str, low: float, high: float = math.inf) -> float | None:
        """A number from `low` to `high`; None if it is absent."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(name, "must be a number")
        if not low <= value <= high or not math.isfinite(value):
            self.refuse(name, f"must be {_range(low, high)}; it is {value:.6g}")
        return float(value)

    def integer(self, name: str, low: int, high: int) -> int | None:
        """An integer from `low` to `high`; None if it is absent."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # JSON has one kind of numbers, and some clients write 1.0
        if not is_integer(value):
            self.refuse(name, "must be an integer")
        if not low <= value <= high:
            self.refuse(name, f"must be {_range(low, high)}; it is {value}")
        return value

    def flag(self, name: str) -> bool | None:
        """true or false; None if it is absent."""
        value = self.raw(name)
        if value is not None and not isinstance(value, bool):
            self.refuse(name, "must be true or false")
        return value

    def text(self, name: str) -> str | None:
        """A string; None if it is absent."""
        value = self.raw(name)
        if value is not None and not isinstance(value, str):
            self.refuse(name, "must be a string")
        return value

    def inner(self, name: str) -> Fields:
        """The fields of an object; of an empty one if it is absent."""
        value = self.raw(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            self.refuse(name, "must be an object")
        return self.inner_of(name, value)

    def inner_of(self, name: str, value: Mapping[str, Any]) -> Fields:
        """The fields of an object that is found under this name."""
        return Fields(value, f"{self._path}{name}.")

    def items(self, name: str, most: int) -> list[Any]:
        """A list of at most `most` values; an empty one if it is absent."""
        value = self.raw(name)
        if value is None:
            return []
        if not isinstance(value, list):
            self.refuse(name, "must be a list")
        if len(value) > most:
            self.refuse(name, f"must have at most {most} elements; it has {len(value)}")
        return list(value)

    def refuse(self, name: str, why: str) -> NoReturn:
        """Raise the error that says what is wrong with a field."""
        field = f"{self._path}{name}"
        raise ApiError(f"{field} {why}", param=field)


def is_integer(value: Any) -> TypeGuard[int]:
    """Whether a value of JSON is an integer. To Python, `true` and `false` are integers too."""
    return isinstance(value, int) and not isinstance(value, bool)


def _range(low: float, high: float) -> str:
    return f"{low:g} or more" if high == math.inf else f"between {low:g} and {high:g}"
