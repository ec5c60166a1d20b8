"""Collects the facts about a model for `specrun models info`."""

from __future__ import annotations

from typing import Any

from specrun.catalog import made
from specrun.catalog.entries import COMPANIONS, Kind, best_companion, how_to_draft
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.heads import has_foreign_mtp, head_in, own_head
from specrun.catalog.layer_states import is_untried, kv_bytes_per_token, recurrent_layers
from specrun.catalog.resolve import Model
from specrun.catalog.trimmed import TOKENIZER, trimmed_in
from specrun.display_text import size_text

_OF_HEAD = ("target_layers", "target_width", "reads_cache")
_CTX_SIZE = 4096  # tokens; the default context of all commands


def facts(model: Model) -> dict[str, Any]:
    """All facts about a model as JSON values: from the catalog, and from its file if that is on this machine.

    Sizes are in bytes. `needs` is the memory for weights and a context of `ctx_size` tokens, without compute buffers:
    `ram` with all layers on the CPU, `vram` with all layers on the GPU. Raises ModelFileError if the file is damaged.
    """
    values: dict[str, Any] = {"name": model.name, "path": str(model.path) if model.path else None}
    if model.hub:
        values |= {"repo": model.hub.repo, "file": model.hub.file, "quantization": model.hub.quantization}
    if model.hub and (entry := model.hub.entry):
        values |= {"alias": entry.alias, "family": entry.family, "licence": entry.licence, "trees": entry.trees}
        values |= {"architecture": entry.architecture, "context": entry.context, "drafts": list(entry.drafts)}
        values["companions"] = list(entry.companions)
        if model.hub.file == entry.file:
            values |= {"bytes": entry.bytes, "quantization": entry.quantization}
    if model.path:
        values |= _file_facts(GgufFile.read(model.path))
        if draft := made.find(model.path):
            values["made_draft"] = {"path": str(draft.path), "how": draft.how}
        if head := made.find(model.path, "head"):
            values["made_head"] = {"path": str(head.path), "how": head.how}
    return values


def kind_of(file: GgufFile) -> Kind:
    """The same as `Entry.kind`, from the file's metadata and tensors."""
    if file.n_experts:
        return "moe"
    return "hybrid" if recurrent_layers(file) or is_untried(file) else "dense"


def _file_facts(file: GgufFile) -> dict[str, Any]:
    metadata, head, trimmed = file.metadata, head_in(file), trimmed_in(file)
    tokenizer = {"model": metadata.get(TOKENIZER if trimmed else "tokenizer.ggml.model")}
    ctx_size = min(file.n_ctx_train or _CTX_SIZE, _CTX_SIZE)
    kv_bytes = sum(kv_bytes_per_token(file)) * ctx_size
    tied_bytes = file.output_bytes if file.is_tied else 0
    return {
        "title": file.name,
        "files": [path.name for path in file.shards],
        "architecture": file.architecture,
        "parameters": file.n_parameters,
        "bytes": file.n_bytes,
        "quantization": file.quantization,
        "types": file.types,
        "bits_per_weight": round(8 * file.n_bytes / file.n_parameters, 2) if file.n_parameters else None,
        "layers": file.n_layers,
        "layer_bytes": list(file.layer_bytes),
        "experts": file.n_experts,
        "experts_used": file.n_experts_used,
        "embedding_bytes": file.embedding_bytes,
        "context": file.n_ctx_train,
        "sliding_window": file.number("attention.sliding_window") or None,
        "tokenizer": tokenizer
        | {"pre": metadata.get("tokenizer.ggml.pre"), "tokens": file.n_vocab}
        | ({"trimmed": len(trimmed.tokens)} if trimmed else {}),
        "chat_template": file.chat_template,
        "licence": metadata.get("general.license"),
        "head": {"name": head.name} | {name: getattr(head, name) for name in _OF_HEAD} if head else None,
        "mtp": own_head(file) is not None,
        "foreign_mtp": has_foreign_mtp(file),
        "needs": {
            "ctx_size": ctx_size,
            "kv_cache": kv_bytes,
            "ram": file.n_bytes + kv_bytes,
            "vram": file.n_bytes - file.embedding_bytes + tied_bytes + kv_bytes,
        },
    }


def lines(values: dict[str, Any]) -> list[tuple[str, str]]:
    """The result of `facts` as text for people: pairs of a label and its value."""
    rows: list[tuple[str, Any]] = [
        ("model", values.get("title") or values["name"]),
        ("repository", values.get("repo")),
        ("file", _file(values)),
        ("licence", values.get("licence")),
        ("architecture", values.get("architecture")),
    ]
    if "parameters" in values:
        rows += _weights(values)
    elif values.get("bytes"):
        rows.append(("size", size_text(values["bytes"])))
    if values.get("context"):
        window = f", some layers see the last {values['sliding_window']:,}" if values.get("sliding_window") else ""
        rows.append(("context", f"{values['context']:,} tokens{window}"))
    if "tokenizer" in values:
        tokenizer = values["tokenizer"]
        part = f"{tokenizer['trimmed']:,} of " if "trimmed" in tokenizer else ""
        rows.append(("tokenizer", f"{tokenizer['model']}, {tokenizer['pre']}, {part}{tokenizer['tokens']:,} tokens"))
        template = values["chat_template"]
        rows.append(("chat template", f"{len(template)} characters" if template else "none"))
    if head := values.get("head"):
        layers = ", ".join(map(str, head["target_layers"]))
        read = f"the states of their layers {layers}" if layers else "the states after their last layer"
        read += " and their KV cache" if head["reads_cache"] else ""
        rows.append(("drafts for", f"targets {head['target_width']:,} wide, by {read}"))
    if values.get("mtp"):
        rows.append(("MTP layers", "can draft (--draft mtp)"))
    if values.get("foreign_mtp"):
        rows.append(("MTP layers", f"llama.cpp cannot draft with those of {values['architecture']} models"))
    if values.get("drafts"):
        rows.append(("drafts", ", ".join(values["drafts"])))
    rows += _published(values)
    if draft := values.get("made_draft"):
        rows.append(("made draft", f"{draft['how']}, {draft['path']}"))
    if head := values.get("made_head"):
        rows.append(("made head", f"{head['how']}, {head['path']}"))
    if values.get("trees") is False:
        rows.append(("speculation", "chains: of a model with recurrent layers a pass checks one path"))
    if "needs" in values:
        needs = values["needs"]
        kv = f"{size_text(needs['kv_cache'])} of it for {needs['ctx_size']:,} tokens"
        rows.append(("needs", f"{size_text(needs['ram'])} of RAM ({kv}), or {size_text(needs['vram'])} of VRAM"))
    return [(word, str(text)) for word, text in rows if text]


def _published(values: dict[str, Any]) -> list[tuple[str, str]]:
    """What is published for a model of the catalog. MTP layers are left out if the file is here, as it says more."""
    shown, companions = {"sibling", *(values.keys() & {"mtp"})}, values.get("companions", ())
    rows = [
        ("published", f"{COMPANIONS[c]} ({how_to_draft(c, values['architecture'])})")
        for c in companions
        if c not in shown
    ]
    best = best_companion(companions, values.get("architecture"))
    return [*rows, ("best known", f"{best}, of what drafts for this family")] if best else rows


def _file(values: dict[str, Any]) -> str:
    n_files = len(values.get("files", ()))
    more = f" and {n_files - 1} more" if n_files > 1 else ""
    return f"{values['path']}{more}" if values["path"] else f"{values.get('file') or ''} (not on this machine)".strip()


def _weights(values: dict[str, Any]) -> list[tuple[str, Any]]:
    mix = ", ".join(f"{name} {100 * share['bytes'] / values['bytes']:.0f} %" for name, share in values["types"].items())
    n, layers = values["parameters"], values["layer_bytes"]
    span = " to ".join(dict.fromkeys(size_text(edge(layers)) for edge in (min, max))) if layers else ""
    experts = f", {values['experts_used']} of {values['experts']} experts" if values["experts"] else ""
    return [
        ("parameters", f"{n / 1e9:.2f} billion" if n >= 1e8 else f"{n / 1e6:.2f} million"),
        ("size", f"{size_text(values['bytes'])}, {values['bits_per_weight']} bits a weight"),
        ("quantization", f"{values['quantization']} ({mix})"),
        ("layers", f"{values['layers']}, {span} each{experts}" if layers else None),
    ]
