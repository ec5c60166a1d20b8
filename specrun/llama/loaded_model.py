"""A GGUF model loaded by llama.cpp: its metadata, vocabulary and tokenizer."""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import llama_cpp

from specrun import interrupts
from specrun.catalog import heads
from specrun.catalog.entries import does
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.gguf_header import check_characters
from specrun.errors import LlamaError, ModelFileError, PromptError
from specrun.llama import library, tiled_kernels
from specrun.llama.parameters import ModelParameters
from specrun.llama.tiled_kernels import TiledFrom
from specrun.llama.weight_orders import WeightOrders
from specrun.llama_settings import UNDECIDED, LlamaSettings
from specrun.locations import encode, file_state

Result = TypeVar("Result")

_M_ROPE = (llama_cpp.LLAMA_ROPE_TYPE_MROPE, llama_cpp.LLAMA_ROPE_TYPE_IMROPE)


class LlamaModel(library.Closing):
    """A loaded model. Close it, or leave its `with` block, after its contexts are closed.

    path: the GGUF file, or the first shard of a split one. settings: where the weights go and how they are loaded.
    progress: called while the weights are loaded, with the share that is done. is_head: whether a trained head is
    expected, which writes nothing by itself. with_mtp: whether MTP layers are loaded, which draft.

    file: what its headers say. name: as they call it.
    handle, vocab: C pointers to the model, for contexts, and to its vocabulary, for grammars.
    n_vocab: number of tokens.
    n_ctx_train: tokens of the context that it was trained with; 0 if the file does not say. n_bytes: of the weights.
    n_embd, n_embd_out: floats of a hidden state, and of the state after the last layer.
    n_dimensions: of the position of a row that is no token: 4 with M-RoPE, else 1.
    orders: the re-ordered weights and the same weights in the file; None where they lie in memory once.
    tiled: lets tiled kernels begin at another size than llama.cpp's own; None where they begin there.
    why_usual: why one of these two is not there, though the settings ask for it.

    Raises ModelFileError if the file is not a model that can generate text, OutOfMemoryError if it does not fit.
    """

    def __init__(
        self,
        path: Path,
        settings: LlamaSettings = UNDECIDED,
        progress: Callable[[float], None] = lambda _: None,
        is_head: bool = False,
        with_mtp: bool = False,
    ) -> None:
        # Headers only, for what llama.cpp would not survive, or report in its own words.
        self.file = file = GgufFile.read(path)
        check_characters(file.metadata, str(path))
        if not is_head:
            heads.check_no_head(file)
        library.start()
        self.path, self.name = path, file.name
        errors = self._load(settings, progress, with_mtp)
        if not self.handle:
            raise library.load_failure(path, errors)
        self.vocab = llama_cpp.llama_model_get_vocab(self.handle)
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.n_ctx_train = max(int(llama_cpp.llama_model_n_ctx_train(self.handle)), 0)
        self.n_embd = int(llama_cpp.llama_model_n_embd(self.handle))
        self.n_embd_out = int(llama_cpp.llama_model_n_embd_out(self.handle))
        self.n_dimensions = 4 if llama_cpp.llama_model_rope_type(self.handle) in _M_ROPE else 1
        self.n_bytes = int(llama_cpp.llama_model_size(self.handle))
        self._pieces: dict[tuple[int, bool], bytes] = {}  # of the tokens that were asked for
        self._ends: dict[int, bool] = {}  # whether these tokens end a text
        self.given_template: str | None = None  # instead of the file's chat template
        self.orders: WeightOrders | None = None
        self.tiled: TiledFrom | None = None
        self.why_usual: list[str] = []
        try:
            if not is_head:
                self._check_generates()
            # Both only make some passes faster, so without them the model is as good.
            if settings.repack and settings.file_order_from:
                try:
                    self.orders = WeightOrders(self.handle, self.file.shards, settings.file_order_from)
                except (LlamaError, OSError) as error:
                    self.why_usual.append(str(error))
            if settings.tiled_from and (settings.tiled or tiled_kernels.in_use()) == "auto":
                try:
                    self.tiled = TiledFrom(self.handle, settings.tiled_from)
                except LlamaError as error:
                    self.why_usual.append(str(error))
        except ModelFileError:
            self.close()
            raise

    def _load(self, settings: LlamaSettings, progress: Callable[[float], None], with_mtp: bool) -> Sequence[str]:
        """Load the weights, as far as that is possible. Returns llama.cpp's error lines. Ctrl-C ends it at the next
        progress: no exception can be raised through llama.cpp, which calls Python meanwhile.
        """
        self.handle: Any = None
        is_stopped = False
        library.watch_for_lost_pages(self.file.shards)
        is_mapped = settings.load_mode != "none"
        self._read_from = [(file, file_state(file)) for file in self.file.shards] if is_mapped else []
        try:
            with interrupts.held() as interrupted, library.CapturedErrors() as errors:

                def goes_on(share: float) -> bool:
                    nonlocal is_stopped
                    progress(share)
                    is_stopped = interrupted()
                    return not is_stopped

                self._parameters = ModelParameters(settings, goes_on, with_mtp)
                self.handle = llama_cpp.llama_model_load_from_file(os.fsencode(self.path), self._parameters.struct)
        except BaseException:
            self.close()
            raise
        if is_stopped and not self.handle:
            raise KeyboardInterrupt
        return errors

    def _check_generates(self) -> None:
        kind = self.file.architecture
        if not llama_cpp.llama_model_has_decoder(self.handle) or self.file.value("attention.causal") is False:
            raise ModelFileError(f"{self.path} is an embedding model ({kind}); it cannot generate text")
        if llama_cpp.llama_model_has_encoder(self.handle):
            raise ModelFileError(f"{self.path} is an encoder-decoder model ({kind}); specrun runs decoders only")

    @property
    def overwritten(self) -> Path | None:
        """A file of this model that was written to since it was loaded, so that mapped weights may have changed.

        A file that was deleted or replaced stays in use as it was.
        """
        found = ((file, read, file_state(file)) for file, read in self._read_from)
        return next((file for file, read, now in found if read[:2] == now[:2] and read != now), None)

    def close(self) -> None:
        """Free the weights. Safe to call twice."""
        if self.handle:
            llama_cpp.llama_model_free(self.handle)
            self.handle = None
            self.tiled = self.orders = None  # which has the file mapped; Windows deletes no such file

    def suit(self, n_tokens: int) -> None:
        """Let the kernels that are fastest compute the next pass, over so many tokens."""
        if self.orders:
            self.orders.choose(n_tokens)
        if self.tiled:
            self.tiled.choose(n_tokens)

    # --- facts -----------------------------------------------------------------------------------------------------

    @property
    def is_recurrent(self) -> bool:
        """Whether any layer has a recurrent state, as in Mamba and in hybrids. A state has no cells to be removed, so
        contexts take tokens back in other ways (`rollback`), and a pass checks one path.
        """
        return bool(llama_cpp.llama_model_is_recurrent(self.handle) or llama_cpp.llama_model_is_hybrid(self.handle))

    @property
    def has_window(self) -> bool:
        """Whether a layer attends to the last tokens only. llama.cpp gives cells out of its sight to other texts."""
        return int(llama_cpp.llama_model_n_swa(self.handle)) > 0

    @property
    def allows_two_kv_types(self) -> bool:
        """Whether K and V may have different cache types; latent attention (MLA) keeps both in one tensor."""
        has_own_key = self.file.value("attention.key_length_mla") is not None
        return not (has_own_key or does("one_kv_tensor", self.file.architecture))

    # --- tokens ----------------------------------------------------------------------------------------------------

    def tokenize(self, text: str, add_special: bool, parse_special: bool = True) -> list[int]:
        """Token ids of `text`.

        add_special: add the tokens that the model wants around a text, such as BOS. parse_special: read the name of a
        control token, such as `<|im_end|>`, as that token. Raises PromptError for lone surrogates and for a run of a
        million letters, digits, signs or spaces, ModelFileError for a tokenizer that lacks what it needs, such as a
        token for unknown characters.
        """
        data = encode(text, "the prompt", PromptError)

        def split() -> list[int]:
            n = -len(data) - 16
            while n < 0:  # so many have to fit
                buffer = (llama_cpp.llama_token * -n)()
                n = llama_cpp.llama_tokenize(self.vocab, data, len(data), buffer, -n, add_special, parse_special)
            return list(buffer[:n])

        tokens = with_stack_for(text, split)
        if tokens and not 0 <= min(tokens) <= max(tokens) < self.n_vocab:
            raise ModelFileError(f"{self.path} has a broken tokenizer: it gives tokens that it does not have")
        return tokens

    def infill_tokens(
        self, before: str, behind: str, files: Sequence[tuple[str, str]] = (), begun: str = ""
    ) -> list[int] | None:
        """Token ids of a prompt whose answer fills the gap in a text; None if the model has no tokens for that.

        before, behind: the texts around the gap. files: names and texts of other files. begun: how the answer begins.
        As llama-server orders it: other files where the model has tokens for them (arXiv 2409.12186), else before all.
        """
        prefix, suffix, middle, repository, file = (
            getattr(llama_cpp, f"llama_vocab_fim_{part}")(self.vocab) for part in ("pre", "suf", "mid", "rep", "sep")
        )
        if min(prefix, suffix, middle) < 0:
            return None

        def read(text: str) -> list[int]:
            return self.tokenize(text, add_special=False, parse_special=False) if text else []

        bos = llama_cpp.llama_vocab_bos(self.vocab) if llama_cpp.llama_vocab_get_add_bos(self.vocab) else -1
        tokens = [bos] if bos >= 0 else []
        if file < 0:
            for _, text in files:
                tokens += read(f"{text}\n\n")
        elif files:
            tokens += [repository, *read("project\n")] if repository >= 0 else []
            for name, text in files:
                tokens += [file, *read(f"{name}\n{text}\n")]
            tokens += [file, *read("file\n")]
        return [*tokens, prefix, *read(before), suffix, *read(behind), middle, *read(begun)]

    def token_bytes(self, token: int, special: bool = False) -> bytes:
        """The bytes that `token` stands for: none for -1, and none for control tokens unless `special` is true."""
        piece = self._pieces.get((token, special))
        if piece is None:
            n = 0 if token < 0 else -64
            while n < 0:  # so many have to fit
                buffer = ctypes.create_string_buffer(-n)
                n = llama_cpp.llama_token_to_piece(self.vocab, token, buffer, -n, 0, special)
            piece = self._pieces[token, special] = buffer.raw[:n] if n else b""
        return piece

    def is_end_of_generation(self, token: int) -> bool:
        """Whether `token` ends a text, as EOS and end-of-turn tokens do."""
        is_end = self._ends.get(token)
        if is_end is None:
            is_end = self._ends[token] = bool(llama_cpp.llama_vocab_is_eog(self.vocab, token))
        return is_end

    @cached_property
    def ends_of_generation(self) -> list[int]:
        """The tokens that end a text. Finding them takes tens of milliseconds for a large vocabulary."""
        return [token for token in range(self.n_vocab) if self.is_end_of_generation(token)]

    @cached_property
    def all_token_bytes(self) -> list[bytes]:
        """The bytes of every token, none for control tokens. It takes 0.2 s for a large vocabulary."""
        return [self.token_bytes(token) for token in range(self.n_vocab)]

    def special_token_text(self, which: str) -> str:
        """Text of the `"bos"` or `"eos"` token for chat templates; empty if the model has none."""
        token = {"bos": llama_cpp.llama_vocab_bos, "eos": llama_cpp.llama_vocab_eos}[which](self.vocab)
        text = b"" if token < 0 else llama_cpp.llama_vocab_get_text(self.vocab, token) or b""
        return str(text.decode("utf-8", errors="replace"))

    @property
    def chat_template(self) -> str | None:
        """The Jinja source of the chat template, or a name of llama.cpp's: what the user gave, or the file's own."""
        return self.given_template or self.file.chat_template


# Kinds of characters, rather too many in a run than too few: signs that are not in ASCII count as letters.
_RUNS = re.compile(r"\s+|\d+|[!-/:-@\[-`{-~]+|[^\s\d!-/:-@\[-`{-~]+")
_SHORT = 2000  # characters of a run that fit every stack, with the run beside it
_BYTES_PER_CHARACTER = 1024  # 306 to 361 were measured
_BESIDES = 16 << 20  # bytes
_PAGE = 1 << 16  # of which some systems want a multiple
_MOST_BYTES = 1 << 30  # of addresses: memory is taken as far as the stack is used

_changing_stacks = threading.Lock()  # their size is one setting for all threads


def with_stack_for(text: str, split: Callable[[], Result]) -> Result:
    """What `split()` returns, which splits `text`. Raises PromptError for a text that no stack is large enough for.

    llama.cpp splits the texts of many tokenizers with std::regex, which calls itself once for each character of a
    match: a run of 27,000 letters, digits, signs or spaces overflowed a stack of 8 MiB, and ended the process (measured
    with the llama.cpp of 0.3.36, for the tokenizers of DeepSeek, Mistral and GPT-4o and llama.cpp's default one; those
    of Qwen, Llama 3 and GPT-2 have code of their own). So a text with a long run is split on a thread with a stack of
    its size.
    """
    longest = max((len(run[0]) for run in _RUNS.finditer(text)), default=0) if len(text) > _SHORT else 0
    if longest <= _SHORT:
        return split()
    n_bytes = _BESIDES + _BYTES_PER_CHARACTER * longest // _PAGE * _PAGE
    if n_bytes > _MOST_BYTES:
        raise PromptError(f"the prompt has a run of {longest} characters of one kind; break it up")
    with ThreadPoolExecutor(1, "tokenizer") as pool:
        with _changing_stacks:
            before = threading.stack_size(n_bytes)
            try:
                result = pool.submit(split)
            except RuntimeError as error:
                why = f"there is no memory for splitting a run of {longest} characters; break it up"
                raise PromptError(why) from error
            finally:
                threading.stack_size(before)
        return result.result()
