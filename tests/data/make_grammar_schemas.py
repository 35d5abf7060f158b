#!/usr/bin/env python3
"""Writes tests/data/grammar-schemas.jsonl: 200 schemas as applications send them.

    tests/data/make_grammar_schemas.py > tests/data/grammar-schemas.jsonl

Families of a real use each (tool arguments, extraction, records, trees, configuration, events), with
the parts that vary between applications drawn by a fixed seed.
"""

import json
import random

R = random.Random(20261130)


def obj(props, required=None, **more):
    s = {"type": "object", "properties": props}
    s["required"] = list(props) if required is None else required
    s.update(more)
    return s


def arr(items, **more):
    return {"type": "array", "items": items, **more}


def string(**more):
    return {"type": "string", **more}


def maybe(p=0.5):
    return R.random() < p


def closed():
    return {"additionalProperties": False} if maybe(0.7) else {}


NAMES = ("title name city country author status kind summary reason label note tag source target path url "
         "email phone street zip price amount total count quantity score rating confidence width height "
         "start end created updated due priority language currency color size weight model version").split()
ENUMS = [["low", "medium", "high"], ["open", "in_progress", "done", "cancelled"], ["EUR", "USD", "JPY", "CHF"],
         ["positive", "neutral", "negative"], ["north", "east", "south", "west"], ["A", "B", "C", "D", "E"],
         ["create", "read", "update", "delete"], ["Ja", "Nein", "Weiß nicht"], ["是", "否"], ["café", "thé"],
         ["GET", "POST", "PUT", "PATCH", "DELETE"], ["debug", "info", "warn", "error"], [1, 2, 3, 5, 8], [None, "x", 0]]
PATTERNS = ["^[A-Z]{2}-[0-9]{4}$", "^[a-z][a-z0-9_]{0,30}$", "^\\d{3}-\\d{2}-\\d{4}$", "^#[0-9a-fA-F]{6}$",
            "^v\\d+\\.\\d+\\.\\d+(-[a-z]+)?$", "^(foo|bar)+$", "^[^\\s@]+@[^\\s@]+$", "^\\+?[1-9]\\d{6,14}$",
            "^/([\\w.-]+/)*[\\w.-]*$", "^[A-Za-zÄÖÜäöüß ]+$", "^\\p{L}+$", "[0-9]", "^INV[0-9]+", "^.{2,8}$"]
FORMATS = ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"]


def scalar():
    k = R.randrange(14)
    if k == 0:
        return string()
    if k == 1:
        return string(maxLength=R.choice([5, 20, 64, 200, 1000]))
    if k == 2:
        return string(minLength=R.choice([1, 3, 10]), maxLength=R.choice([12, 40, 120]))
    if k == 3:
        return string(pattern=R.choice(PATTERNS))
    if k == 4:
        return string(format=R.choice(FORMATS))
    if k == 5:
        return {"enum": R.choice(ENUMS)}
    if k == 6:
        return {"type": "integer"}
    if k == 7:
        lo = R.choice([0, 1, -100, -273, 1900])
        return {"type": "integer", "minimum": lo, "maximum": lo + R.choice([1, 9, 100, 12345])}
    if k == 8:
        return {"type": "number"}
    if k == 9:
        return {"type": "number", "minimum": 0, "maximum": R.choice([1, 100, 9.5])}
    if k == 10:
        return {"type": "number", R.choice(["exclusiveMinimum", "exclusiveMaximum"]): R.choice([0, 2.5, -1])}
    if k == 11:
        return {"type": "boolean"}
    if k == 12:
        return {"type": ["string", "null"]}
    return {"type": "integer", "multipleOf": R.choice([2, 5, 10, 25])}


def record(n=None):
    props = {k: scalar() for k in R.sample(NAMES, n or R.randint(2, 8))}
    required = [k for k in props if maybe(0.7)]
    return obj(props, required, **closed())


def tool_arguments():
    props = {"query": string(minLength=1, maxLength=R.choice([80, 400])),
             "limit": {"type": "integer", "minimum": 1, "maximum": R.choice([10, 50, 100]), "default": 10}}
    for k in R.sample(NAMES, R.randint(0, 4)):
        props[k] = scalar()
    if maybe():
        props["filters"] = arr(obj({"field": string(maxLength=30), "op": {"enum": ["eq", "lt", "gt", "in"]},
                                    "value": {"type": ["string", "number", "boolean"]}}, **closed()), maxItems=4)
    return obj(props, ["query"], additionalProperties=False)


def file_edit():
    return obj({"path": string(pattern="^/?([A-Za-z0-9_.-]+/)*[A-Za-z0-9_.-]+$"),
                "edits": arr(obj({"old": string(), "new": string(), "all": {"type": "boolean"}}, ["old", "new"],
                                 additionalProperties=False), minItems=1, maxItems=R.choice([3, 10])),
                "dry_run": {"type": "boolean"}}, ["path", "edits"], additionalProperties=False)


def extraction():
    person = obj({"name": string(minLength=1, maxLength=60), "age": {"type": "integer", "minimum": 0, "maximum": 150},
                  "email": string(format="email"), "born": string(format="date")}, ["name"], **closed())
    return obj({"people": arr(person, minItems=R.randint(0, 2), maxItems=R.choice([3, 8])),
                "places": arr(string(maxLength=40), maxItems=5),
                "sentiment": {"enum": ["positive", "neutral", "negative"]},
                "confidence": {"type": "number", "minimum": 0, "maximum": 1}}, **closed())


def tree():
    name = R.choice(["node", "comment", "folder", "expr"])
    node = obj({"label": string(maxLength=R.choice([10, 50])), "children": arr({"$ref": "#/$defs/" + name},
                                                                          maxItems=R.choice([2, 5]))},
               ["label"], additionalProperties=False)
    if maybe():
        node["properties"]["weight"] = {"type": "number"}
    return {"$defs": {name: node}, "$ref": "#/$defs/" + name}


def expression():
    return {"$defs": {"e": {"anyOf": [
        {"type": "number"},
        string(pattern="^[a-z][a-z0-9]{0,7}$"),
        obj({"op": {"enum": ["+", "-", "*", "/"]}, "left": {"$ref": "#/$defs/e"}, "right": {"$ref": "#/$defs/e"}},
            additionalProperties=False)]}}, "type": "object", "properties": {"e": {"$ref": "#/$defs/e"}},
        "required": ["e"], "additionalProperties": False}


def linked_list():
    return {"$id": "list", "type": "object", "properties": {"value": scalar(), "next": {
        "anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["value", "next"], "additionalProperties": False}


def union():
    kinds = R.sample(["circle", "square", "text", "image", "group", "line"], R.randint(2, 5))
    alts = []
    for k in kinds:
        props = {"kind": {"const": k}}
        for n in R.sample(NAMES, R.randint(1, 4)):
            props[n] = scalar()
        alts.append(obj(props, **closed()))
    return obj({"shapes": arr({R.choice(["anyOf", "oneOf"]): alts}, minItems=1, maxItems=4)}, additionalProperties=False)


def steps():
    return obj({"steps": arr(obj({"explanation": string(), "output": string()}, additionalProperties=False),
                             **({"minItems": 1} if maybe() else {})), "final_answer": string()},
               additionalProperties=False)


def dictionary():
    s = {"type": "object"}
    k = R.randrange(5)
    if k == 0:
        s["additionalProperties"] = scalar()
    elif k == 1:
        s["patternProperties"] = {"^[a-z]{2}$": string(maxLength=20), "^x-": {"type": "boolean"}}
        s["additionalProperties"] = False
    elif k == 2:
        s["propertyNames"] = {"pattern": "^[A-Z][a-zA-Z]{0,12}$"}
        s["additionalProperties"] = {"type": "number"}
        s["maxProperties"] = R.choice([1, 3, 6])
    elif k == 3:
        s["additionalProperties"] = arr(string(maxLength=12), maxItems=3)
        s["minProperties"] = 1
    else:
        s.update(record(3))
        s["additionalProperties"] = {"type": "integer"}
    return obj({"translations": s, "source": string(maxLength=10)}, ["translations"], additionalProperties=False)


def tuples():
    return obj({"point": {"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}], "items": False,
                          "minItems": 2},
                "line": arr({"type": "array", "prefixItems": [scalar(), scalar()], "minItems": 2, "maxItems": 3},
                            maxItems=3)}, additionalProperties=False)


def conditional():
    return {"type": "object", "properties": {"method": {"enum": ["card", "bank", "cash"]},
                                             "card": string(pattern="^[0-9]{12,16}$"),
                                             "iban": string(pattern="^[A-Z]{2}[0-9]{2}[A-Z0-9]{10,20}$"),
                                             "amount": {"type": "number", "exclusiveMinimum": 0}},
            "required": ["method", "amount"], "additionalProperties": False,
            "allOf": [{"if": {"properties": {"method": {"const": "card"}}}, "then": {"required": ["card"]}},
                      {"if": {"properties": {"method": {"const": "bank"}}}, "then": {"required": ["iban"]}}]}


def dependent():
    return obj({"name": string(maxLength=20), "credit_card": string(pattern="^\\d{8}$"),
                "billing_address": string(maxLength=40)}, ["name"], additionalProperties=False,
               dependentRequired={"credit_card": ["billing_address"]})


def merged():
    return {"allOf": [obj({"id": string(format="uuid"), "created": string(format="date-time")}),
                      obj({"status": {"enum": R.choice(ENUMS[:6])}, "score": {"type": "integer", "minimum": 0}}),
                      {"properties": {"score": {"maximum": R.choice([5, 100])}}}],
            "unevaluatedProperties": False}


def unique_tags():
    return obj({"tags": {"type": "array", "uniqueItems": True, "minItems": R.randint(0, 2), "maxItems": 4,
                         "items": {"enum": R.choice(ENUMS[:6])}},
                "days": {"type": "array", "contains": {"const": "mon"}, "items": {"enum": ["mon", "tue", "wed"]},
                         "maxItems": 4}}, additionalProperties=False)


def negation():
    return obj({"user": string(pattern="^[a-z]{1,12}$", **{"not": {"enum": ["root", "admin"]}}),
                "port": {"type": "integer", "minimum": 1, "maximum": 65535, "not": {"const": 22}}},
               additionalProperties=False)


def nested(depth):
    s = scalar()
    for i in range(depth):
        s = obj({R.choice(NAMES) + str(i): s, "n": {"type": "integer"}}, **closed()) if maybe(0.6) else arr(s, maxItems=2)
    return obj({"data": s}, additionalProperties=False)


def wide():
    props = {"%s_%d" % (R.choice(NAMES), i): scalar() for i in range(R.choice([20, 40]))}
    return obj(props, [k for k in props if maybe(0.3)], additionalProperties=False)


def big_enum():
    return obj({"code": {"enum": ["%s%03d" % (chr(65 + i % 26), i * 7 % 1000) for i in range(R.choice([60, 250]))]},
                "country": {"enum": [a + b for a in "ABCDEFG" for b in "AEIOU"]}}, additionalProperties=False)


def events():
    return {"type": "array", "minItems": R.randint(0, 1), "maxItems": R.choice([2, 5]), "items": obj(
        {"at": string(format="date-time"), "level": {"enum": ["debug", "info", "warn", "error"]},
         "message": string(maxLength=R.choice([40, 300])), "code": {"type": ["integer", "null"], "minimum": 0},
         "meta": {"type": "object"}}, ["at", "level"], **closed())}


def free():
    return R.choice([{}, {"type": "object"}, {"type": "array"}, {"type": ["object", "array"]},
                     {"type": "object", "properties": {"a": {}, "b": True}, "required": ["a"]}])


def config():
    return obj({"server": obj({"host": {"anyOf": [string(format="ipv4"), string(format="hostname")]},
                               "port": {"type": "integer", "minimum": 1, "maximum": 65535},
                               "tls": {"type": "boolean"}}, ["host"], **closed()),
                "log": obj({"level": {"enum": ["debug", "info"]}, "file": {"type": ["string", "null"]}}, [], **closed()),
                "limits": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}}},
               ["server"], **closed())


FAMILIES = [(tool_arguments, 22), (record, 40), (file_edit, 4), (extraction, 10), (tree, 8), (expression, 2),
            (linked_list, 5), (union, 16), (steps, 4), (dictionary, 14), (tuples, 8), (conditional, 2), (dependent, 2),
            (merged, 6), (unique_tags, 6), (negation, 2), (lambda: nested(R.randint(2, 9)), 16), (wide, 6),
            (big_enum, 4), (events, 8), (free, 5), (config, 10)]


def main():
    n = 0
    for make, count in FAMILIES:
        for _ in range(count):
            print(json.dumps({"name": "%s_%03d" % (make.__name__.strip("<>"), n), "schema": make()}, ensure_ascii=False))
            n += 1
    assert n == 200, n


main()
