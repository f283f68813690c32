"""Plain English sentences, lists and very short stories from a small generative grammar.

Names, nouns and pronouns agree, and the same few characters and things come back through a
story, so that there is something for attention to link.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


def words(text: str) -> list[str]:
    """Split a list of words at its spaces."""
    return text.split()


def phrases(text: str) -> list[str]:
    """Split a list of phrases at its bars."""
    return text.split("|")


WOMEN = words(
    "Anna Mary Lucy Emma Sarah Alice Maria Rose Nina Clara Ella Grace Jane Kate Lily Sophie"
)
MEN = words("Tom John Ben Sam Peter David Max Jack Paul Henry Leo Oscar James Daniel George Adam")
PEOPLE = {
    "she": words("mother grandmother girl woman sister queen daughter aunt"),
    "he": words("father grandfather boy man brother king son uncle"),
    "they": words("teacher farmer doctor child baker driver friend neighbour student nurse"),
}
ANIMALS = words(
    "dog cat horse bird cow pig sheep goat duck chicken rabbit fox wolf bear lion tiger mouse "
    "frog fish snake monkey elephant puppy kitten"
)
FOODS = words(
    "apples bread milk cheese eggs butter rice soup meat carrots potatoes tomatoes oranges lemons "
    "honey sugar salt tea coffee cake water bananas grapes nuts beans onions"
)
THINGS = words(
    "ball book box bag hat coat cup key letter map lamp chair table bottle basket bell boat "
    "bicycle car clock coin doll drum kite knife phone picture plate ring rope shoe spoon stick "
    "stone toy watch pencil blanket ticket camera flower"
)
PLACES = words(
    "house garden kitchen school park forest river lake beach market shop farm field hill "
    "mountain bridge road street village city town station library church castle barn bedroom "
    "office hospital island room yard valley sea sky"
)
SURFACES = frozenset(words("lake beach farm field hill mountain bridge road street island"))
SPOTS = words("tree door window wall gate fence bed fire bench tower stairs roof")
COLOURS = words("red blue green yellow black white brown grey pink purple")
QUALITIES = words(
    "small big old new young little large tall short heavy happy sad hungry thirsty tired angry "
    "quiet kind clever brave lazy strong fast slow beautiful strange warm cold clean dirty"
)
BEINGS = [q for q in QUALITIES if q not in ("short", "heavy", "new", "large", "dirty", "clean")]
MATTER = words("small big old new little large heavy beautiful strange clean dirty broken")
FEELINGS = words("happy sad hungry thirsty tired angry afraid cold warm surprised worried glad")
NUMBERS = words("two three four five six seven eight nine ten")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
POSSESSIVES = {"she": "her", "he": "his", "they": "their", "it": "its"}
OBJECTS = {"she": "her", "he": "him", "they": "them", "it": "it"}
REFLEXIVES = {"she": "herself", "he": "himself", "they": "themselves", "it": "itself"}
CHASES = [
    ("chased", "chases", "chase"),
    ("saw", "sees", "see"),
    ("followed", "follows", "follow"),
    ("heard", "hears", "hear"),
    ("helped", "helps", "help"),
    ("found", "finds", "find"),
    ("liked", "likes", "like"),
    ("loved", "loves", "love"),
    ("watched", "watches", "watch"),
    ("called", "calls", "call"),
    ("met", "meets", "meet"),
    ("feared", "fears", "fear"),
    ("bit", "bites", "bite"),
    ("caught", "catches", "catch"),
    ("knew", "knows", "know"),
    ("remembered", "remembers", "remember"),
    ("visited", "visits", "visit"),
    ("pushed", "pushes", "push"),
    ("stopped", "stops", "stop"),
    ("washed", "washes", "wash"),
]
HANDLES = [
    ("took", "takes", "take"),
    ("found", "finds", "find"),
    ("lost", "loses", "lose"),
    ("carried", "carries", "carry"),
    ("wanted", "wants", "want"),
    ("bought", "buys", "buy"),
    ("sold", "sells", "sell"),
    ("opened", "opens", "open"),
    ("closed", "closes", "close"),
    ("dropped", "drops", "drop"),
    ("broke", "breaks", "break"),
    ("fixed", "fixes", "fix"),
    ("kept", "keeps", "keep"),
    ("painted", "paints", "paint"),
    ("held", "holds", "hold"),
    ("hid", "hides", "hide"),
    ("made", "makes", "make"),
    ("used", "uses", "use"),
    ("left", "leaves", "leave"),
    ("needed", "needs", "need"),
]
MOVES = [
    ("ran", "runs", "run"),
    ("walked", "walks", "walk"),
    ("went", "goes", "go"),
    ("came", "comes", "come"),
    ("hurried", "hurries", "hurry"),
    ("returned", "returns", "return"),
    ("travelled", "travels", "travel"),
]
RESTS = [
    ("slept", "sleeps", "sleep"),
    ("sat", "sits", "sit"),
    ("stood", "stands", "stand"),
    ("waited", "waits", "wait"),
    ("played", "plays", "play"),
    ("lived", "lives", "live"),
    ("worked", "works", "work"),
    ("rested", "rests", "rest"),
    ("hid", "hides", "hide"),
    ("sang", "sings", "sing"),
]
OPENINGS = phrases(
    "One day|In the morning|In the evening|At night|After dinner|Before breakfast|In winter|"
    "In summer|In spring|Last week|Yesterday|Today|Every morning|Later|Then|Soon|After that|"
    "The next day|That night|Suddenly"
)
WEATHER = phrases(
    "It was raining|The sun was shining|The wind was strong|It was a cold day|It was very dark|"
    "The sky was blue|Snow fell on the ground|The moon was bright|It was a warm night|"
    "There were clouds in the sky|The stars were bright|It was late"
)


@dataclass
class Being:
    """A character: how it is named, and its subject pronoun."""

    name: str
    pronoun: str

    @property
    def start(self) -> str:
        """The name as it stands at the start of a sentence."""
        return self.name[0].upper() + self.name[1:]


def a(phrase: str) -> str:
    """Put the phrase after its indefinite article."""
    return ("an " if phrase[0].lower() in "aeiou" else "a ") + phrase


def at(place: str) -> str:
    """Put the place after the preposition that English gives it."""
    return f"{'on' if place in SURFACES else 'in'} the {place}"


def plural(noun: str) -> str:
    """Return the regular plural of a noun."""
    if noun.endswith("fe"):
        return noun[:-2] + "ves"
    return noun + ("es" if noun.endswith(("x", "ch", "sh", "s")) else "s")


def listing(items: list[str]) -> str:
    """Join the items as an English list with the serial comma."""
    if len(items) == 1:
        return items[0]
    if len(items) == 2:
        return f"{items[0]} and {items[1]}"
    return ", ".join(items[:-1]) + ", and " + items[-1]


def capital(text: str) -> str:
    """Give the text a capital first letter."""
    return text[0].upper() + text[1:]


class Story:
    """One document: a cast drawn once, and sentences about it.

    Parameters
    ----------
    rng
        The source of every choice.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.cast: list[Being] = []
        used: set[str] = set()
        while len(self.cast) < rng.choice((2, 2, 3, 3, 4)):
            being = self.being()
            if being.name not in used:
                used.add(being.name)
                self.cast.append(being)
        self.places = rng.sample(PLACES, 4)
        self.things = rng.sample(THINGS, 4)
        self.foods = rng.sample(FOODS, rng.choice((2, 3, 4)))
        self.colours = rng.sample(COLOURS, 3)
        self.tense = rng.choice((0, 0, 0, 0, 1))

    def being(self) -> Being:
        """Draw a new character."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.22:
            return Being(rng.choice(WOMEN), "she")
        if kind < 0.44:
            return Being(rng.choice(MEN), "he")
        if kind < 0.64:
            pronoun = rng.choice(("she", "she", "he", "he", "they"))
            adjective = f"{rng.choice(BEINGS)} " if rng.random() < 0.15 else ""
            return Being(f"the {adjective}{rng.choice(PEOPLE[pronoun])}", pronoun)
        adjective = ""
        if rng.random() < 0.25:
            adjective = f"{rng.choice(BEINGS + COLOURS[4:8])} "
        return Being(f"the {adjective}{rng.choice(ANIMALS)}", "it")

    def verb(self, forms: tuple[str, str, str], many: bool = False) -> str:
        """Put the verb in the story's tense, agreeing with its subject."""
        if self.tense == 0:
            return forms[0]
        return forms[2] if many else forms[1]

    def be(self, many: bool = False) -> str:
        """Conjugate "to be" in the story's tense."""
        if self.tense == 0:
            return "were" if many else "was"
        return "are" if many else "is"

    def have(self, many: bool = False) -> str:
        """Conjugate "to have" in the story's tense."""
        return "had" if self.tense == 0 else ("have" if many else "has")

    def two(self) -> tuple[Being, Being]:
        """Two characters in random order."""
        first, second = self.rng.sample(self.cast, 2)
        return first, second

    def place(self) -> str:
        """Choose one of the story's places."""
        return self.rng.choice(self.places)

    def thing(self) -> str:
        """Choose one of the story's things."""
        return self.rng.choice(self.things)

    def chase(self) -> str:
        """Let one character act on another."""
        first, second = self.two()
        forms = self.rng.choice(CHASES)
        verb = self.verb(forms)
        head = f"{first.start} {verb} {second.name}"
        other = self.verb(self.rng.choice(CHASES))
        move = self.verb(self.rng.choice(MOVES))
        rest = self.verb(self.rng.choice(RESTS))
        return self.rng.choice(
            (
                f"{head}.",
                f"{head}, and {second.name} {verb} {first.name}.",
                f"{head}, but {second.name} {other} {first.name}.",
                f"{head}, and {second.name} {move} to the {self.place()}.",
                f"{head}, and then {first.name} {move} to the {self.place()}.",
                f"{head} {at(self.place())}.",
                f"{head} because {first.name} {self.be()} {self.rng.choice(FEELINGS)}.",
                f"When {first.name} {verb} {second.name}, {second.name} {move} to the "
                f"{self.place()}.",
                f"{first.start}, who {rest} {at(self.place())}, {verb} {second.name}.",
            )
        )

    def pronouns(self) -> str:
        """Let a pronoun refer to a character."""
        first, second = self.two()
        if first.pronoun == second.pronoun:
            return self.chase()
        who, whom = first.pronoun, OBJECTS[second.pronoun]
        many = who == "they"
        verb = self.verb(self.rng.choice(CHASES))
        move = self.verb(self.rng.choice(MOVES), many)
        handle = self.verb(self.rng.choice(HANDLES), many)
        feeling = self.rng.choice(FEELINGS)
        other = self.verb(self.rng.choice(CHASES))
        whose = POSSESSIVES[who]
        return self.rng.choice(
            (
                f"{first.start} {verb} {second.name} because {who} {self.be(many)} {feeling}.",
                f"{first.start} {verb} {second.name}, and {second.name} {other} {OBJECTS[who]}.",
                f"{first.start} {verb} {second.name}. Then {who} {move} to the {self.place()} "
                f"with {whom}.",
                f"{first.start} {self.have()} {a(self.thing())}, and {who} {handle} it in the "
                f"{self.place()}.",
                f"{first.start} {self.verb(('gave', 'gives', 'give'))} {whose} {self.thing()} to "
                f"{second.name}.",
                f"{first.start} {self.verb(('showed', 'shows', 'show'))} {second.name} {whose} "
                f"{self.thing()}.",
                f"{first.start} {self.verb(('looked', 'looks', 'look'))} at "
                f"{REFLEXIVES[who]} in the water.",
                f"{first.start} {self.be()} {feeling}, so {who} {move} to the {self.place()}.",
                f"{first.start} {verb} {second.name}, but {who} did not see {whose} "
                f"{self.thing()}.",
            )
        )

    def handling(self) -> str:
        """Let characters do something with a thing."""
        first, second = self.two()
        thing, colour = self.thing(), self.rng.choice(self.colours)
        adjective = self.rng.choice((colour, colour, self.rng.choice(MATTER)))
        verb = self.verb(self.rng.choice(HANDLES))
        other = self.verb(self.rng.choice(HANDLES))
        put = self.verb(("put", "puts", "put"))
        return self.rng.choice(
            (
                f"{first.start} {verb} the {adjective} {thing}.",
                f"{first.start} {verb} {a(adjective)} {thing}, and {second.name} {other} the "
                f"{adjective} {thing}.",
                f"{first.start} {put} the {thing} on the table {at(self.place())}.",
                f"The {thing} {self.be()} {adjective}, and {first.name} {verb} it.",
                f"The {thing} that {first.name} {verb} {self.be()} {at(self.place())}.",
                f"{first.start} {verb} the {thing} near the {self.rng.choice(SPOTS)}.",
            )
        )

    def moving(self) -> str:
        """Let a character go or stay somewhere."""
        being = self.rng.choice(self.cast)
        start, end = self.rng.sample(self.places, 2)
        move, rest = self.verb(self.rng.choice(MOVES)), self.verb(self.rng.choice(RESTS))
        spot = self.rng.choice(SPOTS)
        return self.rng.choice(
            (
                f"{being.start} {move} to the {end}.",
                f"{being.start} {move} from the {start} to the {end}, and from the {end} to the "
                f"{start}.",
                f"{being.start} {rest} under the {spot} {at(start)}.",
                f"{being.start} {rest} {at(start)} near the {end}.",
                f"{self.rng.choice(OPENINGS)}, {being.name} {move} to the {end}.",
                f"{self.rng.choice(OPENINGS)}, {being.name} {rest} by the {spot}.",
                f"{self.rng.choice(WEATHER)}, and {being.name} {move} to the {end}.",
                f"{being.start} {move} over the {start}, through the {end}, and back to the "
                f"{self.rng.choice(self.places)}.",
            )
        )

    def shopping(self) -> str:
        """List foods, and what becomes of them."""
        being = self.rng.choice(self.cast)
        foods = self.foods
        items = listing(foods)
        bought = self.verb(self.rng.choice((HANDLES[5], HANDLES[4], HANDLES[3], HANDLES[19])))
        ate = self.verb(("ate", "eats", "eat"))
        second = self.rng.choice(self.cast)
        return self.rng.choice(
            (
                f"{being.start} {bought} {items}.",
                f"{being.start} {bought} {items} at the market. {capital(second.name)} {ate} "
                f"the {foods[0]}.",
                f"There {self.be(True)} {items} on the table.",
                f"{being.start} {ate} {foods[0]} and {foods[1]}, but not the {foods[-1]}.",
                f"{being.start} {bought} {self.rng.choice(NUMBERS)} {plural(self.thing())} and "
                f"{self.rng.choice(NUMBERS)} {plural(self.thing())}.",
                f"The {', the '.join(foods[:-1])} and the {foods[-1]} {self.be(True)} in the "
                f"basket.",
            )
        )

    def talking(self) -> str:
        """Let two characters talk."""
        first, second = self.two()
        thing, place = self.thing(), self.place()
        third = self.rng.choice(self.cast)
        said = self.rng.choice(("said", "said", "answered"))
        return self.rng.choice(
            (
                f'"Where is the {thing}?" asked {first.name}. "The {thing} is {at(place)}," '
                f"{said} {second.name}.",
                f'"Who has the {thing}?" asked {first.name}. "{third.start} has the {thing}," '
                f"{said} {second.name}.",
                f'"I want to go to the {place}," said {first.name}. "Then we will go to the '
                f'{place} together," {said} {second.name}.',
                f'"Do you like {self.foods[0]}?" asked {first.name}. "Yes, I like '
                f'{self.foods[0]}, but I do not like {self.foods[1]}," {said} {second.name}.',
                f'"Thank you for the {thing}," said {first.name}. "You are welcome," {said} '
                f"{second.name}.",
                f'"Please give me the {thing}," said {first.name}. "Here it is," {said} '
                f"{second.name}.",
                f'"What did you see {at(place)}?" asked {first.name}. "I saw '
                f'{self.cast[0].name} {at(place)}," {said} {second.name}.',
            )
        )

    def owning(self) -> str:
        """Give two characters a thing each, and come back to one of them."""
        first, second = self.two()
        one, two = self.rng.sample(self.things, 2)
        red, blue = self.rng.sample(self.colours, 2)
        text = f"{first.start} {self.have()} {a(red)} {one}, and {second.name} {self.have()} "
        text += f"{a(blue)} {two}. "
        owner, colour, thing = self.rng.choice(((first, red, one), (second, blue, two)))
        belong = self.verb(("belonged", "belongs", "belong"))
        return text + self.rng.choice(
            (
                f"The {thing} of {owner.name} {self.be()} {colour}.",
                f"The {colour} {thing} {belong} to {owner.name}.",
                f"{owner.start} {self.verb(('gave', 'gives', 'give'))} the {colour} {thing} to "
                f"{(second if owner is first else first).name}.",
            )
        )

    def describing(self) -> str:
        """Say how characters are."""
        first, second = self.two()
        quality, other = self.rng.sample(BEINGS, 2)
        return self.rng.choice(
            (
                f"{first.start} {self.be()} {quality}, and {second.name} {self.be()} {other}.",
                f"{first.start} {self.be()} {quality}, but {second.name} {self.be()} not "
                f"{quality}.",
                f"{first.start} {self.be()} as {quality} as {second.name}.",
                f"{first.start} and {second.name} {self.be(True)} good friends.",
                f"{first.start} and {second.name} {self.verb(RESTS[4], True)} in the "
                f"{self.place()}.",
                f"{self.rng.choice(WEATHER)}. {first.start} {self.be()} "
                f"{self.rng.choice(FEELINGS)}.",
                f"There {self.be()} {a(self.rng.choice(MATTER))} {self.place()} near the "
                f"{self.place()}.",
                f"On {self.rng.choice(DAYS)}, {first.name} "
                f"{self.verb(('went', 'goes', 'go'))} to the {self.place()} with "
                f"{second.name}.",
            )
        )

    def fitting(self) -> str:
        """Let a pronoun's meaning hang on the word at the end."""
        being = self.rng.choice(self.cast)
        one, two = self.rng.sample(self.things, 2)
        place = self.place()
        not_done = "did not" if self.tense == 0 else "does not"
        creature = f"the {self.rng.choice(ANIMALS)}" if being.pronoun != "it" else being.name
        return self.rng.choice(
            (
                f"The {one} {not_done} fit in the {two} because it {self.be()} too "
                f"{self.rng.choice(('big', 'small', 'large'))}.",
                f"{capital(creature)} {not_done} cross the {place} because it {self.be()} too "
                f"{self.rng.choice(('tired', 'long', 'dark', 'hungry', 'old'))}.",
                f"{capital(creature)} {self.verb(('jumped', 'jumps', 'jump'))} over the "
                f"{self.rng.choice(BEINGS)} {self.rng.choice(ANIMALS)}.",
                f"{capital(creature)} {self.verb(RESTS[1])} on the "
                f"{self.rng.choice(('mat', 'chair', 'table', 'bed', 'roof'))}.",
                f"{being.start} could not open the {one}, because it {self.be()} too "
                f"{self.rng.choice(('old', 'heavy', 'strong'))}.",
            )
        )

    def personal(self) -> str:
        """Speak of oneself and of one's family."""
        rng = self.rng
        kin = rng.sample(("mother", "father", "sister", "brother", "grandmother", "friend"), 2)
        one, two = rng.sample(self.things, 2)
        chase, move = rng.choice(CHASES), rng.choice(MOVES)
        first = self.verb(chase, True)
        whose = rng.choice(("My", "My", "Our", "Your"))
        lower = whose.lower()
        return rng.choice(
            (
                f"{whose} {kin[0]} {self.verb(move)} to the {self.place()}, and {lower} {kin[1]} "
                f"{self.verb(move)} to the {self.place()}.",
                f"I {self.have(True)} {a(one)}, and my {kin[0]} {self.have()} {a(two)}.",
                f"{whose} {kin[0]} {self.verb(chase)} {lower} {kin[1]}.",
                f"I {first} {self.cast[0].name}, and {self.cast[0].name} {self.verb(chase)} me.",
                f"We {self.verb(move, True)} to the {self.place()}. Everybody {self.be()} "
                f"{rng.choice(FEELINGS)}.",
                f"You {first} {self.cast[0].name}, but I {first} {self.cast[1].name}.",
                f"I think that {self.cast[0].name} {self.be()} {rng.choice(BEINGS)}. My {kin[0]} "
                f"thinks that {self.cast[0].name} {self.be()} {rng.choice(BEINGS)}.",
                f"My name is {rng.choice(WOMEN + MEN)}. I live in the {self.place()} with my "
                f"{kin[0]} and my {kin[1]}.",
                f"They {self.verb(move, True)} to the {self.place()}, and we {first} them.",
            )
        )

    def opening(self) -> str:
        """Introduce a character with the indefinite article."""
        being = self.cast[0]
        name = being.name
        if name.startswith("the "):
            name = a(name[4:])
        else:
            name = f"{'a girl' if being.pronoun == 'she' else 'a boy'} called {name}"
        opening = self.rng.choice(("Once upon a time", "Long ago", "Once", "Last week"))
        line = f"{opening}, there {self.be()} {name} who "
        return line + f"{self.verb(RESTS[5])} {at(self.place())}."

    def text(self, sentences: int) -> str:
        """Tell a document of the given number of sentences."""
        kinds = (
            [self.chase] * 3
            + [self.pronouns] * 3
            + [self.handling] * 2
            + [self.moving] * 2
            + [self.personal] * 2
            + [
                self.fitting,
                self.shopping,
                self.talking,
                self.talking,
                self.owning,
                self.describing,
            ]
        )
        lines = [self.opening()] if self.rng.random() < 0.2 else []
        lines += [self.rng.choice(kinds)() for _ in range(sentences - len(lines))]
        if len(lines) > 5 and self.rng.random() < 0.5:
            middle = len(lines) // 2
            return " ".join(lines[:middle]) + "\n\n" + " ".join(lines[middle:])
        return " ".join(lines)


def write_stories(seed: int, size: int) -> list[str]:
    """Generate documents until they hold at least `size` characters.

    Parameters
    ----------
    seed
        Seed of the generator.
    size
        Characters wanted.

    Returns
    -------
    list of str
        Documents of one to twelve sentences.
    """
    rng = random.Random(seed)
    documents: list[str] = []
    total = 0
    while total < size:
        text = Story(rng).text(rng.choice((1, 1, 2, 3, 4, 6, 8, 10, 12)))
        documents.append(text)
        total += len(text) + 1
    return documents
