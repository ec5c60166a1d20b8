"""The processor, from the texts that describe it."""

from __future__ import annotations

from specrun.hardware.cpu import Cpu, cpu_features, cpuinfo_name
from specrun.llama.devices import system_info


def test_features_are_those_of_the_cpu_backend() -> None:
    text = "CUDA : ARCHS = 890 | USE_GRAPHS = 1 | CPU : SSE3 = 1 | AVX512 = 0 | SVE_CNT = 16 | REPACK = 1 | "
    assert cpu_features(text) == ("SSE3", "SVE_CNT=16", "REPACK")
    assert cpu_features("") == ()


def test_names() -> None:
    assert cpuinfo_name("processor\t: 0\nmodel name\t: AMD  EPYC 9B45\n\nmodel name: other\n") == "AMD EPYC 9B45"
    assert cpuinfo_name("processor\t: 0\nBogoMIPS\t: 108.00\n\nModel\t\t: Raspberry Pi 5\n") == "Raspberry Pi 5"
    assert cpuinfo_name("processor : 0\n") == ""


def test_this_machine() -> None:
    cpu = Cpu.read(system_info())
    assert cpu.name
    assert 1 <= cpu.n_usable <= cpu.n_physical <= cpu.n_logical
    assert cpu.features
