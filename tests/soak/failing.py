"""Passes and changes of a cache that fail, or are interrupted, at a moment of one's choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from specrun.llama import context as context_module
from specrun.llama.context import LlamaContext


@dataclass(frozen=True)
class Moment:
    """what: a method of `LlamaContext`, or a function of llama.cpp, which has done its work before specrun notes that.

    is_behind: whether it is over then.
    """

    what: str
    is_behind: bool = True


MOMENTS = (
    Moment("decode", is_behind=False),
    Moment("llama_synchronize"),
    Moment("decode"),
    Moment("remove", is_behind=False),
    Moment("llama_memory_seq_rm"),
    Moment("llama_memory_clear"),
    Moment("remove"),
    Moment("copy", is_behind=False),
    Moment("llama_memory_seq_cp"),
    Moment("copy"),
)


class OnPurposeError(BaseException):
    """Like Ctrl-C, it may come between any two steps of Python."""


@contextmanager
def failing(context: LlamaContext, moment: Moment, after: int = 0) -> Iterator[None]:
    """Inside the block, what `moment` names ends with OnPurposeError, after `after` other calls of it."""
    left = after

    def with_failure(act: Callable[..., Any]) -> Callable[..., Any]:
        def acted(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left != -1:
                return act(*arguments)
            if moment.is_behind:
                act(*arguments)
            raise OnPurposeError

        return acted

    of_context = hasattr(context, moment.what)
    with ExitStack() as stack:
        if of_context:
            stack.enter_context(patch.object(context, moment.what, with_failure(getattr(context, moment.what))))
        else:
            act = getattr(context_module.llama_cpp, moment.what)
            failed = with_failure(act)

            def of_this_context(handle: Any, *arguments: Any) -> Any:
                is_own = handle in (context.handle, context._memory)
                return failed(handle, *arguments) if is_own else act(handle, *arguments)

            stack.enter_context(patch.object(context_module.llama_cpp, moment.what, of_this_context))
        yield
