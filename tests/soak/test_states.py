"""The short form of the state machines: the same steps in every run. `scripts/soak` takes others, as long as asked."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest

from specrun.catalog import embedded
from specrun.llama import LlamaModel
from tests.models import random_llama
from tests.soak.draft_states import ROUNDING, DraftStates, DraftSubject
from tests.soak.engine_states import EngineStates, Pair
from tests.soak.running import run
from tests.soak.target_states import StreamedStates, Subject, TargetStates


@pytest.fixture(scope="module")
def random(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    with LlamaModel(random_llama(tmp_path_factory.mktemp("soak") / "random.gguf")) as model:
        yield model


@pytest.mark.long
def test_the_target_holds_what_a_fresh_context_holds(random: LlamaModel) -> None:
    class Machine(TargetStates):
        subject, counts = Subject(random), Counter[str]()

    run(Machine, 12, 25)
    assert Machine.counts["trees"] > 30
    assert Machine.counts["failed passes"] > 10


@pytest.mark.long
def test_the_embedded_target_holds_what_a_fresh_context_holds() -> None:
    with LlamaModel(embedded.TARGET) as model:

        class Machine(TargetStates):
            subject, counts = Subject(model, longest=60), Counter[str]()

        run(Machine, 4, 15)


@pytest.mark.long
def test_a_streamed_target_holds_what_a_fresh_context_holds(tmp_path: Path) -> None:
    streamed = random_llama(tmp_path / "streamed.gguf", n_layer=6)
    with LlamaModel(Path(shutil.copy(streamed, tmp_path / "mapped.gguf"))) as model:

        class Machine(StreamedStates):
            path, subject, counts = streamed, Subject(model, longest=150), Counter[str]()

        run(Machine, 6, 20)


@pytest.mark.long
def test_the_drafts_nodes_are_those_of_their_paths(random: LlamaModel) -> None:
    class Machine(DraftStates):
        subject, counts = DraftSubject(random, ROUNDING), Counter[str]()

    run(Machine, 30, 25)
    assert Machine.counts["nodes"] > 200


@pytest.mark.long
def test_the_engine_writes_what_plain_decoding_writes(tmp_path: Path) -> None:
    target = random_llama(tmp_path / "target.gguf")
    draft = random_llama(tmp_path / "draft.gguf", weight_type=gguf.GGMLQuantizationType.Q4_0)

    class Machine(EngineStates):
        pair, counts = Pair(target, draft), Counter[str]()

    run(Machine, 8, 12)
    assert Machine.counts["trees"] > 30
