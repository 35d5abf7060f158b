"""Word lists of the generators, each split into a part to train on and a part kept for held-out items.

Every list is our own choice of everyday words. `split(words)` keeps each eighth word out of training; the evaluation
draws only from what was kept out, so that a model that learnt words by heart instead of the task shows it.
"""


def _w(text):
    return text.split()


def split(words):
    """(train, held_out): every eighth word is held out."""
    return [w for i, w in enumerate(words) if i % 8 != 5], [w for i, w in enumerate(words) if i % 8 == 5]


SHE = _w(
    "Mia Anna Clara Elsa Ines Julia Lena Maria Nora Olga Petra Rosa Sara Tina Vera Zoe Alice Beth Carla Diana Emma "
    "Fiona Grace Hanna Irene Jane Karen Linda Molly Nadia Olivia Paula Rita Sofia Teresa Uma Wendy Yara Amira Bela "
    "Chloe Dora Edith Freya Greta Helen Ida Joan"
)
HE = _w(
    "Tom Ben Carl David Erik Felix George Henry Ivan Jack Karl Leo Max Noah Oscar Peter Ravi Sam Tim Victor Walter "
    "Adam Bruno Colin Daniel Ethan Frank Gus Hugo Igor Jonas Kevin Liam Martin Nils Owen Paul Quinn Robert Simon "
    "Theo Umar Vince Will Yusuf Zack Arlo Boris"
)

# singular, plural; things that one can count, buy, give away and put into boxes
ITEMS = [
    (s, s + "s")
    for s in _w(
        "apple book pencil stamp marble sticker card coin shell button ribbon candle cookie orange lemon pear plum egg "
        "bean carrot onion melon muffin cake ticket postcard notebook crayon brush spoon plate cup bowl lamp chair pillow "
        "towel hat scarf sock shirt jacket bead rope nail screw brick tile stone feather flower rose tulip balloon kite "
        "toy puzzle magnet badge poster photo magazine letter envelope bottle jar basket bag pen eraser ruler marker"
    )
] + [
    ("peach", "peaches"),
    ("box of tea", "boxes of tea"),
    ("brush", "brushes"),
    ("dish", "dishes"),
    ("berry", "berries"),
    ("knife", "knives"),
    ("loaf", "loaves"),
    ("watch", "watches"),
    ("glass", "glasses"),
    ("toy car", "toy cars"),
]
CONTAINERS = [
    (s, p)
    for s, p in (
        ("box", "boxes"),
        ("bag", "bags"),
        ("basket", "baskets"),
        ("crate", "crates"),
        ("jar", "jars"),
        ("tray", "trays"),
        ("shelf", "shelves"),
        ("drawer", "drawers"),
        ("packet", "packets"),
        ("bucket", "buckets"),
        ("sack", "sacks"),
        ("case", "cases"),
        ("tin", "tins"),
        ("folder", "folders"),
        ("album", "albums"),
        ("chest", "chests"),
    )
]
PLACES = _w(
    "market school library park garden kitchen farm shop museum harbor station bakery theater hotel office "
    "stadium factory zoo beach castle village bridge forest airport"
)
ANIMALS = _w(
    "cat dog horse sheep goat duck hen rabbit pig cow fox owl mouse bear frog hawk otter badger swan turtle "
    "beaver lynx heron mole"
)
COLORS = _w("red blue green grey yellow white black brown pink purple orange silver golden violet")
ADJECTIVES = _w(
    "amber silent quiet bright hidden frozen rapid gentle broken ancient hollow crimson misty velvet lucky "
    "wooden marble distant copper iron stormy sunny narrow wild clever brave humble noble curious eager "
    "patient proud salty sandy rusty dusty polished shiny steady sturdy secret lonely northern southern "
    "eastern western early late cold warm dry deep tall tiny giant royal rural urban lunar solar coral"
)
NOUNS = _w(
    "falcon river lantern anchor meadow harbor compass violin canyon glacier orchard pebble cabin tower tunnel "
    "valley island mirror hammer ladder engine rocket saddle shovel basket candle carpet window garden bridge "
    "temple statue fountain castle village market museum library station forest desert prairie lagoon reef "
    "comet planet meteor thunder breeze blossom thistle clover maple cedar willow walnut pepper ginger saffron "
    "falconer tiger panther badger otter heron sparrow raven beetle cricket spider turtle dolphin walrus"
)
CITIES = _w(
    "Rome Paris Berlin Madrid Lisbon Vienna Prague Dublin Oslo Helsinki Athens Cairo Lima Quito Delhi Tokyo "
    "Seoul Sydney Boston Denver Chicago Toronto Geneva Milan Porto Turin Bergen Tampa Dallas Austin Kyoto "
    "Nairobi Dakar Tunis Zurich Munich Hamburg Krakow Riga Tallinn"
)
JOBS = _w(
    "baker farmer teacher doctor nurse painter driver sailor tailor carpenter plumber writer singer dancer "
    "gardener fisher miner potter weaver clerk"
)
WEEKDAYS = _w("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _w("January February March April May June July August September October November December")
NUMBER_WORDS = _w("zero one two three four five six seven eight nine ten eleven twelve")


class Vocabulary:
    """The words of one side of the split (held_out True or False), as attributes of the same names in lower case."""

    def __init__(self, held_out):
        side = 1 if held_out else 0
        self.held_out = held_out
        for name in ("SHE", "HE", "ITEMS", "CONTAINERS", "PLACES", "ANIMALS", "ADJECTIVES", "NOUNS", "CITIES", "JOBS"):
            setattr(self, name.lower(), split(globals()[name])[side])
        self.colors, self.wild, self.echo = COLORS, None, self.nouns
        self.people = [(n, "she", "her") for n in self.she] + [(n, "he", "his") for n in self.he]


LISTS = ("SHE", "HE", "ITEMS", "CONTAINERS", "PLACES", "ANIMALS", "ADJECTIVES", "NOUNS", "CITIES", "JOBS")


def _flat(words):
    return [x for w in words for x in (w if isinstance(w, tuple) else (w,))]


class Pool:
    """Words beyond the lists: WordNet lemmas, whole words of the tokenizer's vocabulary, and invented ones.

    A model that only ever copies listed names learns those names, not copying. Part of the training documents therefore
    speak of words drawn from here. Held-out words are left out of the pool; they occur in training only as words to
    repeat, spell or sort (`echo`), so that their embeddings are trained but not their use.
    """

    def __init__(self, lemmas, vocabulary):
        held = {w for n in LISTS for w in _flat(split(globals()[n])[1])}
        whole = [t[1:] for t in vocabulary if t.startswith("Ġ") and len(t) > 3 and t[1:].isascii() and t[1:].isalpha()]
        self.common = [w for w in whole if w not in held]
        self.lemmas = [w for w in lemmas if w not in held]
        self.held = sorted(held)
        self.echo = self.common + self.held

    def word(self, rng):
        x = rng.random()
        if x < 0.5:
            return self.common[int(rng.random() * len(self.common))].lower()
        if x < 0.8:
            return self.lemmas[int(rng.random() * len(self.lemmas))]
        return invented(rng)

    def name(self, rng):
        return (self.word(rng) if rng.random() < 0.5 else invented(rng)).capitalize()


def invented(rng):
    n = 2 + int(rng.random() * 2)
    return (
        "".join("bcdfghjklmnprstvwz"[int(rng.random() * 18)] + "aeiouy"[int(rng.random() * 6)] for _ in range(n))
        + ("", "n", "r", "s", "l")[int(rng.random() * 5)]
    )


def wild(rng, pool):
    """A training vocabulary of a dozen words per list, drawn anew for one document."""
    v = Vocabulary.__new__(Vocabulary)
    v.held_out, v.wild, v.colors, v.echo = False, pool, COLORS, pool.echo
    words = lambda k: [pool.word(rng) for _ in range(k)]
    v.people = [(pool.name(rng), *(("she", "her") if rng.random() < 0.5 else ("he", "his"))) for _ in range(10)]
    v.cities = [pool.name(rng) for _ in range(8)]
    v.items = [(w, w + "s") for w in words(10)]
    v.containers = [(w, w + "s") for w in words(4)]
    v.places, v.animals, v.jobs, v.adjectives, v.nouns = words(6), words(5), words(4), words(14), words(14)
    return v
