"""The machine as a value, and fingerprints."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from specrun.hardware.cpu import Cpu
from specrun.hardware.machine import Device, Machine, gpu_driver, nvidia_card, offload_devices, surroundings
from specrun.hardware.memory import Memory
from specrun.hardware.storage import Storage
from specrun.kept_facts import fingerprint
from specrun.llama import devices

GiB = 2**30
GPU = Device("CUDA0", "NVIDIA GeForce RTX 4070", "GPU", "CUDA", 10 * GiB, 12 * GiB, "0000:01:00.0")
CPU = Device("CPU", "AMD Ryzen 7", "CPU", "CPU", 20 * GiB, 32 * GiB)
LLAMA = {"llama.cpp": "0.5.0", "llama-cpp-python": "0.3.36", "libraries": "abc"}
MACHINE = Machine(
    system="Linux",
    architecture="x86_64",
    release="6.8.0",
    cpu=Cpu("AMD Ryzen 7", 8, 16, 8, ("AVX2",)),
    memory=Memory(32 * GiB, 20 * GiB),
    devices=(GPU, CPU),
    llama=LLAMA,
    driver="nvidia 550.54.14",
    storage=Storage("/dev/nvme0n1p2", "ext4", 3e9),
)


def test_this_machine(random_model: Path) -> None:
    machine = devices.this_machine(None, random_model)
    assert any(device.kind == "CPU" for device in machine.devices)
    assert all(0 <= device.free_bytes <= device.total_bytes for device in machine.devices)
    assert machine.storage
    assert machine.storage.bytes_per_second is None  # the file is too small to tell
    assert json.loads(json.dumps(asdict(machine)))["cpu"]["n_usable"] == machine.cpu.n_usable


def test_drivers(tmp_path: Path) -> None:
    assert gpu_driver(tmp_path) is None
    version = tmp_path / "sys/module/amdgpu/version"
    version.parent.mkdir(parents=True)
    version.write_text("6.7.0\n")
    assert gpu_driver(tmp_path) == "amdgpu 6.7.0"
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19\nGCC version: 12\n")
    assert gpu_driver(tmp_path) == "nvidia 535.129.03"
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build\n")
    assert gpu_driver(tmp_path) == "nvidia 550.54.14"


def test_devices_as_llama_cpp_chooses_them() -> None:
    again = replace(GPU, name="Vulkan0", backend="Vulkan")
    second = replace(GPU, name="CUDA1", id="0000:02:00.0")
    server = replace(GPU, name="RPC0", backend="RPC", id=None)
    integrated = replace(GPU, name="Vulkan1", backend="Vulkan", kind="IGPU", id=None)
    assert offload_devices([GPU, second, again, integrated, server, CPU]) == (server, GPU, second)
    assert offload_devices([integrated, replace(integrated, backend="CUDA"), server]) == (server, integrated)
    unknown = replace(GPU, id=None)
    assert offload_devices([unknown, unknown]) == (unknown, unknown)
    assert offload_devices([CPU]) == ()
    assert MACHINE.gpus == (GPU,)


def test_what_measurements_depend_on() -> None:
    first = surroundings(MACHINE)
    assert json.loads(json.dumps(first)) == first, "what is saved equals what is"
    minutes_later = replace(
        MACHINE,
        release="6.8.1",
        memory=Memory(32 * GiB + 2**20, GiB),
        devices=(replace(GPU, free_bytes=GiB), replace(CPU, free_bytes=GiB)),
        storage=Storage("/dev/nvme0n1p2", "ext4", 2.9e9),
    )
    assert surroundings(minutes_later) == first
    machines = [
        replace(MACHINE, memory=Memory(16 * GiB, GiB)),
        replace(MACHINE, driver=None),
        replace(MACHINE, devices=(replace(GPU, total_bytes=8 * GiB), CPU)),
        replace(MACHINE, cpu=replace(MACHINE.cpu, n_usable=4)),
        replace(MACHINE, cpu=replace(MACHINE.cpu, quota=1.5)),
        replace(MACHINE, storage=None),
        *(replace(MACHINE, llama=LLAMA | {part: "another"}) for part in LLAMA),
    ]
    assert len({fingerprint(surroundings(machine)) for machine in (MACHINE, *machines)}) == 1 + len(machines)


def test_a_card_of_nvidias_is_found_with_and_without_its_driver(tmp_path: Path) -> None:
    def card(name: str, vendor: str, kind: str) -> None:
        folder = tmp_path / "sys/bus/pci/devices" / name
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")

    assert not nvidia_card(tmp_path)
    card("0000:00:02.0", "0x8086", "0x030000")
    card("0000:01:00.1", "0x10de", "0x040300")  # the card's sound
    (tmp_path / "sys/bus/pci/devices/0000:09:00.0").mkdir()
    assert not nvidia_card(tmp_path)
    card("0000:01:00.0", "0x10de", "0x030200")
    assert nvidia_card(tmp_path)
