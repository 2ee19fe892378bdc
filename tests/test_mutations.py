"""The tests notice what they are there for: with each mutation of `mutations.py` on, the tests it names fail.

A fast few run always, all with the long tests. Each runs in a process of its own.
"""

import os
import pathlib
import subprocess
import sys

import pytest
from mutations import FAST, MUTATIONS, NOTHING

from transformer_lib.lessons.bugs import BUGS

TESTS = pathlib.Path(__file__).parent
PASSED, FAILED = 0, 1  # pytest's exit status


def run(tests, folder, mutation: str = "") -> subprocess.CompletedProcess:
    """pytest on these tests, with one mutation on."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "mutations", "-p", "no:cacheprovider"]
    command += ["-c", str(TESTS.parent / "pyproject.toml"), *(str(TESTS / test) for test in tests)]
    paths = os.pathsep.join(filter(None, (str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"MUTATION": mutation, "PYTHONPATH": paths, "HYPOTHESIS_STORAGE_DIRECTORY": str(folder)}
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300)


def survivor(mutation, folder) -> str | None:
    """A sentence if the tests pass all the same; None if one of them fails."""
    ran = run(mutation.tests, folder, mutation.name)
    assert ran.returncode in (PASSED, FAILED), (
        f"{mutation.name} does not run:\n{ran.stdout[-3000:]}{ran.stderr[-3000:]}"
    )
    if ran.returncode == FAILED:
        return None
    return f"no test notices the mutation {mutation.name!r}; write one beside {', '.join(mutation.tests)}."


def marked(mutation):
    return pytest.param(mutation, id=mutation.name, marks=() if mutation.name in FAST else pytest.mark.long)


@pytest.mark.parametrize("mutation", [marked(m) for m in MUTATIONS])
def test_the_mutation_is_noticed(mutation, tmp_path):
    assert survivor(mutation, tmp_path) is None


@pytest.mark.parametrize("names", [FAST, pytest.param([m.name for m in MUTATIONS], marks=pytest.mark.long)])
def test_without_a_mutation_the_same_tests_pass(names, tmp_path):
    tests = dict.fromkeys(test for mutation in MUTATIONS if mutation.name in names for test in mutation.tests)
    ran = run(tests, tmp_path)
    assert ran.returncode == PASSED, ran.stdout[-3000:]


def test_a_mutation_that_no_test_notices_is_reported(tmp_path):
    assert survivor(NOTHING, tmp_path).startswith(
        "no test notices the mutation 'nothing'; write one beside test_losses"
    )


def test_every_bug_of_the_lessons_is_among_them_and_all_say_what_is_wrong():
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names) >= 25 and set(FAST) <= set(names)
    assert set(BUGS) == {mutation.name for mutation in MUTATIONS if mutation.module is None}
    for mutation in MUTATIONS:
        assert mutation.tests and (mutation.module is None) == (mutation.sentence == "")


@pytest.mark.parametrize("mutation", [m for m in MUTATIONS if m.module], ids=lambda m: m.name)
def test_the_source_still_holds_what_is_changed(mutation):
    """Seen at once when the library changes, not only when the long tests run."""
    path = TESTS.parent.joinpath(*mutation.module.split(".")).with_suffix(".py")
    source = path.read_text(encoding="utf-8")
    assert mutation.mutated(source) != source
