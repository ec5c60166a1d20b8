"""`specrun models` and `specrun pull`, with a hub on this machine and small models behind the real aliases."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import pytest

from specrun.catalog import cache, embedded, made
from specrun.catalog.entries import catalog
from tests.conftest import Specrun, SpecrunHere
from tests.hub import Hub
from tests.models import TOKENS, edited
from tests.other_programs import in_lm_studio, in_ollama

USAGE, MODEL_FILE, MISSING, HUB = 2, 3, 7, 8  # exit codes, see specrun.errors

pytestmark = pytest.mark.usefixtures("served")


def test_pull_and_the_names_of_it(here: SpecrunHere, served: Hub) -> None:
    result = here("pull", "qwen-14b", "--yes")
    assert result.code == 0, result
    path = Path(result.stdout.strip())
    assert path.name == catalog()["qwen-14b"].file
    assert "Qwen/Qwen2.5-14B-Instruct-GGUF, 3 files" in result.stderr
    assert "licence: apache-2.0" in result.stderr
    assert ": complete" in result.stderr
    assert "\x1b" not in result.stderr
    served.requests.clear()
    again = here("models", "pull", "QWEN-14B:q4_k_m")
    assert (again.code, again.stdout) == (0, result.stdout)
    assert "already here" in again.stderr
    assert here("models", "path", "qwen-14b").stdout == result.stdout
    assert here("models", "path", "Qwen/Qwen2.5-14B-Instruct-GGUF:Q4_K_M").stdout == result.stdout
    assert not served.requests


def test_pull_json(here: SpecrunHere) -> None:
    result = here("pull", "qwen-0.5b", "qwen-14b", "--json")
    first, second = json.loads(result.stdout)
    assert first["name"] == "qwen-0.5b"
    assert Path(first["path"]).is_file()
    assert len(second["files"]) == 3
    assert second["bytes"] > first["bytes"]


def test_a_dry_run_fetches_nothing(here: SpecrunHere, served: Hub) -> None:
    result = here("pull", "qwen-14b", "--dry-run")
    assert (result.code, result.stdout) == (0, "")
    assert "3 files" in result.stderr
    assert not served.ranges()
    assert json.loads(here("pull", "qwen-14b", "--dry-run", "--json").stdout)[0]["path"] is None
    assert here("models", "path", "qwen-14b").code == MISSING


def test_list_shows_the_catalog_and_what_is_here(here: SpecrunHere, tmp_path: Path) -> None:
    here("pull", "qwen-0.5b", "--yes")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "models.toml").write_text('[models.mine]\nrepo = "me/mine"\nfile = "mine-Q8_0.gguf"\n')
    models = {model["alias"]: model for model in json.loads(here("models", "list", "--json").stdout)}
    assert set(models) == set(catalog())
    assert [alias for alias, model in models.items() if model["here"]] == ["qwen-0.5b"]
    assert {"alias", "repo", "file", "bytes", "drafts", "kind", "fits", "here", "verified"} <= set(models["mine"])
    assert models["mine"]["fits"] is None
    assert all(
        model["fits"] in ("vram", "partly", "ram", "streamed", "no") for name, model in models.items() if name != "mine"
    )
    assert {model["kind"] for model in models.values()} == {"dense", "hybrid", "moe"}
    assert models["qwen-0.5b"]["fits"] in ("ram", "vram"), "by its file, which is tiny here"
    assert models["qwen-14b"]["drafts"][0] == "qwen-0.5b"
    result = here("models", "list")
    assert "mine" in result.stdout
    assert "qwen-14b" in result.stdout
    assert "\x1b" not in result.stdout
    assert "an estimate" in result.stderr


@pytest.mark.slow
def test_list_here_shows_what_other_programs_fetched(here: SpecrunHere, served: Hub) -> None:
    assert here("models", "list", "--here").stdout == ""
    served.add("org/other-GGUF", {"other-Q8_0.gguf": b"GGUF"})
    here("pull", "qwen-0.5b", "org/other-GGUF", "--yes")
    models = json.loads(here("models", "list", "--here", "--json").stdout)
    assert [(model["alias"], model["file"]) for model in models] == [
        (None, "other-Q8_0.gguf"),
        ("qwen-0.5b", catalog()["qwen-0.5b"].file),
    ]
    assert (models[0]["kind"], models[0]["fits"]) == (None, None), "it is damaged"
    assert [model["alias"] for model in json.loads(here("models", "list", "--here", "--fits", "--json").stdout)] == [
        "qwen-0.5b"
    ]
    assert "org/other-GGUF:Q8_0" in here("models", "list", "--here").stdout


def test_what_another_program_keeps_is_listed_and_never_deleted(
    here: SpecrunHere, script: Path, tmp_path: Path
) -> None:
    blob = in_ollama(tmp_path / "home/ollama", "registry.ollama.ai/library/qwen2.5/7b", script)
    entry = catalog()["llama-3b"]
    kept = in_lm_studio(tmp_path / "home/.lmstudio/models", f"{entry.repo}/{entry.file}", script)
    models = json.loads(here("models", "list", "--here", "--json").stdout)
    assert [(model["name"], model["program"], model["path"]) for model in models] == [
        ("ollama:qwen2.5:7b", "Ollama", str(blob)),
        ("llama-3b", "LM Studio", str(kept)),
    ]
    assert "here (Ollama)" in here("models", "list").stdout
    here("models", "rm", "ollama:qwen2.5:7b", "--yes").assert_fails(USAGE, "`ollama rm`")
    here("models", "rm", "llama-3b", "--yes").assert_fails(USAGE, "kept by another program", str(kept))
    here("models", "path", "ollama:nothing").assert_fails(MISSING, "`ollama pull nothing` fetches it")


def test_names_that_look_like_commands_are_shown_as_they_are(
    here: SpecrunHere, specrun: Specrun, script: Path, tmp_path: Path
) -> None:
    file = cache.folder("org/odd-GGUF") / "snapshots" / ("0" * 40) / "a[/]\x1b[2J\u202e:smile:.gguf"
    file.parent.mkdir(parents=True)
    file.symlink_to(script)
    shown = "a[/]\\u001b[2J\\u202e:smile:.gguf"
    assert shown in here("models", "list", "--here").stdout
    chat = specrun.on_terminal("chat")  # lists the models to choose from
    chat.expect_exact("Which model?")
    assert "a[/]" in chat.before, "the name goes on in the next line"
    assert "\x1b[2J" not in chat.before
    chat.sendeof()
    named = {"general.name": "two\nlines\x1b[2J", "general.license": "\x1b[2J"}
    info = here("models", "info", edited(tmp_path / "named.gguf", script, named)).stdout
    assert "two\\u000alines\\u001b[2J" in info
    assert "\x1b" not in info


def test_rm_frees_the_files_of_a_model(here: SpecrunHere) -> None:
    here("models", "rm", "qwen-14b", "--yes").assert_fails(MISSING, "not on this machine")
    here("pull", "qwen-14b", "--yes")
    here("models", "rm", "qwen-14b").assert_fails(USAGE, "--yes")
    result = here("models", "rm", "qwen-14b", "--yes")
    assert (result.code, result.stdout) == (0, "")
    assert "free again" in result.stderr
    assert here("models", "path", "qwen-14b").code == MISSING


def test_info_of_a_model_that_is_here(here: SpecrunHere) -> None:
    here("pull", "qwen-14b", "--yes")
    known = json.loads(here("models", "info", "qwen-14b", "--json").stdout)
    assert known["name"] == known["alias"] == "qwen-14b"
    assert (known["architecture"], known["layers"], len(known["layer_bytes"]), known["context"]) == (
        "llama",
        20,
        20,
        512,
    )
    assert len(known["files"]) == 3
    assert known["types"]["F32"]["bytes"] == known["bytes"]
    assert known["needs"]["ctx_size"] == 512
    assert known["needs"]["ram"] > known["bytes"]
    text = here("models", "info", "qwen-14b").stdout
    for part in ("and 2 more", "20, ", "512 tokens", "gpt2", "of RAM", "of VRAM", "pages of the file", "qwen-0.5b"):
        assert part in text, part


def test_info_of_a_model_that_is_not_here(here: SpecrunHere, served: Hub) -> None:
    result = here("models", "info", "qwen-14b")
    assert result.code == 0
    assert "not on this machine" in result.stdout
    assert "32,768 tokens" in result.stdout
    assert json.loads(here("models", "info", "org/repo", "--json").stdout)["path"] is None
    published = [line for line in here("models", "info", "qwen3.5-9b").stdout.splitlines() if "published" in line]
    assert [line.split(maxsplit=1)[1] for line in published] == [
        "MTP layers (--draft mtp, if the file has them)",
        "a DFlash head (give its file as --draft)",
    ]
    assert "best known    MTP layers (--draft mtp" in here("models", "info", "qwen3.5-9b").stdout
    assert "an assistant (give its file as --draft)" in here("models", "info", "gemma4-31b").stdout
    assert "an EAGLE-3 head (give its file as --draft)" in here("models", "info", "llama-8b").stdout
    assert not served.requests


def test_info_of_a_file(here: SpecrunHere, script: Path, tmp_path: Path) -> None:
    assert str(script) in here("models", "info", script).stdout
    here("models", "info", tmp_path / "no.gguf").assert_fails(MODEL_FILE, "no.gguf")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(script.read_bytes()[:1000])
    here("models", "info", broken).assert_fails(MODEL_FILE, "broken.gguf", "again")


@pytest.mark.slow
def test_pairs_of_a_target(here: SpecrunHere) -> None:
    pairs = json.loads(here("models", "pairs", "qwen-14b", "--json").stdout)
    assert [pair["draft"] for pair in pairs] == list(catalog()["qwen-14b"].drafts)
    assert not any(pair["cached"] or pair["checked"] for pair in pairs)
    assert [pair["draft"] for pair in pairs if pair["recommended"]] == [catalog()["qwen-14b"].drafts[0]]
    here("pull", "qwen-14b", "qwen-0.5b", "llama-1b", "--yes")
    pairs = json.loads(here("models", "pairs", "qwen-14b", "--json").stdout)
    by_draft = {pair["draft"]: pair for pair in pairs}
    assert by_draft["qwen-0.5b"] | {"fits": True, "checked": True, "recommended": True} == by_draft["qwen-0.5b"]
    other = by_draft["llama-1b"]
    assert (other["fits"], other["checked"], other["recommended"]) == (True, True, False)
    result = here("models", "pairs")
    table = result.stdout
    assert "qwen-0.5b (recommended)" in table
    assert "best known for qwen-14b: a small sibling (give its file as --draft)" in result.stderr
    assert "best known for glm-4.5-air: MTP layers (--draft mtp, if" in here("models", "pairs", "glm-4.5-air").stderr
    assert "not on this machine" in table
    others = json.loads(here("models", "pairs", "gpt-oss-20b", "--json").stdout)
    assert {pair["draft"]: pair["share"] for pair in others} == {"llama-1b": 0.98, "qwen3-0.6b": 0.98}


@pytest.mark.slow
def test_pairs_say_what_another_tokenizer_shares(
    here: SpecrunHere, served: Hub, stand_ins: dict[str, list[Path]], tmp_path: Path
) -> None:
    served.add("org/odd-GGUF", {"odd-Q8_0.gguf": edited_token(stand_ins["llama-1b"][0], tmp_path).read_bytes()})
    here("pull", "qwen-14b", "org/odd-GGUF", "--yes")
    pairs = json.loads(here("models", "pairs", "qwen-14b", "--json").stdout)
    odd = next(pair for pair in pairs if pair["draft"] == "org/odd-GGUF:Q8_0")
    assert odd["fits"]
    assert odd["share"] == 1, "the token is not in the text"
    assert "another tokenizer, which shares 100%" in here("models", "pairs", "qwen-14b").stdout


def test_pairs_of_the_embedded_target_and_of_one_with_a_draft_that_was_made(
    here: SpecrunHere, script: Path, random_model: Path, tmp_path: Path
) -> None:
    script = Path(shutil.copy(script, tmp_path))  # alone in its folder
    pairs = json.loads(here("models", "pairs", "embedded", "--json").stdout)
    assert [(pair["draft"], pair["recommended"], pair["fits"]) for pair in pairs] == [
        ("draft", True, True),
        ("eagle3", False, True),
    ]
    result = here("models", "pairs", "embedded")
    assert "draft (recommended)" in result.stdout
    assert "none of the drafts" not in result.stderr
    assert "none of the drafts" in here("models", "pairs", script).stderr
    made.register(script, made.MadeDraft(random_model, "q2_k"))
    result = here("models", "pairs", script)
    assert str(random_model) in json.loads(here("models", "pairs", script, "--json").stdout)[0]["draft"]
    assert "none of the drafts" not in result.stderr


def test_drafts_in_the_folder_of_a_file_are_found(
    here: SpecrunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, source in (("target", embedded.TARGET), ("draft", embedded.DRAFT), ("head", embedded.HEAD)):
        shutil.copy(source, tmp_path / f"{name}.gguf")
    (tmp_path / "damaged.gguf").write_bytes(embedded.DRAFT.read_bytes()[:-1])
    (tmp_path / "mmproj.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    pairs = json.loads(here("models", "pairs", "./target.gguf", "--json").stdout)
    assert [(pair["draft"], pair["fits"]) for pair in pairs] == [("draft.gguf", True), ("head.gguf", True)]
    (pair,) = json.loads(here("models", "pairs", "draft.gguf", "--json").stdout)
    assert pair["draft"] == "head.gguf", "not the target, which is larger"


@pytest.mark.slow
def test_pairs_without_a_target_say_how_to_name_one(here: SpecrunHere, served: Hub, random_model: Path) -> None:
    how = "`specrun models pairs TARGET` lists the drafts of a model of `specrun models list`, here or not\n"
    for none in ("no models on this machine yet", "no model here drafts for another"):
        result = here("models", "pairs")
        assert (result.code, result.stdout, result.stderr) == (0, "", f"{none}; {how}")
        served.add("org/alone-GGUF", {"alone-Q8_0.gguf": random_model.read_bytes()})
        here("pull", "org/alone-GGUF", "--yes")


def edited_token(source: Path, tmp_path: Path) -> Path:
    tokens = gguf.GGUFReader(source).fields[TOKENS].contents()
    tokens[7] += "other"
    return edited(tmp_path / "odd.gguf", source, {TOKENS: tokens})


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("pull", "qwen-41b"), USAGE, "qwen-14b"),
        (("pull", "./x.gguf"), USAGE, "is a path"),
        (("pull", "org/none"), HUB, "no repository org/none"),
        (("models", "path", "x.gguf"), MISSING, "no such file"),
        (("models", "rm", "/x.gguf", "--yes"), USAGE, "is a path"),
        (("pull",), USAGE, "--help"),
    ],
)
def test_what_cannot_be_is_one_line(here: SpecrunHere, arguments: tuple[str, ...], code: int, part: str) -> None:
    here(*arguments).assert_fails(code, part)


def test_the_embedded_pair_is_neither_fetched_nor_deleted(here: SpecrunHere) -> None:
    for command in (["pull"], ["models", "rm", "--yes"]):
        here(*command, "embedded").assert_fails(USAGE, "part of specrun itself")


def test_models_alone_shows_its_commands(here: SpecrunHere) -> None:
    result = here("models")
    assert result.code == USAGE
    for command in ("list", "pull", "info", "rm", "path", "pairs"):
        assert (f"\n  {command} " in result.stdout) == (command != "pull")  # which is `specrun pull`


def test_pull_on_a_terminal_asks_and_shows_a_bar(specrun: Specrun) -> None:
    terminal = specrun.on_terminal("pull", "qwen-14b")
    terminal.expect("Qwen/Qwen2.5-14B-Instruct-GGUF, 3 files")
    terminal.expect(r"Download .*\(.* are free\)\? \[Y/n\]: ")
    terminal.sendline("n")
    terminal.expect("not fetched, because you declined")
    terminal.expect("\n")
    terminal.wait()
    assert terminal.exitstatus == MISSING
    terminal = specrun.on_terminal("pull", "qwen-14b")
    terminal.expect(r"\[Y/n\]: ")
    terminal.sendline("")
    terminal.expect("━")
    terminal.expect("qwen-14b 3/3")
    terminal.expect("snapshots")
    terminal.wait()
    assert terminal.exitstatus == 0
