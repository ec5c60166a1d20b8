"""The only package that imports llama_cpp: models, contexts, batches, grammars, devices, logging.

Importing it loads llama.cpp's shared library (about a third of a second), so the command line imports it only
when a model is needed.
"""

from specrun.llama import shared_library  # noqa: F401, loads it before the modules that need it
from specrun.llama.draft import AnyDraft, DraftContext
from specrun.llama.heads.assistant import AssistantDraft
from specrun.llama.heads.dflash import BlockDraft
from specrun.llama.heads.head_draft import HeadDraft
from specrun.llama.loaded_model import LlamaModel
from specrun.llama.recurrent_draft import RecurrentDraft
from specrun.llama.target import TargetContext

AnyHead = HeadDraft | BlockDraft | AssistantDraft

__all__ = [
    "AnyDraft", "AnyHead", "AssistantDraft", "BlockDraft", "DraftContext", "HeadDraft", "LlamaModel",
    "RecurrentDraft", "TargetContext",
]  # fmt: skip
