"""Splitting a text into tokens on a stack that is large enough for it.

llama.cpp splits the texts of many tokenizers with std::regex, which calls itself once for each character of a match: a
run of 27,000 letters, digits, signs or spaces overflowed a stack of 8 MiB, and ended the process (measured with the
llama.cpp of 0.3.36, for the tokenizers of DeepSeek, Mistral and GPT-4o and llama.cpp's default one; those of Qwen,
Llama 3 and GPT-2 have code of their own). So a text with a long run is split on a thread with a stack of its size.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from specrun.errors import PromptError

Result = TypeVar("Result")

# Rather too long than too short: signs that are not in ASCII count as letters.
_RUNS = re.compile(r"\s+|\d+|[!-/:-@\[-`{-~]+|[^\s\d!-/:-@\[-`{-~]+")
_SHORT = 2000  # characters of a run that fit every stack, with the run beside it
_BYTES_PER_CHARACTER = 1024  # 306 to 361 were measured
_BESIDES = 16 << 20  # bytes
_PAGE = 1 << 16  # of which some systems want a multiple
_MOST_BYTES = 1 << 30  # of addresses: memory is taken as far as the stack is used

_in_use = threading.Lock()  # the size of stacks is one setting for all threads


def with_stack_for(text: str, split: Callable[[], Result]) -> Result:
    """What `split()` returns, which splits `text`. Raises PromptError for a text that no stack is large enough for."""
    longest = max((len(run[0]) for run in _RUNS.finditer(text)), default=0) if len(text) > _SHORT else 0
    if longest <= _SHORT:
        return split()
    n_bytes = _BESIDES + _BYTES_PER_CHARACTER * longest // _PAGE * _PAGE
    if n_bytes > _MOST_BYTES:
        raise PromptError(f"the prompt has a run of {longest} characters of one kind; break it up")
    with ThreadPoolExecutor(1, "tokenizer") as pool:
        with _in_use:
            before = threading.stack_size(n_bytes)
            try:
                result = pool.submit(split)
            except RuntimeError as error:
                why = f"there is no memory for splitting a run of {longest} characters; break it up"
                raise PromptError(why) from error
            finally:
                threading.stack_size(before)
        return result.result()
