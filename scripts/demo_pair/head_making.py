"""What the script that trains a block head needs: options, texts and lessons, and the report on agreement."""

from __future__ import annotations

import argparse
import hashlib
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from tokenizers import Tokenizer

from . import export, head_export, measure, model, tokenizer
from .block_head import BlockHead
from .corpus import Document
from .head_teaching import Lessons, lessons_of
from .training import Sources

LESSON = 512  # tokens of a text that a head learns from
STARTING_LESSONS = 480  # texts that the closed form is fitted on
MEASURED_WINDOW = 512
MEASURED_ONE_IN = 6  # windows of held-out text
WRITING_BATCH = 384
WRITING_PROMPT = 96
GREEDY_ONE_IN = 6  # batches that the target writes; greedy texts repeat themselves, so they teach less

Levels: TypeAlias = list[tuple[float, float]]  # same most likely token, overlap


class Ground(NamedTuple):
    """The target, the text for training, and held-out windows [count, time]."""

    target: model.Llama
    sources: Sources
    held_out: torch.Tensor


def parser(description: str | None, minutes: float, written_tokens: int) -> argparse.ArgumentParser:
    """The options, with these defaults."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = options.add_argument
    add("--out", type=Path, default=Path("demo-pair"), help="folder for the file (%(default)s)")
    add("--target", type=Path, default=Path("specrun/embedded/target.gguf"), help="the target's file (%(default)s)")
    add("--measure", type=Path, metavar="FILE", help="measure this head instead of training one")
    add(
        "--minutes",
        type=float,
        default=minutes,
        help="minutes that the head learns for; 0 writes its start (%(default)s)",
    )
    add("--read-tokens", type=int, default=1_100_000, help="text the target reads for the head (%(default)s)")
    add("--written-tokens", type=int, default=written_tokens, help="text it writes for the head (%(default)s)")
    add("--seed", type=int, default=7, help="seed of every random choice (%(default)s)")
    add("--threads", type=int, default=1, help="processor threads (%(default)s)")
    add("--written", type=Path, metavar="FILE", help="the target's own texts: read from it, or saved there")
    add("--checkpoint", type=Path, metavar="FILE", help="state of the training: gone on from, and saved there")
    return options


def ground(target: Path, shape: model.Shape, documents: Sequence[Document], tokens: Tokenizer) -> Ground:
    """Load the target and tokenize the corpus. Raises ValueError if the target has another vocabulary."""
    head_export.check_vocabulary(target, tokens)
    streams = {
        role: tokenizer.encode_documents(tokens, [d for d in documents if d.role == role])
        for role in ("library", "test", "held-out")
    }
    return Ground(
        export.load_exported(target, model.Llama(shape)).requires_grad_(False),
        Sources(streams["library"], streams["test"]),
        measure.rows_of(streams["held-out"], MEASURED_WINDOW)[::MEASURED_ONE_IN],
    )


def train(
    options: argparse.Namespace,
    head: BlockHead,
    on: Ground,
    begin: Callable[[Lessons], float],
    learn: Callable[[Lessons], int],
) -> None:
    """Teach a head what the target says about the library and about its own texts.

    begin: sets the head's weights, and returns the share of the states' variance that the linear guess explains.
    learn: trains it, and returns the tokens that it read.
    """
    random = np.random.default_rng(options.seed)
    written = written_texts(options, on.target, on.sources)
    read = on.sources.windows(random, options.read_tokens // LESSON, LESSON)
    texts = torch.cat([*written, read])[torch.from_numpy(random.permutation(len(read) + sum(map(len, written))))]
    lessons = lessons_of(on.target, texts, head.shape.target_layers)
    print(f"the target read {texts.numel()} tokens for the head", flush=True)
    explained = begin(Lessons(*(part[:STARTING_LESSONS] for part in lessons[:3]), lessons.output))
    print(f"the linear guess explains {explained:.1%} of the state before the last layer", flush=True)
    n_tokens = learn(lessons)
    print(f"trained on {n_tokens} tokens, {options.threads} threads, {platform.machine()}, torch {torch.__version__}")


def written_texts(
    options: argparse.Namespace, target: model.Llama, sources: Sources
) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts of the target [count, time], a sixth of them greedy, the others at temperature 0.8."""
    saved: Path | None = options.written
    if saved is not None and saved.exists():
        texts = torch.load(saved, weights_only=True)
        return texts["greedy"].long(), texts["sampled"].long()
    written: dict[str, list[torch.Tensor]] = {"greedy": [], "sampled": []}
    for index in range(max(GREEDY_ONE_IN, options.written_tokens // (WRITING_BATCH * LESSON))):
        kind = "greedy" if index % GREEDY_ONE_IN == 0 else "sampled"
        temperature = 0.0 if kind == "greedy" else measure.SAMPLING_TEMPERATURE
        prompts = sources.windows(np.random.default_rng((options.seed, index)), WRITING_BATCH, WRITING_PROMPT)
        with torch.autocast("cpu", torch.bfloat16):
            texts = model.generate(target, prompts, LESSON - WRITING_PROMPT, temperature, seed=options.seed + index)
        written[kind].append(texts)
        print(f"the target wrote {(index + 1) * WRITING_BATCH * LESSON} tokens", flush=True)
    all_texts = {kind: torch.cat(rows) for kind, rows in written.items()}
    if saved is not None:
        torch.save(all_texts, saved)
    return all_texts["greedy"], all_texts["sampled"]


def report_agreement(
    path: Path, head: BlockHead, on: Ground, levels: int, agreement: Callable[[Lessons, int], Levels]
) -> list[list[int]]:
    """Print what the written file is, and how often head and target agree; returns prompts for the report that follows.

    agreement: by level, where the first drafted text has its root at this position.
    """
    print(f"\nhead: {head.parameter_count()} parameters, {head.shape}")
    print(f"  {path.stat().st_size} bytes, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}")
    print("\nagreement of head and target by level (same most likely token, overlap of the distributions)")
    prompts = on.held_out[:, : measure.PROMPT_TOKENS]
    texts = {"held-out text": (on.held_out, 1)}
    for label, temperature in (("greedy", 0.0), ("T=0.8", measure.SAMPLING_TEMPERATURE)):
        written = model.generate(on.target, prompts, measure.CONTINUATION_TOKENS + levels, temperature, seed=0)
        texts[f"text the target wrote, {label}"] = (written, measure.PROMPT_TOKENS - 1)
    for label, (ids, root) in texts.items():
        rows = agreement(lessons_of(on.target, ids, head.shape.target_layers), root)
        print(f"  {label}: same  " + " ".join(f"{same:6.1%}" for same, _ in rows))
        print(" " * (len(label) + 4) + "overlap" + " ".join(f"{overlap:6.1%}" for _, overlap in rows), flush=True)
    return list(prompts[::4].tolist())
