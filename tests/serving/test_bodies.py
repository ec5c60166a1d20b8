"""Models of fields: null is absence, nothing is converted, and an error names the field and what it must be.

Requests are read in threads, and those with schemas take few of them.
"""

from __future__ import annotations

import json
import threading
from dataclasses import fields
from typing import Annotated, Any, get_type_hints

import anyio
import pytest
from pydantic import Field

from specrun.decoding.generation import Request
from specrun.sampling import SamplingParameters
from specrun.serving.answers import in_thread
from specrun.serving.refusals import ApiError
from specrun.serving.request_fields import Defaults, Fields, Integer, must, parsed, read_request
from specrun.serving.service import Service


class Inner(Fields):
    name: str
    own: Annotated[int, must("be a small number")] = 0


class Outer(Fields):
    number: Annotated[float, Field(ge=0, le=10)] = 1.0
    count: Annotated[Integer, Field(ge=1)] = 1
    flag: bool = False
    text: str = ""
    inner: Inner | None = None
    several: Annotated[list[Annotated[Inner, must("have a name")]], Field(max_length=2, fail_fast=True)] = Field([])


@pytest.mark.parametrize(
    ("body", "param", "part"),
    [
        ({"number": True}, "number", "valid number"),
        ({"number": "1"}, "number", "valid number"),
        ({"number": float("nan")}, "number", "finite"),
        ({"number": float("inf")}, "number", ""),
        ({"number": 10**400}, "number", ""),
        ({"number": 11}, "number", "less than or equal to 10"),
        ({"count": 1.5}, "count", "valid integer"),
        ({"count": True}, "count", "valid integer"),
        ({"count": "1"}, "count", "valid integer"),
        ({"flag": 1}, "flag", "true or false"),
        ({"text": 1}, "text", "valid string"),
        ({"inner": 5}, "inner", "an object"),
        ({"inner": {}}, "inner.name", "missing"),
        ({"several": {}}, "several", "a list"),
        ({"several": [{"name": "a"}, {}]}, "several[1]", "must have a name"),
        ({"several": [{"name": "a", "own": "x"}]}, "several[0].own", "must be a small number"),
        ({"several": [{"name": "a"}] * 3}, "several", "at most 2 items"),
    ],
)
def test_a_wrong_field_is_named(body: dict[str, Any], param: str, part: str) -> None:
    with pytest.raises(ApiError) as raised:
        parsed(Outer, body)
    assert raised.value.param == param
    assert raised.value.message.startswith(f"{param} ")
    assert part in raised.value.message
    with pytest.raises(ApiError) as raised:
        parsed(Outer, body, "at[0]")
    assert raised.value.param == f"at[0].{param}"


def test_null_is_absence_and_unknown_fields_are_ignored() -> None:
    assert parsed(Outer, dict.fromkeys(Outer.model_fields) | {"other": 1}) == Outer()
    assert parsed(Outer, {"number": 3, "count": 2.0, "text": "\ud83d"}) == Outer(number=3.0, count=2, text="\ud83d")


DEFAULTS = Defaults(Request(sampling=SamplingParameters(seed=5), max_tokens=7), seed=5)
NUMBERS = [name for name, kind in get_type_hints(SamplingParameters).items() if kind in (int, float)]


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_of_the_sampling_parameters_is_a_field(name: str) -> None:
    assert getattr(read_request({name: 1}, DEFAULTS, 100).sampling, name) == 1
    assert read_request({name: None}, DEFAULTS, 100) == DEFAULTS.request
    for wrong in ("1", True, float("nan"), float("inf"), 1e300, -2 if name != "presence_penalty" else -200):
        if name == "frequency_penalty" and wrong == -2:
            continue
        with pytest.raises(ApiError) as raised:
            read_request({name: wrong}, DEFAULTS, 100)
        assert raised.value.param == name


def test_llama_cpps_values_for_no_filter() -> None:
    sampling = read_request({"top_k": -1, "repeat_last_n": -1, "top_p": 0}, DEFAULTS, 100).sampling
    assert (sampling.top_k, sampling.repeat_last_n) == (0, 2**31 - 1)
    assert 0 < sampling.top_p < 1e-6


def test_settings_have_the_names_of_fields() -> None:
    settings = DEFAULTS.settings()
    assert settings["seed"] == 5
    assert set(settings) == {field.name for field in fields(SamplingParameters)} | {"max_tokens", "stop"}
    assert read_request(json.loads(json.dumps(settings)), DEFAULTS, 100).sampling == DEFAULTS.request.sampling


@pytest.mark.parametrize("field", ["tools", "response_format", "json_schema", "format", "text", "output_config"])
def test_schemas_do_not_take_the_threads_of_others(field: str) -> None:
    reading, may_end, most = threading.Semaphore(0), threading.Event(), 0

    def read(_: Service, body: dict[str, Any]) -> None:
        if body:
            reading.release()
            may_end.wait()

    async def ask() -> None:
        nonlocal most
        service = Service(None, None)  # type: ignore[arg-type]
        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(in_thread, service, read, {field: {"a": 1}})
            for _ in range(2):
                await anyio.to_thread.run_sync(reading.acquire)
            await in_thread(service, read, {})  # would wait for ever
            most = int(service.converting.borrowed_tokens)
            may_end.set()

    anyio.run(ask)
    assert most == 2
