"""Exercises that answer: "not tried yet", "right", or which mistake it looks like.

`check.<name>(their_function)` judges a learner's function. Each notebook's exercises stand in one module of `checks/`,
as a list `EXERCISES`; the reference of an exercise is the library's own function wherever there is one.
"""

import contextlib
import copy
import dataclasses
import functools
import importlib
import pkgutil
import signal
import threading
import traceback
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from transformer_lib.lessons.compare import difference
from transformer_lib.lessons.page import Note, escape, show_note

SECONDS = 20  # a learner's function that needs longer has probably not ended at all
OPEN, RIGHT, WRONG = "open", "right", "wrong"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What an exercise says about a function. status: "open" (not tried yet), "right" or "wrong"."""

    status: str
    message: str


@dataclasses.dataclass(frozen=True)
class Exercise:
    """One exercise.

    name: what the learner calls, `check.<name>`; unique in the course.
    reference: the right function. mistakes: {sentence that names the mistake: function that makes it}.
    signs: {sentence: f(result, *case), True where a result shows the mistake}, for mistakes whose results differ from
        run to run; asked after the mistakes, and every case must show it.
    forbidden: {sentence: names of torch functions that the task does not allow}; asked where the result is right.
    cases: `cases(generator)` yields tuples of arguments, with sizes that never coincide; the generator is numpy's,
        with a fixed seed. tolerance: on numbers, absolute and relative.
    praise: one sentence shown when it is right, for instance what the result is good for.
    """

    name: str
    reference: Callable
    cases: Callable[[np.random.Generator], Iterable[tuple]]
    mistakes: dict[str, Callable]
    tolerance: float = 1e-5
    praise: str = ""
    signs: dict[str, Callable] = dataclasses.field(default_factory=dict)
    forbidden: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def arguments(self) -> list[tuple]:
        """The same cases each time."""
        torch_state = torch.random.get_rng_state()
        try:
            torch.manual_seed(0)
            return list(self.cases(np.random.default_rng(0)))
        finally:
            torch.random.set_rng_state(torch_state)

    def judge(self, attempt: Callable) -> Verdict:
        """Run the function on every case and say what there is to say."""
        if attempt is None or attempt is ...:
            return Verdict(OPEN, "not tried yet")
        if not callable(attempt):
            return Verdict(WRONG, f"pass the function itself, not its result: check.{self.name}(your_function)")
        results, calls = [], TorchCalls()
        for case in self.arguments():
            given = copy.deepcopy(case)
            try:
                with time_limit(SECONDS), calls:
                    results.append(attempt(*given))
            except NotImplementedError:
                return Verdict(OPEN, "not tried yet")
            except (Exception, SystemExit) as error:
                return Verdict(WRONG, _raised(error, case))
            if results[-1] is ... or (results[-1] is None and not results[:-1]):
                return _nothing(attempt, results[-1])
            if changed := _changed(case, given):
                return Verdict(WRONG, f"it changes its argument {changed} in place; work on a copy and return that")
        try:
            verdict = self._compare(results)
        except Exception as error:  # a result may be anything, and refuse every question
            kind = type(results[0]).__name__
            return Verdict(WRONG, f"its result, a {kind}, cannot be compared: that raises {type(error).__name__}")
        used = [sentence for sentence, names in self.forbidden.items() if calls.names & set(names)]
        return Verdict(WRONG, used[0]) if used and verdict.status == RIGHT else verdict

    def _compare(self, results: list) -> Verdict:
        wrong = self._differences(results, self.reference)
        if not any(wrong):
            return Verdict(RIGHT, "right" + (f". {self.praise}" if self.praise else ""))
        for sentence, mistake in self.mistakes.items():
            if not any(self._differences(results, mistake)):
                return Verdict(WRONG, sentence)
        for sentence, shows in self.signs.items():
            if all(shows(result, *case) for result, case in zip(results, self.arguments(), strict=True)):
                return Verdict(WRONG, sentence)
        return Verdict(WRONG, next(filter(None, wrong)))

    def _differences(self, results: list, function: Callable) -> list[str | None]:
        cases = [(case, result) for case, result in zip(self.arguments(), results, strict=True)]
        return [difference(result, _outcome(function, case), self.tolerance) for case, result in cases]


def _outcome(function: Callable, case: tuple):
    """What a reference or a mistake returns; a mistake that cannot run on this case equals nothing."""
    try:
        return function(*copy.deepcopy(case))
    except Exception as error:
        return error


def _nothing(attempt: Callable, result) -> Verdict:
    """A function that returns nothing is untouched if its body is only a docstring, `pass` or `...`."""
    code = getattr(attempt, "__code__", None)
    if result is ... or (code is not None and not code.co_names and not set(code.co_varnames[code.co_argcount :])):
        return Verdict(OPEN, "not tried yet")
    return Verdict(WRONG, "it returns None: end it with `return …`")


def _raised(error: BaseException, case: tuple) -> str:
    if isinstance(error, _TookTooLongError):
        return f"it did not end within {SECONDS} seconds; look for a loop that never stops"
    outside = ("/transformer_lib/", "site-packages")
    mine = [f for f in traceback.extract_tb(error.__traceback__) if not any(part in f.filename for part in outside)]
    place = f", in the line `{mine[-1].line}`" if mine and mine[-1].line else ""
    message = str(error).splitlines()[0] if str(error) else "no message"
    return f"it stops with {type(error).__name__}: {message}{place}{_shapes(case)}"


def _shapes(case: tuple) -> str:
    """The first case may have run, and a batch not: say which input it was."""
    shapes = [str(tuple(x.shape)) for x in case if isinstance(x, torch.Tensor | np.ndarray)]
    return f" (with inputs of shape {' and '.join(shapes)})" if shapes else ""


def _changed(before: tuple, after: tuple) -> str | None:
    for number, (old, new) in enumerate(zip(before, after, strict=True), 1):
        if isinstance(old, torch.Tensor | np.ndarray | list | dict) and difference(new, old, 0.0):
            return f"number {number}"
    return None


class TorchCalls(TorchFunctionMode):
    """Notes the name of every torch function and method that is called inside, however it was imported."""

    def __init__(self):
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, function, types, arguments=(), named=None):
        self.names.add(getattr(function, "__name__", ""))
        return function(*arguments, **(named or {}))


class _TookTooLongError(Exception):
    pass


@contextlib.contextmanager
def time_limit(seconds: int):
    """Stop what runs inside after so many seconds, where the system can (main thread, not Windows)."""
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_):
        raise _TookTooLongError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@functools.cache
def registry() -> dict[str, Exercise]:
    """All exercises of the course by name, from the modules of `checks/`."""
    from transformer_lib.lessons import checks

    found = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(checks.__path__)):
        for exercise in importlib.import_module(f"{checks.__name__}.{module}").EXERCISES:
            if exercise.name in found:
                raise ValueError(f"two exercises are called {exercise.name!r}: names are unique in the course")
            found[exercise.name] = exercise
    return found


class Check:
    """`check.<exercise>(function)` shows a verdict; `check.<exercise>` alone is not called yet."""

    def __getattr__(self, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in registry():
            raise AttributeError(f"there is no exercise {name!r}; the exercises are: {', '.join(registry())}")
        return functools.partial(self._show, registry()[name])

    def __dir__(self):
        return list(registry())

    @staticmethod
    def _show(exercise: Exercise, attempt=None) -> None:
        verdict = exercise.judge(attempt)
        mark = {OPEN: "○", RIGHT: "✓", WRONG: "✗"}[verdict.status]
        text = f"{mark} {exercise.name}: {verdict.message}"
        body = f"<b>{mark} {escape(exercise.name)}</b>: {escape(verdict.message)}"
        show_note(Note(text, body, verdict.status), {"exercise": exercise.name, "status": verdict.status})


check = Check()
