"""Arithmetic word problems: 1 to 4 steps, many surfaces, short reasoning with small numbers.

A family is a function `f(t)` of a `Teller`, which hands out names, items and phrasings and remembers which phrasing
was taken. The tuple of those choices is the problem's template; one template in ten is kept out of training
(`Teller.held_out`), together with the held-out names and items of `words`.

Reasoning is a list of short lines, each with one equation. Products of a two-digit number are spelled out
(`14 * 6 = 60 + 24 = 84`), because a small model cannot do them at one glance.
"""

import random
import zlib
from dataclasses import dataclass

from .words import MONTHS, NUMBER_WORDS, WEEKDAYS, Vocabulary


@dataclass
class Problem:
    question: str
    steps: list  # reasoning lines
    sentence: str  # the answer in words
    answer: int
    template: tuple

    @property
    def final(self):
        return f"{self.sentence}\n#### {self.answer}"


# ---------------------------------------------------------------- equations
def add(*xs):
    out, total = [], xs[0]
    for x in xs[1:]:
        out.append(f"{total} + {x} = {total + x}")
        total += x
    return ", ".join(out)


def sub(a, b):
    return f"{a} - {b} = {a - b}"


def mul(a, b):
    big, small = max(a, b), min(a, b)
    if big > 12 and big % 10 and small > 1:
        tens, ones = big // 10 * 10, big % 10
        return f"{a} * {b} = {tens * small} + {ones * small} = {a * b}"
    return f"{a} * {b} = {a * b}"


def div(a, b):
    return f"{a} / {b} = {a // b}"


class Teller:
    """Random choices of one problem. `pick` counts towards the template, `any` does not."""

    def __init__(self, rng, vocabulary, family):
        self.rng, self.v, self.ids = rng, vocabulary, [family]

    def pick(self, *options):
        i = int(self.rng.random() * len(options))
        self.ids.append(i)
        return options[i]

    def any(self, options):
        return options[int(self.rng.random() * len(options))]

    def n(self, low, high):
        return low + int(self.rng.random() * (high - low + 1))

    def people(self, k):
        return self.rng.sample(self.v.people, k)

    def item(self):
        return self.any(self.v.items)

    @property
    def held_out(self):
        return zlib.crc32(repr(self.ids).encode()) % 10 == 0

    def problem(self, question, steps, sentence, answer):
        return Problem(question, steps, sentence, answer, tuple(self.ids))


def _has(n, item):
    return f"{n} {item[0] if n == 1 else item[1]}"


# ---------------------------------------------------------------- families
def running_total(t):
    (who, they, their), (friend, _, _) = t.people(2)
    item = t.item()
    total = start = t.n(5, 60)
    place = t.any(t.v.places)
    text = t.pick(
        f"{who} has {_has(start, item)}.",
        f"There are {_has(start, item)} on {who}'s table.",
        f"{who} starts the day with {_has(start, item)}.",
        f"In the morning, {who} has {_has(start, item)}.",
        f"{who} keeps {_has(start, item)} in the {place}.",
    )
    steps = [f"Start: {start}."]
    for i in range(t.pick(1, 2, 2, 3)):
        gain = t.rng.random() < 0.5 or total < 6
        k = t.n(2, 40) if gain else t.n(2, total - 2)
        if gain:
            options = [
                ("buys", f"{they} buys {k} more"),
                ("finds", f"{they} finds {k} more in the {place}"),
                ("gets", f"{friend} gives {who} {k} more"),
                ("gets", f"{they} gets {k} from {friend}"),
                ("picks up", f"{they} picks up {k} more"),
                ("collects", f"{they} collects {k} more"),
                ("makes", f"{they} makes {k} new ones"),
            ]
        else:
            options = [
                ("gives", f"{they} gives {k} to {friend}"),
                ("loses", f"{they} loses {k} of them"),
                ("sells", f"{they} sells {k} at the {place}"),
                ("uses", f"{they} uses {k} of them"),
                ("throws away", f"{they} throws away {k}"),
                ("loses", f"{friend} takes {k} of them"),
                ("sends", f"{they} sends {k} to {friend}"),
            ]
        verb, clause = t.pick(*options)
        lead = t.pick("Then ", "Later ", "After that, ") if i else t.pick("", "Then ", "Later ")
        clause = lead + clause
        text += f" {clause[0].upper()}{clause[1:]}."
        steps.append(f"{verb.capitalize()} {k}: {add(total, k) if gain else sub(total, k)}.")
        total += k if gain else -k
    text += " " + t.pick(
        f"How many {item[1]} does {who} have now?",
        f"How many {item[1]} does {who} have in the end?",
        f"How many {item[1]} are left with {who}?",
        f"What is the number of {item[1]} {who} has now?",
    )
    return t.problem(text, steps, f"{who} has {_has(total, item)}.", total)


def groups(t):
    ((who, they, _),) = t.people(1)
    item, (box, boxes) = t.item(), t.any(t.v.containers)
    n, m = t.n(2, 12), t.n(2, 25)
    total = n * m
    text = t.pick(
        f"{who} has {n} {boxes} with {m} {item[1]} each.",
        f"{who} fills {n} {boxes}. Each {box} holds {m} {item[1]}.",
        f"There are {n} {boxes} and {m} {item[1]} in each {box}.",
        f"{who} buys {n} {boxes} of {m} {item[1]} each.",
        f"Each {box} contains {m} {item[1]}. {who} has {n} {boxes}.",
    )
    steps = [f"In {n} {boxes}: {mul(n, m)}."]
    kind = t.pick("plain", "more", "less")
    if kind == "more":
        k = t.n(2, 40)
        text += " " + t.pick(
            f"{they.capitalize()} also has {k} loose {item[1]}.",
            f"There are {k} more {item[1]} on the table.",
            f"Then {they} gets {k} more {item[1]}.",
        )
        steps.append(f"With {k} more: {add(total, k)}.")
        total += k
    elif kind == "less":
        k = t.n(1, min(total - 1, 40))
        text += " " + t.pick(
            f"{k} of them are broken.",
            f"{they.capitalize()} gives away {k} {item[1]}.",
            f"{they.capitalize()} sells {k} of them.",
            f"{k} of the {item[1]} are lost.",
        )
        steps.append(f"Without {k}: {sub(total, k)}.")
        total -= k
    text += " " + t.pick(
        f"How many {item[1]} does {who} have?",
        f"How many {item[1]} are there now?",
        f"How many {item[1]} is that in all?",
    )
    return t.problem(text, steps, f"There are {_has(total, item)}.", total)


def sharing(t):
    ((who, they, their),) = t.people(1)
    item, (box, boxes) = t.item(), t.any(t.v.containers)
    n, each = t.n(2, 10), t.n(2, 15)
    total = n * each
    extra = 0
    steps = []
    if t.pick(0, 1):
        extra = t.n(1, 20)
        text = t.pick(
            f"{who} has {_has(total + extra, item)} and keeps {extra}.",
            f"{who} has {_has(total + extra, item)}. {they.capitalize()} sets aside {extra} of them.",
            f"Of {total + extra} {item[1]}, {who} throws away {extra}.",
        )
        steps.append(f"To share: {sub(total + extra, extra)}.")
        rest = "The rest "
    else:
        text = t.pick(
            f"{who} has {_has(total, item)}.", f"{who} buys {_has(total, item)}.", f"There are {_has(total, item)}."
        )
        rest = "All of them "
    kind = t.pick("friends", "boxes")
    if kind == "friends":
        text += " " + t.pick(
            f"{rest}are shared equally among {n} friends.",
            f"{rest}go to {n} children in equal parts.",
            f"{rest}are split evenly between {n} people.",
        )
        text += " " + t.pick("How many does each get?", f"How many {item[1]} does each one get?")
        sentence = f"Each gets {_has(each, item)}."
    else:
        text += " " + t.pick(
            f"{rest}go into {n} {boxes} evenly.",
            f"{rest}are packed equally into {n} {boxes}.",
            f"{rest}are put into {n} {boxes} with the same number in each.",
        )
        text += " " + t.pick(f"How many {item[1]} are in each {box}?", f"How many go into one {box}?")
        sentence = f"Each {box} has {_has(each, item)}."
    steps.append(f"Each: {div(total, n)}.")
    return t.problem(text, steps, sentence, each)


def comparing(t):
    (a, _, _), (b, bthey, _), (c, _, _) = t.people(3)
    item = t.item()
    x = t.n(3, 40)
    kind = t.pick("more", "fewer", "times", "half")
    if kind == "half":
        x += x % 2
    k = {"more": t.n(2, 30), "fewer": t.n(1, x - 1), "times": t.n(2, 5), "half": 2}[kind]
    text = t.pick(f"{a} has {_has(x, item)}.", f"{a} owns {_has(x, item)}.", f"{a} collects {_has(x, item)}.")
    if kind == "more":
        y, step = x + k, add(x, k)
        rel = t.pick(
            f"{b} has {k} more than {a}.", f"{b} has {k} more {item[1]} than {a}.", f"{a} has {k} fewer than {b}."
        )
    elif kind == "fewer":
        y, step = x - k, sub(x, k)
        rel = t.pick(
            f"{b} has {k} fewer than {a}.", f"{b} has {k} fewer {item[1]} than {a}.", f"{a} has {k} more than {b}."
        )
    elif kind == "times":
        y, step = x * k, mul(x, k)
        word = "twice" if k == 2 else f"{k} times"
        rel = t.pick(
            f"{b} has {word} as many.",
            f"{b} has {word} as many {item[1]} as {a}.",
            f"{b} has {word} the number {a} has.",
        )
    else:
        y, step = x // 2, div(x, 2)
        rel = t.pick(
            f"{b} has half as many.", f"{b} has half as many {item[1]} as {a}.", f"{b} has half the number {a} has."
        )
    text += " " + rel
    steps = [f"{b}: {step}."]
    ask = t.pick("b", "total", "three")
    if ask == "b":
        text += " " + t.pick(f"How many {item[1]} does {b} have?", f"How many does {b} have?")
        return t.problem(text, steps, f"{b} has {_has(y, item)}.", y)
    total = x + y
    if ask == "three":
        z = t.n(2, 30)
        text += " " + t.pick(f"{c} has {_has(z, item)}.", f"{c} brings {z} more {item[1]}.")
        steps.append(f"Together: {add(x, y, z)}.")
        total += z
        text += " " + t.pick(
            f"How many {item[1]} do the three have together?", f"How many {item[1]} do they have in all?"
        )
    else:
        steps.append(f"Together: {add(x, y)}.")
        text += " " + t.pick(
            f"How many {item[1]} do they have together?", f"How many {item[1]} do {a} and {b} have in all?"
        )
    return t.problem(text, steps, f"Together they have {_has(total, item)}.", total)


def shopping(t):
    ((who, they, _),) = t.people(1)
    one, two = t.rng.sample(t.v.items, 2)
    n, p = t.n(2, 9), t.n(2, 15)
    cost = n * p
    coin = t.pick("dollars", "coins", "euros")
    text = t.pick(
        f"{who} buys {n} {one[1]} for {p} {coin} each.",
        f"One {one[0]} costs {p} {coin}. {who} buys {n} of them.",
        f"At the {t.any(t.v.places)}, {who} takes {n} {one[1]} at {p} {coin} each.",
    )
    steps = [f"{one[1].capitalize()}: {mul(n, p)}."]
    if t.pick(0, 1):
        m, q = t.n(1, 6), t.n(2, 12)
        if m == 1:
            text += " " + t.pick(
                f"{they.capitalize()} also buys a {two[0]} for {q} {coin}.", f"A {two[0]} for {q} {coin} comes on top."
            )
            extra = q
        else:
            text += " " + t.pick(
                f"{they.capitalize()} also buys {m} {two[1]} for {q} {coin} each.",
                f"{they.capitalize()} adds {m} {two[1]} at {q} {coin} each.",
            )
            extra = m * q
            steps.append(f"{two[1].capitalize()}: {mul(m, q)}.")
        steps.append(f"Together: {add(cost, extra)}.")
        cost += extra
    if t.pick(0, 1):
        paid = t.any([x for x in (20, 50, 100, 150, 200, 250, 300) if x > cost][:2] or [500])
        text += " " + t.pick(
            f"{who} pays with {paid} {coin}. How much change does {they} get?",
            f"{they.capitalize()} had {paid} {coin}. How many {coin} are left?",
            f"How many {coin} of {paid} does {who} still have?",
        )
        steps.append(f"Left: {sub(paid, cost)}.")
        return t.problem(text, steps, f"{who} has {paid - cost} {coin} left.", paid - cost)
    text += " " + t.pick(
        f"How many {coin} does {who} pay?", f"How much does {who} spend?", f"What is the price of all in {coin}?"
    )
    return t.problem(text, steps, f"{who} pays {cost} {coin}.", cost)


def rates(t):
    ((who, they, their),) = t.people(1)
    kind = t.pick("pages", "km", "pay", "save", "makes")
    n, m = t.n(2, 9), t.n(2, 30)
    item = t.item()
    if kind == "pages":
        text = t.pick(f"{who} reads {m} pages a day for {n} days.", f"For {n} days, {who} reads {m} pages each day.")
        unit, verb, first = "pages", "reads", "Read"
    elif kind == "km":
        text = t.pick(
            f"{who} rides {m} km each hour for {n} hours.", f"{who} travels for {n} hours at {m} km per hour."
        )
        unit, verb, first = "km", "travels", "Ridden"
    elif kind == "pay":
        text = t.pick(
            f"{who} earns {m} dollars an hour and works {n} hours.", f"{who} works {n} hours for {m} dollars per hour."
        )
        unit, verb, first = "dollars", "earns", "Earned"
    elif kind == "save":
        text = t.pick(
            f"{who} saves {m} coins every week for {n} weeks.",
            f"Each week {who} saves {m} coins. {they.capitalize()} does so for {n} weeks.",
        )
        unit, verb, first = "coins", "saves", "Saved"
    else:
        text = t.pick(
            f"{who} makes {m} {item[1]} per hour for {n} hours.",
            f"In one hour {who} makes {m} {item[1]}. {they.capitalize()} works {n} hours.",
        )
        unit, verb, first = item[1], "makes", "Made"
    total = n * m
    steps = [f"{first}: {mul(n, m)}."]
    more = t.pick("none", "add", "goal", "minus")
    if more == "add":
        k = t.n(3, 50)
        text += " " + t.pick(f"Then {they} {verb} {k} more {unit}.", f"On top of that come {k} {unit}.")
        steps.append(f"With {k} more: {add(total, k)}.")
        total += k
    elif more == "minus" and total > 5:
        k = t.n(2, min(total - 1, 60))
        text += f" {k} of these {unit} do not count."
        steps.append(f"Without {k}: {sub(total, k)}.")
        total -= k
    elif more == "goal":
        goal = total + t.n(1, 80)
        text += " " + t.pick(
            f"The goal is {goal} {unit}. How many {unit} are missing?", f"How many more {unit} are needed for {goal}?"
        )
        steps.append(f"Missing: {sub(goal, total)}.")
        return t.problem(text, steps, f"{goal - total} {unit} are missing.", goal - total)
    text += " " + t.pick(
        f"How many {unit} is that in all?",
        f"What is the total number of {unit}?",
        f"How many {unit} does {who} get to?",
    )
    return t.problem(text, steps, f"It is {total} {unit} in all.", total)


def seats(t):
    place = t.any(t.v.places)
    rows, each = t.n(2, 15), t.n(2, 12)
    total = rows * each
    thing = t.pick("seats", "chairs", "desks", "trees", "beds")
    text = t.pick(
        f"The {place} has {rows} rows of {each} {thing}.",
        f"In the {place} there are {rows} rows with {each} {thing} each.",
    )
    steps = [f"All {thing}: {mul(rows, each)}."]
    if t.pick(0, 1, 1):
        k = t.n(1, min(total - 1, 60))
        text += " " + t.pick(f"{k} of them are taken.", f"{k} {thing} are in use.", f"{k} of the {thing} are gone.")
        steps.append(f"Free: {sub(total, k)}.")
        total -= k
        if t.pick(0, 1, 0) and total > 3:
            j = t.n(1, total - 1)
            text += " " + t.pick(f"Then {j} more are taken.", f"Later {j} more are in use.")
            steps.append(f"Then: {sub(total, j)}.")
            total -= j
        text += " " + t.pick(f"How many {thing} are free?", f"How many {thing} are left?")
        return t.problem(text, steps, f"{total} {thing} are free.", total)
    text += " " + t.pick(f"How many {thing} are there?", f"How many {thing} is that?")
    return t.problem(text, steps, f"There are {total} {thing}.", total)


def ages(t):
    (a, athey, _), (b, bthey, _) = t.people(2)
    x = t.n(4, 40)
    kind = t.pick("older", "younger", "times")
    if kind == "older":
        k = t.n(2, 25)
        y, step = x + k, add(x, k)
        rel = t.pick(f"{b} is {k} years older.", f"{b} is {k} years older than {a}.")
    elif kind == "younger":
        k = t.n(1, x - 2)
        y, step = x - k, sub(x, k)
        rel = t.pick(f"{b} is {k} years younger.", f"{b} is {k} years younger than {a}.")
    else:
        k = t.n(2, 4)
        y, step = x * k, mul(x, k)
        rel = t.pick(
            f"{b} is {'twice' if k == 2 else f'{k} times'} as old.",
            f"{b} is {'twice' if k == 2 else f'{k} times'} as old as {a}.",
        )
    text = t.pick(f"{a} is {x} years old.", f"{a} is now {x}.") + " " + rel
    steps = [f"{b} now: {step}."]
    ask = t.pick("now", "future", "past", "sum")
    if ask == "future":
        f = t.n(2, 20)
        text += " " + t.pick(f"How old will {b} be in {f} years?", f"What is the age of {b} {f} years from now?")
        steps.append(f"In {f} years: {add(y, f)}.")
        return t.problem(text, steps, f"{b} will be {y + f} years old.", y + f)
    if ask == "past" and y > 3:
        f = t.n(1, y - 2)
        text += " " + t.pick(f"How old was {b} {f} years ago?", f"What was the age of {b} {f} years ago?")
        steps.append(f"{f} years ago: {sub(y, f)}.")
        return t.problem(text, steps, f"{b} was {y - f} years old.", y - f)
    if ask == "sum":
        text += " " + t.pick("What is the sum of their ages?", "How old are they together?")
        steps.append(f"Sum: {add(x, y)}.")
        return t.problem(text, steps, f"Together they are {x + y} years old.", x + y)
    text += " " + t.pick(f"How old is {b}?", f"What is the age of {b}?")
    return t.problem(text, steps, f"{b} is {y} years old.", y)


def fractions(t):
    (who, they, _), (friend, _, _) = t.people(2)
    item = t.item()
    word, k = t.pick(("half", 2), ("a third", 3), ("a quarter", 4), ("a fifth", 5))
    part = t.n(2, 15)
    x = part * k
    text = t.pick(
        f"{who} has {_has(x, item)}.", f"{who} finds {_has(x, item)}.", f"{who} bakes, buys and finds {_has(x, item)}."
    )
    text += " " + t.pick(
        f"{they.capitalize()} gives {word} of them to {friend}.",
        f"{friend} gets {word} of them.",
        f"{they.capitalize()} sells {word} of them.",
    )
    steps = [f"{word.capitalize()}: {div(x, k)}."]
    ask = t.pick("part", "rest", "rest more")
    if ask == "part":
        text += " " + t.pick(f"How many {item[1]} is that?", f"How many {item[1]} go away?")
        return t.problem(text, steps, f"That is {_has(part, item)}.", part)
    rest = x - part
    steps.append(f"Rest: {sub(x, part)}.")
    if ask == "rest more":
        m = t.n(2, 30)
        text += " " + t.pick(f"Then {they} gets {m} more.", f"Then {who} buys {m} more {item[1]}.")
        steps.append(f"With {m} more: {add(rest, m)}.")
        rest += m
    text += " " + t.pick(f"How many {item[1]} does {who} have left?", f"How many {item[1]} does {who} have now?")
    return t.problem(text, steps, f"{who} has {_has(rest, item)}.", rest)


def days(t):
    ((who, they, _),) = t.people(1)
    item = t.item()
    names = t.any((WEEKDAYS, MONTHS))
    d = t.n(0, len(names) - 4)
    count = t.pick(2, 3, 3)
    verb = t.pick("sells", "finds", "makes", "counts", "picks")
    x = t.n(2, 30)
    text = t.pick(
        (
            f"On {names[d]} {who} {verb} {_has(x, item)}."
            if names is WEEKDAYS
            else f"In {names[d]} {who} {verb} {_has(x, item)}."
        ),
        f"{who} {verb} {_has(x, item)} {'on' if names is WEEKDAYS else 'in'} {names[d]}.",
    )
    values, steps = [x], []
    for i in range(1, count):
        prev, name = values[-1], names[d + i]
        kind = t.pick("num", "more", "twice", "fewer")
        if kind == "more":
            k = t.n(1, 15)
            text += f" {name}: {k} more than {names[d + i - 1]}."
            steps.append(f"{name}: {add(prev, k)}.")
            values.append(prev + k)
        elif kind == "twice":
            text += f" {name}: twice as many as {names[d + i - 1]}."
            steps.append(f"{name}: {mul(prev, 2)}.")
            values.append(prev * 2)
        elif kind == "fewer" and prev > 3:
            k = t.n(1, prev - 1)
            text += f" {name}: {k} fewer than {names[d + i - 1]}."
            steps.append(f"{name}: {sub(prev, k)}.")
            values.append(prev - k)
        else:
            k = t.n(2, 40)
            text += f" {name}: {k}."
            values.append(k)
    text += " " + t.pick(
        f"How many {item[1]} is that in all?",
        f"How many {item[1]} together?",
        f"What is the total number of {item[1]}?",
    )
    steps.append(f"Sum: {add(*values)}.")
    return t.problem(text, steps, f"It is {_has(sum(values), item)} in all.", sum(values))


def scaling(t):
    ((who, they, _),) = t.people(1)
    small, k, factor = t.n(2, 5), t.n(2, 9), t.n(2, 6)
    base = small * k
    text = t.pick(
        f"{who} needs {base} cups of flour for {small} cakes.",
        f"{small} cakes take {base} cups of flour.",
        f"With {base} cups of flour {who} bakes {small} cakes.",
    )
    many = small * factor if t.pick(0, 1) else t.n(2, 9)
    text += " " + t.pick(f"How many cups are needed for {many} cakes?", f"How many cups of flour do {many} cakes take?")
    steps = [f"One cake: {div(base, small)}.", f"{many} cakes: {mul(many, k)}."]
    return t.problem(text, steps, f"{many} cakes take {many * k} cups.", many * k)


def lengths(t):
    ((who, they, _),) = t.people(1)
    thing = t.pick("rope", "ribbon", "wire", "board", "pipe")
    n, each = t.n(2, 9), t.n(2, 20)
    rest = t.n(0, 20)
    total = n * each + rest
    unit = t.pick("meters", "feet", "inches")
    text = t.pick(f"A {thing} is {total} {unit} long.", f"{who} has a {thing} of {total} {unit}.")
    text += " " + t.pick(
        f"{who} cuts off {n} pieces of {each} {unit} each.", f"{n} pieces of {each} {unit} each are cut off."
    )
    text += " " + t.pick(f"How long is the rest of the {thing}?", f"How many {unit} are left?")
    return t.problem(
        text, [f"Cut off: {mul(n, each)}.", f"Left: {sub(total, n * each)}."], f"{rest} {unit} are left.", rest
    )


def two_kinds(t):
    ((who, they, _),) = t.people(1)
    one, two = t.rng.sample(t.v.items, 2)
    n, a, b = t.n(2, 8), t.n(2, 12), t.n(2, 12)
    box, boxes = t.any(t.v.containers)
    text = t.pick(
        f"Each {box} holds {a} {one[1]} and {b} {two[1]}. {who} has {n} {boxes}.",
        f"{who} has {n} {boxes}, each with {a} {one[1]} and {b} {two[1]}.",
        f"{who} packs {a} {one[1]} and {b} {two[1]} into every {box}. There are {n} {boxes}.",
    )
    text += " " + t.pick("How many things are in all of them?", f"How many {one[1]} and {two[1]} are there in all?")
    return t.problem(
        text,
        [f"In one {box}: {add(a, b)}.", f"In {n}: {mul(n, a + b)}."],
        f"There are {n * (a + b)} in all.",
        n * (a + b),
    )


def profit(t):
    ((who, they, _),) = t.people(1)
    item = t.item()
    n, cost, gain = t.n(2, 12), t.n(2, 12), t.n(1, 9)
    price = cost + gain
    text = t.pick(
        f"{who} buys {n} {item[1]} for {cost} coins each and sells them for {price} coins each.",
        f"One {item[0]} costs {who} {cost} coins and sells for {price} coins. {they.capitalize()} sells {n} of them.",
    )
    text += " " + t.pick(
        f"What is {who}'s gain in coins?", f"How many coins does {who} gain?", f"How much profit does {who} make?"
    )
    return t.problem(
        text,
        [f"Gain on one: {sub(price, cost)}.", f"On {n}: {mul(n, gain)}."],
        f"{who} gains {n * gain} coins.",
        n * gain,
    )


FAMILIES = (
    running_total,
    running_total,
    groups,
    sharing,
    comparing,
    shopping,
    rates,
    seats,
    ages,
    fractions,
    days,
    scaling,
    lengths,
    two_kinds,
    profit,
)


def word_problem(rng, vocabulary):
    """A problem from the vocabulary's side of the split: training problems never use a held-out template."""
    while True:
        i = int(rng.random() * len(FAMILIES))
        t = Teller(rng, vocabulary, FAMILIES[i].__name__)
        p = FAMILIES[i](t)
        if t.held_out == vocabulary.held_out:
            return p


def drill(rng):
    """A bare sum, so that the number facts are seen often. Returns a Problem without reasoning lines of its own."""
    op = int(rng.random() * 6)
    n = lambda lo, hi: lo + int(rng.random() * (hi - lo + 1))
    if op < 2:
        hi = (20, 99, 99, 300, 999)[n(0, 4)]
        a, b = n(1, hi), n(1, hi)
        expr, step, ans = f"{a} + {b}", add(a, b), a + b
    elif op < 4:
        hi = (20, 99, 99, 300, 999)[n(0, 4)]
        a = n(2, hi)
        b = n(1, a)
        expr, step, ans = f"{a} - {b}", sub(a, b), a - b
    elif op == 4:
        a, b = (n(2, 12), n(2, 12)) if rng.random() < 0.6 else (n(2, 12), n(11, 60))
        if rng.random() < 0.5:
            a, b = b, a
        expr, step, ans = f"{a} * {b}", mul(a, b), a * b
    else:
        b, q = n(2, 10), n(2, 15)
        expr, step, ans = f"{b * q} / {b}", div(b * q, b), q
    form = n(0, 5)
    question = (
        f"What is {expr}?",
        f"Compute {expr}.",
        f"{expr} = ?",
        f"Calculate {expr}.",
        f"How much is {expr}?",
        f"Please work out {expr}.",
    )[form]
    return Problem(question, [f"{step}."], f"{expr} = {ans}.", ans, ("drill", form))


def counting(rng):
    """Lists of numbers: (question, answer) without a final `####` line."""
    n = lambda lo, hi: lo + int(rng.random() * (hi - lo + 1))
    kind = n(0, 3)
    if kind == 0:
        a = n(0, 80)
        b = a + n(3, 12)
        return f"Count from {a} to {b}.", ", ".join(map(str, range(a, b + 1))) + "."
    if kind == 1:
        a = n(5, 60)
        b = a - n(3, min(a, 10))
        return f"Count down from {a} to {b}.", ", ".join(map(str, range(a, b - 1, -1))) + "."
    if kind == 2:
        a, k = n(1, 12), n(5, 9)
        return f"List the first {k} multiples of {a}.", ", ".join(str(a * i) for i in range(1, k + 1)) + "."
    a = n(0, len(NUMBER_WORDS) - 1)
    return f"Write {a} as a word.", NUMBER_WORDS[a] + "."


if __name__ == "__main__":  # print samples of both sides
    r = random.Random(1)
    for side in (False, True):
        v = Vocabulary(side)
        for _ in range(8):
            p = word_problem(r, v)
            print(p.question, "|", " ".join(p.steps), "|", p.final.replace("\n", " // "))
