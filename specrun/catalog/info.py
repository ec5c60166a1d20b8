"""What `specrun models` tells: the facts about a model, and the drafts that fit a target, in the catalog and here."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specrun.catalog import embedded, here, made, resolve
from specrun.catalog.entries import COMPANIONS, Kind, best_companion, how_to_draft
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.heads import difference_of, has_foreign_mtp, head_in, own_head
from specrun.catalog.layer_states import is_untried, kv_bytes_per_token, recurrent_layers
from specrun.catalog.pairs import (
    LEAST_SHARE,
    check_comparable,
    first_difference,
    read_vocabulary,
    share_of,
    warnings,
    what_is_shared,
)
from specrun.catalog.resolve import Model
from specrun.display_text import size_text
from specrun.errors import ModelFileError, PairError
from specrun.locations import file_state


@dataclass(frozen=True)
class Pair:
    """A target with a draft."""

    target: str
    draft: str
    recommended: bool  # the draft that is used unless another is named, was made, or was measured as faster
    cached: bool  # the draft is on this machine
    checked: bool = False  # both files are on this machine, and their tokenizers were compared
    difference: str | None = None  # why the draft cannot draft for the target; None if it can or was not checked
    warnings: tuple[str, ...] = ()  # why the draft may guess badly, one sentence each
    share: float | None = None  # of the target's text that both tokenizers share; None where both have the same one


def pairs_of(target: Model, text: str) -> list[Pair]:
    """The target's pairs: the catalog's drafts, its MTP layers, what was made for it, then all smaller models in the
    folder of a target that is a path, and of this machine. Raises ModelFileError.

    text: of which the shares of other tokenizers are told.
    """
    recommended = [resolve.locate(name) for name in resolve.recommended_drafts(target)]
    best = resolve.best_draft(recommended, may_fetch=True)
    others = [resolve.locate(name) for name in (target.entry.other_drafts if target.entry else ())]
    recommended += [model for model in others if model not in recommended]
    found = [_pair(target, model, model == best, text) for model in recommended]
    if target.path is None:
        return found
    file = _read(target.path)
    if own_head(file):
        found.append(Pair(target.name, resolve.OWN_HEAD, recommended=False, cached=True, checked=True))
    made_for_it = _made_for(target, target.path)
    found += [_pair(target, model, model.path == embedded.DRAFT, text) for model in made_for_it]
    known = {file_state(model.path) for model in (*recommended, *made_for_it) if model.path}
    for model in (*_beside(target, target.path), *on_this_machine(with_heads=True)):
        if model.path and (state := file_state(model.path)) not in known and _read(model.path).n_bytes < file.n_bytes:
            known.add(state)
            found.append(_pair(target, model, False, text))
    return found


def _made_for(target: Model, path: Path) -> list[Model]:
    """The draft and the head that were made for the target, or that come with it if it is the embedded one, by the
    names that --draft takes.
    """
    found = {str(one.path): one.path for kind in made.KINDS if (one := made.find(path, kind)) and one.path.exists()}
    found |= embedded.DRAFTS if embedded.is_meant(target.name) else {}
    return [Model(name, path) for name, path in found.items()]


def _beside(target: Model, path: Path) -> Iterator[Model]:
    """The other models in the folder of a target that was given by its path."""
    for file in () if target.hub or embedded.is_meant(target.name) else here.beside(path):
        with suppress(ModelFileError):
            _read(file)
            yield Model(str(file), file)


def on_this_machine(with_heads: bool = False) -> Iterator[Model]:
    """Every model here whose file can be read. with_heads: as in `local_models`."""
    for model in here.local_models(with_heads):
        with suppress(ModelFileError):
            _read(model.path)
            yield resolve.locate(model.name)


_read = functools.cache(GgufFile.read)  # each file is one side of many pairs


def _pair(target: Model, draft: Model, recommended: bool, text: str) -> Pair:
    pair = Pair(target.name, draft.name, recommended, cached=draft.path is not None)
    if target.path is None or draft.path is None:
        percent = target.entry.other_drafts.get(draft.name.lower()) if target.entry else None
        return pair if percent is None else _by_share(pair, percent / 100)
    pair = replace(pair, checked=True)
    try:
        target_file, draft_file = _read(target.path), _read(draft.path)
        if head := head_in(draft_file):
            return replace(pair, difference=difference_of(target_file, draft_file, head))
        ours, theirs = read_vocabulary(target_file), read_vocabulary(draft_file)
        if first_difference(ours, theirs) is None:
            return replace(pair, warnings=warnings(ours, theirs))
        check_comparable(ours, theirs)
    except (ModelFileError, PairError) as error:
        return replace(pair, difference=str(error))
    return _by_share(pair, share_of(ours, theirs, text))


def _by_share(pair: Pair, share: float) -> Pair:
    """A pair of two tokenizers. share: of the target's text that both share."""
    what = what_is_shared(share)
    if share < LEAST_SHARE:
        return replace(pair, share=share, difference=f"{what}: it would not pay")
    return replace(pair, share=share, warnings=(what,))


_OF_HEAD = ("target_layers", "target_width", "reads_cache")
_CTX_SIZE = 4096  # tokens; the default context of all commands


def facts(model: Model) -> dict[str, Any]:
    """All facts about a model as JSON values: from the catalog, and from its file if that is on this machine.

    Sizes are in bytes. `needs` is the memory for weights and a context of `ctx_size` tokens, without compute buffers
    and without pages of the file that lie in RAM beside re-ordered weights:
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
        for kind in made.KINDS:
            if found := made.find(model.path, kind):
                values[f"made_{kind}"] = {"path": str(found.path), "how": found.how}
    return values


def kind_of(file: GgufFile) -> Kind:
    """The same as `Entry.kind`, from the file's metadata and tensors."""
    if file.n_experts:
        return "moe"
    return "hybrid" if recurrent_layers(file) or is_untried(file) else "dense"


def _file_facts(file: GgufFile) -> dict[str, Any]:
    metadata, head = file.metadata, head_in(file)
    tokenizer = {name: metadata.get(f"tokenizer.ggml.{name}") for name in ("model", "pre")}
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
        "tokenizer": tokenizer | {"tokens": file.n_vocab},
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
    get, rows = values.get, list[tuple[str, Any]]()
    rows += [("model", get("title") or values["name"]), ("repository", get("repo")), ("file", _file(values))]
    rows += [("licence", get("licence")), ("architecture", get("architecture"))]
    if "parameters" in values:
        rows += _weights(values)
    elif get("bytes"):
        rows.append(("size", size_text(values["bytes"])))
    if get("context"):
        window = f", some layers see the last {values['sliding_window']:,}" if get("sliding_window") else ""
        rows.append(("context", f"{values['context']:,} tokens{window}"))
    if tokenizer := get("tokenizer"):
        template = values["chat_template"]
        rows.append(("tokenizer", f"{tokenizer['model']}, {tokenizer['pre']}, {tokenizer['tokens']:,} tokens"))
        rows.append(("chat template", f"{len(template)} characters" if template else "none"))
    if head := get("head"):
        layers = ", ".join(map(str, head["target_layers"]))
        read = f"the states of their layers {layers}" if layers else "the states after their last layer"
        read += " and their KV cache" if head["reads_cache"] else ""
        rows.append(("drafts for", f"targets {head['target_width']:,} wide, by {read}"))
    cannot = f"llama.cpp cannot draft with those of {get('architecture')} models"
    rows += [("MTP layers", "can draft (--draft mtp)" if get("mtp") else cannot if get("foreign_mtp") else None)]
    rows += [("drafts", ", ".join(get("drafts", ()))), *_published(values)]
    rows += [(f"made {kind}", f"{m['how']}, {m['path']}") for kind in made.KINDS if (m := get(f"made_{kind}"))]
    if get("trees") is False:
        rows.append(("speculation", "chains: of a model with recurrent layers a pass checks one path"))
    if needs := get("needs"):
        kv = f"{size_text(needs['kv_cache'])} of it for {needs['ctx_size']:,} tokens"
        memory = f"{size_text(needs['ram'])} of RAM ({kv}), or {size_text(needs['vram'])} of VRAM, besides buffers"
        # Re-ordered weights are copies, so mapped pages beside them are in RAM as long as nobody else needs it.
        rows.append(("needs", f"{memory} and pages of the file that the system can take back"))
    return [(word, str(text)) for word, text in rows if text]


def _published(values: dict[str, Any]) -> list[tuple[str, str]]:
    """What is published for a model of the catalog. MTP layers are left out if the file is here, as it says more."""
    shown, architecture = {"sibling", *(values.keys() & {"mtp"})}, values.get("architecture")
    companions = values.get("companions", ())
    rows = [("published", f"{COMPANIONS[c]} ({how_to_draft(c, architecture)})") for c in companions if c not in shown]
    best = best_companion(companions, architecture)
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
