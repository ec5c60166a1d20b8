"""Makes the head of a target: gathers texts, lets the head learn them, writes its file, and goes on after a stop."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specrun.catalog import made
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.pairs import check_tokenizer
from specrun.display_text import size_text
from specrun.errors import SpecrunError, UsageError
from specrun.hardware.cpu import usable_cores
from specrun.locations import locked, parse_json, whole_file, write_json
from specrun.long_run import Run
from specrun.making.make import check_output
from specrun.profiles import profile_files
from specrun.profiles.profile import Profile
from specrun.speculation.planning.costs import CostTable

from .estimate import REFERENCE, REFERENCE_CHANCES, Agreement, Gain, gain, head_bytes
from .export import export, whole_embedding
from .gathering import Gatherer, mixed, shipped_prompts
from .records import Records, record_type, refused
from .shape import HeadShape, last_layer, output_rows, shape_for
from .vocabulary import Vocabulary, vocabulary_of

DEFAULT_HOURS = 2.0
DEFAULT_VOCABULARY = 16_384  # tokens; more bring nothing on English and code (docs/make-head.md)
_GATHERING_SHARE = 0.4  # of the hours
_MOST_BYTES = 8 * 2**30  # of texts and states on disk
_SHARE_OF_DISK = 0.5  # of what is free, that texts and states may take
_LEAST_TEXTS = 20
_STATE_BYTES = 12  # of a weight while it learns: its value and what the optimizers keep of it
_NAME = "head-eagle3.gguf"
_BY_PROFILE = "the profile of `specrun tune`"


@dataclass(frozen=True)
class MadeHead:
    """A head that was made. curve: agreement on held-out texts in the course of learning, each with its seconds."""

    path: Path
    curve: list[tuple[float, Agreement]]
    expected: Gain
    by: str  # what `expected` was computed by


@dataclass(frozen=True)
class HeadOrder:
    """What head is wanted.

    target: the target's file. given: prompts of the user's. hours: of gathering and learning together. n_vocab: most
    tokens that the head can draft. output: the head's file; None for one in the data folder. with_shipped: whether the
    shipped prompts are taken in turn with the given ones. raw: see `Gatherer`.
    """

    target: Path
    given: Sequence[str] = ()
    hours: float = DEFAULT_HOURS
    n_vocab: int = DEFAULT_VOCABULARY
    output: Path | None = None
    with_shipped: bool = True
    raw: bool = False

    @property
    def prompts(self) -> Sequence[str]:
        """All prompts, in the order in which they are taken."""
        return mixed(self.given, shipped_prompts()) if self.with_shipped else self.given

    @property
    def key(self) -> str:
        """What an unfinished head must have been begun with in order to go on with it: all but hours and file. Another
        release of specrun may go on with other shipped prompts.
        """
        what = json.dumps([list(self.given), self.n_vocab, self.with_shipped, self.raw])
        return hashlib.sha256(what.encode()).hexdigest()

    @property
    def gathering_seconds(self) -> float:
        """Seconds for texts at most; the head learns in the rest."""
        return _GATHERING_SHARE * 3600 * self.hours


def _check_torch() -> None:
    """Raise UsageError if PyTorch is not here, or is too old."""
    try:
        import torch
    except ImportError as error:
        raise UsageError("make_head needs PyTorch; in a clone of specrun: pip install '.[train]'") from error
    if not hasattr(torch.optim, "Muon"):
        found = torch.__version__
        raise UsageError(
            f"make_head needs PyTorch 2.9 or newer, not {found}; in a clone of specrun: pip install '.[train]'"
        )


def make_head(order: HeadOrder, run: Run) -> MadeHead:
    """Make the head and register it for its target. An unfinished one of the same order is gone on with.

    Raises KeyboardInterrupt once the run is interrupted; what is on disk then is gone on with by the same order. Raises
    UsageError for an impossible order or without PyTorch, PairError for a target that heads cannot draft for,
    SpecrunError if the disk refuses, and the errors of loading.
    """
    file = GgufFile.read(order.target)
    check_tokenizer(file)
    shape = shape_for(file)
    previous = made.find(order.target, "head")
    if order.output:
        check_output(order.output.absolute(), previous.path if previous else None)
    if not 0 < order.hours < math.inf:
        raise UsageError(f"--hours must be above 0; got {order.hours:g}")
    if order.n_vocab < 1:
        raise UsageError(f"--vocab must be above 0; got {order.n_vocab}")
    _check_torch()
    folder = made.unfinished_head(order.target)
    path = order.output.absolute() if order.output else made.home(order.target) / _NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            work = _Work.begin(folder, order)
            costs, by = _gathered(order, file, shape, work, run)
            vocabulary = vocabulary_of(work.records, shape.n_vocab, order.n_vocab)
            curve = _learned(order, file, shape, vocabulary, work, run)
            with whole_file(path) as out, work.head.open("rb") as written:
                shutil.copyfileobj(written, out)
            made.register(order.target, made.MadeDraft(path, _how(curve, work.records)), "head")
        made.forget_unfinished_head(order.target)  # now, because Windows deletes no file that is open, as the lock was
    except OSError as error:
        raise refused(f"{error.filename or folder} cannot be written", error) from error
    share = head_bytes(shape.n_computed(len(vocabulary.kept))) / file.n_bytes
    return MadeHead(path, curve, gain(curve[-1][1].chances, costs, share), by)


@dataclass
class _Work:
    """What is on disk of an unfinished head. seconds: spent on texts so far."""

    folder: Path
    records: Records
    key: str
    seconds: float = 0.0

    @classmethod
    def begin(cls, folder: Path, order: HeadOrder) -> _Work:
        """What is there already, or nothing yet. Raises UsageError if it belongs to another order, and OSError."""
        entry = folder / "begun.json"
        key, seconds = order.key, 0.0
        with suppress(Exception):  # what is damaged, or not there, may fail anywhere
            value = parse_json(entry.read_bytes())
            key, seconds = str(value["key"]), float(value["seconds"])
        if key != order.key:
            what = "a head of this target was begun with other --texts or --vocab"
            raise UsageError(f"{what}; give the same to go on, or delete what is there with --forget")
        work = cls(folder, Records.read(folder), key, seconds)
        work.note_seconds(0.0)
        return work

    def note_seconds(self, more: float) -> None:
        self.seconds += more
        write_json(self.folder / "begun.json", {"key": self.key, "seconds": self.seconds})

    @property
    def checkpoint(self) -> Path:
        return self.folder / "learned.pt"

    @property
    def head(self) -> Path:
        """The finished head, before it is where it shall be."""
        return self.folder / _NAME


def _gathered(order: HeadOrder, file: GgufFile, shape: HeadShape, work: _Work, run: Run) -> tuple[CostTable, str]:
    """Gather what the hours and the disk allow. Returns times of the target's passes, and where they come from.

    Once the head has begun to learn, nothing more is gathered, as its vocabulary is that of the texts.
    """
    profile = _profile_of(file.identity)
    kept = work.records
    if profile and work.checkpoint.exists():
        return profile.costs.target, _BY_PROFILE  # nothing is left to be asked of the target
    bound = min(_MOST_BYTES, kept.n_bytes + _SHARE_OF_DISK * shutil.disk_usage(work.folder).free)
    with Gatherer(order.target, shape, order.prompts, order.raw, run) as gatherer:
        costs = profile.costs.target if profile else gatherer.costs
        by = _BY_PROFILE if profile else "passes timed just now, as this target has no profile"
        if not work.checkpoint.exists():
            _tell(order, shape, work, gatherer.tokens_per_second, bound, run)
            share = head_bytes(shape.n_computed(min(order.n_vocab, shape.n_vocab))) / file.n_bytes
            expected = gain(REFERENCE_CHANCES, costs, share)
            run.note(f"what it will bring is not known yet; as good as {REFERENCE}, by {by}: {expected}")
        while not work.checkpoint.exists():
            is_enough = work.seconds >= order.gathering_seconds or kept.n_bytes >= bound
            if is_enough and len(kept.texts) >= _LEAST_TEXTS:
                break
            left = max(3600 * order.hours - work.seconds, 0.0)
            work.note_seconds(gatherer.gather(kept, run.expected_to_take(left)))
    return costs, by


def _profile_of(identity: str) -> Profile | None:
    """The newest profile of a target, by its `identity`, with whatever draft and options."""
    saved = profile_files.saved()
    return next((profile for profile in saved if profile.identity.get("files", [None])[:1] == [identity]), None)


def _tell(order: HeadOrder, shape: HeadShape, work: _Work, rate: float, bound: float, run: Run) -> None:
    """Say what it will take. rate: tokens gathered per second. bound: bytes of texts and states."""
    seconds = max(order.gathering_seconds - work.seconds, 0.0)
    of_token = record_type(shape.state_width).itemsize
    n_bytes = min(work.records.n_bytes + seconds * rate * of_token, bound)
    weights = shape.n_parameters(min(order.n_vocab, shape.n_vocab))
    if work.records.texts:
        run.note(f"going on with {work.records.n_tokens:,} tokens of the target's texts, which are there")
    run.note(
        f"{order.hours:g} hours: up to {order.gathering_seconds / 3600:.2g} for texts of the target, about "
        f"{n_bytes / of_token:,.0f} tokens at {rate:.3g} a second, and the rest for learning. Until then up to "
        f"{size_text(n_bytes + _STATE_BYTES * weights)} on disk, in {work.folder}, and in the end "
        f"{size_text(head_bytes(weights))} for the head"
    )


def _learned(
    order: HeadOrder, file: GgufFile, shape: HeadShape, vocabulary: Vocabulary, work: _Work, run: Run
) -> list[tuple[float, Agreement]]:
    """Let the head learn, and write it to `work.head`. Returns the agreement in the course of it."""
    import torch

    from .lessons import Lessons
    from .network import Head
    from .start import begin
    from .training import train

    torch.manual_seed(0)
    torch.set_num_threads(min(torch.get_num_threads(), usable_cores()))  # it does not look at quotas
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    lessons = Lessons(work.records, vocabulary, accelerator or torch.device("cpu"))
    head = Head(shape, torch.from_numpy(output_rows(file, vocabulary.kept)), len(vocabulary.read))
    if not work.checkpoint.exists():
        run.show("fitting the start of the head")
        last = {name: torch.from_numpy(values) for name, values in last_layer(file, shape).items()}
        explained = begin(head, last, lessons)
        run.note(
            f"the head begins with {explained:.0%} of the variance of the state before the last layer explained; it "
            f"drafts {len(vocabulary.kept):,} of {shape.n_vocab:,} tokens"
        )
    seconds = 3600 * order.hours - min(work.seconds, order.gathering_seconds)
    try:
        curve = train(head.to(lessons.device), lessons, seconds, work.checkpoint, run)
    except torch.OutOfMemoryError as error:
        what = f"the memory of {lessons.device} is too small to train this head"
        raise SpecrunError(f"{what}; CUDA_VISIBLE_DEVICES= lets the CPU train it") from error
    run.show("writing the head")
    weights = {name: value.detach().float().cpu().numpy() for name, value in head.named_parameters()}
    weights["token_embd.weight"] = whole_embedding(weights["token_embd.weight"], vocabulary, file)
    export(weights, shape, vocabulary, file, work.head, _how(curve, work.records))
    return curve


def _how(curve: Sequence[tuple[float, Agreement]], records: Records) -> str:
    """How a head was made, for people."""
    seconds, found = curve[-1]
    learned = f"{seconds / 60:.0f} minutes of learning on {records.n_tokens:,} tokens"
    return f"EAGLE-3, {learned}, {found.same[0]:.0%} agree"
