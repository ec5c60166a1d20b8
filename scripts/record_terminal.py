"""Record a terminal session of `specrun chat` as an SVG that plays by itself: one for light pages, one for dark ones.

    python scripts/real_pair.py PAIR
    python scripts/record_terminal.py PAIR

The real command runs on a pseudo terminal with the pair that writes English; keys are typed, and what the terminal
shows is drawn at the times at which it was shown (waits are cut short, the answer is not). Readers who ask for less
motion, and viewers that know no animation, see the last screen.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

import pexpect
import pyte

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
COLUMNS, LINES = 84, 30
COMMAND = ["chat", "target.gguf", "--draft", "draft.gguf", "--temp", "0", "--speculate", "tree", "--budget", "10"]
MESSAGES = ("Give me three tips for a good night's sleep, as a list.", "/tree")
PROMPT = "a message, or /help"
KEY_SECONDS = 0.04
FRAME_SECONDS = 0.05  # frames that follow each other faster are one
MOST_WAIT = 1.2  # seconds that nothing may change on the screen
LAST_SECONDS = 5.0  # for which the last screen stays before the session begins again
TIMEOUT = 600

CELL, ROW, PAD, FONT_SIZE = 8.4, 18.0, 14.0, 14
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
PALETTES = {
    "light": {"back": "#ffffff", "fore": "#1f2328", "dim": "#59636e", "frame": "#d1d9e0", "red": "#cf222e",
              "green": "#116329", "brown": "#7d4e00", "blue": "#0550ae", "magenta": "#8250df", "cyan": "#1b7c83"},
    "dark": {"back": "#0d1117", "fore": "#f0f6fc", "dim": "#9198a1", "frame": "#3d444d", "red": "#ff7b72",
             "green": "#7ee787", "brown": "#d29922", "blue": "#79c0ff", "magenta": "#d2a8ff", "cyan": "#56d4dd"},
}  # fmt: skip
SGR = re.compile(r"\x1b\[([\d;]*)m")

# A line of the screen: stretches of equal style, each with its column, text, colour and whether it is bold.
Line = tuple[tuple[int, str, str, bool], ...]
Screen = tuple[Line, ...]


class Recording:
    """A session under way, and the screens that it has shown."""

    def __init__(self) -> None:
        self._screen = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.Stream(self._screen)
        self._clock = 0.0  # of the recording
        self._changed = time.monotonic()
        self.frames: list[tuple[float, Screen]] = []

    def feed(self, text: str) -> None:
        """Show what the command wrote. pyte does not know dim letters, so they become bright black."""
        self._stream.feed(SGR.sub(_dim_as_colour, text))
        shown = tuple(_line(self._screen, y) for y in range(LINES))
        if self.frames and shown == self.frames[-1][1]:
            return
        now = time.monotonic()
        self._clock += min(now - self._changed, MOST_WAIT)
        self._changed = now
        if self.frames and self._clock - self.frames[-1][0] < FRAME_SECONDS:
            self.frames[-1] = (self.frames[-1][0], shown)
        else:
            self.frames.append((self._clock, shown))


def _dim_as_colour(match: re.Match[str]) -> str:
    codes = match[1].split(";")
    return f"\x1b[{';'.join('90' if code == '2' else code for code in codes)}m" if "38" not in codes else match[0]


def _line(screen: pyte.Screen, y: int) -> Line:
    stretches: list[tuple[int, str, str, bool]] = []
    for x in range(COLUMNS):
        char = screen.buffer[y][x]
        colour = "dim" if char.fg in ("brightblack", "black") else char.fg.removeprefix("bright")
        style = (colour if colour in PALETTES["dark"] else "fore", char.bold)
        if stretches and stretches[-1][2:] == style:
            stretches[-1] = (stretches[-1][0], stretches[-1][1] + char.data, *style)
        else:
            stretches.append((x, char.data, *style))
    return tuple((x, text.rstrip(), *style) for x, text, *style in stretches if text.strip())


def record(pair: Path) -> list[tuple[float, Screen]]:
    """Run the session in the pair's folder, and return the screens, each with the seconds after which it is shown."""
    recording = Recording()
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", "SPECRUN_DATA_DIR": empty,
                       "HF_HOME": empty}  # fmt: skip
        environment.pop("NO_COLOR", None)
        recording.feed("$ ")
        for key in " ".join(["specrun", *COMMAND]):
            time.sleep(KEY_SECONDS)
            recording.feed(key)
        recording.feed("\r\n")
        chat = pexpect.spawn(
            sys.executable,
            ["-m", "specrun", *COMMAND],
            cwd=pair,
            encoding="utf-8",
            dimensions=(LINES, COLUMNS),
            env=environment,
        )
        _read_until(chat, recording, lambda text: PROMPT in text)
        for message in MESSAGES:
            for key in message:
                chat.send(key)
                _read_for(chat, recording, KEY_SECONDS)
            chat.send("\r")
            _read_until(chat, recording, lambda text: PROMPT in text)
            _read_for(chat, recording, MOST_WAIT)
        chat.sendeof()
        chat.close()
    return recording.frames


def _read_until(chat: pexpect.spawn[str], recording: Recording, is_done: Callable[[str], bool]) -> None:
    text, deadline = "", time.monotonic() + TIMEOUT
    while not is_done(text):
        if time.monotonic() > deadline:
            sys.exit(f"the chat did not show what was expected; the last was {text[-200:]!r}")
        text += _read_for(chat, recording, FRAME_SECONDS)


def _read_for(chat: pexpect.spawn[str], recording: Recording, seconds: float) -> str:
    """Show what the command writes in the next `seconds`, and return it."""
    text, deadline = "", time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            piece = chat.read_nonblocking(4096, timeout=left)
        except pexpect.TIMEOUT:
            break
        recording.feed(piece)
        text += piece
    return text


def svg(frames: list[tuple[float, Screen]], theme: str) -> str:
    """The session. Equal lines are drawn once; each frame shows its own for its share of the time."""
    palette = PALETTES[theme]
    width, height = COLUMNS * CELL + 2 * PAD, LINES * ROW + 2 * PAD
    names: dict[Line, str] = {}
    for _, screen in frames:
        for line in screen:
            if line:
                names.setdefault(line, f"l{len(names)}")
    total = frames[-1][0] + LAST_SECONDS
    drawn = [_drawn(line, name, palette) for line, name in names.items()]
    styles, groups = [], []
    for i, (start, screen) in enumerate(frames):
        is_last = i + 1 == len(frames)
        end = 100.0 if is_last else 100 * frames[i + 1][0] / total
        begin = 100 * start / total
        styles.append(_visible(i, begin, end, is_last, total))
        lines = "".join(f'<use href="#{names[line]}" y="{y * ROW:g}"/>' for y, line in enumerate(screen) if line)
        hidden = "" if is_last else ' visibility="hidden"'  # for viewers that know no animation
        groups.append(f'<g id="f{i}"{hidden}>{lines}</g>')
    style = "\n".join(
        [
            f"text {{ font: {FONT_SIZE}px {FONT}; white-space: pre }}",
            *styles,
            "@media (prefers-reduced-motion) { g { animation: none !important } }",
        ]
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
            'aria-label="A session of specrun chat">',
            f"<style>{style}</style>",
            f'<rect x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="8" fill="{palette["back"]}" '
            f'stroke="{palette["frame"]}"/>',
            f"<defs>{''.join(drawn)}</defs>",
            f'<svg x="{PAD:g}" y="{PAD:g}" overflow="visible">',
            *groups,
            "</svg></svg>",
            "",
        ]
    )


def _visible(i: int, begin: float, end: float, is_last: bool, total: float) -> str:
    """The rule that shows frame `i` from `begin` to `end` percent of the time."""
    steps = ["0% { visibility: hidden }"] if begin else []
    steps.append(f"{begin:.3f}% {{ visibility: visible }}")
    if not is_last:
        steps.append(f"{end:.3f}% {{ visibility: hidden }}")
    last = "visible" if is_last else "hidden"
    steps.append(f"100% {{ visibility: {last} }}")
    return f"@keyframes k{i} {{ {' '.join(steps)} }} #f{i} {{ animation: k{i} {total:.2f}s step-end infinite }}"


def _drawn(line: Line, name: str, palette: dict[str, str]) -> str:
    spans = []
    for x, text, colour, bold in line:
        weight = ' font-weight="bold"' if bold else ""
        length = f' textLength="{len(text) * CELL:g}"' if len(text) > 1 else ""
        spans.append(f'<tspan x="{x * CELL:g}" fill="{palette[colour]}"{weight}{length}>{escape(text)}</tspan>')
    return f'<text id="{name}" y="{FONT_SIZE}" xml:space="preserve">{"".join(spans)}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pair", type=Path, metavar="PAIR", help="the folder with target.gguf and draft.gguf")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the two files go (default: docs/pictures)")
    options = parser.parse_args()
    frames = record(options.pair)
    for theme in PALETTES:
        (options.folder / f"chat-{theme}.svg").write_text(svg(frames, theme), encoding="utf-8")


if __name__ == "__main__":
    main()
