"""`specrun tune` as a user runs it, and what other commands make of its profile."""

from __future__ import annotations

import json
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specrun.catalog import embedded
from specrun.catalog import made as made_drafts
from specrun.catalog.resolve import drafts_here
from specrun.cli import tune
from specrun.errors import ModelFileError, UsageError
from specrun.kept_facts import fingerprint
from specrun.llama_settings import LlamaSettings
from specrun.loading import run_options
from specrun.loading.learning import Learner
from specrun.loading.run_options import RunOptions
from specrun.options.speculation_options import ModelOptions
from specrun.profiles import profile_files
from specrun.speculation.method import OFF
from specrun.tuning import tune_pair
from tests.conftest import Result, Specrun, SpecrunHere
from tests.models import random_llama
from tests.mtp_targets import random_mtp_step35
from tests.profiles.test_profile import made

PROMPT = "def read_config(path):\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of this module's own."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def tuned(data: Path) -> dict[str, Any]:
    """The embedded pair, tuned quickly."""
    result = Specrun()("tune", "--quick", "--json", SPECRUN_DATA_DIR=str(data))
    assert result.code == 0, result.stderr
    assert "saved as" in result.stderr
    return json.loads(result.stdout)


def test_json_has_what_others_rely_on(tuned: dict[str, Any]) -> None:
    assert {"fingerprint", "hardware", "tables", "acceptance", "plan", "plans", "residency"} <= set(tuned)
    assert {"resident_bytes", "streamed_bytes", "mode"} <= set(tuned["residency"])
    for which in ("target", "draft"):
        entries = tuned["tables"][which]
        assert all({"n", "ms", "ctx"} <= set(entry) for entry in entries)
        assert all(entry["ms"] > 0 for entry in entries)
        assert len({entry["ctx"] for entry in entries}) == 2
        assert min(entry["n"] for entry in entries) == 1
    plan = tuned["plan"]
    assert {"method", "budget", "depth", "predicted_tokens_per_second", "predicted_tokens_per_pass"} <= set(plan)
    assert plan["predicted_tokens_per_second"] > 0
    assert [entry["temperature"] for entry in tuned["plans"]] == [0.8, 0.0]
    # Other settings of flash attention, which may be faster, are not exact with every type of the cache.
    is_exact = tuned["exact_sizes"] == {"least": 1}
    assert is_exact or tuned["settings"]["flash_attn"]
    assert tuned["pads"] or not is_exact


def test_texts_with_the_adaptive_tree_and_plain_decoding_are_compared(tuned: dict[str, Any]) -> None:
    for plan in tuned["plans"]:
        expected = plan["expected"]
        assert {entry["method"] for entry in expected} == {"merged", "off"}
        rates = [entry["tokens_per_second"] for entry in expected]
        assert rates == sorted(rates, reverse=True)
        assert all(entry["error"] > 0 for entry in expected)
        names = ("method", "budget", "depth")
        own = next(entry for entry in expected if all(entry[name] == plan[name] for name in names))
        assert own["tokens_per_second"] == plan["predicted_tokens_per_second"]
        off = next(entry for entry in expected if entry["method"] == "off")
        assert off["tokens_per_second"] == plan["plain_tokens_per_second"]
        # A plan that is not the fastest is a more cautious one within the errors.
        assert own["tokens_per_second"] + own["error"] + expected[0]["error"] >= rates[0]


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_text_is_the_same_with_a_profile(here: SpecrunHere, data: Path, temperature: str) -> None:
    arguments = ["generate", PROMPT, "-n", "48", "--temp", temperature, "--json"]
    off = json.loads(here(*arguments, "--speculate", "off", SPECRUN_DATA_DIR=str(data)).stdout)
    auto = here(*arguments, "--stats", SPECRUN_DATA_DIR=str(data))
    assert json.loads(auto.stdout)["token_ids"] == off["token_ids"]
    assert "by the profile of this machine" in auto.stderr


@pytest.mark.usefixtures("tuned")
def test_without_a_draft_the_text_itself_is_drafted_from_as_the_targets_tables_have_it(
    here: SpecrunHere, data: Path
) -> None:
    arguments = ["generate", PROMPT * 3, "-n", "48", "--temp", "0", "--json", "--draft", "none"]
    off = json.loads(here(*arguments, "--speculate", "off", SPECRUN_DATA_DIR=str(data)).stdout)
    auto = here(*arguments, "--stats", SPECRUN_DATA_DIR=str(data))
    assert json.loads(auto.stdout)["token_ids"] == off["token_ids"]
    assert re.search("draftless|nothing else pays on this text", auto.stderr), auto.stderr
    assert "by the profile of this machine" in auto.stderr


def test_a_profile_is_shown_listed_exported_imported_and_forgotten(
    here: SpecrunHere, tuned: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    at_home = {"SPECRUN_DATA_DIR": str(data)}
    shown = here("tune", "--show", "--json", **at_home)
    assert json.loads(shown.stdout) == tuned
    report = here("tune", "--show", **at_home).stdout
    assert all(part in report for part in ("exactness", "tokens/s", "by hand"))
    assert "the draft's first choice is the target's" in report
    listed = here("tune", "--list", **at_home).stdout
    assert tuned["fingerprint"] in listed
    assert "\nembedded/target.gguf\nembedded/draft.gguf  " in listed
    assert tuned["pair"] == {"target": "target.gguf", "draft": "draft.gguf", "folders": ["embedded", "embedded"]}
    file = tmp_path / "profile.json"
    assert here("tune", "--export", file, **at_home).code == 0
    elsewhere = {"SPECRUN_DATA_DIR": str(tmp_path / "elsewhere")}
    here("tune", "--show", **elsewhere).assert_fails(2, "no profile", "specrun tune")
    assert here("tune", "--import", file, **elsewhere).code == 0
    assert json.loads(here("tune", "--show", "--json", **elsewhere).stdout) == tuned
    assert here("tune", "--forget", **elsewhere).code == 0
    here("tune", "--forget", **elsewhere).assert_fails(2, "no profile")


def test_what_runs_learned_is_shown_and_forgotten_whatever_the_number_of_threads(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Runs that had fewer threads, as other programs held cores, keep what they learn apart."""
    options = RunOptions(embedded.TARGET, embedded.DRAFT, (OFF.plan(),))
    learner = Learner(options, LlamaSettings(), print).with_threads(1)
    learned = made(identity=learner.identity, origin="learned", settings=learner.settings)

    def used(pair: RunOptions, **how: bool) -> str:
        tune._use_saved([(None, pair)], tune.ProfileOptions(**how), tune.TuneOptions())
        shown = capsys.readouterr()
        return shown.out + shown.err

    with pytest.raises(UsageError, match="no profile of this pair"):
        used(options, show=True)
    profile_files.save(learned)
    shown = used(options, show=True)
    assert "learned while writing" in shown
    assert "this was learned with another number of threads (--threads, or fewer while" in shown
    both = [("a", options), ("b", replace(options, draft=None))]
    tune._use_saved(both, tune.ProfileOptions(show=True), tune.TuneOptions())
    assert "a: this was learned with another number of threads" in capsys.readouterr().err
    differed = r"learned this pair, but --ctx-size \(1024, now 256\), --threads \(1, now not given\) differed"
    with pytest.raises(UsageError, match=differed):
        used(replace(options, ctx_size=256), show=True)
    profile_files.save(
        replace(learned, identity=Learner(options, LlamaSettings(), print).identity, settings=LlamaSettings())
    )
    assert "number of threads" not in used(options, show=True)
    assert used(options, forget=True).count("deleted") == 2
    assert list(profile_files.saved(with_learned=True)) == []


def test_of_a_list_of_drafts_each_profile_is_shown_or_forgotten(
    here: SpecrunHere, tuned: dict[str, Any], tmp_path: Path
) -> None:
    elsewhere = {"SPECRUN_DATA_DIR": str(tmp_path / "elsewhere")}
    target_file, _ = tuned["identity"]["files"]
    identity = tuned["identity"] | {"files": [target_file, None]}
    pair = tuned["pair"] | {"draft": ""}
    alone = tuned | {"identity": identity, "fingerprint": fingerprint(identity), "pair": pair}
    file = tmp_path / "profile.json"

    def of_both(*arguments: str | Path) -> Result:
        return here("tune", *arguments, "--target", embedded.TARGET, "--draft", f"{embedded.DRAFT}, none", **elsewhere)

    of_both("--show").assert_fails(2, "no profile")
    file.write_text(json.dumps(tuned))
    here("tune", "--import", file, **elsewhere)
    one = of_both("--show", "--json")
    assert json.loads(one.stdout) == [tuned]
    assert one.stderr.startswith("none: no profile")
    file.write_text(json.dumps(alone))
    here("tune", "--import", file, **elsewhere)
    assert json.loads(of_both("--show", "--json").stdout) == [tuned, alone]
    assert of_both("--show").stdout.count("the same by hand") == 2
    of_both("--export", file).assert_fails(2, "one --draft")
    assert of_both("--forget").stderr.count("deleted") == 2
    of_both("--show").assert_fails(2, "no profile")


def test_the_drafts_of_the_embedded_target_can_be_compared(here: SpecrunHere, tmp_path: Path) -> None:
    """With a draft made from it there are two, and the user gave neither a name. The profiles cannot be saved, which is
    found when both pairs have been resolved.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECRUN_DATA_DIR", str(tmp_path))
        made_drafts.register(embedded.TARGET, made_drafts.MadeDraft(random_llama(tmp_path / "other.gguf"), "q2_k"))
        assert len(drafts_here(None)) == 2
    (tmp_path / "profiles").write_text("")
    here("tune", "--quick", SPECRUN_DATA_DIR=str(tmp_path)).assert_fails(9, "SPECRUN_DATA_DIR")


def test_mtp_layers_are_compared_with_no_draft(tmp_path: Path) -> None:
    target = str(random_mtp_step35(tmp_path / "target.gguf"))
    compared = tune._compared(ModelOptions(target))
    assert [(one.target, one.draft) for one in compared] == [(target, "none"), (target, "mtp")]
    assert [one.draft for one in tune._compared(ModelOptions(str(embedded.TARGET)))] == [None]


@pytest.mark.usefixtures("tuned")
def test_a_chat_can_leave_the_profiles_plan_and_come_back_to_it(specrun: Specrun, data: Path) -> None:
    messages = "\n".join(["/set max-tokens 8", "/set speculate tree", "hello", "/set speculate auto", "more", "/set"])
    result = specrun("chat", "-m", "embedded", stdin=messages + "\n", SPECRUN_DATA_DIR=str(data))
    assert result.code == 0, result.stderr
    assert "speculate is tree" in result.stderr
    assert "speculate is auto" in result.stderr
    refused = specrun("chat", "-m", "embedded", stdin="/set speculate merged\n", SPECRUN_DATA_DIR=str(data))
    # The method of the profile's own plan may be among them, whichever it was.
    listed = re.search("speculate can be (.*) in this chat; got merged", refused.stderr)
    assert listed, refused.stderr
    assert {"auto", "chain", "off", "tree"} <= set(listed[1].split(", "))


@pytest.mark.usefixtures("tuned")
def test_a_profile_of_another_context_is_named_stale(here: SpecrunHere, data: Path) -> None:
    result = here("generate", PROMPT, "-n", "4", "-c", "512", SPECRUN_DATA_DIR=str(data))
    assert result.code == 0
    assert "but --ctx-size (1024, now 512) changed since" in result.stderr, "and nothing else"


def _prompts(folder: Path) -> Path:
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"def f{i}(x):\n"}) + "\n" for i in range(4)), encoding="utf-8")
    return file


def test_an_interrupted_run_goes_on_where_it_was(specrun: Specrun, tmp_path: Path) -> None:
    """With prompts of one's own, at one temperature."""
    command = ("tune", "--quick", "--json", "--temp", "0", "--prompts", _prompts(tmp_path))
    process = specrun.start(*command, SPECRUN_DATA_DIR=str(tmp_path))
    unfinished = tmp_path / "profiles" / "unfinished"
    deadline = time.monotonic() + 120
    while not list(unfinished.glob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert stdout == b""
    assert b"\nstopping as soon as the pass that may be running is over\n" in stderr
    assert b"goes on from there" in stderr
    again = specrun(*command, SPECRUN_DATA_DIR=str(tmp_path))
    assert again.code == 0, again.stderr
    assert [plan["temperature"] for plan in json.loads(again.stdout)["plans"]] == [0.0]
    assert "earlier run" in again.stderr
    assert not list(unfinished.glob("*.json"))


@pytest.mark.parametrize("can_look", [True, False])
def test_a_run_that_was_interrupted_at_once_says_that_it_begins_anew(
    here: SpecrunHere, monkeypatch: pytest.MonkeyPatch, can_look: bool
) -> None:
    def gone(_: RunOptions) -> None:
        raise ModelFileError("it is gone")

    def interrupted(*_: object) -> None:
        if not can_look:
            monkeypatch.setattr(run_options, "identity_of", gone)
        raise KeyboardInterrupt

    monkeypatch.setattr(tune_pair, "tune_drafts", interrupted)
    result = here("tune", "--quick")
    assert (result.code, result.stdout) == (130, "")
    assert "interrupted; nothing is kept yet, so the same command begins anew" in result.stderr
    assert "gone" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--quick", "--thorough"], "exclude each other"),
        (["--show", "--forget"], "exclude each other"),
        (["--temp", "hot"], "--temp"),
        (["--temp", "-1"], "--temp"),
        (["--target", "none.gguf"], "none.gguf"),
    ],
)
def test_wrong_options_end_in_one_line(here: SpecrunHere, arguments: list[str], part: str) -> None:
    result = here("tune", *arguments)
    result.assert_fails(3 if "--target" in arguments else 2, part)


def test_a_folder_that_cannot_be_written_is_found_before_measuring(here: SpecrunHere, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    here("tune", "--quick", SPECRUN_DATA_DIR=str(tmp_path / "file")).assert_fails(9, "SPECRUN_DATA_DIR")


def test_a_file_that_is_no_profile_is_refused(here: SpecrunHere, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    for text in ("{}", "a text", '{"version": 1}'):
        file.write_text(text)
        result = here("tune", "--import", file)
        result.assert_fails(9, f"{file}: ", "a profile", "; `specrun tune` and then `specrun tune --export FILE` make")
