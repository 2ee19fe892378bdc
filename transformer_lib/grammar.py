"""The words and sentences of the story corpus: data only; `storyteller.py` turns them into stories.

A story is a few *beats*, told in order. A beat is a tuple of alternative sentences; one is drawn, each as likely as the
others. An empty alternative says nothing. A sentence is text with slots in braces:

    {thing}        a word of the class `thing`. It is drawn where it is first used and then kept for the whole story.
    {thing2}       another word of the same class, never equal to the first
    {thing.a}      one of the word's forms, here with its article: "an apple"
    {hero.he}      the hero's pronoun (he, she or they); also him, his and was, and for the hero's speech I, me, my, am
    {Hero.he}      the same with a capital letter
    {Hero|he}      the name, or the pronoun where no one else could be meant
    {both}         hero and friend; {pair} brings in twins as the hero
    {+place}       this sentence is used only where no place has been named yet
    {=place}       this sentence is used only where a place has been named already

Different choices must give different texts (the tests search for exceptions): that is what makes a story's probability
known exactly. So no alternative may occur twice in a beat.
"""


def with_article(word: str) -> str:
    return ("an " if word[0] in "aeiou" else "a ") + word


def nouns(words: str) -> list[dict[str, str]]:
    return [{"": word, "a": with_article(word), "s": word + "s"} for word in words.split()]


def places(words: str) -> list[dict[str, str]]:
    """Each word is written with its preposition: "in:park"."""
    pairs = [word.split(":") for word in words.split()]
    return [{"": noun, "at": f"{where} the {noun}", "near": f"near the {noun}"} for where, noun in pairs]


def table(forms: str, *rows: str) -> list[dict[str, str]]:
    """Words whose forms belong together (a cause and its effect): one a row, the word first, separated by " / "."""
    return [dict(zip(["", *forms.split()], row.split(" / "))) for row in rows]


PRONOUNS = {
    "he": {"he": "he", "him": "him", "his": "his"},
    "she": {"he": "she", "him": "her", "his": "her"},
    "they": {"he": "they", "him": "them", "his": "their"},
}
ONE = {"was": "was", "I": "I", "me": "me", "my": "my", "am": "am"}
SEVERAL = {"was": "were", "I": "we", "me": "us", "my": "our", "am": "are"}

NAMES = {
    "he": ["Tom", "Ben", "Max", "Leo", "Finn", "Hugo"],
    "she": ["Lily", "Mia", "Anna", "Zoe", "Ruby", "Ella"],
}
# An invented name is two syllables; the first tells he from she. BPE splits most names there, and the others after
# their first letter, or twice: who knows a name's beginning must look back for its end.
FIRST_SYLLABLES = {
    "he": ["Ba", "Do", "Ko", "No", "Po", "Wi", "Zu"],
    "she": ["Fi", "Lu", "Mi", "Ri", "Se", "Te", "Vi"],
}
LAST_SYLLABLES = ["bo", "do", "go", "ko", "mo", "ru", "zu", "da", "ga", "la", "ma", "na", "ri", "va"]
TWINS = {"": "twins", "gender": "they"}

WORDS = {
    "kind": [
        {"": "boy", "a": "a boy", "gender": "he"},
        {"": "girl", "a": "a girl", "gender": "she"},
        *nouns("fox bear rabbit cat dog pig duck goat"),
    ],
    "kin": table("gender", "mom / she", "dad / he", "grandma / she", "grandpa / he", "aunt / she", "uncle / he"),
    "trait": nouns("kind brave clever shy funny quiet gentle curious"),
    "color": nouns("red blue green yellow white black orange brown"),
    "look": nouns("red blue green yellow white black old new tiny big shiny pretty"),
    "thing": nouns("ball hat boat drum kite cup bell book doll coin spoon lamp"),
    "food": nouns("apple cake pie plum carrot pear egg cookie nut melon"),
    "animal": nouns("bird hen bee frog snail turtle lamb kitten"),
    "flower": nouns("rose daisy tulip bean pumpkin sunflower"),
    "tree": nouns("tree house gate rock fence flower"),
    "number": nouns("two three four five six seven"),
    "place": places("in:park in:garden in:forest on:farm on:beach by:river by:pond by:bridge in:meadow on:hill"),
    "spot": places("under:bed under:chair behind:door behind:bush behind:rock in:basket in:drawer on:table on:shelf"),
    "la": nouns("la li lo do dum bim bam tra hey ho"),
    "good": nouns("happy glad cheerful"),
    "bad": nouns("sad upset worried"),
}

# Causes with their effects.
WORDS |= {
    "weather": table(
        "effect end",
        "it began to rain / the grass was wet / the rain stopped",
        "it began to snow / everything was white / the snow stopped",
        "a strong wind began to blow / the leaves flew away / the wind stopped",
        "a thick fog came / no one could see far / the fog went away",
    ),
    "noise": table(
        "cause",
        "a loud bang / a door in the wind",
        "a soft tap / a branch at the window",
        "a long howl / the wind in the chimney",
        "a big splash / a fish in the water",
        "a small squeak / a mouse in the wall",
    ),
    "accident": table("", "let it fall", "sat on it", "stepped on it", "threw it too hard"),
    "glue": nouns("glue tape string"),
    "building": table(
        "a end",
        "castle / a castle of sand / a wave washed it away",
        "tower / a tower of blocks / a dog ran into it",
        "snowman / a big snowman / the sun melted it",
        "hut / a hut of sticks / the wind blew it down",
    ),
    "trap": table(
        "free",
        "in a net / cut the net",
        "in a hole / dug a way out",
        "under a log / lifted the log",
        "up in a tree / brought a ladder",
    ),
    "ill": table(
        "cure",
        "a cold / hot soup",
        "a sore throat / warm milk with honey",
        "a fever / cool water and much sleep",
    ),
    "skill": table(
        "ed",
        "fly a kite / flew a kite",
        "ride a bike / rode a bike",
        "swim / swam",
        "skate / skated",
        "paint / painted",
    ),
}


def said(who: str, *lines: str) -> tuple[str, ...]:
    """Each line as a quotation, with its speaker before or after it."""
    before, after = f"{{{who.title()}|he}}", f"{{{who}}}"
    if who == "kin":
        before, after = "{Hero.his} {kin}", "{hero.his} {kin}"
    quotations = []
    for line in lines:
        verb = {"?": "asked", "!": "cried", ".": "said"}[line[-1]]
        comma = line[:-1] + "," if line[-1] == "." else line
        quotations += [f'{before} {verb}, "{line}"', f'"{comma}" {verb} {after}.']
    return tuple(quotations)


# No opening starts with a name: after a space a name is always spelt with the same tokens.
OPENING = (
    "Once upon a time, there was {trait.a} {kind} named {hero}.",
    "Once there was {kind.a} named {hero}. {Hero.he} was very {trait}.",
    "Long ago, {trait.a} {kind} lived {place.near}. The name of the {kind} was {hero}.",
    "This is the story of {hero}, {trait.a} {kind}.",
    "The {kind} {hero} lived {place.near}.",
    "In a little house {place.near} lived {kind.a} named {hero}.",
    "Everyone {place.near} knew {hero}, the {trait} {kind}.",
    "The only {kind} {place.at} was {hero}.",
    "Once upon a time, there were twins named {pair}.",
    "There were once two {trait} children named {pair}.",
)

DETAIL = (
    "{Hero|he} lived in a small house with {hero.his} family.",
    "{Hero|he} lived {+place.near} with {hero.his} {+kin}.",
    "{Hero|he} loved to play {+place.at} with {hero.his} family.",
    "{Hero|he} liked {food4.s}, and {hero.his} family liked them too.",
    "{Hero|he} often sat {+place.at} when {hero.he} {hero.was} {good2}.",
    "{Hero.his} best friend was {+friend}.",
    "{Hero.his} best friend was {+kind2.a} named {+friend}.",
)

SCENE = (
    "The {tree} near the {tree2.s} was {color4}.",
    "The {tree.s} near the {tree2} were {color4}.",
    "There were {number4} {animal2.s} {place.at}.",
    "A {animal2} was sleeping near the {tree}.",
    "Two {animal2.s} were sleeping near the {tree}.",
)

HELLO = (
    "Then {friend} came by.",
    "Just then, {hero} met {friend}.",
    "{+friend} the {+kind2} saw this and came to {hero.him}.",
    "{Hero|he} went to {friend} and asked for help.",
)

GIVES_THING = (
    "{Hero|he} had {look.a} {thing}.",
    "{Hero.his} {kin} gave {hero.him} {look.a} {thing}.",
    "The best thing {hero} had was {look.a} {thing}.",
    "{Hero|he} once found {look.a} {thing} {spot.at}.",
)

ENDING = (
    "Now {hero} {hero.was} {good} because {hero.he} had a friend.",
    "Now {hero} {hero.was} {good}, and {friend} was {good} too.",
    *said("hero", "Thank you, {friend}."),
    *said("friend", "Let us play again soon."),
    "From that day on, {both} were best friends.",
    "{Hero|he} went home and told {hero.his} family about {friend}.",
    "{Hero|he} never forgot what {hero.his} friend had done.",
    "{Hero|he} {hero.was} so {good} that {hero.he} began to dance.",
    "That night, {hero} slept well because {hero.he} {hero.was} {good}.",
    "When {hero} came home, {hero.he} told {hero.his} family everything.",
    "And so the {=trait} {kind} went home, and {hero.his} family smiled.",
)
