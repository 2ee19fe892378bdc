"""What lessons put into a page: text with the theme's own colours, and the same in plain words."""

import html

from IPython.display import display

TEXT = "color: var(--jp-ui-font-color1, inherit); line-height: 1.5; max-width: 800px"
EDGES = {"right": "#009E73", "wrong": "#D55E00", "open": "#767676"}  # Okabe and Ito's green and red, and a grey


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
    """Text that is safe inside HTML."""
    return html.escape(str(text))
