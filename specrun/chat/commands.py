"""The commands of a chat, and the settings that `/set` changes, which have the names of the command-line options."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, get_args, get_type_hints

from specrun.decoding.session import Session
from specrun.display_text import did_you_mean, near
from specrun.errors import UsageError
from specrun.loading.model import Model
from specrun.options.expand import CHAT_COMMANDS, OPTIONS, option_of
from specrun.options.sampling_options import Thinking, settled, settled_max_tokens
from specrun.sampling.adjustments import SamplingParameters, option_name
from specrun.speculation.controllers.chooser import FixedPlan, PlanChooser
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan

# name -> its arguments, as /help shows them, and what it does
COMMANDS = {
    "/help": ("", "list the commands"),
    "/system": ("[TEXT]", "set the system message; none removes it, and /system alone shows it"),
    "/model": ("[NAME]", "go on with another model; /model alone lists the models on this machine"),
    "/regen": ("", "answer the last message again, with another seed"),
    "/undo": ("", "forget the last message and its answer"),
    "/clear": ("", "forget the conversation, here and in /load, but keep the system message"),
    "/set": ("[NAME [VALUE]]", "change a setting, or show it; /set alone lists all settings"),
    "/stats": ("", "show statistics of the last answer"),
    "/tree": ("", "draw the last token tree, with the tokens that were accepted"),
    "/think": ("[HOW]", "show what the model thought before the last answer, or set show, hide or off"),
    "/save": ("FILE", "save the conversation as JSON"),
    "/load": ("[FILE]", "continue a saved conversation; /load alone lists the conversations of the last chats"),
    "/exit": ("", "leave (also Ctrl-D, or Ctrl-C twice; during an answer Ctrl-C stops it)"),
}

NO_SYSTEM = "none"  # what removes the system message
_AS_A_MESSAGE = "a blank in front makes it a message"
_MISSPELLED = 0.78  # similarity: two letters that changed places leave 0.8, and /etc and /set have 0.75 in common
_SETTING = re.compile(r"([^\s=]*)\s*=?\s*(.*)", re.DOTALL)  # matches every text

# Maps a name in `/set` to the field of SamplingParameters and its type.
_SAMPLING = {option_name(name)[2:]: (name, kind) for name, kind in get_type_hints(SamplingParameters).items()}
SETTINGS = [*_SAMPLING, "max-tokens", "think", "speculate", "budget", "depth"]


def is_command(message: str) -> bool:
    """Whether a message is a command, or a line that was probably meant as one: a word alone that begins with a slash,
    or a command's name that is spelled wrong.
    """
    if message.strip() in CHAT_COMMANDS:
        return True
    if not message.startswith("/"):
        return False
    name, *rest = message.split(maxsplit=1)
    names = {*COMMANDS, *CHAT_COMMANDS}
    return name in names or ("\n" not in message and (not rest or bool(near(name, sorted(names), _MISSPELLED))))


def parse(message: str) -> tuple[str, str]:
    """The name of a command, and what follows it, by the names that people bring along too. Raises UsageError."""
    typed, *rest = message.split(maxsplit=1)
    name, argument = CHAT_COMMANDS.get(typed, typed), "".join(rest).strip()
    if name not in COMMANDS:
        instead = did_you_mean(name, [*COMMANDS, *CHAT_COMMANDS], lambda other: CHAT_COMMANDS.get(other, other))
        raise UsageError(f"there is no command {name}; {instead}/help lists the commands, {_AS_A_MESSAGE}")
    if argument and not COMMANDS[name][0]:
        raise UsageError(f"nothing can stand after {typed}; {_AS_A_MESSAGE}")
    if name == "/set" and argument.startswith("system "):  # as in `ollama run`
        return "/system", argument.removeprefix("system ").strip(' "') or NO_SYSTEM
    if name == "/think" and argument:
        return "/set", f"think {argument}"
    return name, argument


def parse_setting(argument: str) -> tuple[str, str]:
    """The name of a setting and its value, of `temp 0.5`, `temperature=0.5` or Ollama's `parameter temperature 0.5`."""
    name, value = _SETTING.fullmatch(argument.removeprefix("parameter ").strip()).groups()  # type: ignore[union-attr]
    return option_of(f"--{name.lower().replace('_', '-')}")[2:], value


def help_text() -> str:
    """One line for each command, and how to type a message of several lines."""
    helps = {f"{name} {arguments}": text for name, (arguments, text) in COMMANDS.items()}
    width = max(map(len, helps))
    return "\n".join(
        [
            *(f"{usage:<{width}}  {text}" for usage, text in helps.items()),
            "",
            'Alt-Enter begins a new line; """ begins and ends a message of several lines; what is pasted stays whole.',
            "A message may begin with a slash: /etc/passwd is what? A blank in front makes any line a message.",
            "The arrow keys and Ctrl-R find what you typed before. `specrun chat --continue` goes on where you left.",
        ]
    )


class ChatSettings:
    """The settings of a conversation with a model. think: as `--think` has it."""

    def __init__(self, model: Model, session: Session, think: Thinking) -> None:
        self._model = model
        self._session = session
        self._set_think(think)

    def _set_think(self, think: Thinking) -> None:
        self.think = think
        self._session.thinks = think != "off"

    def values(self) -> dict[str, Any]:
        """The present value of every setting, by its name."""
        request, chooser = self._session.request, self._chooser()
        plan = chooser.fixed if isinstance(chooser, FixedPlan) else None  # `auto` has another for every pass
        return {name: getattr(request.sampling, field) for name, (field, _) in _SAMPLING.items()} | {
            "max-tokens": "no limit" if request.max_tokens is None else request.max_tokens,
            "think": self.think,
            "speculate": _word(plan) if plan else "auto",
            "budget": plan.budget if plan else "auto",
            "depth": plan.depth if plan else "auto",
        }

    def __str__(self) -> str:
        """One line for each setting, with its value."""
        width = max(map(len, SETTINGS))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in self.values().items())

    def change(self, name: str, value: str) -> None:
        """Set one setting. Raises UsageError for an unknown name or an impossible value."""
        request = self._session.request
        if name in _SAMPLING:
            field, kind = _SAMPLING[name]
            given = _parse(kind, name, value) if kind in (int, float) else value.split()
            values = {field: settled(field, given)}
            self._session.request = replace(request, sampling=replace(request.sampling, **values))
        elif name == "max-tokens":
            self._session.request = replace(request, max_tokens=settled_max_tokens(_parse(int, name, value), name))
        elif name == "think":
            possible = {think: think for think in get_args(Thinking)}
            if value not in possible:
                raise UsageError(f"think can be {', '.join(possible)}; got {value}")
            self._set_think(possible[value])
        elif name == "speculate":
            self._session.plans = self._chooser_of(value)
        elif name in ("budget", "depth"):
            chooser = self._chooser()
            number = _parse(int, name, value)
            if not (isinstance(chooser, FixedPlan) and chooser.fixed.drafts):
                raise UsageError(f"{name} can be set for one plan only; use /set speculate chain or tree first")
            self._session.plans = FixedPlan(self._resized(chooser.fixed, name, number))
        else:
            others = (other[2:] for setting in SETTINGS for other in OPTIONS.get(f"--{setting}", ()))
            instead = did_you_mean(name, [*SETTINGS, *others], lambda other: parse_setting(other)[0])
            raise UsageError(f"there is no setting {name}; {instead}/set alone lists the settings")

    def _chooser(self) -> PlanChooser:
        return self._session.plans or self._model.plans.at(self._session.request.sampling.temperature)

    def _chooser_of(self, word: str) -> PlanChooser | None:
        """What chooses the plans from now on; None leaves it to the model."""
        candidates = self._model.plans.candidates
        if word == "auto" and len(candidates) > 1:
            return None
        # Adaptive plans need the pass times that `auto` learns. Its contexts have room for a chain and a tree as well.
        fixed = [plan for plan in (*candidates, OFF.plan()) if not plan.method.is_adaptive]
        if any(plan.method.is_adaptive for plan in candidates):
            largest = max(plan.budget for plan in candidates)
            fixed += [plan for plan in (SPECEXEC.plan(), CHAIN.plan()) if plan.budget <= largest]
        for plan in fixed:
            if word in (plan.method.name, _word(plan)):
                temperature = self._session.request.sampling.temperature
                return FixedPlan(self._model.plans.shaped([plan], temperature)[0])
        possible = sorted({_word(plan) for plan in fixed} | ({"auto"} if len(candidates) > 1 else set()))
        raise UsageError(f"speculate can be {', '.join(possible)} in this chat; got {word}")

    def _resized(self, plan: Plan, name: str, number: int) -> Plan:
        largest = max(candidate.budget for candidate in self._model.plans.candidates)
        if plan.shape and plan.method.wants_shape:
            fixed = f"the trees of {plan.method.name} have a fixed shape in a chat"
            raise UsageError(f"{fixed}; start the chat with another --{name}")
        if plan.is_chain:
            resized = plan.method.plan(depth=number if name == "depth" else number - 1)
        else:
            resized = plan.method.plan(**{"budget": plan.budget, "depth": plan.depth, name: number})
        if resized.budget > largest:
            raise UsageError(f"a tree has at most {largest} nodes in this chat; start the chat with a larger --budget")
        return resized


def _word(plan: Plan) -> str:
    """The name of the plan's method, or `tree` as `--speculate` calls specexec."""
    return "tree" if plan.method is SPECEXEC else plan.method.name


def _parse(kind: type, name: str, value: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise UsageError(f"{name} must be a number; got {value}") from None
