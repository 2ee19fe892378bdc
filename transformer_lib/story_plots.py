"""The plots of the story corpus, and the order of a story. `grammar.py` says what the braces mean.

One line is one beat; " / " separates its alternatives, "-" is the one that says nothing. "friend: …" lets the friend
say each alternative of the line. A line that starts with "or" gives more alternatives to the beat above; "= NAME" is a
beat of `grammar.py`. A blank line ends a plot.
"""

from transformer_lib import grammar

SCRIPT = """
# lost
= GIVES_THING
One morning, the {thing} was gone. / But one day, {hero} could not find the {thing}.
or But soon {hero} lost the {thing} {place2.at}.
{Hero|he} looked {spot2.at}, but it was not there.
or {Hero|he} looked {spot2.at} and {spot3.at}, but there was no {thing}.
or {Hero|he} {hero.was} so {bad} that {hero.he} began to cry.
hero: Where is {hero.my} {thing}? / {Hero.I} can not find {hero.my} {look} {thing}. / Oh no!
= HELLO
friend: I will help you. / Let us look {spot4.at}. / Did you look {spot4.at}?
{both} looked {spot4.at}, and there was the {thing}! / The {look} {thing} was {spot4.at}!
or {Friend|he} found the {thing} {spot4.at} and gave it back to {hero}.

# weather
One day, {hero} went to the {place2} to pick {flower.s}.
or One day, {hero} took {look.a} {thing} and went out to play.
or One day, {hero} took a long walk to the {place2}.
Then {weather}. / Suddenly, {weather}! / But before long, {weather}.
Soon {weather.effect}, so {hero} could not go on.
or Because {weather.effect}, {hero} {hero.was} cold and {bad}.
friend: Come in, it is warm here. / Come and sit with me.
or {Friend|he} saw {hero.him} and opened the door.
{Friend|he} gave {hero.him} {food.a} and a warm blanket.
or {Hero|he} sat by the fire with {friend}, so {hero.he} {hero.was} soon warm again.
or {Friend|he} told {hero.him} a story about {number} {color} {animal.s}.
In the evening, {weather.end}. / At last {weather.end}, and {hero} could go home.

# hungry
One day, {hero} {hero.was} very hungry. / There was no food at home, so {hero} {hero.was} hungry and {bad}.
hero: May {hero.I} have {food.a}?
or {Hero|he} asked {hero.his} {kin} for {food.a}. / {Hero|he} wanted to eat {food.a}.
kin: There is one {spot.at}. / I put {food.a} {spot.at}.
or There was {food.a} {spot.at}.
{Hero|he} ran there, but {friend} had the {food} already.
or But when {hero} came, {friend} was holding the {food}.
friend: You can have half of it. / I was hungry too. / Is this your {food}?
So {both} ate the {food} together. / {Friend|he} cut the {food} in two and gave half to {hero}.
or {Hero|he} ate half of the {food}, so {hero.he} {hero.was} not hungry any more.

# broken
= GIVES_THING
One day, {friend} came to play with the {thing}, but {friend.he} {accident}.
or {Friend|he} wanted to see it. {Friend.he} {accident}, and it broke.
Crack! The {look} {thing} was in two parts. / {Hero|he} {hero.was} {bad} because the {thing} was broken.
friend: I am sorry, {hero}. / I broke your {thing}. / Can you fix it?
hero: {Hero.I} {hero.am} not angry. / {Hero.my} {kin} can fix it.
or {Hero|he} took the {thing} to {hero.his} {kin}.
With some {glue}, the {thing} was soon as good as new. / {both} fixed the {thing} with {glue}.

# share
= GIVES_THING
{Friend|he} was {bad} because {friend.he} had no {thing}.
or {Friend|he} saw the {thing} and wanted to play too.
friend: Can I play with your {thing}? / I wish I had {thing.a}. / May I hold it?
First, {hero} said no. / {Hero|he} held the {thing} and said nothing. / But {hero} did not want to share.
kin: It is good to share. / You and {friend} are friends. / A {thing} is more fun with two.
So {hero} gave the {look} {thing} to {friend}.
or Then {hero} let {friend} have the {thing}, and {friend.he} smiled.
or {Hero|he} thought about it and gave {friend} the {thing}.

# noise
One night, {hero} heard {noise}. / In the dark, there was {noise}.
{Hero|he} {hero.was} so scared that {hero.he} hid {spot.at}.
or {Hero|he} could not sleep because {hero.he} {hero.was} scared.
hero: Who is there? / Help! / {Hero.I} {hero.am} scared.
{Friend|he} heard {hero.him} and came with a lamp.
or {Hero|he} called {friend}, and {friend.he} came at once.
friend: Do not be scared. / Let us go and see. / It came from there.
It was only {noise.cause}! / {both} looked {spot.at}. It was only {noise.cause}.
or {Hero|he} laughed because it was only {noise.cause}.

# birthday
It was the birthday of {friend}. / {+friend} the {+kind2} had a birthday, so {hero} needed a gift.
{Hero|he} looked for something {place2.at}. / {Hero|he} asked {hero.his} {kin} what to give.
{Hero|he} took {look.a} {thing} and put it in a bag. / {Hero|he} found {look.a} {thing} {spot.at}.
or {Hero|he} wanted to give {friend.him} {look.a} {thing}.
hero: This is for you, {friend}. / Happy birthday!
{Friend|he} opened it and saw the {thing}. / {Friend|he} took the {thing} and jumped for joy.
friend: What a nice {look} {thing}! / I always wanted {thing.a}. / Thank you so much!

# trapped
One day, {hero} saw a little {animal} {trap}.
or {Hero|he} heard a small voice. It was a little {animal} {trap}.
The {animal} cried, "Please help me!" / The {animal} could not get out and was very {bad}.
{Hero|he} pulled and pulled, but {hero.he} {hero.was} not strong enough.
or {Hero|he} did not know what to do.
So {hero} ran to {friend}. / {Hero|he} called {friend} the {kind2}.
friend: We can do it together. / I have a plan. / Where is the {animal}?
{both} {trap.free}, and the {animal} was free. / {Friend|he} {trap.free}, so the {animal} could go home.
"Thank you, {hero}," said the {animal}. / The {animal} gave {hero} {food.a} to say thank you. / -

# song
{Hero|he} wanted to learn a song. / One day, {hero} heard {friend} sing.
{Friend|he} sang, "{La} {la2} {la3}, {la} {la2} {la3}!" / It went, "{La} {la2} {la3}, {la} {la2} {la3}!"
{Hero|he} tried to sing it, but it was hard. / {Hero|he} {hero.was} too shy to sing.
or {Hero|he} liked the song.
friend: Try again, {hero}. / Sing it with me. / You can do it!
So {hero} sang, "{La} {la2} {la3}, {la} {la2} {la3}!" / Then {both} sang, "{La} {la2} {la3}, {la} {la2} {la3}!"
Even the {animal.s} began to dance. / Then {number} {animal.s} came to hear the song. / -

# build
One day, {hero} made {building.a}. / {Hero|he} wanted to make {building.a}.
or {Hero|he} made {building.a} {place2.at}.
It was very big. / It took {number} hours. / On top of it, {hero} put {color.a} {thing}.
But then {building.end}. / In the night, {building.end}. / Oh no, {building.end}!
{Hero|he} {hero.was} so {bad} that {hero.he} kicked a stone. / {Hero|he} sat down and cried.
or {Hero|he} looked at it and said nothing.
friend: Let us make a new one. / I can help you. / We can make it bigger!
So {both} made {building.a} again. / The new {building} was the best one {place2.at}.
or Soon the {building} stood there again.

# ill
One day, {friend} did not come to play. / One morning, {hero} went to see {friend}.
{Friend|he} was in bed because {friend.he} had {ill}. / {Friend|he} was ill. {Friend.he} had {ill}.
friend: I feel so weak. / I want to play with you. / Can you stay with me?
{Hero|he} ran home to {hero.his} {kin}. / {Hero|he} asked {hero.his} {kin} what was good for {ill}.
kin: You need {ill.cure}. / Take {ill.cure} to {friend}.
So {hero} brought {friend} {ill.cure}. / {Hero|he} gave {friend} {ill.cure} and {food.a}.
After {number} days, {friend} was well again. / Because of that, {friend} was soon well.

# box
One day, {hero} found a big box {spot.at}. / There was an old box {spot.at}, and {hero} wanted to open it.
But the box was locked. / {Hero|he} pulled and pulled, but it did not open.
hero: What is in the box? / {Hero.I} need a key.
friend: I have a key. / I saw a key {spot2.at}.
or {Friend|he} looked {spot2.at} and found {color.a} key. / {Friend|he} came with {color.a} key.
{both} opened the box with the key. / {Hero|he} took the key from {friend} and opened the box.
In it were {number} {food.s} and {look.a} {thing}.
or In it was {look.a} {thing}, and {hero} gave it to {friend}. / In it sat {number} {color2} {animal.s}!

# skill
{Friend|he} could {skill} very well. / One day, {hero} saw that {friend} {skill.ed}.
hero: Can you teach {hero.me} to {skill}? / {Hero.I} want to {skill} too. / That looks like fun!
So {friend} showed {hero.him} how. / {Friend|he} said yes and helped {hero.him}.
The first time, it did not go well. / {Hero|he} tried {number} times.
or It was hard, and {hero} {hero.was} {bad}.
friend: Do not give up. / Do it again! / You are getting better.
After {number2} days, {hero} {skill.ed} all alone. / In the end, {hero} {skill.ed} better than {friend}.
"""


def beats(plot: str) -> tuple[tuple[str, ...], ...]:
    """The beats of one plot: for each, all its alternative sentences."""
    found: list[tuple[str, ...]] = []
    for line in plot.strip().splitlines():
        if line.startswith("= "):
            found.append(getattr(grammar, line[2:]))
            continue
        more, line = line.startswith("or "), line.removeprefix("or ")
        speaker, colon, speech = line.partition(": ")
        sentences = grammar.said(speaker, *speech.split(" / ")) if colon else line.replace("-", "").split(" / ")
        found[len(found) - more :] = [(*(found[-1] if more else ()), *sentences)]
    return tuple(found)


PLOTS = tuple(beats(plot.partition("\n")[2]) for plot in SCRIPT.strip().split("\n\n"))

SHAPES = (
    (grammar.OPENING, grammar.DETAIL, PLOTS, grammar.ENDING),
    (grammar.SCENE, grammar.OPENING, grammar.DETAIL, PLOTS, grammar.ENDING),
)
