"""The words and sentences of the story corpus: data only; `storyteller.py` turns them into stories.

A story is a few *beats*, told in order. A beat is a tuple of alternative sentences; one is drawn, each as likely as the
others. An empty alternative says nothing. A sentence is text with slots in braces:

    {thing}        a word of the class `thing`. It is drawn where it is first used and then kept for the whole story.
    {thing2}       another word of the same class, never equal to the first
    {thing.a}      one of the word's forms, here with its article: "an apple"
    {hero.he}      the hero's pronoun (he, she or they); also him, his, self, was, and I, me, my, am for the hero's speech
    {Hero.he}      the same with a capital letter
    {Hero|he}      the name, or the pronoun where no one else could be meant
    {+place}       this sentence is used only where no place has been named yet
    {=place}       this sentence is used only where a place has been named already

Different choices must give different texts (the tests search for exceptions): that is what makes a story's probability
known exactly. So no alternative may occur twice in a beat, and no word in two classes that can meet in one slot.
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
    "he": {"he": "he", "him": "him", "his": "his", "self": "himself"},
    "she": {"he": "she", "him": "her", "his": "her", "self": "herself"},
    "they": {"he": "they", "him": "them", "his": "their", "self": "themselves"},
}
ONE = {"was": "was", "I": "I", "me": "me", "my": "my", "am": "am"}
SEVERAL = {"was": "were", "I": "we", "me": "us", "my": "our", "am": "are"}

NAMES = {
    "he": "Tom Ben Max Sam Leo Finn Jack Tim Hugo Gus".split(),
    "she": "Lily Mia Anna Zoe Ruby Ella Sue Ivy Amy Kate".split(),
}
# An invented name is two syllables; the second tells he (o, u) from she (a, i).
FIRST_SYLLABLES = "Ba Be Bo Da Di Do Fa Fi Ka Ki Ko La Lo Lu Mo Na Pa Pi Ra Ri Ro Ta Ti Va Vi Za Zu".split()
LAST_SYLLABLES = {
    "he": "bo do fo go ko lu mo nu po ru to vo zu".split(),
    "she": "ba da fi ga ka li ma ni pa ra ti va za".split(),
}
TWINS = {"": "twins", "gender": "they"}

WORDS = {
    "kind": [
        {"": "boy", "a": "a boy", "gender": "he"},
        {"": "girl", "a": "a girl", "gender": "she"},
        *nouns("fox bear rabbit cat dog pig duck goat"),
    ],
    "kin": table("gender", "mom / she", "dad / he", "grandma / she", "grandpa / he", "aunt / she", "uncle / he"),
    "trait": nouns("kind brave clever shy funny quiet gentle curious"),
    "color": nouns("red blue green yellow white black orange old new tiny big shiny"),
    "thing": nouns("ball hat boat drum kite box cup bell book doll coin key lamp rope bag"),
    "food": nouns("apple cake pie plum carrot pear egg cookie nut melon"),
    "animal": nouns("bird mouse bee frog snail turtle lamb kitten"),
    "flower": nouns("rose daisy tulip bean pumpkin sunflower"),
    "star": nouns("star cloud hill roof tree wave"),
    "number": nouns("two three four five six seven"),
    "place": places("in:park in:garden in:forest on:farm on:beach by:river by:pond by:bridge in:meadow on:hill"),
    "spot": places("under:bed under:chair behind:door behind:bush behind:rock in:basket in:drawer on:table on:shelf"),
    "la": nouns("la li lo do dum bim bam tra hey ho"),
    "good": nouns("happy glad proud"),
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
    "accident": table(
        "so",
        "dropped it / let it fall",
        "sat on it / did not see it",
        "stepped on it / did not look down",
        "threw it too hard / did not take care",
    ),
    "glue": nouns("glue tape string"),
    "dare": table(
        "did why",
        "swim / swam across the lake / the water was deep",
        "climb the tree / climbed the tree / the tree was tall",
        "jump over the stream / jumped over the stream / the stream was wide",
        "go into the cave / went into the cave / the cave was dark",
        "sing on the stage / sang on the stage / so many eyes were watching",
    ),
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


OPENING = (
    "Once upon a time, there was {trait.a} {kind} named {hero}.",
    "Once there was {kind.a} named {hero}. {Hero.he} was very {trait}.",
    "Long ago, {trait.a} {kind} lived {place.near}. The name of the {kind} was {hero}.",
    "{hero} was {trait.a} {kind}.",
    "{hero} the {kind} lived {place.near}.",
    "In a little house {place.near} lived {kind.a} named {hero}.",
    "Everyone {place.near} knew {hero}, the {trait} {kind}.",
    "{hero} was the most {trait} {kind} of all.",
    "Once upon a time, there were twins named {pair}.",
    "{pair} were twins. {Hero.he} lived {place.near}.",
    "There were once two {trait} children named {pair}.",
)

DETAIL = (
    "{Hero|he} lived with {hero.his} {+kin}.",
    "{Hero|he} lived in a small house {+place.near}.",
    "{Hero|he} loved to play {+place.at}.",
    "{Hero|he} liked to count the {star.s} near the {star2}.",
    "{Hero|he} liked to eat {+food.s}.",
    "{Hero.his} best friend was {+friend}.",
    "{Hero.his} best friend was {+kind2.a} named {+friend}.",
)

SCENE = (
    "The {star} behind the {star2.s} was {color2}.",
    "The {star.s} behind the {star2} were {color2}.",
    "It was a warm day.",
    "It was a cold day.",
    "There were {number} {animal2.s} {place.at}.",
)

MEET = (
    "Then {friend} came by.",
    "{+friend} the {+kind2} saw this and came to {hero.him}.",
    "{Hero|he} went to {friend} and asked for help.",
    "Just then, {hero} met {friend} {place.at}.",
)

HAS_THING = (
    "{Hero|he} had {color.a} {thing}.",
    "{Hero.his} {kin} gave {hero.him} {color.a} {thing}.",
    "The best thing {hero} had was {color.a} {thing}.",
    "One day, {hero} found {color.a} {thing} {place.at}.",
)

LOST = (
    HAS_THING,
    (
        "One morning, the {thing} was gone.",
        "But one day, {hero} could not find the {thing}.",
        "But soon {hero} lost the {thing} {place2.at}.",
    ),
    (
        "{Hero|he} looked {spot.at}, but it was not there.",
        "{Hero|he} looked {spot.at} and {spot2.at}, but there was no {thing}.",
        "{Hero|he} {hero.was} so {bad} that {hero.he} began to cry.",
    ),
    said("hero", "Where is {hero.my} {thing}?", "{Hero.I} can not find {hero.my} {color} {thing}.", "Oh no!"),
    MEET,
    said("friend", "I will help you.", "Let us look {spot3.at}.", "Did you look {spot3.at}?"),
    (
        "So {hero} and {friend} looked {spot3.at}, and there was the {thing}!",
        "The {color} {thing} was {spot3.at}!",
        "{friend} found the {thing} {spot3.at} and gave it back to {hero}.",
    ),
)

WEATHER = (
    (
        "One day, {hero} and {friend} went to play {place2.at}.",
        "One day, {hero} went {place2.at} to look for {flower.s}.",
        "One day, {hero} took {color.a} {thing} and went out to play.",
    ),
    ("Then {weather}.", "Suddenly, {weather}!", "But before long, {weather}."),
    (
        "Soon {weather.effect}, so {hero} could not go home.",
        "Because {weather.effect}, {hero} {hero.was} cold and {bad}.",
    ),
    (
        *said("friend", "Come in, it is warm here.", "Do not be {bad2}. Come and sit with me."),
        "{friend} saw {hero} and opened the door.",
    ),
    (
        "{friend} gave {hero.him} {food.a} and a warm blanket.",
        "{hero} sat down by the fire, so {hero.he} {hero.was} soon warm again.",
        "{friend} told {hero.him} about {number} {color3} {animal.s}.",
    ),
    ("In the evening, {weather.end}.", "At last {weather.end}, and {hero} could go home."),
)

HUNGRY = (
    ("One day, {hero} {hero.was} very hungry.", "{Hero|he} had no food, so {hero.he} {hero.was} hungry and {bad}."),
    (
        *said("hero", "May {hero.I} have {food.a}?"),
        "{Hero|he} asked {hero.his} {kin} for {food.a}.",
        "{Hero|he} wanted to eat {food.a}.",
    ),
    (
        *said("kin", "There is {food.a} {spot.at}.", "I put the {food} {spot.at}."),
        "There was {food.a} {spot.at}.",
    ),
    (
        "{hero} ran there, but {friend} had the {food} already.",
        "But when {hero} came, {friend} was holding the {food}.",
    ),
    said("friend", "You can have half of the {food}.", "I was hungry too, {hero}.", "Is this your {food}, {hero}?"),
    (
        "So {hero} and {friend} ate the {food} together.",
        "{friend} cut the {food} in two and gave half to {hero}.",
        "{hero} ate the {food}, so {hero.he} {hero.was} not hungry any more.",
    ),
)

PLOTS = (LOST, WEATHER, HUNGRY)

ENDING = (
    "{hero} {hero.was} {good} again.",
    "Now {hero} {hero.was} {good}, and {friend} was {good} too.",
    *said("hero", "Thank you, {friend}."),
    "From that day on, {hero} and {friend} were best friends.",
    "{hero} went home and told {hero.his} {kin} about {friend}.",
    "{hero} and {friend} played until the sun went down.",
    "That night, {hero} slept well.",
    "{hero} never forgot how {=trait} {friend} had been.",
)

SHAPES = (
    (OPENING, PLOTS, ENDING),
    (OPENING, DETAIL, PLOTS, ENDING),
    (SCENE, OPENING, PLOTS, ENDING),
    (OPENING, SCENE, PLOTS, ENDING),
    (SCENE, OPENING, DETAIL, PLOTS, ENDING),
)
