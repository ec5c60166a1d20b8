"""Models laid out on disk as Ollama and LM Studio lay them."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"


def in_ollama(folder: Path, name: str, model: Path | None, **layers: str | bytes) -> Path:
    """A model in Ollama's folder, with layers such as `template`. name: HOST/NAMESPACE/MODEL/TAG. Returns its blob."""
    described = [("model", model.read_bytes())] if model else []
    described += [(kind, text if isinstance(text, bytes) else text.encode()) for kind, text in layers.items()]
    manifest = folder / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    value = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": {"mediaType": _CONFIG, **_blob(folder, b"{}")},
        "layers": [{"mediaType": f"application/vnd.ollama.image.{k}", **_blob(folder, data)} for k, data in described],
    }
    manifest.write_text(json.dumps(value))
    return folder / "blobs" / str(value["layers"][0]["digest"]).replace(":", "-")


def _blob(folder: Path, data: bytes) -> dict[str, str | int]:
    digest = hashlib.sha256(data).hexdigest()
    blob = folder / "blobs" / f"sha256-{digest}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def in_lm_studio(models: Path, name: str, model: Path) -> Path:
    """A model in LM Studio's folder of models. name: PUBLISHER/MODEL/FILE.gguf."""
    (models / name).parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(model, models / name))
