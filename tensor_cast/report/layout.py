"""Text, tables and line breaks on a console: ASCII, 80 columns wide where nobody looks on a terminal.

rich is imported where it is used: it takes a twentieth of a second, and most of the package never prints.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

PLAIN_WIDTH = 80
NARROWEST = 72
_GAP = 2


def make_console() -> Console:
    """Standard output; ``COLUMNS`` sets the width, but tables are no narrower than their numbers need."""
    from rich.console import Console

    columns = os.environ.get("COLUMNS", "")
    width = PLAIN_WIDTH if not columns.isdigit() and not sys.stdout.isatty() else None
    console = Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)
    console.width = max(NARROWEST, console.width)
    return console


def show(parts: Iterable[RenderableType], console: Console) -> None:
    """Prints the parts one below the other; no line ends in spaces, and what the encoding lacks becomes an escape."""
    with console.capture() as capture:
        for part in parts:
            console.print(part, soft_wrap=getattr(part, "no_wrap", False) is True)
    lines = capture.get()
    if not console.is_terminal:
        lines = "\n".join(line.rstrip() for line in lines.split("\n"))
    encoding = getattr(console.file, "encoding", None) or "utf-8"
    console.file.write(lines.encode(encoding, "backslashreplace").decode(encoding))
    console.file.flush()


def plain(value: object) -> str:
    """One line of text without control codes; ``-`` for None."""
    text = "-" if value is None else str(value)
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() else mark.encode("unicode_escape").decode() for mark in text)


def text(words: str, style: str = "", no_wrap: bool = False) -> Text:
    """A paragraph, printed as it is: brackets and colons mean nothing in it."""
    from rich.text import Text

    return Text(words, style=style, no_wrap=no_wrap, overflow="ignore" if no_wrap else "fold")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> RenderableType:
    """A table of text cells; the columns named in ``right`` are flush right. An empty header leaves the head out."""
    from rich.box import Box
    from rich.table import Table

    # Nothing but a dashed line below the head: the third of eight lines of edge, filling, divider, edge.
    box = Box("    \n" * 2 + " -- \n" + "    \n" * 5, ascii=True)
    grid = Table(box=box, show_header=any(header), show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in header:
        grid.add_column(text(name, "bold"), justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        grid.add_row(*map(text, row))
    return grid


def cell_width(cell: str) -> int:
    """Columns on screen of the widest line of a cell."""
    from rich.cells import cell_len

    return max(map(cell_len, cell.split("\n")))


def widths(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Columns on screen that each column of a table takes unbroken, with the gap behind it."""
    return [_GAP + max(map(cell_width, column)) for column in zip(header, *rows, strict=True)]


def break_name(name: str, width: int, indent: str = "") -> str:
    """A name in lines of ``width``: broken behind ``. : /``, and behind ``_`` and blanks where a part is longer."""
    room = max(1, width - len(indent))
    lines = [""]
    for part in re.findall(r"[^.:/]*[.:/]+|[^.:/]+", name):
        for piece in [part] if len(part) <= room else re.findall(r"[^_ ]*[_ ]+|[^_ ]+", part):
            if len(lines[-1]) + len(piece.rstrip()) > room and lines[-1]:
                lines.append("")
            lines[-1] += piece
    return "\n".join(indent + line for line in lines)
