"""What lessons put into a page: text with the theme's own colours, and the same in plain words."""

import html
import re

from IPython.display import display

from transformer_lib.plots.style import COLOURS, TEXT

EDGES = {"right": COLOURS["green"], "wrong": COLOURS["red"], "open": COLOURS["grey"]}


class Note:
    """A short message with a coloured edge: `text` for terminals and tests, `body` (HTML) for pages."""

    def __init__(self, text: str, body: str, edge: str = "open"):
        self.text, self.body, self.edge = text, body, edge

    def __repr__(self) -> str:
        return self.text

    def html(self) -> str:
        """The message as HTML, readable in the light and the dark theme."""
        return f'<div style="{TEXT}; border-left: 4px solid {EDGES[self.edge]}; padding: 2px 10px">{self.body}</div>'

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": self.text, "text/html": self.html()}


def show_note(note: Note, about: dict | None = None) -> None:
    """Display the note; `about` is kept with the stored output, unseen, for programs that read the notebook."""
    display(note, metadata={"transformer_lib": about} if about else None)


def escape(text) -> str:
    """Text that is safe inside HTML; `code` in backquotes is set as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(str(text)))
