"""Tool calling: choose one of 1 to 5 declared tools, call it in DSML with the right arguments, use the result.

A `Kind` is a situation (weather, prices, reminders ...) with typed slots and phrasings. What the tool and its parameters
are called is drawn anew for every conversation from synonyms and naming styles, so that names have to be read from the
declared schema instead of being learnt. Names whose hash falls into the held-out tenth appear in held-out items only.
"""

import json
import random
import zlib
from dataclasses import dataclass, field

from .words import COLORS, WEEKDAYS, Vocabulary

VERBS = ("get", "find", "fetch", "check", "read", "query", "show", "lookup", "search", "load", "ask")
ACTIONS = ("set", "create", "add", "make", "start", "send", "put", "post", "run", "do", "open", "new")


@dataclass
class Slot:
    names: tuple  # synonyms of the parameter
    type: str  # string, integer, boolean
    draw: object  # f(rng, vocabulary) -> value
    about: str  # description
    enum: tuple = ()


@dataclass
class Kind:
    nouns: tuple  # what the tool's name speaks of
    about: str  # description of the tool
    slots: tuple
    asks: tuple  # requests with {0}, {1} ... for slot values
    result: object  # f(rng, args) -> (tool result text, answer text)
    action: bool = False  # does something instead of looking something up


def _r(rng, seq):
    return seq[int(rng.random() * len(seq))]


def _n(rng, low, high):
    return low + int(rng.random() * (high - low + 1))


def _city(r, v):
    return _r(r, v.cities)


def _person(r, v):
    return _r(r, v.people)[0]


def _item(r, v):
    return _r(r, v.items)[0]


def _color(r, v):
    return _r(r, COLORS)


def _day(r, v):
    return _r(r, WEEKDAYS)


def _place(r, v):
    return _r(r, v.places)


def _animal(r, v):
    return _r(r, v.animals)


def _thing(r, v):
    return f"{_r(r, v.adjectives)} {_r(r, v.nouns)}"


def _small(r, v):
    return _n(r, 1, 12)


def _number(r, v):
    return _n(r, 2, 300)


def _code(r, v):
    return _n(r, 1000, 99999)


def _hour(r, v):
    return f"{_n(r, 6, 22)}:{_r(r, ('00', '15', '30', '45'))}"


def _date(r, v):
    return f"2026-{_n(r, 1, 12):02d}-{_n(r, 1, 28):02d}"


def _bool(r, v):
    return r.random() < 0.5


def _path(r, v):
    return f"/{_r(r, ('srv', 'home', 'data', 'var', 'tmp'))}/{_r(r, v.nouns)}"


def _file(r, v):
    return f"{_r(r, v.nouns)}.{_r(r, ('txt', 'csv', 'md', 'log'))}"


CITY = Slot(("city", "town", "location", "place"), "string", _city, "Name of the city")
PERSON = Slot(("name", "person", "user", "contact"), "string", _person, "Name of the person")
ITEM = Slot(("item", "product", "article", "thing"), "string", _item, "Name of the item")
DAY = Slot(("day", "weekday", "when"), "string", _day, "Day of the week")
DATE = Slot(("date", "day", "on_date"), "string", _date, "Date as YYYY-MM-DD")
COUNT = Slot(("count", "number", "amount", "quantity"), "integer", _small, "How many")
COLOR = Slot(("color", "colour", "paint"), "string", _color, "Color name")
SKY = ("sunny", "rainy", "cloudy", "windy", "foggy", "clear")

KINDS = (
    Kind(
        ("weather", "forecast", "temperature"),
        "Weather of a city",
        (CITY,),
        (
            "What is the weather in {0}?",
            "How is the weather in {0} today?",
            "Weather in {0}, please.",
            "Is it warm in {0}?",
            "Tell me the temperature in {0}.",
        ),
        lambda r, a: (
            lambda n, s: (json.dumps({"temperature": n, "sky": s}), f"It is {s} in {a[0]}, with {n} degrees.")
        )(_n(r, 2, 35), _r(r, SKY)),
    ),
    Kind(
        ("weather", "forecast"),
        "Forecast for a city and a day",
        (CITY, DAY),
        (
            "What will the weather be in {0} on {1}?",
            "Give me the forecast for {0} on {1}.",
            "On {1} I go to {0}. How will the weather be?",
        ),
        lambda r, a: (lambda s: (s, f"On {a[1]} it will be {s} in {a[0]}."))(_r(r, SKY)),
    ),
    Kind(
        ("price", "cost", "offer"),
        "Price of an item",
        (ITEM,),
        (
            "How much is a {0}?",
            "What does a {0} cost?",
            "Find the price of a {0}.",
            "I want to buy a {0}. What is the price?",
        ),
        lambda r, a: (lambda n: (json.dumps({"price": n}), f"A {a[0]} costs {n} dollars."))(_n(r, 2, 300)),
    ),
    Kind(
        ("price", "total", "quote"),
        "Total price for a number of items",
        (ITEM, COUNT),
        (
            "What is the price of {1} pieces of {0}?",
            "Give me a quote for {1} of the item {0}.",
            "How much would {1} of {0} cost?",
        ),
        lambda r, a: (lambda n: (json.dumps({"total": n}), f"The total is {n} dollars."))(_n(r, 2, 900)),
    ),
    Kind(
        ("stock", "inventory", "storage"),
        "Number of items in stock",
        (ITEM, COLOR),
        ("How many {1} items of type {0} are in stock?", "Check the stock of {0} in {1}.", "Do we have {0} in {1}?"),
        lambda r, a: (lambda n: (json.dumps({"in_stock": n}), f"There are {n} in stock."))(_n(r, 0, 99)),
    ),
    Kind(
        ("email", "mail", "message"),
        "Send a message to a person",
        (
            PERSON,
            Slot(
                ("text", "body", "message", "content"),
                "string",
                lambda r, v: _r(
                    r,
                    (
                        f"Meet me at the {_place(r, v)}",
                        f"I will be late by {_n(r, 5, 50)} minutes",
                        f"Please buy {_n(r, 2, 20)} {_r(r, v.items)[1]}",
                        f"The meeting is on {_day(r, v)}",
                        f"Call me at {_hour(r, v)}",
                        f"The {_thing(r, v)} is ready",
                    ),
                ),
                "Text to send",
            ),
        ),
        ("Send {0} this message: {1}", "Tell {0}: {1}", "Write to {0}: {1}", "Message {0} with the text: {1}"),
        lambda r, a: ("sent", f"I have sent your message to {a[0]}."),
        True,
    ),
    Kind(
        ("reminder", "alarm", "note"),
        "Set a reminder at a time",
        (
            Slot(("time", "at", "hour"), "string", _hour, "Time as HH:MM"),
            Slot(
                ("task", "title", "about"),
                "string",
                lambda r, v: _r(
                    r,
                    (
                        f"feed the {_animal(r, v)}",
                        f"call {_person(r, v)}",
                        f"buy a {_item(r, v)}",
                        f"go to the {_place(r, v)}",
                        f"clean the {_item(r, v)}",
                    ),
                ),
                "What to do",
            ),
        ),
        ("Remind me at {0} to {1}.", "Set a reminder for {0}: {1}", "At {0} I have to {1}. Remind me."),
        lambda r, a: ("ok", f"I will remind you at {a[0]} to {a[1]}."),
        True,
    ),
    Kind(
        ("light", "lamp", "switch"),
        "Switch the light of a room on or off",
        (
            Slot(
                ("room", "place", "area"),
                "string",
                lambda r, v: _r(r, ("kitchen", "bedroom", "garage", "office", "hall", "cellar", "attic")),
                "Name of the room",
            ),
            Slot(("on", "state", "enabled", "power"), "boolean", _bool, "true for on, false for off"),
        ),
        ("Turn the light in the {0} {1}.", "Switch the {0} light {1}.", "Please turn {1} the lamp in the {0}."),
        lambda r, a: ("done", f"The light in the {a[0]} is {'on' if a[1] else 'off'} now."),
        True,
    ),
    Kind(
        ("door", "lock", "gate"),
        "Lock or unlock a door",
        (
            Slot(
                ("door", "place", "target"),
                "string",
                lambda r, v: _r(r, ("front", "back", "garage", "cellar", "garden", "office")),
                "Which door",
            ),
            Slot(("locked", "lock", "closed"), "boolean", _bool, "true to lock, false to unlock"),
        ),
        ("{1} the {0} door.", "Please {1} the {0} door.", "I want you to {1} the {0} door."),
        lambda r, a: ("done", f"The {a[0]} door is {'locked' if a[1] else 'unlocked'}."),
        True,
    ),
    Kind(
        ("timer", "countdown"),
        "Start a timer",
        (Slot(("minutes", "duration", "length"), "integer", lambda r, v: _n(r, 1, 90), "Minutes to run"),),
        ("Set a timer for {0} minutes.", "Start a timer of {0} minutes.", "Wake me in {0} minutes."),
        lambda r, a: ("started", f"The timer runs for {a[0]} minutes."),
        True,
    ),
    Kind(
        ("files", "folder", "directory"),
        "List the files in a folder",
        (
            Slot(("path", "folder", "dir", "directory"), "string", _path, "Path of the folder"),
            Slot(("depth", "levels", "limit"), "integer", lambda r, v: _n(r, 1, 5), "Levels to go down"),
        ),
        ("List the files in {0} with depth {1}.", "What is in {0}? Go {1} levels down.", "Show me {0}, depth {1}."),
        lambda r, a: (lambda n: (json.dumps({"files": n}), f"There are {n} files in {a[0]}."))(_n(r, 1, 60)),
    ),
    Kind(
        ("file", "document", "text"),
        "Read a file",
        (Slot(("path", "file", "filename", "name"), "string", _file, "Name of the file"),),
        (
            "Read the file {0}.",
            "What does {0} say?",
            "Show me the content of {0}.",
            "Open {0} and tell me what it says.",
        ),
        lambda r, a: (lambda x: (x, f"The file says: {x}"))(
            _r(
                r,
                (
                    "all is well",
                    "the ship leaves at noon",
                    "buy milk and bread",
                    "no errors found",
                    "see you on Friday",
                    "the key is under the stone",
                ),
            )
        ),
    ),
    Kind(
        ("route", "distance", "way"),
        "Distance between two cities",
        (
            Slot(("from", "start", "origin"), "string", _city, "City to start from"),
            Slot(("to", "goal", "destination", "target"), "string", _city, "City to go to"),
        ),
        (
            "How far is it from {0} to {1}?",
            "What is the distance between {0} and {1}?",
            "I travel from {0} to {1}. How far is that?",
        ),
        lambda r, a: (lambda n: (json.dumps({"km": n}), f"It is {n} km from {a[0]} to {a[1]}."))(_n(r, 60, 990)),
    ),
    Kind(
        ("train", "bus", "flight"),
        "Next departure to a city on a day",
        (CITY, DATE),
        (
            "When does the next one leave for {0} on {1}?",
            "Find a trip to {0} on {1}.",
            "I need to be in {0} on {1}. When can I leave?",
        ),
        lambda r, a: (lambda h: (json.dumps({"departure": h}), f"The next one to {a[0]} leaves at {h}."))(
            f"{_n(r, 6, 22)}:{_n(r, 10, 59)}"
        ),
    ),
    Kind(
        ("room", "table", "seat"),
        "Book places at a hotel, restaurant or theater",
        (
            Slot(("place", "venue", "where"), "string", _place, "Where to book"),
            Slot(("guests", "people", "persons", "size"), "integer", _small, "Number of people"),
            DAY,
        ),
        (
            "Book the {0} for {1} people on {2}.",
            "I need places for {1} at the {0} on {2}.",
            "On {2} we are {1} people. Book the {0}.",
        ),
        lambda r, a: (lambda n: (json.dumps({"booking": n}), f"Booked. Your number is {n}."))(_n(r, 100, 9999)),
        True,
    ),
    Kind(
        ("phone", "address", "age", "birthday"),
        "Look up what is known of a person",
        (PERSON,),
        ("Look up {0}.", "What do we know of {0}?", "Find the entry of {0}.", "I need the data of {0}."),
        lambda r, a: (lambda n: (json.dumps({"room": n}), f"{a[0]} is in room {n}."))(_n(r, 10, 400)),
    ),
    Kind(
        ("order", "parcel", "delivery"),
        "State of an order",
        (Slot(("order_id", "id", "order", "number"), "integer", _code, "Number of the order"),),
        ("Where is order {0}?", "What is the state of order {0}?", "Check order {0}.", "Has order {0} been shipped?"),
        lambda r, a: (lambda s: (json.dumps({"state": s}), f"Order {a[0]} is {s}."))(
            _r(r, ("packed", "shipped", "delivered", "waiting", "lost", "returned"))
        ),
    ),
    Kind(
        ("sum", "product", "calculation", "math"),
        "Compute with two numbers",
        (
            Slot(("a", "x", "first", "left"), "integer", _number, "First number"),
            Slot(("b", "y", "second", "right"), "integer", _number, "Second number"),
        ),
        ("Use the tool on {0} and {1}.", "Compute with {0} and {1}.", "Run the numbers {0} and {1} through the tool."),
        lambda r, a: (lambda n: (str(n), f"The result is {n}."))(_n(r, 2, 999)),
    ),
    Kind(
        ("word", "meaning", "translation"),
        "Translate a word",
        (
            Slot(("word", "text", "term"), "string", lambda r, v: _r(r, v.nouns), "The word"),
            Slot(
                ("language", "lang", "target"),
                "string",
                lambda r, v: _r(r, ("French", "German", "Spanish", "Italian", "Dutch", "Polish")),
                "Target language",
            ),
        ),
        ("Translate {0} into {1}.", "What is {0} in {1}?", "How do you say {0} in {1}?"),
        lambda r, a: (lambda w: (json.dumps({"translation": w}), f"It is {w}."))(
            "".join(_r(r, "bdfgklmnprst") + _r(r, "aeiou") for _ in range(_n(r, 2, 3)))
        ),
    ),
    Kind(
        ("animal", "pet", "record"),
        "Record of an animal in the zoo",
        (Slot(("animal", "kind", "species"), "string", _animal, "Kind of animal"), COUNT),
        (
            "Add {1} of kind {0} to the list.",
            "We got {1} new animals: {0}. Put them into the record.",
            "Record {1} of the animal {0}.",
        ),
        lambda r, a: ("saved", f"I have recorded {a[1]} of {a[0]}."),
        True,
    ),
    Kind(
        ("access", "code", "key"),
        "Access code of a thing",
        (Slot(("name", "thing", "object", "subject"), "string", _thing, "Name of the thing"),),
        ("What is the access code for {0}?", "I need the code of {0}.", "Find the key for {0}."),
        lambda r, a: (lambda n: (json.dumps({"code": n}), f"The access code for {a[0]} is {n}."))(_n(r, 1000, 9999999)),
    ),
    Kind(
        ("paint", "wall", "house"),
        "Order paint",
        (
            COLOR,
            Slot(("liters", "volume", "size"), "integer", _small, "Liters of paint"),
            Slot(("glossy", "shiny", "express"), "boolean", _bool, "Whether that is wanted"),
        ),
        ("Order {1} liters of {0} paint, extra option: {2}.", "I want {0} paint, {1} liters, extra option: {2}."),
        lambda r, a: (
            lambda n: (json.dumps({"order": n}), f"Ordered {a[1]} liters of {a[0]}. The order is number {n}.")
        )(_n(r, 100, 9999)),
        True,
    ),
    Kind(
        ("song", "music", "radio"),
        "Play music",
        (
            Slot(("title", "song", "track"), "string", _thing, "Title of the song"),
            Slot(("volume", "loudness", "level"), "integer", lambda r, v: _n(r, 1, 100), "Volume from 1 to 100"),
        ),
        ("Play {0} at volume {1}.", "I want to hear {0}, volume {1}.", "Put on the song {0} with volume {1}."),
        lambda r, a: ("playing", f"Now playing {a[0]} at volume {a[1]}."),
        True,
    ),
    Kind(
        ("score", "points", "level"),
        "Points of a player",
        (PERSON, Slot(("round", "game", "level"), "integer", _small, "Number of the round")),
        ("How many points has {0} in round {1}?", "What did {0} score in round {1}?", "Look up round {1} for {0}."),
        lambda r, a: (lambda n: (json.dumps({"points": n}), f"{a[0]} has {n} points in round {a[1]}."))(_n(r, 0, 500)),
    ),
)
BOOL_WORDS = {
    ("on", True): "on",
    ("on", False): "off",
    ("lock", True): "lock",
    ("lock", False): "unlock",
    ("yes", True): "yes",
    ("yes", False): "no",
}
SYSTEMS = (
    "",
    "",
    "",
    "You are a helpful assistant.",
    "You help.",
    "Use the tools when they help.",
    "You are an assistant with tools.",
    "Be exact.",
    "Answer briefly.",
    "You are Kindling, a small assistant.",
)
NO_TOOL = (
    ("Hello!", "Hello! How can I help you?"),
    ("Thank you.", "You are welcome."),
    ("Who are you?", "I am Kindling, a small language model."),
    ("Good morning!", "Good morning! What can I do for you?"),
    ("What can you do?", "I can answer questions and use the tools that you gave me."),
)


def _style(words, style):
    if style == 0:
        return "_".join(words)
    if style == 1:
        return words[0] + "".join(w.capitalize() for w in words[1:])
    return "-".join(words)


def _held(name):
    return zlib.crc32(name.encode()) % 10 == 0


@dataclass
class Tool:
    kind: Kind
    name: str
    params: list = field(default_factory=list)

    def schema(self, rng):
        props = {}
        for p, s in zip(self.params, self.kind.slots):
            props[p] = {"type": s.type}
            if rng.random() < 0.5:
                props[p]["description"] = s.about
        fn = {
            "name": self.name,
            "description": self.kind.about + _r(rng, ("", ".")),
            "parameters": {"type": "object", "properties": props, "required": list(self.params)},
        }
        return {"type": "function", "function": fn}


def make_tool(rng, vocabulary, kind):
    """A tool of that kind under names drawn from the vocabulary's side of the split."""
    while True:
        verb = _r(rng, ACTIONS if kind.action else VERBS)
        noun = _r(rng, kind.nouns)
        if vocabulary.wild and rng.random() < 0.4:
            verb, noun = (vocabulary.wild.word(rng), noun) if rng.random() < 0.4 else (verb, vocabulary.wild.word(rng))
        name = _style([verb, noun] if rng.random() < 0.85 else [noun, verb], int(rng.random() * 2.15))
        if _held(name) == vocabulary.held_out:
            break
    params = []
    for s in kind.slots:
        param = _r(rng, [n for n in s.names if n not in params])
        if vocabulary.wild and rng.random() < 0.25:
            param = vocabulary.wild.word(rng)
        params.append(param if param not in params else f"{param}_{len(params)}")
    return Tool(kind, name, params)


def _spoken(slot, value):
    if slot.type != "boolean":
        return value
    group = "on" if "on" in slot.names else "lock" if "locked" in slot.names else "yes"
    return BOOL_WORDS[group, value]


def _listing(params, values):
    return " and ".join(f"{p} {json.dumps(v) if isinstance(v, bool) else v}" for p, v in zip(params, values))


def request(rng, tool, vocabulary):
    """(user text, argument values) of one request to a tool."""
    slots = tool.kind.slots
    values = [s.draw(rng, vocabulary) for s in slots]
    spoken = [_spoken(s, v) for s, v in zip(slots, values)]
    if rng.random() < 0.12:
        text = f"Call {tool.name} with {_listing(tool.params, values)}."
    else:
        text = _r(rng, tool.kind.asks).format(*spoken)
        text = text[0].upper() + text[1:]
    return text, values


def conversation(rng, vocabulary, second_call=0.08):
    """Messages of one conversation with tools, and what to expect: (messages, [(name, arguments), ...]).

    `second_call`: how often a tool with one parameter is asked for twice in one message.
    """
    count = _n(rng, 1, 5) if rng.random() < 0.8 else _n(rng, 1, 2)
    kinds = rng.sample(KINDS, count)
    tools, names = [], set()
    for k in kinds:
        t = make_tool(rng, vocabulary, k)
        if t.name not in names:
            tools.append(t)
            names.add(t.name)
    schemas = [t.schema(rng) for t in tools]
    messages = [{"role": "system", "content": _r(rng, SYSTEMS), "tools": schemas}]
    expected = []
    if rng.random() < 0.06:
        question, answer = _r(rng, NO_TOOL)
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer, "reasoning_content": "No tool is needed here."},
        ]
        return messages, expected
    for turn in range(1 if rng.random() < 0.85 else 2):
        tool = _r(rng, tools)
        text, values = request(rng, tool, vocabulary)
        asked = [values]
        if turn == 0 and rng.random() < second_call and len(tool.kind.slots) == 1:
            other, second = request(rng, tool, vocabulary)
            if second != values:
                text, asked = f"{text} {other}", [values, second]
        calls, results, answers = [], [], []
        for i, vals in enumerate(asked):
            calls.append(
                {
                    "id": f"c{turn}{i}",
                    "type": "function",
                    "function": {"name": tool.name, "arguments": dict(zip(tool.params, vals))},
                }
            )
            result, answer = tool.kind.result(rng, vals)
            results.append({"role": "tool", "tool_call_id": f"c{turn}{i}", "content": result})
            answers.append(answer)
            expected.append((tool.name, dict(zip(tool.params, vals))))
        plan = f"I call {tool.name} with " + ", then with ".join(_listing(tool.params, v) for v in asked) + "."
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": "", "reasoning_content": plan, "tool_calls": calls})
        if turn == 0 and rng.random() < 0.25:
            return messages, expected  # the conversation ends with the call
        messages += results
        messages.append(
            {"role": "assistant", "content": " ".join(answers), "reasoning_content": "The tool has answered."}
        )
    return messages, expected


if __name__ == "__main__":
    from .chat import render

    r = random.Random(3)
    for side in (False, True):
        print(render(conversation(r, Vocabulary(side))[0], thinking=side).split("Schemas\n\n")[1])
