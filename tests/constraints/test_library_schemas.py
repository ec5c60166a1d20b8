"""Schemas that pydantic and Zod make: what the grammar allows is valid for jsonschema, and what is valid is allowed."""

from __future__ import annotations

import json
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import UUID4, BaseModel, ConfigDict, Field, HttpUrl, PositiveInt, TypeAdapter

from specrun.llama import LlamaModel
from tests.constraints.walks import check_texts, lets_through

ZOD = json.loads((Path(__file__).parent / "zod.json").read_text())  # made by tests/constraints/zod.mjs


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(BaseModel):
    kind: Literal["dog"]
    name: Annotated[str, Field(max_length=4)]


class Tree(BaseModel):
    """A node."""

    value: PositiveInt
    below: list[Tree] = []


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    color: Color = Field(Color.RED, description="of its hair")
    free: Any = Field(None, description="whatever")


# A type, and values of it, which the grammar must allow as pydantic writes them.
PYDANTIC: list[tuple[Any, list[Any]]] = [
    (Annotated[float, Field(ge=0, le=1)], [0.0, 0.5, 1.0, 0.123456789]),
    (Annotated[float, Field(gt=0)], [0.25, 12345.5]),
    (Annotated[float, Field(multiple_of=0.01, lt=10)], [0.07, 9.99, -3.0]),
    (Annotated[int, Field(multiple_of=5, ge=0, le=100)], [0, 5, 100]),
    (Annotated[str, Field(pattern=r"^[A-Z]{3}-\d+$")], ["ABC-1", "XYZ-2024"]),
    (Annotated[str, Field(pattern="^a", max_length=5, min_length=2)], ["ab", "a\n\u00e9x"]),
    (set[Literal["a", "b", "c"]], [set(), {"a"}, {"c", "a", "b"}]),
    (set[bool], [{True}, {False, True}]),
    (Annotated[set[Color], Field(min_length=1, max_length=1)], [{Color.RED}]),
    (frozenset[Literal[1, 2, 3, 4, 5, 6, 7, 8]], [frozenset({1, 3, 8})]),
    (HttpUrl, [HttpUrl("https://example.org/a%20b?c=d&e=f#g"), HttpUrl("http://127.0.0.1:8080/")]),
    (date, [date(2024, 2, 29), date(1999, 12, 31)]),
    (time, [time(23, 59, 59, tzinfo=timezone.utc)]),
    (datetime, [datetime(2024, 2, 29, 1, 2, 3, 456000, tzinfo=timezone.utc)]),
    (timedelta, [timedelta(days=3, hours=2, seconds=1)]),
    (UUID, [UUID(int=7)]),
    (UUID4, [UUID("6f0b2b0e-4d5f-4a3f-9a52-0d8c9a4e7f01")]),
    (IPv4Address, [IPv4Address("192.168.0.255")]),
    (IPv6Address, [IPv6Address("::1"), IPv6Address("2001:db8::8a2e:370:7334")]),
    (Annotated[Cat | Dog, Field(discriminator="kind")], [Cat(lives=9), Dog(kind="dog", name="Rex")]),
    (Any, [1, None, {"a": ["b"]}]),
    (dict[str, int], [{}, {"a": 1, "b": -2}]),
    (dict[Color, Annotated[float, Field(ge=0)]], [{}, {Color.RED: 1.5, Color.BLUE: 0.0}]),
    (dict[Annotated[str, Field(pattern="^x_")], bool], [{}, {"x_": True}]),
    (Annotated[dict[str, None], Field(min_length=1)], [{"a": None}]),
    (tuple[int, str], [(1, "a")]),
    (tuple[bool, ...], [(), (True, False)]),
    (Annotated[str, Field(max_length=3000)], ["a" * 2999]),
    (Tree, [Tree(value=1, below=[Tree(value=2)])]),
    (Closed, [Closed(), Closed(color=Color.BLUE, free=[1])]),
    (list[int] | None, [None, [1, 2]]),
]


@pytest.mark.slow
# The processes that share the tests must name them alike, and sets have no order.
@pytest.mark.parametrize(("kind", "values"), PYDANTIC, ids=[f"{i} {kind}"[:48] for i, (kind, _) in enumerate(PYDANTIC)])
def test_pydantic(model: LlamaModel, kind: Any, values: list[Any]) -> None:
    adapter = TypeAdapter(kind)
    schema = adapter.json_schema()
    for value in values:
        written = json.loads(adapter.dump_json(value))
        # Sets have no order; the grammar of more than six values has that of the schema.
        text = json.dumps(sorted(written) if isinstance(value, frozenset) else written, ensure_ascii=False)
        assert lets_through(model, schema, text), text
    for text in check_texts(model, schema, 8):
        adapter.validate_json(text)


ZOD_VALUES: dict[str, list[Any]] = {
    "numbers": [{"between": 9.75, "positive": 0.5, "int": -3, "multiple": 0.25, "below": -1, "float32": 1.5}],
    "formats": [
        {
            "email": "a.b@example.org",
            "uuid": "6f0b2b0e-4d5f-4a3f-9a52-0d8c9a4e7f01",
            "url": "https://example.org",
            "datetime": "2024-02-29T23:59:00Z",
            "date": "2024-02-29",
            "time": "23:59",
            "duration": "P1DT2H",
            "ipv4": "10.0.0.1",
            "ipv6": "::1",
            "base64": "YQ==",
        }
    ],
    "strings": [{"regex": "AB1234", "starts": "abc", "ends": "xyz", "includes": "amb", "length": "abc", "two": "a z"}],
    "record": [{}, {"a": 1.5}],
    "record of an enum": [{"a": 1, "b": 2}],
    "partial record": [{}, {"b": 2}],
    "tuple": [["a", 1]],
    "tuple with rest": [["a"], ["a", True, False]],
    "union": [{"t": "a", "x": 1}, {"t": "b", "y": "z"}],
    "nullable": [{"a": None, "c": "x"}, {"a": "b", "b": "c", "c": "d", "d": 1}],
    "literals": ["a", 1, True, None],
    "any": [{"a": 1, "u": None}],
    "never": [{}],
    "intersection": [{"a": "b", "b": 1}],
    "template": ["a-1.5"],
    "recursive": [{"name": "a", "children": [{"name": "b", "children": []}]}],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOD_VALUES)
def test_zod(model: LlamaModel, name: str) -> None:
    for value in ZOD_VALUES[name]:
        assert lets_through(model, ZOD[name], json.dumps(value)), value
    check_texts(model, ZOD[name], 8)


def test_all_schemas_of_zod_are_tried() -> None:
    assert ZOD.keys() == ZOD_VALUES.keys()
