"""Layers on llama.cpp's RPC servers: two of them on this machine, each with its CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pexpect
import pytest

from specrun.catalog import embedded
from specrun.errors import OutOfMemoryError
from specrun.llama import library
from specrun.llama_settings import ALL_LAYERS, LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions, identity_of
from specrun.sampling import SamplingParameters
from specrun.speculation.method import OFF
from tests.conftest import Specrun
from tests.engines import first_difference
from tests.gpu.pairs import TREE, assert_exact, pair, single, texts
from tests.rpc_server import serving

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

MB = 10**6


@pytest.fixture(autouse=True)
def gpu() -> None:
    """These tests need no GPU, but the RPC backend."""
    if "RPC" not in library.backends():
        pytest.skip("this llama.cpp was built without its RPC backend (CMAKE_ARGS=-DGGML_RPC=on)")


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[str, ...]]:
    """Two servers that run as long as the tests of this file."""
    with serving() as one, serving() as other:
        yield one.address, other.address


def only_servers(servers: tuple[str, ...]) -> LlamaSettings:
    """All layers on the servers, half on each, whatever other GPUs there are."""
    return LlamaSettings(rpc=servers, gpu_layers=ALL_LAYERS, tensor_split=(1, 1))


def test_both_hold_layers_and_the_text_is_the_targets_own(servers: tuple[str, ...]) -> None:
    with pair(only_servers(servers), draft_layers=0) as model:
        assert model.placement
        sites = [site for site in model.placement.gpus if site.parts.get("target")]
        assert [site.description for site in sites] == list(servers)
        model.engine.target.padding = single(16)
        assert_exact(model.engine)


def test_a_model_without_servers_is_loaded_beside_one_that_has_some(servers: tuple[str, ...]) -> None:
    local = LlamaSettings(gpu_layers=0)
    with pair(local, draft_layers=0) as before:
        expected = texts(before.engine, SamplingParameters(temperature=0.0), TREE)
    with pair(only_servers(servers), draft_layers=0), pair(local, draft_layers=0) as beside:
        written = texts(beside.engine, SamplingParameters(temperature=0.0), TREE)
        remote = [site for site in beside.placement.gpus if site.name.startswith("RPC")] if beside.placement else []
    assert first_difference(written, expected) is None
    assert remote == []


def test_a_profile_is_of_these_servers(servers: tuple[str, ...]) -> None:
    def identity(rpc: tuple[str, ...] | None) -> tuple[list[str], object]:
        options = RunOptions(embedded.TARGET, embedded.DRAFT, (TREE,), settings=LlamaSettings(rpc=rpc))
        parts = identity_of(options)
        return [device["description"] for device in parts["devices"]], parts["settings"]

    without, with_both, with_one = identity(None), identity(servers), identity(servers[:1])
    assert not set(servers) & set(without[0])
    assert set(servers) <= set(with_both[0])
    assert set(servers) & set(with_one[0]) == set(servers[:1])
    assert without[1] != with_both[1] != with_one[1]


def test_the_commands(servers: tuple[str, ...], specrun: Specrun) -> None:
    rpc = ("--rpc", ",".join(servers), "-ngl", "all", "-ts", "1,1")
    ask = ("generate", "--raw", "--temp", "0", "-n", "16", "--no-learn", "def read(path):")
    alone = specrun(*ask, "--speculate", "off")
    remote = specrun(*ask, "--speculate", "tree", "--budget", "8", *rpc)
    assert (remote.code, remote.stdout, remote.stderr) == (0, alone.stdout, ""), remote
    talked = specrun("chat", "-m", "embedded", *rpc, "-n", "4", stdin="hello\n")
    assert talked.code == 0
    assert talked.stdout


def test_a_server_that_goes_away_ends_in_one_line_with_the_text_so_far(endless: Path, specrun: Specrun) -> None:
    with serving() as stays, serving() as goes:
        rpc = ("--rpc", f"{stays.address},{goes.address}", "-ngl", "all", "-ts", "1,1")
        model = ("--target", endless, "--speculate", "off", "--raw", "-n", "9000")
        process = specrun.start("generate", *model, *rpc, "la")
        assert process.stdout
        begun = b""
        while len(begun) < 12:
            begun += process.stdout.read(1)
        goes.kill()
        rest, stderr = process.communicate()
    assert process.returncode == 6
    assert (begun + rest).startswith(b"la lo la lo")
    assert (begun + rest).endswith(b"\n")
    assert stderr.decode().splitlines() == [
        f"specrun: the connection to the RPC server {goes.address} broke; start it again there, and then the same "
        "command here"
    ]


def test_a_chat_keeps_the_answer_so_far_when_a_server_goes_away(
    endless: Path, tmp_path: Path, specrun: Specrun
) -> None:
    with serving() as server:
        rpc = ("--rpc", server.address, "-ngl", "all", "-sm", "none", "-mg", "0")
        terminal = specrun.on_terminal("chat", "--plain", "--target", endless, "--draft", "none", "-n", "9000", *rpc)
        terminal.expect("/help")
        terminal.sendline("hello")
        terminal.expect("la lo la lo")
        server.kill()
        terminal.expect("broke; start it again")
        terminal.expect(pexpect.EOF)
    kept = "".join(path.read_text() for path in (tmp_path / "data").rglob("*.json*"))
    assert "hello" in kept
    assert "la lo la lo" in kept


@pytest.mark.parametrize("ctx_size", [512, 200_000], ids=["weights", "context"])
def test_too_little_memory_on_a_server_steps_down_and_says_so(ctx_size: int) -> None:
    """The server reports all of this machine's memory, and can take 2 MB, or enough for the weights alone."""
    with serving(2 * MB if ctx_size == 512 else 100 * MB) as server:
        rpc = LlamaSettings(rpc=(server.address,), threads=1)
        options = RunOptions(embedded.TARGET, None, (OFF.plan(),), ctx_size=ctx_size, settings=rpc)
        with Model(replace(options, settings=replace(rpc, main_gpu=0, split_mode="none"))) as model:
            assert model.placement
            assert model.placement.n_gpu_layers == 0
            assert [notice for notice in model.notices if "VRAM was too small" in notice]
            model.engine.target.set_prompt([1, 2, 3])
        decided = replace(rpc, gpu_layers=ALL_LAYERS, split_mode="none", main_gpu=0)
        with pytest.raises(OutOfMemoryError):
            Model(replace(options, settings=decided))
