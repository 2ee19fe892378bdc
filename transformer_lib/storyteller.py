"""How the grammar's sentences become a story, and how a story is read back into the choices that made it.

`Teller` makes every choice in one method, `choose`, with equally likely options. It adds ln(number of options) to
the story's information, and makes a choice only where its outcome is written. `Reader` is the same teller made to
follow a given text: at each choice it tries the options that the text allows. A text with exactly one derivation has
probability exp(−information); the tests look for a second derivation and find none.
"""

import math
import random
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from transformer_lib import grammar
from transformer_lib.story_plots import PLOTS, SHAPES


class Mark(NamedTuple):
    """A place in a story that an attention head may care about, as character positions text[start:end].

    kind            what it is                              earlier: the place it depends on
    "name"          a hero's or friend's name               the same name's last mention, None at its first
    "kin"           "mom", "uncle" …                        the same word's last mention, or None
    "pronoun"       he, him, his, they …           its owner's last mention (for twins: both names)
    "thing"         the noun of an object                   the same noun's last mention, or None
    "open"          an opening quotation mark               None
    "close"         a closing quotation mark                its opening mark
    """

    kind: str
    start: int
    end: int
    earlier: tuple[int, int] | None


class Story(NamedTuple):
    text: str  # no newline inside
    information: float  # −ln of its probability, in nats, its end included
    choices: tuple[int, ...]
    marks: tuple[Mark, ...]


class Slot(NamedTuple):
    role: str  # "thing2"
    kind: str  # "thing"
    form: str  # "a", "he", …
    capital: bool
    pronoun: str  # "he" where the name may be replaced by it


class Sentence(NamedTuple):
    parts: tuple[str | Slot, ...]
    pattern: str  # what it looks like, whatever fills the slots
    new: frozenset[str]  # roles that must not have been used yet
    known: frozenset[str]  # roles that must have been


@cache
def compile_sentence(template: str) -> Sentence:
    parts, roles = [], {"+": set(), "=": set()}
    for part in re.split(r"(\{[^}]*\}|\")", template):
        if match := re.fullmatch(r"\{([+=]?)(\w+?)(\d?)(?:\.(\w+))?(?:\|(\w+))?\}", part):
            sign, name, number, form, pronoun = match.groups(default="")
            role = name.lower() + number
            parts.append(Slot(role, name.lower(), form, name[0].isupper(), pronoun))
            if sign:
                roles[sign].add(role)
        elif part:
            parts.append(part)
    pattern = "".join(re.escape(part) if isinstance(part, str) else "[A-Za-z, ]+?" for part in parts)
    return Sentence(tuple(parts), pattern, frozenset(roles["+"]), frozenset(roles["="]))


compile_pattern = cache(re.compile)


@cache
def compile_beat(beat: tuple[str, ...]) -> tuple[tuple[Sentence, ...], bool]:
    """The sentences of a beat, and whether some of them depend on what has been used."""
    sentences = tuple(compile_sentence(template) for template in beat)
    return sentences, any(sentence.new or sentence.known for sentence in sentences)


class Teller:
    """Tells one story at random: `Teller(random.Random(seed)).tell()`."""

    def __init__(self, rng: random.Random | None = None):
        self.draw = rng.random if rng else None
        self.parts: list[str] = []
        self.length = 0
        self.choices: list[int] = []
        self.information = 0.0
        self.marks: list[Mark] = []
        self.world: dict[str, dict[str, str]] = {}  # role -> the word drawn for it
        self.left: dict[str, list] = {}  # class -> words not drawn yet
        self.last: dict[str, tuple[int, int]] = {}  # name, kin word, thing or role -> where it was mentioned last
        self.nearest: dict[str, str] = {}  # he, she, they -> the role it would be taken to mean
        self.opening: tuple[int, int] | None = None  # the quotation mark still open

    def tell(self) -> Story:
        for section in SHAPES[self.choose(SHAPES)]:
            beats = (section,) if section is not PLOTS else section[self.choose(section, ahead=1)]
            for beat in beats:
                self.tell_beat(beat)
        return Story("".join(self.parts), self.information, tuple(self.choices), tuple(self.marks))

    def choose(self, options, form: str = "", ahead: int = 0) -> int:
        """One of `options` by its index. `form` and `ahead` say what it will write, and how far on (for `Reader`)."""
        number = len(options)
        self.information += math.log(number)
        index = int(self.draw() * number)
        self.choices.append(index)
        return index

    def write(self, part: str) -> None:
        self.parts.append(part)
        self.length += len(part)

    def tell_beat(self, beat: tuple[str, ...]) -> None:
        sentences, conditional = compile_beat(beat)
        if conditional:
            used = self.world.keys()
            sentences = [s for s in sentences if s.known <= used and s.new.isdisjoint(used)]
        space = " " if self.parts else ""
        sentence = sentences[self.choose(sentences, ahead=len(space))]
        if sentence.parts and space:
            self.write(space)
        for part in sentence.parts:
            if isinstance(part, Slot):
                self.fill(part)
            elif part == '"':
                self.quote()
            else:
                self.write(part)

    def quote(self) -> None:
        here = (self.length, self.length + 1)
        self.marks.append(Mark("close" if self.opening else "open", *here, self.opening))
        self.opening = None if self.opening else here
        self.write('"')

    def fill(self, slot: Slot) -> None:
        role, form = slot.role, slot.form
        if role == "pair":
            self.world |= {"hero": self.draw_pair(), "kind": grammar.TWINS}
            return self.mention("hero")
        if role == "both":
            return self.mention("hero", "friend")
        word = self.world.get(role)
        if word is None:
            word = self.draw_person(role) if role in ("hero", "friend") else self.draw_word(slot)
            self.world[role] = word
        if slot.pronoun and self.nearest.get(word["he"]) == role and self.choose(("name", "pronoun")):
            form = slot.pronoun
        if form == "" and slot.kind in ("hero", "friend", "kin"):
            return self.mention(role)
        text = word[form]
        here = (self.length, self.length + len(text))
        if form in grammar.PRONOUNS["he"] and "he" in word:
            self.marks.append(Mark("pronoun", *here, self.last[role]))
        elif form == "" and slot.kind == "thing":
            self.marks.append(Mark("thing", *here, self.last.get(role)))
            self.last[role] = here
        self.write(text[0].upper() + text[1:] if slot.capital else text)

    def mention(self, *roles: str) -> None:
        """Write one or more people's names: "Mia", "Mia and Tom", "Mia, Tom and Ben"."""
        names = [(role, name) for role in roles for name in self.world[role][""].split(" and ")]
        for i, (role, name) in enumerate(names):
            if i:
                self.write(" and " if i == len(names) - 1 else ", ")
            here = (self.length, self.length + len(name))
            self.marks.append(Mark("name" if role in ("hero", "friend") else "kin", *here, self.last.get(name)))
            first = i == 0 or names[i - 1][0] != role
            self.last[role] = here if first else (self.last[role][0], here[1])
            self.last[name] = here
            self.write(name)
        for role in roles:
            self.nearest[self.world[role]["he"]] = role
        if "they" in self.nearest and "hero" in roles:  # twins are a boy and a girl: "he" could mean one of them
            self.nearest = {"they": "hero"}

    def draw_word(self, slot: Slot) -> dict[str, str]:
        words = self.left.get(slot.kind) or grammar.WORDS[slot.kind]
        if slot.kind == "kind":
            genders = self.genders("friend" if slot.role == "kind2" else "hero")
            words = [word for word in words if word.get("gender") in (None, *genders)]
        word = words[self.choose(words, slot.form)]
        self.left[slot.kind] = [other for other in words if other is not word]
        if "gender" in word:
            word = word | grammar.PRONOUNS[word["gender"]]
        return word

    def genders(self, role: str) -> tuple[str, ...]:
        """What a hero or friend, named or not yet, can be: a friend is never taken for the hero."""
        if role in self.world:
            return (self.world[role]["he"],)
        kind = self.world.get("kind2" if role == "friend" else "kind", {})
        if "gender" in kind:
            return (kind["gender"],)
        hero = self.world.get("hero", {}).get("he") if role == "friend" else None
        return tuple(gender for gender in ("he", "she") if gender != hero)

    def draw_person(self, role: str) -> dict[str, str]:
        taken = self.world["hero"][""].split(" and ") if role == "friend" else []
        name, gender = self.draw_name(self.genders(role), taken)
        return {"": name} | grammar.PRONOUNS[gender] | grammar.ONE

    def draw_pair(self) -> dict[str, str]:
        first, gender = self.draw_name(("he", "she"), [])
        second, _ = self.draw_name(("she",) if gender == "he" else ("he",), [first], len(f"{first} and "))
        return {"": f"{first} and {second}"} | grammar.PRONOUNS["they"] | grammar.SEVERAL

    def draw_name(self, genders: tuple[str, ...], taken: list[str], ahead: int = 0) -> tuple[str, str]:
        """A common or an invented name and its gender. No two names of a story start with the same two letters."""
        starts = {name[:2] for name in taken}
        if self.choose(("common", "invented")) == 0:
            names = [name for gender in genders for name in grammar.NAMES[gender] if name[:2] not in starts]
            name = names[self.choose(names, ahead=ahead)]
            return name, "he" if name in grammar.NAMES["he"] else "she"
        firsts = [first for gender in genders for first in grammar.FIRST_SYLLABLES[gender] if first not in starts]
        first = firsts[self.choose(firsts, ahead=ahead)]
        last = grammar.LAST_SYLLABLES[self.choose(grammar.LAST_SYLLABLES, ahead=ahead + len(first))]
        return first + last, "he" if first in grammar.FIRST_SYLLABLES["he"] else "she"


# Options that write nothing themselves: the next choice shows which one was taken.
HIDDEN = {"name", "pronoun", "common", "invented"}


class Mismatch(Exception):
    """The text goes on differently from the story that a reader is following."""


class Reader(Teller):
    """Retells `text`: takes `forced` choices first, then the first that the text allows, and notes the others."""

    def __init__(self, text: str, forced: tuple[int, ...] = ()):
        super().__init__()
        self.text = text
        self.lower = text.lower()
        self.forced = forced
        self.untried: list[tuple[int, ...]] = []

    def choose(self, options, form: str = "", ahead: int = 0) -> int:
        self.information += math.log(len(options))
        if len(self.choices) < len(self.forced):
            index = self.forced[len(self.choices)]
        else:
            at = self.length + ahead
            index, *others = [i for i, option in enumerate(options) if self.fits(option, form, at)] or [None]
            if index is None:
                raise Mismatch
            self.untried += [(*self.choices, other) for other in others]
        self.choices.append(index)
        return index

    def fits(self, option, form: str, at: int) -> bool:
        """Whether the text could go on with `option` at this position. Options that write nothing yet always could."""
        if isinstance(option, Sentence):
            return compile_pattern(option.pattern).match(self.text, at) is not None
        if isinstance(option, tuple):  # a plot or the shape of a story: by its first beat
            return any(self.fits(sentence, form, at) for sentence in compile_beat(option[0])[0])
        if isinstance(option, dict):
            option = option[form]
        return option in HIDDEN or not isinstance(option, str) or self.lower.startswith(option.lower(), at)

    def write(self, part: str) -> None:
        if not self.text.startswith(part, self.length):
            raise Mismatch
        super().write(part)


def derivations(text: str) -> Iterator[Story]:
    """Every way in which the grammar tells exactly this story: none, or (as the tests show) one."""
    untried: list[tuple[int, ...]] = [()]
    while untried:
        reader = Reader(text, untried.pop())
        try:
            story = reader.tell()
        except Mismatch:
            story = None
        untried += reader.untried
        if story and story.text == text:
            yield story
