"""What people type who come from other tools: names of options, commands, and commands and settings of a chat.

All of them are understood. Most are llama.cpp's (`--n-predict`), Ollama's (`run`, `/bye`) or Python libraries'.
"""

from __future__ import annotations

# The name of an option here -> what else it is called.
OPTIONS: dict[str, tuple[str, ...]] = {
    "--target": ("--model", "-hf", "--hf-repo"),
    "--draft": ("--model-draft", "--draft-model", "-hfd", "--hf-repo-draft"),
    "--temp": ("--temperature",),
    "--max-tokens": ("--predict", "--n-predict"),
    "--ctx-size": ("--ctx", "--num-ctx"),
    "--gpu-layers": ("--n-gpu-layers",),
    "--gpu-layers-draft": ("--n-gpu-layers-draft",),
    "--system": ("-sys", "--system-prompt"),
    "--depth": ("--draft-max", "--draft-n"),
    "--repeat-penalty": ("--repetition-penalty",),
    "--stop": ("--reverse-prompt",),
}

# Options of other tools that have none here -> what to do instead.
ELSEWHERE: dict[str, str] = {
    "--hf-file": "the file is named after its repository: --target org/repo/file.gguf",
    "--model-url": "--target takes an address of the Hugging Face hub",
    "--mlock": "--load-mode mlock keeps weights in memory",
    "--no-mmap": "--load-mode none reads weights into memory",
    "--verbose": "--stats shows statistics, and `specrun --debug` llama.cpp's log",
    "--slot-save-path": "conversations are kept on disk by themselves; `specrun doctor` says where",
    "--format": "--json writes a JSON object, --json-schema and --grammar constrain the answer",
    "--conversation": "`specrun chat` is a conversation",
    "--interactive": "`specrun chat` is a conversation",
    "--jinja": "the model's own chat template is always used; --chat-template names another",
}

# The name of a parameter with an impossible value -> what was probably meant.
VALUES: dict[str, str] = {"threads": "-t is the number of threads, and --temp the temperature"}

# A group of commands -> a name of one of them -> the words that mean it here.
COMMANDS: dict[str, dict[str, tuple[str, ...]]] = {
    "specrun": {
        "run": ("chat",),
        "list": ("models", "list"),
        "ls": ("models", "list"),
        "show": ("models", "info"),
        "rm": ("models", "rm"),
        "download": ("pull",),
        "version": ("--version",),
    },
    "models": {
        "ls": ("list",),
        "show": ("info",),
        "remove": ("rm",),
        "delete": ("rm",),
        "download": ("pull",),
    },
}

# A command of a chat -> the command here.
CHAT_COMMANDS: dict[str, str] = {
    "/?": "/help",
    "/bye": "/exit",
    "/quit": "/exit",
    "/q": "/exit",
    "exit": "/exit",
    "quit": "/exit",
    "/reset": "/clear",
    "/new": "/clear",
    "/retry": "/regen",
    "/regenerate": "/regen",
    "/models": "/model",
}


def option_of(name: str) -> str:
    """The option that a name means, as `--temp` for `--temperature`; the name itself if nobody brings it along."""
    return next((option for option, others in OPTIONS.items() if name in others), name)
