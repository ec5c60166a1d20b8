"""The pairs that run on the simulated machines: the embedded target, and drafts that agree with it more or less."""

from __future__ import annotations

from pathlib import Path

from real_pair import write_draft

from machines.simulated import DRAFT_NAME
from specrun import bench
from specrun.catalog import embedded

# Share of the drafted tokens of a chain of 4 that are accepted, in percent, mean of the texts below at T=0 and 0.8 ->
# noise of the draft, in standard deviations of each matrix. Found by `bench_machines.py --agreements`.
NOISES = {55: 0.35, 70: 0.2, 85: 0.09}
TEXTS = ("code", "prose", "copies")


def draft(folder: Path, agreement: int) -> Path:
    """The draft with this agreement, made if it is not in the folder."""
    path = folder / f"draft-{agreement}.gguf"
    if not path.exists():
        write_draft(path, "q8_0", NOISES[agreement], embedded.TARGET, DRAFT_NAME)
    return path


def prompt(text: str, which: int = 0) -> str:
    """One of the prompts of a kind of text, continued as it is. which: they are taken in turn."""
    shipped = bench.shipped(["edit" if text == "copies" else text])
    prompt = shipped[which % len(shipped)].text
    if text == "copies":
        code = prompt.split("```python\n")[1].split("```")[0]
        return code[:1200] + "\n\n" + code[:300]
    return prompt
