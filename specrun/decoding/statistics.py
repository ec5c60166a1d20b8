"""Counts and times of the passes of one generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from specrun import clock
from specrun.decoding.engine import Engine
from specrun.decoding.prompt_states import Lookup
from specrun.speculation.planning.guide import PassRecord

FinishReason = Literal["stop", "length", "context", "interrupted"]


@dataclass
class Statistics:
    """Counts and times of one generation.

    prompt_tokens: tokens of the prompt.
    prompt_tokens_decoded: tokens of the prompt that were computed: neither in the KV cache nor on disk.
    from_disk: what became of the search for the prompt's beginning on disk; None where none is kept.
    completion_tokens: committed tokens.
    passes: target passes after the prompt.
    drafted: drafted tokens in these passes: all nodes of the trees but the roots.
    padding: tokens of padding in these passes.
    prefill_seconds: time before the first pass.
    reading_seconds: time in passes over the prompt; of a pass that texts share, this text's part.
    first_token_seconds: time from the start to the end of the first pass.
    seconds: time from the start of the first pass to the end of the last pass.
    target_seconds: time in target passes.
    draft_seconds: time in draft passes.
    draft_passes: number of draft passes.
    bytes_read: of streamed weights, from the start of the first pass to the end of the last pass.
    wait_seconds: time in target passes that was spent waiting for streamed weights.
    experts_used: experts that passes used where specrun keeps some of them in memory, each counted once in a pass.
    experts_found: how many of them were in memory.
    accepted: number of passes for each accepted length; index 0 is length 1.
    offered: number of passes that reached a node with children, for each depth of the children; index 0 is depth 1.
    matched: number of passes that accepted one of these children, for each depth; index 0 is depth 1.
    """

    prompt_tokens: int = 0
    prompt_tokens_decoded: int = 0
    from_disk: Lookup | None = None
    completion_tokens: int = 0
    passes: int = 0
    drafted: int = 0
    padding: int = 0
    prefill_seconds: float = 0.0
    reading_seconds: float = 0.0
    first_token_seconds: float = 0.0
    seconds: float = 0.0
    target_seconds: float = 0.0
    draft_seconds: float = 0.0
    draft_passes: int = 0
    bytes_read: int = 0
    wait_seconds: float = 0.0
    experts_used: int = 0
    experts_found: int = 0
    accepted: list[int] = field(default_factory=list)
    offered: list[int] = field(default_factory=list)
    matched: list[int] = field(default_factory=list)

    @property
    def other_seconds(self) -> float:
        """Time outside llama.cpp's passes: sampling, tree growth, acceptance, cache bookkeeping, printing."""
        return max(self.seconds - self.target_seconds - self.draft_seconds, 0.0)

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens per second after the prefill; 0 before the first pass."""
        return self.completion_tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def tokens_per_pass(self) -> float:
        """Mean accepted length: 1 in plain decoding, as the token that ends an answer is counted; 0 without a pass."""
        return (self.passes + self.drafted_accepted) / max(self.passes, 1)

    @property
    def drafted_accepted(self) -> int:
        """Drafted tokens that were accepted: of each pass all tokens but the last, which is the target's own."""
        return sum(i * n for i, n in enumerate(self.accepted))

    @property
    def acceptance_rate(self) -> float | None:
        """The share of drafted tokens that were accepted (Leviathan et al., arXiv 2211.17192); None if none was."""
        return self.drafted_accepted / self.drafted if self.drafted else None

    @property
    def draft_to_target(self) -> float | None:
        """The time of a draft pass as a share of a target pass, c in the papers; None if none was made."""
        if not (self.draft_passes and self.target_seconds):
            return None
        return self.draft_seconds / self.draft_passes / (self.target_seconds / max(self.passes, 1))

    @property
    def bytes_read_per_pass(self) -> int:
        """Mean bytes of streamed weights that a pass read; 0 where specrun streams none."""
        return round(self.bytes_read / self.passes) if self.passes else 0

    @property
    def expert_hit_rate(self) -> float | None:
        """The share of used experts that were in memory; None where specrun keeps none there."""
        return self.experts_found / self.experts_used if self.experts_used else None

    def count(self, done: PassRecord, n_tokens: int, padding: int) -> None:
        """Add one pass to the counts. n_tokens: of the text, without an end-of-generation token."""
        self.passes += 1
        self.drafted += len(done.tree) - 1
        self.padding += padding
        self.completion_tokens += n_tokens
        length = done.n_tokens
        self.accepted += [0] * (length - len(self.accepted))
        self.accepted[length - 1] += 1
        if len(done.tree) == 1:
            return
        for counts in (self.offered, self.matched):
            counts += [0] * (done.tree.depth - len(counts))
        path = done.accepted.path
        for depth, node in enumerate(path):
            if done.tree.children[node]:
                self.offered[depth] += 1
                self.matched[depth] += depth + 1 < len(path)

    def measure(self, engine: Engine, before: Mapping[str, float]) -> None:
        """Set the times and the bytes. before: what `spent` was before the first pass."""
        for name, value in spent(engine).items():
            setattr(self, name, value - before[name])


def spent(engine: Engine) -> dict[str, float]:
    """Times and counts of all texts that the engine has written, by their names in `Statistics`."""
    target, draft, now = engine.target.context, engine.draft, {"seconds": clock.now()}
    now |= {"target_seconds": target.decode_seconds}
    if draft:
        now |= {"draft_seconds": draft.context.decode_seconds, "draft_passes": draft.context.n_passes}
    if weights := target.weights:
        now |= {"wait_seconds": weights.wait_seconds, "bytes_read": weights.bytes_read}
        now |= dict(zip(("experts_used", "experts_found"), weights.found, strict=True))
    return now
