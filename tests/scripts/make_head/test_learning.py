"""Heads that learn, with PyTorch: what is computed is what llama.cpp computes, and a stopped training goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scripts.make_head import training  # noqa: E402
from scripts.make_head.gathering import Gatherer  # noqa: E402
from scripts.make_head.lessons import Lessons  # noqa: E402
from scripts.make_head.making import make_head  # noqa: E402
from scripts.make_head.network import Head  # noqa: E402
from scripts.make_head.records import Records  # noqa: E402
from scripts.make_head.shape import last_layer, output_rows, shape_for  # noqa: E402
from scripts.make_head.start import begin  # noqa: E402
from scripts.make_head.vocabulary import vocabulary_of  # noqa: E402
from specrun.catalog import embedded, made  # noqa: E402
from specrun.catalog.gguf_file import GgufFile  # noqa: E402
from specrun.errors import SpecrunError  # noqa: E402
from specrun.llama import HeadDraft  # noqa: E402
from specrun.long_run import Run  # noqa: E402
from specrun.sampling import SamplingParameters  # noqa: E402
from specrun.speculation.drafters.chain import CHAIN  # noqa: E402
from specrun.speculation.drafters.specexec import SPECEXEC  # noqa: E402
from specrun.speculation.method import OFF  # noqa: E402
from tests.engines import code_prompts, engine, first_difference, write  # noqa: E402
from tests.hybrids import random_qwen35  # noqa: E402
from tests.scripts.make_head.orders import PROMPTS, order, random_head  # noqa: E402

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def lessons(tmp_path_factory: pytest.TempPathFactory) -> Lessons:
    """Some texts of the embedded target."""
    return lessons_in(tmp_path_factory.mktemp("texts"), embedded.TARGET)


def lessons_in(folder: Path, target: Path) -> Lessons:
    """Some texts of the target."""
    kept, shape = Records.read(folder), shape_for(GgufFile.read(target))
    with Gatherer(target, shape, PROMPTS, True, Run()) as gatherer:
        while len(kept.texts) < 20:
            gatherer.gather(kept, Run())
    return Lessons(kept, vocabulary_of(kept, shape.n_vocab, 4096), torch.device("cpu"))


def head_for(lessons: Lessons, target: Path = embedded.TARGET) -> Head:
    file = GgufFile.read(target)
    kept, read = lessons.vocabulary.kept, lessons.vocabulary.read
    return Head(shape_for(file), torch.from_numpy(output_rows(file, kept)), len(read))


def test_the_network_computes_what_llama_cpp_does(lessons: Lessons, tmp_path: Path) -> None:
    path = random_head(tmp_path / "head.gguf", n_kept=2048)
    head = head_for(lessons)
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}
    tensors["token_embd.weight"] = tensors["token_embd.weight"][lessons.vocabulary.read]
    head.load_state_dict({name: torch.from_numpy(np.array(values)) for name, values in tensors.items()})
    text = lessons.records.texts[1]
    tokens = lessons.records.column("token", [text]).tolist()[:60]
    places = lessons.vocabulary.places(lessons.vocabulary.read)[tokens]
    states = lessons.records.column("state", [text])[:60].astype(np.float32)
    with torch.no_grad():
        (normed,) = head(torch.from_numpy(places)[None], torch.from_numpy(states)[None], 1)
        ours = (normed[0, -1] @ head.output.T).numpy()
    with engine(embedded.TARGET, path, CHAIN.plan(depth=3)) as e:
        assert isinstance(e.draft, HeadDraft)
        e.read_for_draft(tokens)
        theirs = e.draft.start(tokens)[lessons.vocabulary.kept].copy()
    assert np.corrcoef(ours, theirs)[0, 1] > 0.999


def test_a_head_begins_with_a_good_guess(lessons: Lessons) -> None:
    head, file = head_for(lessons), GgufFile.read(embedded.TARGET)
    last = {name: torch.from_numpy(values) for name, values in last_layer(file, head.shape).items()}
    assert begin(head, last, lessons) > 0.5
    assert training.agreement(head, lessons).same[0] > 0.2


def test_a_head_whose_layer_is_unlike_the_targets_begins_as_well(tmp_path: Path) -> None:
    target = random_qwen35(tmp_path / "hybrid.gguf")
    lessons = lessons_in(tmp_path / "texts", target)
    head, file = head_for(lessons, target), GgufFile.read(target)
    last = {name: torch.from_numpy(values) for name, values in last_layer(file, head.shape).items()}
    assert np.isfinite(begin(head, last, lessons))
    assert all(bool(torch.isfinite(parameter).all()) for parameter in head.parameters())


def test_a_made_head_drafts_and_the_text_is_the_targets_own() -> None:
    notes: list[str] = []
    made_head = make_head(order(seconds=20, n_vocab=1500), Run(note=notes.append))
    assert made_head.curve[-1][1].same[0] > made_head.curve[0][1].same[0]
    assert made_head.path == made.home(embedded.TARGET) / "head-eagle3.gguf"
    found = made.find(embedded.TARGET, "head")
    assert found is not None
    assert found.path == made_head.path
    assert not made.unfinished_head(embedded.TARGET).exists()
    for sampling in (SamplingParameters(temperature=0.0), SamplingParameters(temperature=0.8, seed=2)):
        with engine(embedded.TARGET, None, OFF.plan()) as e:
            prompt = code_prompts(e, 1, 40)[0]
            plain = write(e, prompt, sampling, OFF.plan(), 48)
        for plan in (CHAIN.plan(depth=3), SPECEXEC.plan(16, 4)):
            with engine(embedded.TARGET, made_head.path, plan) as e:
                result = write(e, prompt, sampling, plan, 48)
            assert first_difference(result, plain) is None


def test_learning_goes_on_where_it_was() -> None:
    shown: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        make_head(order(seconds=30), Run(shown.append, interrupted=lambda: bool(shown) and "learning" in shown[-1]))
    checkpoint = made.unfinished_head(embedded.TARGET) / "learned.pt"
    assert checkpoint.exists()
    notes: list[str] = []
    result = make_head(order(seconds=8), Run(note=notes.append))
    assert notes[0].startswith("going on with what was learned in")
    assert result.curve[0][0] == 0.0
    assert not checkpoint.exists()


def test_a_full_disk_keeps_the_checkpoint_before(
    lessons: Lessons, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, checkpoint = head_for(lessons), tmp_path / "learned.pt"
    training.train(head, lessons, 0.1, checkpoint, Run())
    before = checkpoint.read_bytes()

    def full(*_: object) -> None:
        raise RuntimeError("PytorchStreamWriter failed writing file: No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(SpecrunError, match=r"cannot be written: PytorchStreamWriter failed .*; free some room"):
        training.train(head, lessons, 0.2, checkpoint, Run())
    assert checkpoint.read_bytes() == before
    monkeypatch.undo()
    checkpoint.write_bytes(before[:1000])
    with pytest.raises(SpecrunError, match=r"cannot be read .*; delete it"):
        training.train(head, lessons, 0.2, checkpoint, Run())


def test_the_same_order_may_be_given_more_hours() -> None:
    assert order(seconds=5).key == replace(order(seconds=5), hours=3.0).key != order(n_vocab=9).key
