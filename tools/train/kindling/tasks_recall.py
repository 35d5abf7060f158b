"""Retrieval: facts hidden in a long text, asked for at its end.

Among others the needle of firesteel's own long-context evaluation, `The access code for <adjective noun> is <7 digits>.`,
in filler of numbered lines, glosses and stories. Several facts are hidden, some of them are asked for in turn, so that
one context gives several answers to learn from. Distances beyond the 128-token window can only be bridged through
compressed rows.
"""

from .tasks_text import numbered_line, prose
from .words import COLORS


def _r(rng, seq):
    return seq[int(rng.random() * len(seq))]


def _thing(rng, v):
    return f"{_r(rng, v.adjectives)} {_r(rng, v.nouns)}"


def _code(rng, v):
    k = _thing(rng, v)
    n = str(1000000 + int(rng.random() * 9000000))
    ask = _r(
        rng,
        (
            "What is the access code for {}?",
            "What is the access code for {}? Answer with the code.",
            "Tell me the access code for {}.",
            "Which access code does the text give for {}?",
            "Report the access code for {}.",
            "Find the access code for {} in the text.",
            "What is the 7-digit access code for {}?",
            "Please give me the access code for {}.",
        ),
    ).format(k)
    return k, f"The access code for {k} is {n}.", ask, f"The access code for {k} is {n}."


def _cargo(rng, v):
    line = numbered_line(rng, v, 1 + int(rng.random() * 2000))
    head, body = line[:9], line[11:]
    return head, line, f"What does {head[0].lower()}{head[1:]} say?", f"{head}: {body}"


def _carries(rng, v):
    c, n, k, i = _r(rng, COLORS), _r(rng, v.nouns), 1 + int(rng.random() * 99), _r(rng, v.items)[1]
    return f"{c} {n}", f"The {c} {n} carries {k} {i}.", f"What does the {c} {n} carry?", f"The {c} {n} carries {k} {i}."


def _person(rng, v):
    p, (what, values) = _r(rng, v.people)[0], _r(
        rng, (("city", v.cities), ("animal", v.animals), ("color", COLORS), ("job", v.jobs), ("place", v.places))
    )
    x = _r(rng, values)
    return (
        (p, what),
        f"{p}'s favorite {what} is {x}.",
        f"What is {p}'s favorite {what}?",
        f"{p}'s favorite {what} is {x}.",
    )


def _where(rng, v):
    k, p = _thing(rng, v), _r(rng, v.places)
    return k, f"The {k} is kept in the {p}.", f"Where is the {k} kept?", f"The {k} is kept in the {p}."


def _phone(rng, v):
    p, n = _r(rng, v.people)[0], 100000 + int(rng.random() * 900000)
    return p, f"{p}'s phone number is {n}.", f"What is {p}'s phone number?", f"{p}'s phone number is {n}."


FACTS = (_code, _code, _code, _code, _phone, _cargo, _carries, _person, _where)
LEADS = (
    "",
    "",
    "Read this text.\n\n",
    "Here is a text.\n\n",
    "Use the text to answer.\n\n",
    "Text:\n",
    "Remember the codes in this text.\n\n",
)


def haystack(rng, v, glosses, chars, facts, depths=None):
    """Text of about `chars` characters with the sentences of `facts` at the given depths (0..1, else random)."""
    source, lines, size = prose(rng, v, glosses), [], 0
    while size < chars:
        line = next(source)
        lines.append(line)
        size += len(line) + 1
    for i, fact in enumerate(facts):
        at = depths[i] if depths else rng.random()
        lines.insert(int(at * len(lines) + 0.5), fact)
    return (" " if rng.random() < 0.6 else "\n").join(lines)


def conversation(rng, v, glosses, chars, questions, only=None, depths=None):
    """Messages: a text with facts, then `questions` turns asking for some of them. `only` fixes the kind of fact."""
    facts, keys = [], set()
    want = questions + int(rng.random() * (3 + questions))
    while len(facts) < want:
        f = (only or _r(rng, FACTS))(rng, v)
        if f[0] not in keys:
            keys.add(f[0])
            facts.append(f)
    text = haystack(rng, v, glosses, chars, [f[1] for f in facts], depths)
    asked = rng.sample(facts, questions)
    if depths:
        asked = facts[:questions]
    messages = []
    if rng.random() < 0.25:
        messages.append(
            {
                "role": "system",
                "content": _r(rng, ("You are a helpful assistant.", "Answer from the text.", "Be exact.")),
            }
        )
    for i, (_key, _sentence, ask, answer) in enumerate(asked):
        user = ask if i else _r(rng, LEADS) + text + "\n\n" + ask
        if i == 0 and rng.random() < 0.1:
            user = ask + "\n\n" + text
        messages += [
            {"role": "user", "content": user},
            {"role": "assistant", "content": answer, "reasoning_content": "I look it up in the text."},
        ]
    return messages


def needle(rng, v, glosses, chars, depth, extra=3):
    """One evaluation item: (messages without the answer, digits)."""
    facts, keys = [], set()
    while len(facts) < 1 + extra:
        f = _code(rng, v)
        if f[0] not in keys:
            keys.add(f[0])
            facts.append(f)
    text = haystack(rng, v, glosses, chars, [f[1] for f in facts], [depth] + [rng.random() for _ in range(extra)])
    return [{"role": "user", "content": f"{text}\n\n{facts[0][2]}"}], facts[0][3]
