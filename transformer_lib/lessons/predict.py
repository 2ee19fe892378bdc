"""`predict`: a question to answer before the result is shown. Its right answer is computed, never typed."""

import ipywidgets as widgets

from transformer_lib.explorers.base import WIDGET_VIEW
from transformer_lib.lessons.page import EDGES, escape
from transformer_lib.plots.style import TEXT, is_static

LONGEST_OPTION = 80  # letters


class Prediction:
    """A question with options. Live: buttons that answer. Without a kernel: the options, and a folded answer."""

    def __init__(self, question: str, options: list, answer, because: str):
        self.options = [str(option) for option in options]
        if len(set(self.options)) != len(self.options) or len(options) < 2:
            raise ValueError(f"predict needs at least two different options; got {self.options}")
        if too_long := [option for option in self.options if len(option) > LONGEST_OPTION]:
            raise ValueError(
                f"an option has at most {LONGEST_OPTION} letters, so that its button is not cut: {too_long}"
            )
        self.answer = str(answer() if callable(answer) else answer)
        if self.answer not in self.options:
            raise ValueError(f"the computed answer {self.answer!r} is none of the options {self.options}")
        self.question, self.because = question, because
        self.buttons = widgets.ToggleButtons(options=self.options, value=None, layout=widgets.Layout(max_width="800px"))
        self.buttons.style.button_width = "auto"
        self.reply = widgets.HTML(_line("Choose before you read on.", "open", live=True))
        self.buttons.observe(self._tell, "value")
        head = widgets.HTML(f'<div style="{TEXT}"><b>Predict first.</b> {escape(question)}</div>')
        self.widget = widgets.VBox([head, self.buttons, self.reply], layout=widgets.Layout(overflow="hidden"))

    def _tell(self, change) -> None:
        if change["new"] is not None:
            right = change["new"] == self.answer
            text = f"✓ Right. {self.because}" if right else f"✗ Not so: {self.answer}. {self.because}"
            self.reply.value = _line(text.strip(), "right" if right else "wrong", live=True)

    def __repr__(self) -> str:
        listed = "\n".join(f"  ○ {option}" for option in self.options)
        return f"Predict first. {self.question}\n{listed}\nAnswer: {self.answer}. {self.because}".rstrip()

    def _html(self) -> str:
        listed = "".join(f"<li>{escape(option)}</li>" for option in self.options)
        told = _line(f"{self.answer}. {self.because}".strip(), "right")
        return (
            f'<div style="{TEXT}"><b>Predict first.</b> {escape(self.question)}<ul>{listed}</ul>'
            f"<details><summary>Answer</summary>{told}</details></div>"
        )

    def _repr_mimebundle_(self, include=None, exclude=None):
        data = {"text/plain": repr(self), "text/html": self._html()}
        if not is_static():
            data[WIDGET_VIEW] = self.widget._repr_mimebundle_()[WIDGET_VIEW]
        return data, {"transformer_lib": {"question": self.question}}


def predict(question: str, options: list, answer, because: str = "") -> Prediction:
    """Ask `question` before its result is shown; make it the last line of a cell.

    answer: the right option, computed by the cell (or a function that computes it); anything that is none of the
        options raises `ValueError`. because: one sentence shown with the answer.
    """
    return Prediction(question, options, answer, because)


def _line(text: str, edge: str, live: bool = False) -> str:
    role = ' role="status" aria-live="polite"' if live else ""
    style = f"{TEXT}; border-left: 4px solid {EDGES[edge]}; padding: 2px 10px; white-space: normal"
    return f'<div class="prediction-reply"{role} style="{style}">{escape(text)}</div>'
