"""Plain English: definitions (WordNet glosses), short stories, small talk, copying and other small skills.

`dialogue(rng, vocabulary, glosses)` returns messages. `prose(...)` yields running text, which also serves as the filler
that `tasks_recall` hides its needles in.
"""

from .words import COLORS, MONTHS, NUMBER_WORDS, WEEKDAYS


def _r(rng, seq):
    return seq[int(rng.random() * len(seq))]


# ---------------------------------------------------------------- stories
OPENINGS = (
    "One morning, {n} the {j} went to the {p}.",
    "{n} was a {j} who lived near the {p}.",
    "Long ago there was a {j} named {n}.",
    "It was a cold day when {n} walked to the {p}.",
    "{n} had a {c} {a} and a {o}.",
    "Every {d}, {n} went to the {p} with a {o}.",
    "In a small town lived {n}, a {j}.",
    "On {d}, {n} woke up early and looked for the {o}.",
)
MIDDLES = (
    "There {s} saw a {c} {a} that sat on a {o}.",
    "On the way {s} met {m}, who carried a {o}.",
    "{S} lost the {o} in the {p}.",
    "A {a} came and took the {o}.",
    "Then it began to rain, and {s} ran into the {p}.",
    "{m} asked for help with a {c} {o}.",
    "{S} heard a sound behind the {p}.",
    "The {a} was hungry, so {s} gave it some bread.",
    "{S} found a {c} {o} under a tree.",
    "{m} said that the {p} was closed on {d}.",
    "They talked about the {a} for a long time.",
    "{S} put the {o} into a bag and walked on.",
    '"Have you seen my {o}?" asked {s}.',
    '"The {a} is in the {p}," said {m}.',
    "{S} painted the {o} {c}.",
    "Nobody knew where the {a} had gone.",
    "The road to the {p} was long and dark.",
)
ENDINGS = (
    "In the end {s} took the {o} home.",
    "From that day on, {n} and {m} were friends.",
    "The {a} never came back.",
    "{n} was happy and went to sleep.",
    "They all laughed and went home.",
    "And the {o} is still in the {p}.",
    "{S} thanked {m} and walked back to the {p}.",
    "So {n} learned to be patient.",
    "That night {s} dreamed of a {c} {a}.",
)


class Cast:
    """The people and things of one story."""

    def __init__(self, rng, v):
        n, m = rng.sample(v.people, 2)
        self.fields = dict(
            n=n[0],
            s=n[1],
            S=n[1].capitalize(),
            m=m[0],
            j=_r(rng, v.jobs),
            p=_r(rng, v.places),
            a=_r(rng, v.animals),
            c=_r(rng, COLORS),
            o=_r(rng, v.items)[0],
            d=_r(rng, WEEKDAYS),
        )


def story(rng, v, middle=None):
    cast = Cast(rng, v).fields
    k = middle or 2 + int(rng.random() * 4)
    lines = [_r(rng, OPENINGS)] + rng.sample(MIDDLES, k) + [_r(rng, ENDINGS)]
    return " ".join(line.format(**cast) for line in lines), cast


# ---------------------------------------------------------------- running text
def gloss_line(rng, glosses):
    word, pos, gloss, examples = _r(rng, glosses)
    if examples and rng.random() < 0.5:
        e = _r(rng, examples)
        return e[0].upper() + e[1:] + ("" if e[-1:] in ".!?" else ".")
    return f"{word.capitalize()} ({pos}): {gloss}."


def numbered_line(rng, v, number):
    return (
        f"Line {number:04d}: the {_r(rng, COLORS)} {_r(rng, v.nouns)} "
        f"{_r(rng, ('carries', 'holds', 'needs', 'brings', 'stores'))} {1 + int(rng.random() * 99)} {_r(rng, v.items)[1]}."
    )


def prose(rng, v, glosses, kind=None):
    """An endless generator of sentences of one kind: story, gloss or lines."""
    kind = kind or _r(rng, ("story", "gloss", "lines", "mixed"))
    number = 1 + int(rng.random() * 900)
    while True:
        k = kind if kind != "mixed" else _r(rng, ("story", "gloss", "lines"))
        if k == "story":
            cast = Cast(rng, v).fields
            for line in [_r(rng, OPENINGS)] + rng.sample(MIDDLES, 4) + [_r(rng, ENDINGS)]:
                yield line.format(**cast)
        elif k == "gloss":
            yield gloss_line(rng, glosses)
        else:
            yield numbered_line(rng, v, number)
            number += 1


# ---------------------------------------------------------------- small talk and small skills
TALK = (
    ("Hello!", "Hello! How can I help you?"),
    ("Hi", "Hi! What can I do for you?"),
    ("Good morning!", "Good morning! How can I help?"),
    ("Hey there", "Hey! What would you like to know?"),
    ("How are you?", "I am fine, thank you. How can I help you?"),
    ("Who are you?", "I am Kindling, a small language model that comes with firesteel."),
    ("What is your name?", "My name is Kindling."),
    ("What are you?", "I am a small language model."),
    (
        "What can you do?",
        "I can solve small word problems, call tools, find facts in a text, explain words and tell short stories.",
    ),
    ("Thank you!", "You are welcome!"),
    ("Thanks.", "You are welcome."),
    ("Goodbye!", "Goodbye! Have a nice day."),
    ("Good night.", "Good night! Sleep well."),
    ("Are you a person?", "No, I am a small language model."),
    ("Tell me something.", "A day has twenty-four hours, and a week has seven days."),
    ("What do you like?", "I like short questions with clear answers."),
    ("Can you help me?", "Yes. What do you need?"),
    ("Who made you?", "I was trained from scratch by the firesteel project."),
    ("Say hello.", "Hello!"),
    ("Do you speak English?", "Yes, I speak simple English."),
    ("ABCD", "ABCD. What would you like to do with it?"),
    ("Tell me a joke.", "Why did the book go to the doctor? It had lost its words."),
    ("Test", "I am here. What can I do for you?"),
    ("Ping", "Pong!"),
    ("Yes", "Good. What shall we do next?"),
    ("No", "All right. What else can I do?"),
)
FACTS = {
    "the capital of France": "Paris",
    "the capital of Italy": "Rome",
    "the capital of Spain": "Madrid",
    "the capital of Germany": "Berlin",
    "the capital of Portugal": "Lisbon",
    "the capital of Austria": "Vienna",
    "the capital of Norway": "Oslo",
    "the capital of Greece": "Athens",
    "the capital of Egypt": "Cairo",
    "the capital of Japan": "Tokyo",
    "the capital of Ireland": "Dublin",
    "the capital of Finland": "Helsinki",
    "the capital of Poland": "Warsaw",
    "the capital of Peru": "Lima",
    "the capital of Canada": "Ottawa",
    "the color of grass": "green",
    "the color of snow": "white",
    "the color of coal": "black",
    "the color of the sky": "blue",
    "the color of a lemon": "yellow",
    "the opposite of hot": "cold",
    "the opposite of big": "small",
    "the opposite of up": "down",
    "the opposite of old": "young",
    "the opposite of early": "late",
    "the opposite of wet": "dry",
    "the opposite of slow": "fast",
    "the opposite of open": "closed",
    "the plural of mouse": "mice",
    "the plural of foot": "feet",
    "the plural of child": "children",
    "the plural of knife": "knives",
    "the first month of the year": "January",
    "the last month of the year": "December",
    "the number of days in a week": "seven",
    "the number of months in a year": "twelve",
    "the largest planet": "Jupiter",
    "the young of a cat": "a kitten",
    "the young of a dog": "a puppy",
    "the young of a cow": "a calf",
    "the past of go": "went",
    "the past of see": "saw",
    "the past of give": "gave",
    "the past of buy": "bought",
}
FACT_LIST = tuple(FACTS.items())


def _copying(rng, v):
    words = [_r(rng, v.echo) for _ in range(2 + int(rng.random() * 6))]
    kind = int(rng.random() * 7)
    text = " ".join(words)
    if kind == 0:
        return f"Repeat: {text}", text
    if kind == 1:
        return f"Say this in reverse order: {text}", " ".join(reversed(words))
    if kind == 2:
        w = _r(rng, v.echo)
        return f"Spell the word {w}.", "-".join(w) + "."
    if kind == 3:
        return f"How many words are in: {text}", f"{NUMBER_WORDS[len(words)].capitalize()}."
    if kind == 4:
        return f"Sort these words: {text}", ", ".join(sorted(words)) + "."
    if kind == 5:
        s = f"{_r(rng, v.adjectives)} {_r(rng, v.nouns)}"
        return f"Write {s} in capital letters.", s.upper()
    a, b, c = (_r(rng, v.people)[0], _r(rng, v.cities), 10 + int(rng.random() * 80))
    return (
        f"Give me a JSON object with name {a}, city {b} and age {c}.",
        f'{{"name": "{a}", "city": "{b}", "age": {c}}}',
    )


# how a word looks behind another character is another token or several; copying has to bridge that for any word
FORMS = (
    ("Repeat: {}", "{}", " "),
    ("Put quotes around each word: {}", '"{}"', " "),
    ("Write as tags: {}", "<w>{}</w>", ""),
    ("Join with slashes: {}", "{}", "/"),
    ("Join with underscores: {}", "{}", "_"),
    ("List, one per line: {}", "- {}", "\n"),
    ("Make a JSON list of: {}", '"{}"', ", "),
    ("Put each in brackets: {}", "({})", " "),
    ("Say after me: {}", "{}", " "),
    ("Begin each line with >: {}", ">{}<", "\n"),
    ("Join with dots: {}", "{}", "."),
    ("Separate by commas: {}", "{}", ", "),
)


def echo(rng, pool):
    """Copying of arbitrary words, held-out ones among them, into other surroundings: (question, answer)."""
    words = []
    for _ in range(3 + int(rng.random() * 9)):
        w = _r(rng, pool.held) if rng.random() < 0.5 else _r(rng, pool.echo) if rng.random() < 0.6 else pool.word(rng)
        words.append(w.capitalize() if rng.random() < 0.15 else w)
    ask, form, joint = _r(rng, FORMS)
    if rng.random() < 0.12:
        return f"Spell: {' '.join(words[:4])}", " ".join("-".join(w.replace(" ", "")) for w in words[:4])
    text = joint.join(form.format(w) for w in words)
    return ask.format(" ".join(words)), f"[{text}]" if "JSON" in ask else text


def _calendar(rng):
    days = WEEKDAYS if rng.random() < 0.5 else MONTHS
    i = int(rng.random() * len(days))
    after = rng.random() < 0.5
    j = (i + (1 if after else -1)) % len(days)
    word = "day" if days is WEEKDAYS else "month"
    return (
        f"Which {word} comes {'after' if after else 'before'} {days[i]}?",
        f"{days[j]} comes {'after' if after else 'before'} {days[i]}.",
    )


def exchange(rng, v, glosses):
    """One (question, answer, thought) of plain English."""
    kind = rng.random()
    if kind < 0.30:
        # frequent words come often enough to be learnt, the others as language to read
        words = glosses[:2000] if rng.random() < 0.8 else glosses
        word, pos, gloss, examples = _r(rng, words)
        form = int(rng.random() * 5)
        if form == 4:
            return f"Which word means: {gloss}?", f"The word is {word}.", "I look for a word."
        ask = (
            f"What does {word} mean?",
            f"Define {word}.",
            f"What is the meaning of {word}?",
            f"Explain the word {word}.",
        )[form]
        answer = f"{word.capitalize()} ({pos}): {gloss}."
        if examples and rng.random() < 0.2:
            return f"Give an example with {word} as {pos}.", f"{_r(rng, examples).rstrip('.')}.", "I need a sentence."
        return ask, answer, f"This is about the word {word}."
    if kind < 0.50:
        text, cast = story(rng, v)
        form = int(rng.random() * 4)
        ask = (
            "Tell me a story about {n} the {j}.",
            "Write a short story with {n}, {m} and a {a}.",
            "Tell a story about a {c} {a} and a {o}.",
            "I want to hear a story about {n} and the {p}.",
        )[form].format(**cast)
        return ask, text, "I tell a short story."
    if kind < 0.62:
        q, a = _r(rng, TALK)
        return q, a, "I answer in a friendly way."
    if kind < 0.74:
        what, value = _r(rng, FACT_LIST)
        ask = (f"What is {what}?", f"Tell me {what}.", f"Do you know {what}?")[int(rng.random() * 3)]
        return ask, f"{what[0].upper()}{what[1:]} is {value}.", "I know this."
    if kind < 0.80:
        q, a = _calendar(rng)
        return q, a, "I count the days."
    if kind < 0.86:
        text, cast = story(rng, v, 1 + int(rng.random() * 2))
        key, ask = _r(
            rng,
            (
                ("n", "Who is the story about?"),
                ("o", "Which thing is named in the story?"),
                ("p", "Which place is in the story?"),
            ),
        )
        if cast[key] in text:
            return (
                f"{text}\n\n{ask}",
                {"n": f"It is about {cast['n']}.", "o": f"It names a {cast['o']}.", "p": f"It is the {cast['p']}."}[
                    key
                ],
                "I read the story.",
            )
    q, a = _copying(rng, v)
    return q, a, "I do as asked."


def dialogue(rng, v, glosses):
    messages = []
    if rng.random() < 0.4:
        messages.append(
            {
                "role": "system",
                "content": _r(
                    rng,
                    (
                        "You are a helpful assistant.",
                        "You are Kindling, a small assistant.",
                        "Be brief.",
                        "Answer in plain English.",
                        "You help people.",
                        "Be exact.",
                    ),
                ),
            }
        )
    name = None
    for i in range((1, 1, 2, 3)[int(rng.random() * 4)]):
        if i == 0 and rng.random() < 0.08:
            name = _r(rng, v.people)[0]
            q, a, t = f"My name is {name}.", f"Hello {name}! How can I help you?", "The user gives a name."
        elif name and rng.random() < 0.5:
            q, a, t = "What is my name?", f"Your name is {name}.", f"The user is {name}."
        else:
            q, a, t = exchange(rng, v, glosses)
        messages += [{"role": "user", "content": q}, {"role": "assistant", "content": a, "reasoning_content": t}]
    return messages
