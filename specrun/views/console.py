"""The console that everything is drawn on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from specrun.display_text import visible


class LiteralConsole(Console):
    """A console that shows all text literally.

    Names of models and files may have square brackets or colons, which rich would read as markup and emoji; and control
    characters, which the terminal would obey (specrun.display_text).
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """As rich does it; the escapes take part in the layout."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich does it; only rich's own commands, such as those that move the cursor, reach the terminal."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else visible(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)
