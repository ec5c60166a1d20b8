"""Train the demonstration pair from nothing and write target.gguf and draft.gguf.

The target learns the source code of the running Python's standard library. The draft then learns the target's
probabilities, on the same text and on text that the target wrote. All figures printed at the end are measured on the
written files, with library files that neither model saw.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from demo_pair import corpus, export, measure, model, tokenizer, training
from tokenizers import Tokenizer

TARGET_SHAPE = model.Shape(layers=8, width=256, heads=8, kv_heads=2, feed_forward=896)
# The draft starts as these layers of the target, with its embeddings: of all choices of four, the one that agrees with
# the target most (52 %) before any training. Learning at full rate would first forget what the layers know.
DRAFT_LAYERS = (0, 3, 4, 6)
DRAFT_RATE = 0.4
VOCABULARY = 2048
LONG_WINDOW_SHARE = 0.2
KEPT_PROBABILITIES = 48
WRITING_BATCH = 64
WRITING_PROMPT = 32


@dataclass(frozen=True)
class Text:
    """The tokenized corpus: training streams, held-out rows [count, context] and what is needed to report on them."""

    sources: training.Sources
    held_out: torch.Tensor
    held_out_texts: list[str]
    bytes_per_token: float
    lines: list[str]


def main() -> int:
    """Train, write, measure."""
    options = parse_arguments()
    documents, tokens = begin(options)
    text = prepare(documents, tokens)
    print("\n".join(text.lines), flush=True)
    target, target_seconds = make_target(options, text)
    teaching = collect_teaching(options, target, text)
    draft = model.layers_of(target, DRAFT_LAYERS)
    draft_seconds = training.train(
        draft,
        training.teaching_loss(teaching),
        options.draft_tokens,
        options.seed + 1,
        long_share=1.0,
        rate=DRAFT_RATE,
        compiled=options.compile,
        label="draft",
    )
    print("\n".join(text.lines))
    print(
        f"trained in {target_seconds / 60:.0f} + {draft_seconds / 60:.0f} minutes, {options.threads} threads, "
        f"{platform.machine()}, torch {torch.__version__}"
    )
    target, draft = write(options.out, "target", target, tokens), write(options.out, "draft", draft, tokens)
    report(options.out, target, draft, tokens, text)
    return 0


def parse_arguments() -> argparse.Namespace:
    """Read the command line; the defaults are what made the shipped files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo-pair"), help="folder for the two files (%(default)s)")
    parser.add_argument("--target-tokens", type=int, default=9_000_000, help="budget of the target (%(default)s)")
    parser.add_argument("--draft-tokens", type=int, default=5_000_000, help="budget of the draft (%(default)s)")
    parser.add_argument(
        "--read-tokens", type=int, default=2_500_000, help="text the target reads for the draft (%(default)s)"
    )
    parser.add_argument(
        "--written-tokens", type=int, default=330_000, help="text the target writes for the draft (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=7, help="seed of every random choice (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="processor threads (%(default)s)")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="use torch.compile, which needs a C++ compiler and saves about a sixth of the time",
    )
    parser.add_argument(
        "--reuse-target",
        type=Path,
        metavar="FILE",
        help="weights file: load the target from it, or save it there; a .gguf is a written target, only loaded",
    )
    return parser.parse_args()


def begin(options: argparse.Namespace) -> tuple[list[corpus.Document], Tokenizer]:
    """Set up torch and the output folder; returns the corpus, and the tokenizer that is trained on its library."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    documents = corpus.read_corpus()
    return documents, tokenizer.train_tokenizer((d.text for d in documents if d.role == "library"), VOCABULARY)


def prepare(documents: list[corpus.Document], tokens: Tokenizer) -> Text:
    """Tokenize the corpus by role."""
    by_role = {
        role: [document for document in documents if document.role == role] for role in ("library", "test", "held-out")
    }
    streams = {role: tokenizer.encode_documents(tokens, chosen) for role, chosen in by_role.items()}
    lines = [f"Python {platform.python_version()} standard library, vocabulary of {VOCABULARY} tokens"]
    for role, chosen in by_role.items():
        size = sum(len(document.text.encode()) for document in chosen)
        lines.append(f"{role}: {len(chosen)} files, {size} bytes, {len(streams[role])} tokens")
    held_out_bytes = sum(len(document.text.encode()) for document in by_role["held-out"])
    return Text(
        sources=training.Sources(streams["library"], streams["test"]),
        held_out=measure.rows_of(streams["held-out"]),
        held_out_texts=[document.text for document in by_role["held-out"]],
        bytes_per_token=held_out_bytes / len(streams["held-out"]),
        lines=lines,
    )


def make_target(options: argparse.Namespace, text: Text) -> tuple[model.Llama, float]:
    """Train the target, or load it from the file of an earlier run."""
    target = model.Llama(TARGET_SHAPE)
    saved: Path | None = options.reuse_target
    if saved is not None and saved.suffix == ".gguf":
        return export.load_exported(saved, target), 0.0
    if saved is not None and saved.exists():
        state = torch.load(saved, weights_only=True)
        target.load_state_dict(state["weights"])
        return target, state["seconds"]
    seconds = training.train(
        target,
        training.text_loss(text.sources),
        options.target_tokens,
        options.seed,
        long_share=LONG_WINDOW_SHARE,
        compiled=options.compile,
        label="target",
    )
    if saved is not None:
        torch.save({"weights": target.state_dict(), "seconds": seconds}, saved)
    return target, seconds


def collect_teaching(options: argparse.Namespace, target: model.Llama, text: Text) -> training.Teaching:
    """Record what the target expects in training text and in texts of its own, all one context long."""
    random = torch.Generator().manual_seed(options.seed)
    library, tests = measure.rows_of(text.sources.stdlib), measure.rows_of(text.sources.tests)
    # All the library first; tests fill up the rest.
    rows = torch.cat([library, tests[torch.randperm(len(tests), generator=random)]])
    rows = rows[: options.read_tokens // model.CONTEXT_LENGTH]
    written = []
    for index in range(options.written_tokens // (WRITING_BATCH * model.CONTEXT_LENGTH)):
        chosen = torch.randperm(min(len(rows), len(library)), generator=random)[:WRITING_BATCH]
        with torch.autocast("cpu", torch.bfloat16):
            written.append(
                model.generate(
                    target,
                    rows[chosen, :WRITING_PROMPT],
                    model.CONTEXT_LENGTH - WRITING_PROMPT,
                    measure.SAMPLING_TEMPERATURE,
                    seed=options.seed + index,
                )
            )
        print(f"the target wrote {len(written) * WRITING_BATCH * model.CONTEXT_LENGTH} tokens", flush=True)
    reader: torch.nn.Module = torch.compile(target, dynamic=False) if options.compile else target
    teaching = training.ask_target(reader, torch.cat([rows, *written]), KEPT_PROBABILITIES)
    print(f"the target gave its probabilities for {teaching.ids.numel()} tokens", flush=True)
    return teaching


def write(folder: Path, role: str, trained: model.Llama, tokens: Tokenizer) -> model.Llama:
    """Write one model and return it with the weights a reader of the file sees."""
    path = folder / f"{role}.gguf"
    description = (
        f"The {role} of a toy pair for trying speculative decoding: a {trained.parameter_count()} parameter model of "
        "Python source code, trained from nothing on the Python standard library."
    )
    export.export(trained, tokens, path, name=f"specrun demo {role}", description=description)
    return export.load_exported(path, model.Llama(trained.shape))


def report(folder: Path, target: model.Llama, draft: model.Llama, tokens: Tokenizer, text: Text) -> None:
    """Print what the written files do."""
    for role, loaded in (("target", target), ("draft", draft)):
        path = folder / f"{role}.gguf"
        result = measure.fit(loaded, text.held_out, text.bytes_per_token)
        sizes = ", ".join(f"{field.name} {getattr(loaded.shape, field.name)}" for field in fields(loaded.shape))
        print(f"\n{role}: {loaded.parameter_count()} parameters ({sizes})")
        print(f"  {path.stat().st_size} bytes, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}")
        print(
            f"  held-out: {result.nats_per_token:.3f} nats/token, {result.bits_per_byte:.3f} bits/byte, "
            f"right token first {result.top_1:.1%}"
        )
        for line in measure.check_with_llama_cpp(path, loaded, tokens, text.held_out_texts):
            print("  " + line.replace("\n", "\n    "))
    print("\nagreement of draft and target (same most likely token, overlap of the distributions)")
    same, overlap = measure.agreement(target, draft, text.held_out)
    print(f"  held-out text: {same:.1%}, {overlap:.1%}")
    for label, temperature in (("greedy", 0.0), ("T=0.8", measure.SAMPLING_TEMPERATURE)):
        same, overlap = measure.generated_agreement(target, draft, text.held_out, temperature)
        print(f"  text the target wrote, {label}: {same:.1%}, {overlap:.1%}")


if __name__ == "__main__":
    started = time.monotonic()
    status = main()
    print(f"\n{(time.monotonic() - started) / 60:.1f} minutes in all")
    sys.exit(status)
