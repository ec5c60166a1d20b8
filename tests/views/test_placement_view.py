"""The picture of a placement."""

from __future__ import annotations

from dataclasses import replace

from specrun.hardware.machine import Device
from specrun.hardware.placement import Site, place
from specrun.views.answer_report import bar, layers, picture
from tests.hardware.test_placement import DENSE, GB, MOE, request


def test_it_is_plain_letters() -> None:
    text = picture(place(request(DENSE, 8 * GB)))
    lines = text.splitlines()
    assert text.isascii()
    assert len(lines) == 3
    assert lines[0].startswith("CUDA0 ")
    assert " of 8.00 GB" in lines[0]
    assert all(letter in lines[0] for letter in ("dd", "tttt", "k", "c", "target ", "KV cache ", "compute "))
    assert lines[1].startswith("RAM ")
    assert "of 32 layers and the output in VRAM, partly in VRAM" in lines[2]


def test_words() -> None:
    assert layers(place(request(DENSE))) == "target: all 32 layers in RAM"
    assert layers(place(request(DENSE, 40 * GB))).endswith("the output in VRAM; draft in VRAM")
    servers = (Device("RPC0", "10.0.0.2:50052", "GPU", "RPC", 40 * GB, 40 * GB),)
    remote = place(replace(request(DENSE), gpus=servers))
    assert layers(remote) == "target: 32 of 32 layers and the output in VRAM or on 10.0.0.2:50052"
    assert "output in VRAM, experts of 31 layers in RAM" in layers(place(request(MOE, 6 * GB)))


def test_bars_have_one_length() -> None:
    for parts in ({}, {"draft": 1}, {"draft": 1, "target": 5 * GB, "compute": 9 * GB}, {"target": 50 * GB}):
        assert len(bar(Site("CUDA0", "", 8 * GB, parts))) == 32  # type: ignore[arg-type]
    assert bar(Site("CUDA0", "", 8 * GB, {"target": 4 * GB})) == "t" * 16 + "." * 16
    assert bar(Site("CUDA0", "", 0, {})) == "." * 32
