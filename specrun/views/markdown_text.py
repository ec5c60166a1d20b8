"""Markdown on a terminal, of which nothing but Markdown's own marks is left out.

rich draws it, but would drop what it takes for HTML, images and definitions of references, cells beyond a table's
header, the numbers of a list after the first, and what is nested deeply. So the parser here takes such text for text,
and some elements are drawn here. CommonMark's rules would also take parts of formulas, names and paths
for marks, as in `2*3*4`, `__init__` and `\\(x\\)`: here stars within words, underscores and backslashes are text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, blockquote, list_block, table
from markdown_it.rules_block.table import escapedSplit, getLine
from markdown_it.rules_inline import StateInline, emphasis, link
from markdown_it.token import Token
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import (
    BlockQuote,
    CodeBlock,
    Heading,
    ListElement,
    ListItem,
    Markdown,
    Paragraph,
    TableElement,
    TableRowElement,
)
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

_DEEPEST = 20  # levels of lists and quotes; deeper marks are text, and there is room beside the margins
_NARROWEST = 10  # columns beside a margin; where fewer are left, the margin is left out
_NARROWEST_COLUMN = 6  # of a table, with what separates columns; narrower tables are rows of text

# Beside a star that begins or ends emphasis there is nothing, a space, one of these, or a sign beyond ASCII.
_BEFORE_EMPHASIS = "([{<\"'-:;,=|~>/"
_BEHIND_EMPHASIS = ")]}>\"'.,:;!?-|~/"
_PLAIN_STARS = re.compile(r"/\*+(\.\w|/)|'\*+'|\"\*+\"|\(\*+\)|\[\*+\]|\{\*+\}")  # of paths, and stars that are named

_BlockRule = Callable[[StateBlock, int, int, bool], bool]


class MarkdownText(Markdown):
    """A Markdown text to print. Its lines stay lines: models write no lines that are meant to be joined, but verses."""

    def __init__(self, text: str) -> None:
        super().__init__("", code_theme="monokai")
        self.inlines = Markdown.inlines | {"link", "link_url"}
        self.parsed = _parser().parse(text)
        for token in self.parsed:
            token.children = list(_drawable(token.children)) if token.children else token.children


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"maxNesting": 4 * _DEEPEST}).enable(["strikethrough", "table"])
    parser.disable(["html_block", "html_inline", "reference", "entity", "autolink", "image"])
    interrupted = ["paragraph", "reference", "blockquote"]
    parser.block.ruler.at("list", _not_too_deep(list_block), {"alt": interrupted})
    parser.block.ruler.at("blockquote", _not_too_deep(blockquote), {"alt": [*interrupted, "list"]})
    parser.block.ruler.at("table", _whole_table, {"alt": ["paragraph", "reference"]})
    parser.inline.ruler.at("escape", _backslash)
    parser.inline.ruler.at("emphasis", _star)
    parser.inline.ruler.at("link", _link_as_written)
    return parser


def _not_too_deep(rule: _BlockRule) -> _BlockRule:
    """The rule of a block that holds others. markdown-it drops all that is nested deeper than it allows."""
    return lambda state, start, end, silent: state.level < _DEEPEST and rule(state, start, end, silent)


def _whole_table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """The rule of tables, whose rows keep the cells that they have beyond the header."""
    n_before = len(state.tokens)
    if not table(state, start, end, silent):
        return False
    tokens, state.tokens[n_before:] = state.tokens[n_before:], []
    n_cells, line = 0, start
    for token in tokens:
        if token.type == "tr_open":
            n_cells, line = 0, token.map[0] if token.map else line
        elif token.type == "inline":
            n_cells += 1
        elif token.type == "tr_close":
            cells = escapedSplit(getLine(state, line).strip().removeprefix("|"))
            # What follows the row's last bar is a cell only if something stands there.
            for cell in cells[n_cells : None if cells[-1] else -1]:
                state.tokens += [
                    Token("td_open", "td", 1),
                    Token("inline", "", 0, content=cell.strip(), children=[]),
                    Token("td_close", "td", -1),
                ]
        state.tokens.append(token)
    return True


def _backslash(state: StateInline, silent: bool) -> bool:
    """The rule of backslashes, which are text, as is the mark after one."""
    if state.src[state.pos] != "\\":
        return False
    end = state.pos + (1 if state.src[state.pos + 1 : state.pos + 2].isspace() else 2)
    end = min(end, state.posMax)
    if not silent:
        state.pending += state.src[state.pos : end]
    state.pos = end
    return True


def _star(state: StateInline, silent: bool) -> bool:
    """The rule of emphasis, for which only stars at the edge of what is emphasized are marks, and no underscores."""
    start, n_before = state.pos, len(state.delimiters)
    if state.src[start] != "*" or not emphasis.tokenize(state, silent):
        return False
    before, behind = state.src[max(start - 1, 0) : start], state.src[state.pos : state.pos + 1]
    is_plain = bool(before and _PLAIN_STARS.match(state.src, start - 1))
    for delimiter in state.delimiters[n_before:]:
        delimiter.open &= not is_plain and _is_edge(before, _BEFORE_EMPHASIS)
        delimiter.close &= not is_plain and _is_edge(behind, _BEHIND_EMPHASIS)
    return True


def _is_edge(neighbour: str, marks: str) -> bool:
    """Whether emphasis can end beside a character: Chinese and Japanese have no spaces between words."""
    if not neighbour or neighbour.isspace() or neighbour in marks:
        return True
    return not (neighbour.isascii() or _is_of_word(neighbour))


def _is_of_word(character: str) -> bool:
    """Whether a letter or digit belongs to a word that spaces separate from others."""
    return character.isalnum() and cell_len(character) == 1


def _link_as_written(state: StateInline, silent: bool) -> bool:
    """The rule of links, not within words. The token of a link's end gets address and title as they are written."""
    start = state.pos
    before = state.src[max(start - 1, 0) : start]
    if before and _is_of_word(before):  # `handlers[name](event)` is code
        return False
    label_end = state.md.helpers.parseLinkLabel(state, start, True) if state.src[start] == "[" else -1
    if not link(state, silent):
        state.pos = start
        return False
    if not silent:
        state.tokens[-1].content = state.src[label_end + 2 : state.pos - 1]
    return True


def _drawable(tokens: Iterable[Token]) -> Iterator[Token]:
    """The tokens of a text as rich draws them here: links with their addresses after them, lines as lines."""
    for token in tokens:
        if token.type == "softbreak":
            yield Token("hardbreak", "br", 0)
        elif token.type == "link_open":
            yield Token("text_open", "link", 1)
        elif token.type == "link_close":
            yield from (Token("text_close", "link", -1), Token("text", "", 0, content=" ("))
            yield from (Token("text_open", "link_url", 1), Token("text", "", 0, content=token.content))
            yield from (Token("text_close", "link_url", -1), Token("text", "", 0, content=")"))
        else:
            yield token


class _Heading(Heading):
    """A heading at the left edge, as in a text."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "default"
        self.text.stylize("bold")
        yield self.text


class _Paragraph(Paragraph):
    """A paragraph whose lines end with their last word, so that no spaces are copied with it."""

    @classmethod
    def create(cls, markdown: Markdown, token: Any) -> _Paragraph:
        del markdown, token
        return cls(justify="default")


class _Code(CodeBlock):
    """Code below what is written after the fence, which may be more than a language."""

    info = ""

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> CodeBlock:
        code = super().create(markdown, token)
        assert isinstance(code, _Code)
        code.info = token.info.strip()
        return code

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.info:
            yield Text(self.info, style="dim")
        # As in rich, but at the left edge, so that it can be copied as it is.
        code = str(self.text).rstrip()
        yield Syntax(code, self.lexer_name, theme=self.theme, word_wrap=True, padding=(1, 0))


class _Quote(BlockQuote):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        bar = Segment("▌ ", self.style)
        yield from _beside(bar, bar, self, console, options)


class _Item(ListItem):
    """marker: the number as it is written, or a bullet."""

    def __init__(self, marker: str) -> None:
        super().__init__()
        self.marker = marker

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> _Item:
        del markdown
        return cls(f"{token.info}{token.markup}" if token.info else "•")


class _List(ListElement):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        items = [item for item in self.items if isinstance(item, _Item)]
        width = max(len(item.marker) for item in items)
        is_numbered = self.list_type == "ordered_list_open"
        style = console.get_style(f"markdown.item.{'number' if is_numbered else 'bullet'}", default="none")
        for item in items:
            first = Segment(f" {item.marker:>{width}} ", style)
            yield from _beside(first, Segment(" " * len(first.text)), item, console, options)


def _beside(
    first: Segment, further: Segment, holder: BlockQuote | ListItem, console: Console, options: ConsoleOptions
) -> RenderResult:
    """What is held, with `first` in the margin of its first line, and `further` in that of the others."""
    width = options.max_width - first.cell_length
    has_margin = width >= _NARROWEST
    if not has_margin:
        width = options.max_width
        yield from (first, Segment.line())
    lines = console.render_lines(holder.elements, options.update(width=width), style=holder.style, pad=False)
    for i, line in enumerate(lines or [[]]):
        if has_margin:
            yield first if i == 0 else further
        yield from line
        yield Segment.line()


class _Table(TableElement):
    """A table as wide as its longest row; rows of text where it does not fit."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows: list[TableRowElement] = self.body.rows if self.body else []
        header = self.header.row.cells if self.header and self.header.row else []
        n_columns = max([len(header), *(len(row.cells) for row in rows)])
        if n_columns * _NARROWEST_COLUMN > options.max_width:
            for cells in (header, *(row.cells for row in rows)):
                yield Text(" | ").join(cell.content for cell in cells)
            return
        drawn = Table(box=box.SIMPLE, pad_edge=False, style="dim", collapse_padding=True)
        for i in range(n_columns):
            heading = header[i].content.copy() if i < len(header) else Text()
            heading.stylize("bold")
            drawn.add_column(heading, overflow="fold")
        for row in rows:
            drawn.add_row(*(cell.content for cell in row.cells))
        yield drawn


MarkdownText.elements = Markdown.elements | {
    "heading_open": _Heading,
    "paragraph_open": _Paragraph,
    "fence": _Code,
    "code_block": _Code,
    "blockquote_open": _Quote,
    "list_item_open": _Item,
    "bullet_list_open": _List,
    "ordered_list_open": _List,
    "table_open": _Table,
}
