"""Answers that outlive their connection: cut anywhere and read on, by token and key, within bounds."""

import json
import os
import random
import re
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Server, events, frames, in_threads, request_bytes  # noqa: E402

KEEP = ("X-Firesteel-Keep", "30")
WORDS = "x</think>" + "".join("word%d " % i for i in range(60))
DIALECTS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "n": 2,
                             "stream_options": {"include_usage": True}, "logprobs": True},
    "/v1/completions": {"prompt": ["hi", "there"], "max_tokens": 200, "logprobs": 1, "echo": True},
    "/generate": {"text": "hi", "sampling_params": {"max_new_tokens": 200, "sampling_seed": 5},
                  "return_logprob": True},
    "/v1/responses": {"input": "hi", "reasoning": {"summary": "auto"}},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "thinking": {"type": "enabled"}},
}
DRAWN = re.compile(r'"(id|item_id|call_id|created|created_at|e2e_latency|sequence_number)":("[^"]*"|[0-9.]+)')


def same(value):
    """What does not differ from run to run."""
    return DRAWN.sub(r'"\1":0', json.dumps(value, separators=(",", ":")))


def said(evs):
    """The text of each choice."""
    out = {}
    for _, name, e in evs:
        if name is not None:
            d = e.get("delta", "")
            out[name] = out.get(name, "") + (d if isinstance(d, str) else "".join(str(v) for k, v in d.items() if k != "type"))
        elif isinstance(e, dict) and "output_ids" in e:
            out[0] = e["text"]
        elif isinstance(e, dict):
            for c in e["choices"]:
                d = c.get("delta", c)
                for k in ("reasoning_content", "content", "text"):
                    out[c["index"], k] = out.get((c["index"], k), "") + (d.get(k) or "")
    return out


class Reader:
    """A stream's raw events, one by one."""

    def __init__(self, s, method, path, body=None, headers=()):
        self.c = s.connect()
        self.c.send(request_bytes(method, path, body, headers))
        self.status, self.headers = self.c.head()
        self.token = self.headers.get("x-firesteel-resume")
        self.raw = b""

    def read(self, n=None, seconds=30):
        """n more events, or all of them to the end."""
        out, end = [], time.time() + seconds
        while n is None or len(out) < n:
            assert time.time() < end
            while b"\n\n" not in self.raw:
                piece = self.c.chunk()
                if not piece:
                    self.c.close()
                    return out
                self.raw += piece
            one, self.raw = self.raw.split(b"\n\n", 1)
            out += frames(one + b"\n\n")
        return out

    def leave(self):
        self.c.close()


def start(s, path="/v1/chat/completions", body=None, headers=(KEEP,), **kw):
    body = dict(body or DIALECTS["/v1/chat/completions"], stream=True, **kw)
    r = Reader(s, "POST", path, body, headers)
    assert r.status == 200, r.status
    assert not headers or re.fullmatch("[0-9a-f]{32}", r.token), r.headers
    return r


def resume(s, token, after=None, headers=()):
    return Reader(s, "GET", "/v1/streams/%s%s" % (token, "" if after is None else "?after=%d" % after), None, headers)


class Resume(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server()

    @classmethod
    def tearDownClass(cls):
        cls.s.wait_idle()
        cls.s.stop()

    def result(self, token, seconds=10):
        end = time.time() + seconds
        while True:
            r = self.s.get("/v1/streams/%s/result" % token)
            if r.status != 202:
                return r
            self.assertEqual(r.json()["status"], "in_progress")
            self.assertEqual(r.headers["retry-after"], "1")
            assert time.time() < end
            time.sleep(0.02)

    def test_every_dialect_at_every_place(self):
        """Read in pieces of random sizes with hang-ups between, a stream is what it is in one piece."""
        rng = random.Random(7)
        for path, body in DIALECTS.items():
            with self.subTest(path=path):
                self.s.script(text=WORDS, token_ms=1, chunk=3)
                plain = self.s.post(path, dict(body, seed=5) if path != "/generate" else body)
                self.assertEqual(plain.status, 200, plain.body)
                extra = {} if path == "/generate" else {"seed": 5}
                whole = frames(self.s.post(path, dict(body, stream=True, **extra)).body)
                self.assertEqual({e[0] for e in whole}, {None})
                for _ in range(4):
                    r = start(self.s, path, body, **extra)
                    got, token = r.read(rng.randrange(4)), r.token
                    while True:
                        r.leave()
                        if rng.randrange(3) == 0:
                            time.sleep(0.03)
                        r = resume(self.s, token, len(got))
                        self.assertEqual(r.status, 200)
                        n = rng.randrange(1, 20)
                        more = r.read(n)
                        got += more
                        if len(more) < n:
                            break
                    r.leave()
                    self.assertEqual([e[0] for e in got], list(range(1, len(got) + 1)))
                    if path == "/v1/responses":
                        self.assertEqual([e[2]["sequence_number"] for e in got], list(range(len(got))))
                    self.assertEqual(said(got), said(whole))
                    a = self.result(token)
                    self.assertEqual((a.status, same(a.json())), (200, same(plain.json())))
                    # and once more from the start, after its end
                    self.assertEqual(resume(self.s, token).read(), got)

    def test_answer_that_is_no_stream(self):
        for path, body in DIALECTS.items():
            self.s.script(text=WORDS, token_ms=2)
            want = self.s.post(path, body)
            r = Reader(self.s, "POST", path, body, [KEEP])
            self.assertEqual((r.status, r.headers["content-type"]), (200, "application/json"))
            self.assertEqual(self.s.get("/v1/streams/%s/result" % r.token).status, 202)
            e = self.s.get("/v1/streams/" + r.token).json()["error"]
            self.assertEqual(e["code"], "no_stream")
            r.leave()
            a = self.result(r.token)
            strip = re.compile(r'"(seed)":[0-9]+')
            self.assertEqual(strip.sub("", same(a.json())), strip.sub("", same(want.json())))
            kept = self.s.post(path, body, [KEEP])
            self.assertEqual(strip.sub("", same(kept.json())), strip.sub("", same(want.json())))
            self.assertEqual(self.result(kept.headers["x-firesteel-resume"]).json(), kept.json())

    def test_token_comes_at_once(self):
        self.s.script(text="x</think>y", prefill_ms=600)
        t = time.time()
        r = start(self.s)
        self.assertLess(time.time() - t, 0.4)
        r.leave()
        self.assertEqual(resume(self.s, r.token, 0).read()[-1][2], "[DONE]")

    def test_new_reader_replaces_the_old(self):
        self.s.script(text=WORDS, token_ms=5)
        a = start(self.s)
        first = a.read(3)
        b = resume(self.s, a.token, 1)
        got = b.read(4)
        self.assertEqual(got[:2], first[1:3])
        with self.assertRaises((EOFError, ConnectionResetError)):
            while a.read(1):
                pass
        c = resume(self.s, a.token, 3)
        with self.assertRaises((EOFError, ConnectionResetError)):
            while b.read(1):
                pass
        self.assertEqual(c.read()[-1][2], "[DONE]")
        self.assertEqual(self.s.state()["num_running"], 0)

    def test_pipelined_behind_itself(self):
        """The requests behind a stream on its own connection are answered when it ends, as by any other."""
        self.s.script(text=WORDS, token_ms=2)
        for path, body in DIALECTS.items():
            with self.subTest(path=path):
                a = start(self.s, path, body)
                first = a.read(1)[0][2]
                rid = first["response"]["id"] if path == "/v1/responses" else "none"
                for method, what in (("GET", "/v1/streams/%s?after=1" % a.token),
                                     ("POST", "/v1/responses/%s/cancel" % rid),
                                     ("GET", "/v1/streams/%s/result" % a.token)):
                    a.c.send(request_bytes(method, what, {} if method == "POST" else None))
                rest, raw = b"", a.raw
                while True:
                    piece = a.c.chunk()
                    if not piece:
                        break
                    rest += piece
                again, cancelled, whole = (a.c.response() for _ in range(3))
                self.assertEqual(frames(raw + rest), frames(again.body))
                self.assertEqual(whole.status, 200)
                if path == "/v1/responses":
                    self.assertEqual((cancelled.status, cancelled.json()), (200, whole.json()))
                else:
                    self.assertEqual(cancelled.status, 404)
                a.leave()

    def test_last_event_id_and_head(self):
        self.s.script(text=WORDS, token_ms=3)
        a = start(self.s)
        a.read(2)
        self.assertEqual(self.s.call("HEAD", "/v1/streams/" + a.token).status, 200)
        rest = a.read()  # it was not taken away
        got = resume(self.s, a.token, headers=[("Last-Event-ID", "2")]).read()
        self.assertEqual(got, rest)
        self.assertEqual(resume(self.s, a.token, 10 ** 9).read(), [])
        for bad in ("?after=x", "?after=", "?after=-1", "?after=1e3", "?after=%00", "?after=" + "9" * 30):
            r = self.s.get("/v1/streams/%s%s" % (a.token, bad))
            self.assertEqual(r.status, 400, bad)
        r = self.s.get("/v1/streams/" + a.token, [("Last-Event-ID", "abc")])
        self.assertEqual((r.status, r.json()["error"]["param"]), (400, "Last-Event-ID"))

    def test_unknown_tokens(self):
        for path in ("0" * 32, "x", "0" * 33, "0" * 32 + "/result", "0" * 32 + "/other", "%2e%2e"):
            r = self.s.get("/v1/streams/" + path)
            self.assertEqual((r.status, r.json()["error"]["code"]), (404, "stream_not_found"), path)
        self.assertEqual(self.s.post("/v1/streams/" + "0" * 32, {}).status, 405)

    def test_header(self):
        self.s.script(text="x</think>y")
        for value in ("", "x", "-1", "1.5", "901", "99999999999"):
            r = self.s.post("/v1/chat/completions", DIALECTS["/v1/chat/completions"],
                            [("X-Firesteel-Keep", value)])
            e = r.json()["error"]
            self.assertEqual((r.status, e["param"]), (400, "X-Firesteel-Keep"), value)
        r = self.s.post("/v1/chat/completions", DIALECTS["/v1/chat/completions"], [("X-Firesteel-Keep", "0")])
        self.assertNotIn("x-firesteel-resume", r.headers)
        # what is refused is refused as ever, and leaves nothing
        n = self.s.info()["http"]["kept_streams"]
        r = self.s.post("/v1/chat/completions", {"messages": [], "stream": True}, [KEEP])
        self.assertEqual((r.status, r.headers.get("x-firesteel-resume")), (400, None))
        self.s.script(submit="full")
        r = self.s.post("/v1/chat/completions", DIALECTS["/v1/chat/completions"], [KEEP])
        self.assertEqual((r.status, r.headers.get("x-firesteel-resume")), (503, None))
        self.assertEqual(self.s.info()["http"]["kept_streams"], n)

    def test_failure_is_kept(self):
        self.s.script(text=WORDS, token_ms=5, fail_after=20)
        for path, body in DIALECTS.items():
            with self.subTest(path=path):
                a = start(self.s, path, body)
                a.leave()
                r = self.result(a.token)
                b = resume(self.s, a.token)
                if path == "/v1/responses":  # its last event says so
                    self.assertEqual((r.status, r.json()["status"]), (200, "failed"))
                    self.assertEqual(b.read()[-1][1], "response.failed")
                    continue
                self.assertEqual(r.status, 500)
                self.assertIn("not numbers", r.json()["error"]["message"])
                got = []
                with self.assertRaises(EOFError):
                    while True:
                        got += b.read(1)
                self.assertIn("error", got[-1][2])
                self.assertEqual([e[0] for e in got], list(range(1, len(got) + 1)))
        r = Reader(self.s, "POST", "/v1/chat/completions", DIALECTS["/v1/chat/completions"], [KEEP])
        with self.assertRaises(EOFError):  # its head said 200: it is never whole
            while r.c.chunk():
                pass
        self.assertEqual(self.result(r.token).status, 500)

    def test_abort_request_reaches_it(self):
        self.s.script(text=WORDS, repeat=True, eos=False, token_ms=5)
        a = start(self.s, rid="mine")
        a.leave()
        self.assertEqual(self.s.post("/abort_request", {"rid": "mine"}).json()["aborted"], 1)
        got = resume(self.s, a.token).read()
        self.assertEqual(got[-1][2], "[DONE]")
        self.assertEqual(self.result(a.token).json()["choices"][0]["finish_reason"], "abort")

    def test_events_are_bounded(self):
        """Cumulative events of a long answer: the oldest go, which a late reader is told."""
        self.s.script(text="word " * 2500, token_ms=1)
        body = {"text": "hi", "sampling_params": {"max_new_tokens": 2500}}
        a = start(self.s, "/generate", body)
        got = a.read()
        sizes = [len(json.dumps(e[2])) for e in got]
        self.assertGreater(sum(sizes), 12 << 20)
        r = self.s.get("/v1/streams/" + a.token)
        e = r.json()["error"]
        self.assertEqual((r.status, e["code"]), (410, "events_gone"))
        last = int(re.search(r"up to (\d+)", e["message"]).group(1))
        self.assertEqual(self.s.get("/v1/streams/%s?after=%d" % (a.token, last - 1)).status, 410)
        self.assertEqual(resume(self.s, a.token, last).read(), got[last:])
        self.assertLess(self.s.info()["http"]["kept_bytes"], 40 << 20)
        self.assertEqual(self.result(a.token).json()["text"], got[-2][2]["text"])

    def test_reader_that_does_not_read(self):
        """It is dropped when 16 MiB wait for it; the request goes on, and the next reader has its events."""
        self.s.script(text="word " * 2500, token_ms=1)
        a = start(self.s, "/generate", {"text": "hi", "sampling_params": {"max_new_tokens": 2500}})
        self.assertTrue(self.result(a.token, 30).json()["text"].startswith("word word"))
        with self.assertRaises((EOFError, ConnectionResetError)):
            a.read()
        last = int(re.search(r"up to (\d+)", self.s.get("/v1/streams/" + a.token).text).group(1))
        got = resume(self.s, a.token, last).read()
        self.assertEqual([e[0] for e in got], list(range(last + 1, last + 1 + len(got))))
        self.assertEqual(got[-1][2], "[DONE]")

    def test_background_response(self):
        self.s.script(text=WORDS, token_ms=4)
        r = self.s.post("/v1/responses", {"input": "hi", "background": True})
        a = r.json()
        self.assertEqual((r.status, a["status"], a["background"], a["output"]), (200, "queued", True, []))
        seen = set()
        while True:
            b = self.s.get("/v1/responses/" + a["id"]).json()
            seen.add(b["status"])
            if b["status"] not in ("queued", "in_progress"):
                break
            time.sleep(0.02)
        self.assertEqual(b["status"], "completed")
        self.assertIn("in_progress", seen)
        self.assertIn("word59", b["output"][0]["content"][0]["text"])
        self.assertEqual(self.s.get("/v1/streams/%s/result" % r.headers["x-firesteel-resume"]).json(), b)
        # the same as a stream, found again by its id as OpenAI's client does
        a = start(self.s, "/v1/responses", {"input": "hi", "background": True}, headers=())
        got = a.read(5)
        rid = got[0][2]["response"]["id"]
        a.leave()
        r = Reader(self.s, "GET", "/v1/responses/%s?stream=true&starting_after=%d" % (rid, 4))
        got += r.read()
        self.assertEqual([e[2]["sequence_number"] for e in got], list(range(len(got))))
        self.assertEqual(got[-1][1], "response.completed")
        self.assertEqual(self.s.get("/v1/responses/%s?stream=true&starting_after=x" % rid).status, 400)

    def test_background_cancel_and_failure(self):
        self.s.script(text=WORDS, repeat=True, eos=False, token_ms=5)
        for stream in (False, True):
            if stream:
                a = start(self.s, "/v1/responses", {"input": "hi", "background": True}, headers=())
                rid, token = a.read(1)[0][2]["response"]["id"], a.token
                a.leave()
            else:
                r = self.s.post("/v1/responses", {"input": "hi", "background": True})
                rid, token = r.json()["id"], r.headers["x-firesteel-resume"]
            r = self.s.post("/v1/responses/%s/cancel" % rid, {})
            self.assertEqual((r.status, r.json()["status"]), (200, "cancelled"))
            self.assertEqual(self.result(token).json()["status"], "cancelled")
            r = self.s.post("/v1/responses/%s/cancel" % rid, {})
            self.assertEqual((r.status, r.json()["status"]), (200, "cancelled"))
        self.s.script(text=WORDS, fail_after=5, token_ms=5)
        rid = self.s.post("/v1/responses", {"input": "hi", "background": True}).json()["id"]
        end = time.time() + 5
        while self.s.get("/v1/responses/" + rid).json()["status"] in ("queued", "in_progress"):
            assert time.time() < end
            time.sleep(0.02)
        b = self.s.get("/v1/responses/" + rid).json()
        self.assertEqual((b["status"], b["error"]["code"]), ("failed", "server_error"))


class Bounds(unittest.TestCase):
    def test_keys(self):
        with Server(flags=["--api-key", "k1", "--api-key", "k2", "--access-log"],
                    script={"text": WORDS, "token_ms": 3}) as s:
            k1, k2 = ("x-api-key", "k1"), ("x-api-key", "k2")
            a = start(s, headers=(KEEP, k1))
            a.leave()
            self.assertEqual(s.get("/v1/streams/" + a.token).status, 401)
            for path in ("", "/result"):
                self.assertEqual(s.get("/v1/streams/" + a.token + path, [k2]).status, 404)
            self.assertEqual(resume(s, a.token, headers=[k1]).read()[-1][2], "[DONE]")
            self.assertEqual(s.get("/v1/streams/%s/result" % a.token, [k1]).status, 200)
            end = time.time() + 5
            while s.output().count("path=/v1/streams/...") < 5:
                assert time.time() < end
                time.sleep(0.02)
            self.assertNotIn(a.token, s.output())

    def test_time(self):
        """A second without a reader: what runs is cancelled, what has ended is forgotten."""
        with Server(flags=["--keep-max-s", "3"]) as s:
            s.script(text=WORDS, repeat=True, eos=False, token_ms=5)
            before = s.state()["aborted"]
            a = start(s, headers=[("X-Firesteel-Keep", "1")])
            time.sleep(1.5)  # it has a reader
            a.leave()
            for _ in range(3):  # and then visitors
                time.sleep(0.6)
                self.assertEqual(s.get("/v1/streams/%s/result" % a.token).status, 202)
            b = resume(s, a.token)
            b.read(5)
            b.leave()
            t = time.time()
            s.wait_idle(3)
            self.assertGreater(time.time() - t, 0.6)
            self.assertEqual(s.state()["aborted"], before + 2)  # two choices
            self.assertEqual(s.get("/v1/streams/" + a.token).status, 404)
            s.script(text="x</think>y")
            a = start(s, headers=[("X-Firesteel-Keep", "1")])
            a.read()
            self.assertEqual(s.get("/v1/streams/%s/result" % a.token).status, 200)
            time.sleep(1.3)
            self.assertEqual(s.get("/v1/streams/%s/result" % a.token).status, 404)
            i = s.info()["http"]
            self.assertEqual((i["kept_streams"], i["kept_bytes"]), (0, 0))
            r = s.post("/v1/chat/completions", DIALECTS["/v1/chat/completions"], [("X-Firesteel-Keep", "4")])
            self.assertEqual(r.status, 400)

    def test_number(self):
        with Server(flags=["--keep-max-streams", "2"]) as s:
            s.script(text=WORDS, repeat=True, eos=False, token_ms=5)
            a, b = start(s, n=1), start(s, n=1)
            r = s.post("/v1/chat/completions", DIALECTS["/v1/chat/completions"], [KEEP])
            self.assertEqual((r.status, r.json()["error"]["code"]), (503, "keep_full"))
            self.assertEqual(s.chat(max_tokens=3).status, 200)
            s.post("/abort_request", {"abort_all": True})
            for x in (a, b):
                x.read()
            s.script(text="x</think>y")
            c = start(s)
            c.read()
            got = [s.get("/v1/streams/%s/result" % x.token).status for x in (a, b, c)]
            self.assertEqual((sorted(got), got[2]), ([200, 200, 404], 200))
            page = s.get("/metrics").text
            self.assertRegex(page, r'num_kept_streams\{[^}]*\} 2\n')
            self.assertRegex(page, r'kept_stream_bytes\{[^}]*\} [1-9]')

    def test_off(self):
        with Server(flags=["--keep-max-s", "0"]) as s:
            for body, headers in ((DIALECTS["/v1/responses"], [KEEP]),
                                  (dict(DIALECTS["/v1/responses"], background=True), [])):
                r = s.post("/v1/responses", body, headers)
                self.assertEqual((r.status, r.json()["error"]["code"]), (400, "unsupported_parameter"))

    def test_shutdown(self):
        """A drain waits for what runs without a reader, within the grace."""
        s = Server(script={"text": WORDS, "token_ms": 5})
        a, b = start(s), start(s)
        a.leave()
        s.proc.send_signal(signal.SIGTERM)
        self.assertEqual(b.read()[-1][2], "[DONE]")
        s.proc.wait(30)
        log = s.stop()
        self.assertIn("reason=drained", log)
        self.assertEqual(log.count("finish=stop"), 4)
        s = Server(script={"text": WORDS, "repeat": True, "eos": False, "token_ms": 10},
                   flags=["--shutdown-grace", "1"])
        start(s).leave()
        log = s.stop()
        self.assertIn("aborted=1", log)
        self.assertEqual(log.count("finish=abort"), 2)

    def test_many(self):
        """Readers that come and go at random leave nothing behind."""
        with Server(flags=["--keep-max-streams", "200"], script={"text": WORDS, "token_ms": 2, "chunk": 2}) as s:
            paths = list(DIALECTS)

            def client(i):
                rng = random.Random(i)
                for _ in range(6):
                    path = rng.choice(paths)
                    r = start(s, path, DIALECTS[path])
                    got, token = r.read(rng.randrange(5)), r.token
                    if rng.randrange(4) == 0:
                        r.leave()
                        continue
                    while True:
                        if rng.randrange(2):
                            r.leave()
                        r = resume(s, token, len(got))
                        n = rng.randrange(1, 40)
                        more = r.read(n)
                        got += more
                        if len(more) < n:
                            break
                    assert [e[0] for e in got] == list(range(1, len(got) + 1))
            in_threads(8, client)
            s.wait_idle()
            self.assertGreater(s.info()["http"]["kept_streams"], 20)

    def test_place_in_line(self):
        """Eight slots are taken: those behind see their places get less."""
        with Server(script={"text": WORDS, "token_ms": 4}) as s:
            busy = []
            for _ in range(8):
                c = s.connect()
                c.send(request_bytes("POST", "/v1/chat/completions", {
                    "messages": [{"role": "user", "content": "a"}], "stream": True, "max_tokens": 200}))
                busy.append(c)
            for c in busy:
                c.head()
            seen = {}

            def waiter(i):
                time.sleep(0.02 * i)
                seen[i] = [e["prompt_progress"] for e in s.stream(return_progress=True, max_tokens=200)
                           if isinstance(e, dict) and "prompt_progress" in e]
            in_threads(3, waiter)
            for i in range(3):
                places = [p["queue_position"] for p in seen[i]]
                self.assertEqual(places, sorted(places, reverse=True))
                self.assertEqual(places[0], i + 1)
                self.assertIsNone(seen[i][0]["eta_ms"])
            for c in busy:
                c.close()


class Bundled(unittest.TestCase):
    def test_cut_and_read_on(self):
        """Over the bundled model: the text of a stream that was cut is that of one that was not."""
        with Server(fake=False) as s:
            body = {"messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0, "max_tokens": 60}
            want = s.post("/v1/chat/completions", body).json()["choices"][0]["message"]
            a = start(s, body=body)
            got = a.read(4)
            a.leave()
            got += resume(s, a.token, 4).read()
            text = "".join(c["delta"].get("content") or "" for e in got if isinstance(e[2], dict)
                           for c in e[2]["choices"])
            self.assertEqual(text, want["content"])
            self.assertEqual(s.get("/v1/streams/%s/result" % a.token).json()["choices"][0]["message"], want)
            s.wait_idle()

    def test_place_in_line(self):
        """The engine's own line, one request at a time."""
        with Server(fake=False, flags=["--max-running-requests", "1"]) as s:
            busy = start(s, "/v1/completions", {"prompt": "a", "max_tokens": 3000, "ignore_eos": True}, headers=())
            busy.read(1)
            seen = {}

            def waiter(i):
                time.sleep(0.15 * i)
                evs = s.stream("no %d " % i * 600, return_progress=True, max_tokens=2)
                seen[i] = [e["prompt_progress"] for e in evs if isinstance(e, dict) and "prompt_progress" in e]

            def leave(i):
                time.sleep(0.8)
                busy.leave()
            in_threads(3, lambda i: leave(i) if i == 2 else waiter(i))
            for i in range(2):
                self.assertEqual((seen[i][0]["queue_position"], seen[i][0]["processed"]), (i + 1, 0))
                self.assertEqual(seen[i][-1]["queue_position"], 0)
            computed = [p for p in seen[0] if p["processed"] > p["cache"]]
            self.assertTrue(all(p["eta_ms"] >= 0 for p in computed) and computed, seen[0])
            s.wait_idle()


if __name__ == "__main__":
    unittest.main()
