"""Prompts that were read are kept on disk, so that a later run does not read them again (docs/prompts.md).

What the caches of both models hold of a text is one file (`prompt_file`) in a folder of the subject: the target's
content, llama.cpp's build, and every setting on which bits depend.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from specrun.decoding import prompt_file, prompt_folder
from specrun.decoding.engine import Engine, SavedCaches
from specrun.decoding.prompt_file import Head, StoppedError
from specrun.decoding.prompt_folder import SUFFIX
from specrun.display_text import size_text
from specrun.errors import ContextFullError, OutOfMemoryError, SpecrunError
from specrun.hardware.machine import surroundings
from specrun.hardware.memory import Memory
from specrun.hardware.placement import Placement
from specrun.kept_facts import fingerprint
from specrun.llama import devices, offload_threshold, tiled_kernels
from specrun.llama.batch import common_prefix
from specrun.llama.context import LlamaContext
from specrun.llama.loaded_model import LlamaModel
from specrun.llama.rollback import CachedText
from specrun.llama_settings import LlamaSettings
from specrun.locations import file_bytes, whole_file
from specrun.speculation.planning.pass_sizes import PassSizes

FEWEST = 256  # tokens that are worth a file: fewer are read in a pass
LONG = 500  # tokens that are on disk nowhere yet, from which a text is kept as soon as nobody waits
_PAUSE = 600.0  # seconds in which nothing is written after a disk has refused: a server would copy caches for nothing
_SHARE_OF_RAM = 2  # what is copied for a file beside the target's cache takes at most this part of the free memory
_NO_BITS = ("threads", "threads_batch", "load_mode")  # settings on which no bit depends; for threads see `of_target`


@dataclass(frozen=True)
class Lookup:
    """What became of the search for a prompt."""

    n_tokens: int  # that came from disk
    words: str  # for people; none where few tokens are new
    # Tokens that the prompt shares with a kept one, to whose end there recurrent layers cannot go back; 0 for none.
    # They are to be kept once they are read, as a beginning.
    parts_at: int = 0


class PromptStates:
    """The states on disk that one loaded pair can use.

    subject, draft: fingerprints of what the parts of the target and of the draft depend on; see `of_target` and
    `of_draft`. least: tokens that are on disk nowhere yet, from which a text is kept at the end. n_kept_bytes: those of
    the file that was written last, 0 before.
    """

    least = 1
    n_kept_bytes = 0

    def __init__(self, subject: str, draft: str | None) -> None:
        self._subject, self._draft = subject, draft
        self._folder = prompt_folder.folder() / subject
        self._heads: dict[tuple[Path, int], Head] = {}  # by file and time of its last change
        self._seconds_per_token = 0.0  # the least that reading a token of a prompt took
        self._thread: threading.Thread | None = None
        self._is_stopped = threading.Event()
        self._n_damaged = 0  # files that were found damaged, and deleted, since that was last said
        self._not_before = 0.0  # moment of `time.monotonic` until which nothing is written

    def take_up(self, engine: Engine, prompt: list[int]) -> Lookup:
        """Let the caches hold the state that has most of a prompt, unless they hold as much of it already, or reading
        it again takes no longer. Call it between texts. After a failure the caches are empty.
        """
        n_held = engine.held.reusable(prompt)
        if len(prompt) - n_held <= FEWEST:
            return Lookup(0, "")
        heads = self._found(engine.has_head_states)
        best = max(heads, key=lambda head: head.held.reusable(prompt), default=None)
        n = best.held.reusable(prompt) if best else 0
        if best is None or n - n_held < FEWEST:
            why = "none has this beginning" if heads else "none was kept of this model, build and settings"
            if self._n_damaged:
                why, self._n_damaged = f"{why}; damaged and deleted: {self._n_damaged}", 0
            return Lookup(0, why, self._parting(heads, prompt, n_held))
        target = engine.target
        # Texts share the cells; but what a head keeps of one text has no more room than that.
        if best.held.n_cached > min(target.context.config.n_ctx - target.cells.n_elsewhere, engine.ctx_size):
            return Lookup(0, "the one that has this beginning does not fit the context")
        each = self._seconds_per_token or best.seconds_per_token
        if best.n_bytes / prompt_folder.rate("read") > (n - n_held) * each:
            return Lookup(0, f"reading {n:,} tokens again is as fast as {size_text(best.n_bytes)} from disk")
        return self._restored(engine, best, n)

    def _restored(self, engine: Engine, head: Head, n: int) -> Lookup:
        started, model = time.perf_counter(), engine.target.context.model
        try:
            has_draft, is_checked_first = head.draft == self._draft, model.is_recurrent or model.has_window
            with prompt_file.reading(head, has_draft, is_checked_first) as saved:
                engine.restore(saved)
        except (ContextFullError, OutOfMemoryError, MemoryError, OSError) as error:
            engine.reset()
            return Lookup(0, f"the one that has this beginning cannot be used ({error})")
        except (SpecrunError, ValueError) as error:
            engine.reset()
            prompt_folder.delete(head.path)
            return Lookup(0, f"the one that has this beginning is damaged ({error}), and is deleted")
        seconds = time.perf_counter() - started
        prompt_folder.learn_rate("read", head.n_bytes, seconds)
        self._seconds_per_token = self._seconds_per_token or head.seconds_per_token
        with suppress(OSError):
            os.utime(head.path)  # it was used now
        return Lookup(n, f"{n:,} tokens, {size_text(head.n_bytes)} in {seconds:.2f} s")

    def _parting(self, heads: list[Head], prompt: list[int], n_held: int) -> int:
        """Where a prompt parts from the kept one that shares most of its beginning, if that is worth a file."""
        shared = (common_prefix(head.held.tokens, prompt) for head in heads if not head.held.any_end)
        n = max(shared, default=0)
        return n if n - n_held >= FEWEST else 0

    def beginning(self, text: str, model: LlamaModel) -> tuple[list[int], str]:
        """The longest beginning of a text that is kept up to its end, or to a control token, and its tokens. The end of
        what several prompts begin with does not count: the next one may go on within a word.

        Split into tokens again, it might be split differently from how it was written.
        """
        data = text.encode(errors="surrogatepass")
        best, n_best = [], 0
        for head in self._found(has_head_states=False):
            n, n_bytes = _shared(data, head.held, model)
            if n_bytes > n_best:
                best, n_best = head.held.tokens[:n], n_bytes
        return best, data[:n_best].decode()

    def has_read(self, n_tokens: int, seconds: float) -> None:
        """Note what reading so many tokens of a prompt took."""
        if n_tokens >= FEWEST // 4:
            each = seconds / n_tokens
            self._seconds_per_token = min(each, self._seconds_per_token or each)

    def keep(
        self, source: Engine | SavedCaches, least: int = 1, waits: bool = False, is_beginning: bool = False
    ) -> bool:
        """Keep what the caches of an engine, or copies of them, hold, if that pays. Call it between texts.

        The file gets what an engine holds before this returns, which takes as long as a copy in memory would as long as
        the system has room for what is not on the disk yet. A thread does the rest.

        least: tokens that are on disk nowhere yet, from which it is written. waits: until another file is written.
        is_beginning: whether several prompts begin with it, and this one is not read any further yet.
        Returns whether it is to be asked again, as another file is being written.
        """
        held = source.held
        if held.n_cached < FEWEST or time.monotonic() < self._not_before or self._is_stopped.is_set():
            return False
        if self._is_writing and not waits:
            return True
        self._wait()
        tokens = held.tokens[: held.n_cached + 1] if is_beginning else held.tokens
        text = [*tokens, -1]  # of a prompt the last token is always read
        kept = (head.held.reusable(text) for head in self._found(source.has_head_states))
        n_new = held.n_cached - max(kept, default=0)
        if n_new < least:
            return False
        n_bytes = source.n_bytes if isinstance(source, SavedCaches) else source.n_saved_bytes
        pays = n_bytes / prompt_folder.rate("write") < n_new * self._seconds_per_token
        if not pays or n_bytes > prompt_folder.most_bytes():
            return False
        n_copied = source.n_beside_bytes if isinstance(source, Engine) else 0
        if n_copied > Memory.read().available_bytes // _SHARE_OF_RAM:
            return False
        with self._pausing(), ExitStack() as stack:
            started = time.perf_counter()
            prompt_folder.make_room(self._folder, n_bytes)
            of = self._draft.encode() if self._draft and source.has_head_states else b""
            name = hashlib.sha256(np.array(tokens, np.int32).tobytes() + of).hexdigest()[:16]
            path = self._folder / (name + SUFFIX)
            file = stack.enter_context(whole_file(path, private=True))
            saved = source.save(Path(file.name)) if isinstance(source, Engine) else source
            if saved is None:
                raise StoppedError
            if is_beginning:
                begun = CachedText(tokens, held.n_cached, saved.held.any_end, is_beginning=True)
                saved = SavedCaches(replace(saved.target, held=begun), None)
            writing = path, file, saved, started, stack.pop_all()
            self._thread = threading.Thread(target=self._write, args=writing, name="specrun-prompts")
            self._thread.start()
        return self._is_writing

    @property
    def _is_writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @contextmanager
    def _pausing(self) -> Iterator[None]:
        """What cannot be written is read again, so nothing is said of it, and for a while nothing else is written."""
        try:
            yield
        except (OSError, MemoryError, SpecrunError):
            self._not_before = time.monotonic() + _PAUSE
        except StoppedError:
            pass

    def _write(self, path: Path, file: BinaryIO, saved: SavedCaches, started: float, stack: ExitStack) -> None:
        """Write a file to its end. path: where it will be. started: when it was begun. stack: what closes it."""
        with self._pausing():
            with stack:
                each, is_stopped = self._seconds_per_token, self._is_stopped.is_set
                prompt_file.write(file, saved, self._subject, self._draft, each, is_stopped)
            self.n_kept_bytes = file_bytes(path)
            prompt_folder.learn_rate("write", self.n_kept_bytes, time.perf_counter() - started)
            for head in self._found(saved.has_head_states):
                if head.path != path and _is_beginning(head.held, saved.held):
                    prompt_folder.delete(head.path)

    def _wait(self) -> None:
        """Wait until what is being written is. What ends the waiting ends the writing, too."""
        try:
            while self._thread and self._thread.is_alive():
                self._thread.join(0.1)
        except BaseException:
            self._is_stopped.set()
            raise

    def close(self, engine: Engine) -> None:
        """Keep what an engine holds at last, and wait until everything is written."""
        self.keep(engine, self.least, waits=True)
        self._wait()

    def _found(self, has_head_states: bool) -> list[Head]:
        """The heads of all files that this pair can use. Damaged files are deleted.

        has_head_states: whether a trained head drafts, which needs the target's states of the whole text.
        """
        heads: dict[tuple[Path, int], Head] = {}
        for path in prompt_folder.files_in(self._folder):
            try:
                key = path, path.stat().st_mtime_ns
                heads[key] = self._heads.get(key) or prompt_file.read_head(path)
            except OSError:
                continue
            except Exception:  # what is damaged may fail anywhere
                self._n_damaged += 1
                prompt_folder.delete(path)
        self._heads = heads
        own = (head for head in heads.values() if head.subject == self._subject)
        return [head for head in own if head.draft == self._draft or not has_head_states]


def _shared(data: bytes, held: CachedText, model: LlamaModel) -> tuple[int, int]:
    """How many tokens of a text begin another text, as `PromptStates.beginning` says, and the bytes of these."""
    tokens, end_counts = held.tokens, not held.is_beginning
    n = end = at = 0
    for i, token in enumerate(tokens):
        piece = model.token_bytes(token, special=True)
        is_control = piece != model.token_bytes(token)
        if data.startswith(piece, at):
            at += len(piece)
        elif i or not is_control:  # a text need not begin with the name of BOS
            break
        is_within_character = at < len(data) and data[at] & 0xC0 == 0x80
        if at and (is_control or (end_counts and i + 1 == len(tokens))) and not is_within_character:
            n, end = i + 1, at
    return n, end


def _is_beginning(held: CachedText, longer: CachedText) -> bool:
    """Whether a text was the same when it was shorter, so that its state has no use any more."""
    if held.is_beginning:
        return False
    n = len(held.tokens) - 1  # the last one need not be in the cache
    return n < longer.n_cached and longer.tokens[:n] == held.tokens[:n]


def of_target(context: LlamaContext, sizes: PassSizes, placement: Placement | None) -> str:
    """The fingerprint of all that the bits of a target's cache depend on. Raises ModelFileError."""
    settings = context.config.settings
    values = _settings(settings)
    if settings.divides_attention:
        values["threads"] = settings.threads, settings.threads_batch
    here = surroundings(devices.this_machine(settings.rpc))
    del here["memory"]
    layers = (placement.layer_gpus, placement.n_cpu_moe) if placement else ()
    kernels = tiled_kernels.in_use(), offload_threshold.in_use(), repr(sizes)
    files = context.model.file.identity
    return fingerprint({**here, "files": files, "settings": values, "layers": layers, "kernels": kernels})


def of_draft(context: LlamaContext) -> str:
    """The same for a draft or a head, whose bits may change no text."""
    return fingerprint({"files": context.model.file.identity, "settings": _settings(context.config.settings)})


def _settings(settings: LlamaSettings) -> dict[str, Any]:
    return {name: value for name, value in asdict(settings).items() if name not in _NO_BITS}
