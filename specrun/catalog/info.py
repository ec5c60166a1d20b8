"""What a model is and what it needs, from the header of its file."""

from __future__ import annotations

from typing import Any

from specrun.catalog import made
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.resolve import Model
from specrun.units import size_text

_CTX_SIZE = 4096  # tokens, what every command takes by default


def facts(model: Model) -> dict[str, Any]:
    """Everything known of a model, for programs: from the catalog, and from its file if it is on this machine.

    Sizes are bytes. needs: of `ctx_size` tokens of context, without the buffers of the computation itself; `ram` is
    with all layers on the CPU, `vram` with all on the GPU, where the token embedding stays in RAM.
    Raises ModelFileError if the file is damaged.
    """
    known: dict[str, Any] = {"name": model.name, "path": str(model.path) if model.path else None}
    if model.hub:
        known |= {"repo": model.hub.repo, "file": model.hub.file, "quantization": model.hub.quantization}
    if model.hub and (entry := model.hub.entry):
        known |= {"alias": entry.alias, "family": entry.family, "licence": entry.licence, "trees": entry.trees}
        known |= {"architecture": entry.architecture, "context": entry.context, "drafts": list(entry.drafts)}
        if model.hub.file == entry.file:
            known |= {"bytes": entry.bytes, "quantization": entry.quantization}
    if model.path:
        known |= _of_file(GgufFile.read(model.path))
        if draft := made.find(model.path):
            known["made_draft"] = {"path": str(draft.path), "how": draft.how}
    return known


def _of_file(file: GgufFile) -> dict[str, Any]:
    metadata = file.metadata
    ctx_size = min(file.n_ctx_train or _CTX_SIZE, _CTX_SIZE)
    kv_bytes = sum(file.kv_bytes_per_token()) * ctx_size
    return {
        "title": file.name,
        "files": [path.name for path in file.shards],
        "architecture": file.architecture,
        "parameters": file.n_parameters,
        "bytes": file.n_bytes,
        "quantization": file.quantization,
        "types": {name: {"bytes": s.n_bytes, "parameters": s.n_parameters} for name, s in file.types.items()},
        "bits_per_weight": round(8 * file.n_bytes / file.n_parameters, 2) if file.n_parameters else None,
        "layers": file.n_layers,
        "layer_bytes": list(file.layer_bytes),
        "experts": file.n_experts,
        "experts_used": file.n_experts_used,
        "embedding_bytes": file.embedding_bytes,
        "context": file.n_ctx_train,
        "sliding_window": file.sliding_window,
        "tokenizer": {
            "model": metadata.get("tokenizer.ggml.model"),
            "pre": metadata.get("tokenizer.ggml.pre"),
            "tokens": file.n_vocab,
        },
        "chat_template": metadata.get("tokenizer.chat_template"),
        "licence": metadata.get("general.license"),
        "needs": {
            "ctx_size": ctx_size,
            "kv_cache": kv_bytes,
            "ram": file.n_bytes + kv_bytes,
            "vram": file.n_bytes - file.embedding_bytes + (file.output_bytes if file.is_tied else 0) + kv_bytes,
        },
    }


def lines(known: dict[str, Any]) -> list[tuple[str, str]]:
    """The same for people: pairs of a word and what there is to say."""
    rows: list[tuple[str, Any]] = [
        ("model", known.get("title") or known["name"]),
        ("repository", known.get("repo")),
        ("file", _file(known)),
        ("licence", known.get("licence")),
        ("architecture", known.get("architecture")),
    ]
    if "parameters" in known:
        rows += _weights(known)
    elif known.get("bytes"):
        rows.append(("size", size_text(known["bytes"])))
    if known.get("context"):
        window = f", some layers see the last {known['sliding_window']:,}" if known.get("sliding_window") else ""
        rows.append(("context", f"{known['context']:,} tokens{window}"))
    if "tokenizer" in known:
        tokenizer = known["tokenizer"]
        rows.append(("tokenizer", f"{tokenizer['model']}, {tokenizer['pre']}, {tokenizer['tokens']:,} tokens"))
        template = known["chat_template"]
        rows.append(("chat template", f"{len(template)} characters" if template else "none"))
    if known.get("drafts"):
        rows.append(("drafts", ", ".join(known["drafts"])))
    if draft := known.get("made_draft"):
        rows.append(("made draft", f"{draft['how']}, {draft['path']}"))
    if known.get("trees") is False:
        rows.append(("speculation", "none: it is recurrent and cannot take tokens back"))
    if "needs" in known:
        needs = known["needs"]
        kv = f"{size_text(needs['kv_cache'])} of it for {needs['ctx_size']:,} tokens"
        rows.append(("needs", f"{size_text(needs['ram'])} of RAM ({kv}), or {size_text(needs['vram'])} of VRAM"))
    return [(word, str(text)) for word, text in rows if text]


def _file(known: dict[str, Any]) -> str:
    n_files = len(known.get("files", ()))
    more = f" and {n_files - 1} more" if n_files > 1 else ""
    return f"{known['path']}{more}" if known["path"] else f"{known.get('file') or ''} (not on this machine)".strip()


def _weights(known: dict[str, Any]) -> list[tuple[str, Any]]:
    mix = ", ".join(f"{name} {100 * share['bytes'] / known['bytes']:.0f} %" for name, share in known["types"].items())
    layers = known["layer_bytes"]
    experts = f", {known['experts_used']} of {known['experts']} experts" if known["experts"] else ""
    return [
        ("parameters", _count(known["parameters"])),
        ("size", f"{size_text(known['bytes'])}, {known['bits_per_weight']} bits a weight"),
        ("quantization", f"{known['quantization']} ({mix})"),
        ("layers", f"{known['layers']}, {_span(layers)} each{experts}" if layers else None),
    ]


def _count(n: int) -> str:
    return f"{n / 1e9:.2f} billion" if n >= 1e8 else f"{n / 1e6:.2f} million"


def _span(sizes: list[int]) -> str:
    low, high = size_text(min(sizes)), size_text(max(sizes))
    return low if low == high else f"{low} to {high}"
