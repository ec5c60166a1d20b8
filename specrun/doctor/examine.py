"""All checks, in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import psutil

import specrun
from specrun.doctor import Finding, folders, installation, loading_fix, machine, probe
from specrun.errors import LlamaError
from specrun.hardware.cpu import allowed_cores, cpu_features, read_flags, read_quota, usable_cores
from specrun.hardware.machine import Machine, gpu_driver, nvidia_card, offload_devices, surroundings
from specrun.hardware.memory import Memory
from specrun.hardware.storage import Storage


def examine(show: Callable[[str], None], debug: bool = False) -> Iterator[Finding]:
    """Yield the findings of this machine. Nothing is downloaded, and only what llama.cpp was checked for is kept.

    show: shows what is being looked at. debug: show what llama.cpp prints.
    """
    show("watching what else runs")
    load = machine.watched()  # before anything of our own runs
    show("asking llama.cpp what it was compiled with")
    try:
        build = probe.read_build(debug)
    except LlamaError as error:
        yield Finding("llama.cpp", "fail", f"it cannot be loaded: {error}", loading_fix(str(error)))
    else:
        yield from _of_build(build, show, debug)
    ram = Memory.read()
    yield machine.free(ram, psutil.virtual_memory().total)
    yield machine.lockable(machine.lock_limit(), ram.available_bytes)
    yield machine.cpu_quota(read_quota(), len(allowed_cores()))
    yield machine.other_load(load, usable_cores())
    yield from map(folders.writing, folders.folders())
    show("reading from the disk")
    model = folders.largest_model()
    yield folders.disk_rate(Storage.read(model) if model else None)
    show("waiting for the hub")
    yield machine.hub()


def _of_build(build: probe.Build, show: Callable[[str], None], debug: bool) -> Iterator[Finding]:
    yield installation.versions(specrun.__version__, build)
    n_gpus = len(offload_devices(build.devices))
    yield installation.backends(build.backends, n_gpus, gpu_driver(), nvidia_card())
    yield installation.instructions(cpu_features(build.system_info), read_flags(), build.backends)
    show("running a layer on each device")
    yield from installation.devices(build.devices, partial(probe.run_layer, debug=debug), build.backends)
    show("checking what specrun relies on in llama.cpp")
    yield from probe.check_facts(build.backends, debug)
    here = Machine.read(build.devices, build.system_info, build.identity)
    yield from folders.facts_kept(surroundings(here))
    yield folders.kept_prompts()
