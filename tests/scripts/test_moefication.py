"""Mixtures that are made from a dense model, what their routers choose, and which caches would hold it."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.llama import LlamaModel
from tests.conftest import Specrun
from tests.models import random_bert, random_llama, random_qwen3_moe

pytestmark = pytest.mark.long

SCRIPTS = Path(__file__).parents[2] / "scripts"
TOKENS = np.array([[(i * 37 + 11) % 2000 for i in range(40)], [(i * 53 + 7) % 2000 for i in range(40)]], np.int32)
OTHERS = {"make_mixture": "make_mixture", "widening": "widening.model"}
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="what routers choose is read on Linux only")


@pytest.fixture(scope="module")
def scripts() -> Iterator[Any]:
    """The scripts' modules, by their names."""
    sys.path.insert(0, str(SCRIPTS))
    names = ("caching", "dense", "experts", "mixture", "texts", "tracing")
    modules = {name: importlib.import_module(f"moefication.{name}") for name in names}
    others = {name: importlib.import_module(path) for name, path in OTHERS.items()}
    yield SimpleNamespace(**modules, **others)
    sys.path.remove(str(SCRIPTS))


def mixture_of(scripts: Any, source: Path, path: Path, n_experts: int, n_used: int) -> Path:
    """The mixture, fitted to an excerpt of each kind of text."""
    shape = ["--experts", n_experts, "--used", n_used, "--excerpts", 1]
    assert scripts.make_mixture.main([str(part) for part in (path, "--from", source, *shape)]) == 0
    return path


@pytest.fixture(scope="module")
def half(scripts: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded target, of whose neurons a token uses half."""
    return mixture_of(scripts, embedded.TARGET, tmp_path_factory.mktemp("mixture") / "half.gguf", 14, 7)


def held_out(scripts: Any) -> Any:
    with LlamaModel(embedded.TARGET) as model:
        return np.concatenate(list(scripts.texts.excerpts(model, 1, is_held_out=True).values()))


@pytest.mark.parametrize("sizes", [["--ff", "128"], ["--embd", "1024", "--heads", "16", "--kv-heads", "4"]])
def test_a_widened_mixture_computes_what_the_narrow_one_does(
    scripts: Any, half: Path, tmp_path: Path, sizes: list[str]
) -> None:
    wide = tmp_path / "wide.gguf"
    assert scripts.widening.main([str(half), str(wide), *sizes, "--no-check"]) == 0
    report = scripts.widening.check.compare(half, wide, 1)
    assert report.failure(0.1) is None
    shape = GgufFile.read(half).n_experts, GgufFile.read(half).n_experts_used
    assert (GgufFile.read(wide).n_experts, GgufFile.read(wide).n_experts_used) == shape


def test_layers_are_not_added_to_a_mixture(scripts: Any, half: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert scripts.widening.main([str(half), str(half.with_name("deep.gguf")), "--layers", "99"]) == 2
    assert "leave out --layers" in capsys.readouterr().err


def test_the_dense_model_in_numpy_is_that_of_llama_cpp(scripts: Any, tmp_path: Path) -> None:
    path = random_llama(tmp_path / "dense.gguf", n_head=4, n_head_kv=2, n_embd=128, n_ff=96)
    dense = scripts.dense.DenseLlama(path)
    states = dense.weights("token_embd")[TOKENS]
    for layer in range(2):
        states += dense.attention(layer, states)
        neurons = dense.neurons(layer, dense.norm(f"blk.{layer}.ffn_norm", states).reshape(-1, 128))
        states += (neurons @ dense.weights(f"blk.{layer}.ffn_down").T).reshape(states.shape)
    logits = dense.norm("output_norm", states) @ dense.weights("output").T
    losses, choices = scripts.tracing.read(path, TOKENS, n_threads=1)
    for text, rows, loss in zip(TOKENS, logits, losses, strict=True):
        assert scripts.tracing._losses(rows[:-1], text[1:]) == pytest.approx(loss, abs=0.05 * float(logits.std()))
    assert not choices


def test_with_all_experts_used_it_computes_what_the_dense_model_does(scripts: Any, tmp_path: Path) -> None:
    dense = random_llama(tmp_path / "dense.gguf")
    path = mixture_of(scripts, dense, tmp_path / "all.gguf", 4, 4)
    report = scripts.widening.check.compare(dense, path, 1)
    assert report.failure(tolerance=0.2) is None, report.lines()


@on_linux
def test_half_of_the_neurons_are_enough_for_text_that_the_dense_model_calls_likely(scripts: Any, half: Path) -> None:
    texts = held_out(scripts)
    dense, _ = scripts.tracing.read(embedded.TARGET, texts, 1)
    mixed, choices = scripts.tracing.read(half, texts, 1)
    assert dense.mean() < mixed.mean() < dense.mean() + 0.25 * (np.log(2048) - dense.mean())
    again, _ = scripts.tracing.read(half, texts, 1)
    assert (again == mixed).all()
    assert choices[0].shape == (8, 512, 7)
    before = np.mean([scripts.tracing.reused(text, 1) for text in choices], axis=0)
    assert (before > 7 / 14).all(), "neighbours share more experts than by chance"


def test_it_writes_text(half: Path, specrun: Specrun) -> None:
    file = GgufFile.read(half)
    assert (file.n_layers, file.n_experts, file.n_experts_used) == (8, 14, 7)
    made = specrun(
        "generate", "-m", half, "--draft", "none", "--raw", "-t", "1", "-n", "16", "--temp", "0", "import os\n"
    )
    assert made.code == 0, made
    assert "import" in made.stdout or "def" in made.stdout, made


@on_linux
def test_routers_choose_the_experts_that_were_fitted(scripts: Any, tmp_path: Path) -> None:
    dense = scripts.dense.DenseLlama(random_llama(tmp_path / "dense.gguf", n_ff=448))
    layer = next(scripts.mixture.fitted(dense, TOKENS, 14, 7))
    path = tmp_path / "first.gguf"
    scripts.mixture.write(path, dense, 7, itertools.repeat(layer, dense.shape.layers))
    states = dense.weights("token_embd")[TOKENS]
    states += dense.attention(0, states)
    scores = dense.norm("blk.0.ffn_norm", states) @ layer.router.T
    _, choices = scripts.tracing.read(path, TOKENS, 1)
    for expected, chosen in zip(np.argsort(-scores, axis=2)[:, :, :7], choices, strict=True):
        same = [len(set(one) & set(other)) for one, other in zip(expected.tolist(), chosen[0].tolist(), strict=True)]
        assert np.mean(same) > 6.8, "but for scores that are about the same"


def test_neurons_that_fire_together_share_an_expert(scripts: Any) -> None:
    rng = np.random.default_rng(1)
    group = rng.permutation(np.repeat(np.arange(4), 32))
    strengths = rng.random((200, 4))[:, group] ** 4 + 0.05 * rng.random((200, 128))
    found = scripts.experts.split(strengths.astype(np.float32), 4)
    assert sorted(found.ravel()) == list(range(128))
    assert np.mean([np.bincount(group[own]).max() for own in found]) > 24


def test_a_matrix_is_fitted_to_the_neurons_that_are_left(scripts: Any) -> None:
    rng = np.random.default_rng(2)
    down, neurons = (rng.standard_normal(shape, np.float32) for shape in ((16, 64), (1000, 64)))
    neurons[:, 32:] += neurons[:, :32]  # so that the first half tells of the other
    even = np.ones(1000, np.float32)
    assert scripts.experts.fit_down(down, neurons, neurons @ down.T, even) == pytest.approx(down, abs=1e-3)
    left = neurons * (np.arange(64) < 32)
    fitted = scripts.experts.fit_down(down, left, neurons @ down.T, even)
    before, after = (np.square(neurons @ down.T - left @ matrix.T).mean() for matrix in (down, fitted))
    assert after < 0.6 * before


def test_what_cannot_be_made_is_said_in_a_line(
    scripts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dense = random_llama(tmp_path / "dense.gguf")
    mixture, bert = random_qwen3_moe(tmp_path / "moe.gguf"), random_bert(tmp_path / "bert.gguf")
    out = tmp_path / "out.gguf"
    for reason, arguments in {
        "give one of [2, 4]": ("--from", dense, "--experts", "3"),
        "--used 5 of 4 experts; give 1 to 4": ("--from", dense, "--experts", "4", "--used", "5"),
        "--ff is not for a mixture made --from a model": ("--from", dense, "--ff", "64"),
        "--excerpts is only for a mixture made --from a model": ("--excerpts", "2"),
        "qwen3moe model": ("--from", mixture),
        "bert model": ("--from", bert),
        "no such file": ("--from", tmp_path / "none.gguf"),
    }.items():
        assert scripts.make_mixture.main([str(part) for part in (out, *arguments)]) == 2
        message = capsys.readouterr().err
        assert reason in message
        assert message.count("\n") == 1
    assert not list(tmp_path.glob("out*"))


def test_reuse_is_counted_by_layer(scripts: Any) -> None:
    choices = np.array([[[0, 1], [1, 2], [0, 1]], [[0, 1], [2, 3], [0, 1]]])
    assert scripts.tracing.reused(choices, 1) == pytest.approx([0.5, 0])
    assert scripts.tracing.reused(choices, 2) == pytest.approx([1, 1])


def brute_force(requests: tuple[int, ...], size: int, held: frozenset[int] = frozenset()) -> int:
    """The most hits that any cache has which keeps what it had to wait for."""
    if not requests:
        return 0
    first, rest = requests[0], requests[1:]
    if first in held:
        return 1 + brute_force(rest, size, held)
    kept = [held] if len(held) < size else [held - {one} for one in held]
    return max(brute_force(rest, size, one | {first}) for one in kept)


def test_the_optimum_is_that_of_all_policies(scripts: Any) -> None:
    caching = scripts.caching
    rng = np.random.default_rng(3)
    for _ in range(30):
        requests = rng.integers(0, 5, 12).tolist()
        best = caching.optimum(requests, 3)
        assert best == brute_force(tuple(requests), 3)
        others = caching.least_recently_used, caching.least_frequently_used
        assert all(policy(requests, 3) <= best for policy in others)
        assert {policy(requests, 5) for policy in (*others, caching.optimum)} == {12 - len(set(requests))}


def test_policies_drop_what_their_names_say(scripts: Any) -> None:
    caching = scripts.caching
    requests = [0, 0, 0, 1, 2, 0]
    assert caching.least_recently_used(requests, 2) == 2
    assert caching.least_frequently_used(requests, 2) == 3
    assert caching.most_used(requests, 1, counted=[2, 2, 0]) == 1
