"""Clients that leave, servers that stop: cancel, half-close, keep-alive, drain, stalls."""

import json
import os
import random
import signal
import socket
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Connection, Server, events, in_threads, request_bytes  # noqa: E402

LONG = {"text": "word ", "repeat": True, "eos": False, "token_ms": 5}
PREFILL = {"text": "x</think>y", "prefill_ms": 30000}


def chat(stream, **kw):
    return request_bytes("POST", "/v1/chat/completions",
                         dict({"messages": [{"role": "user", "content": "hi"}], "stream": stream}, **kw))


def wait_running(s, n=1, seconds=5):
    end = time.time() + seconds
    while s.state()["num_running"] < n:
        assert time.time() < end, s.state()
        time.sleep(0.01)


class Cancel(unittest.TestCase):
    def check_gone(self, s, leave, stream, script, within=1.0):
        s.script(**script)
        before = s.state()["aborted"]
        c = s.connect()
        c.send(chat(stream))
        wait_running(s)
        start = time.time()
        leave(c)
        s.wait_idle(within)
        took = time.time() - start
        self.assertEqual(s.state()["aborted"], before + 1)
        c.close()
        return took

    def test_close_and_reset(self):
        with Server() as s:
            for script in (LONG, PREFILL):
                for stream in (False, True):
                    for leave in (Connection.close, Connection.reset,
                                  lambda c: (c.sock.shutdown(socket.SHUT_WR), time.sleep(0.1), c.close())):
                        with self.subTest(script=script, stream=stream):
                            self.check_gone(s, leave, stream, script)

    def test_half_closed_client_gets_its_answer(self):
        with Server() as s:
            s.script(text="x</think>here it is", prefill_ms=700, token_ms=20)
            for stream in (False, True):
                with s.connect() as c:
                    c.send(chat(stream))
                    c.sock.shutdown(socket.SHUT_WR)
                    r = c.response(skip_interim=False)
                    self.assertEqual(r.status, 200)
                    self.assertIn("here" if stream else "here it is", r.text)
                    self.assertTrue(c.is_closed())
            with s.connect() as c:  # pipelined and then half-closed
                c.send(request_bytes("GET", "/health") + chat(False) + request_bytes("GET", "/health"))
                c.sock.shutdown(socket.SHUT_WR)
                self.assertEqual(c.response().json(), {"status": "ok"})
                self.assertIn("choices", c.response().json())
                self.assertEqual(c.response().json(), {"status": "ok"})

    def test_half_closed_from_another_address(self):
        """Not on loopback nothing is known of the peer's socket: an interim response finds out."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as u:
            try:
                u.connect(("192.0.2.1", 9))  # sends nothing
                own = u.getsockname()[0]
            except OSError:
                own = "127.0.0.1"
        if own.startswith("127."):
            self.skipTest("no address but loopback")
        with Server(flags=["--host", "0.0.0.0", "--allow-public", "--skip-server-warmup"]) as s:
            for stream in (False, True):
                s.script(text="x</think>here it is", prefill_ms=1500)
                with Connection(s.port, host=own) as c:
                    c.send(chat(stream))
                    c.sock.shutdown(socket.SHUT_WR)
                    self.assertEqual(c.head()[0], 100)
                    self.assertIn("here", c.response().text)
                s.script(**PREFILL)
                before = s.state()["aborted"]
                c = Connection(s.port, host=own)
                c.send(chat(stream))
                wait_running(s)
                c.close()
                s.wait_idle(2)
                self.assertEqual(s.state()["aborted"], before + 1)

    def test_abort_request(self):
        with Server(script=LONG) as s:
            for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
                               ("/v1/completions", {"prompt": "a", "max_tokens": 5000}),
                               ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 5000}})):
                for stream in (False, True):
                    with s.connect() as c:
                        c.send(request_bytes("POST", path, dict(body, rid="mine", stream=stream)))
                        wait_running(s)
                        self.assertEqual(s.post("/abort_request", {"rid": "other"}).json()["aborted"], 0)
                        self.assertEqual(s.post("/abort_request", {"rid": "mine"}).json()["aborted"], 1)
                        r = c.response()
                        self.assertEqual(r.status, 200)
                        last = events(r.body)[-2] if stream else r.json()
                        reason = (last["meta_info"]["finish_reason"]["type"] if path == "/generate"
                                  else last["choices"][0]["finish_reason"])
                        self.assertEqual(reason, "abort")
            self.assertEqual(s.post("/abort_request", {}).status, 400)
            with s.connect() as a, s.connect() as b:
                a.send(chat(True, n=3))
                b.send(chat(False))
                wait_running(s, 4)
                self.assertEqual(s.post("/abort_request", {"abort_all": True}).json()["aborted"], 2)
                a.response(), b.response()
            s.wait_idle()

    def test_random_cancels(self):
        """A thousand clients leave at any time; every slot, page and handle comes back."""
        n = 1000
        with Server(script={"text": "word ", "repeat": True, "eos": False, "token_ms": 1,
                            "prefill_ms": 20}) as s:
            def clients(k):
                r = random.Random(k)
                for _ in range(n // 20):
                    c = s.connect()
                    c.send(chat(r.random() < 0.5, n=r.choice([1, 1, 2]),
                                max_tokens=r.choice([1, 5, 400])))
                    time.sleep(r.random() * 0.15)
                    if r.random() < 0.3:
                        c.reset()
                    elif r.random() < 0.3:
                        c.sock.shutdown(socket.SHUT_WR)
                        c.close()
                    else:
                        c.close()
            in_threads(20, clients)
            state = s.wait_idle(10)
            self.assertEqual((state["slots_used"], state["kv_tokens_used"]), (0, 0))
            i = s.info()["http"]
            self.assertEqual(i["handles_taken"], i["handles_given"])
            self.assertLessEqual(i["exchanges"], 1)
            s.script(text="a</think>still right")
            self.assertEqual(s.chat().json()["choices"][0]["message"]["content"], "still right")

    def test_leaving_after_pipelining_a_lot(self):
        """Where the server stopped reading, a hang-up is found all the same."""
        with Server() as s:
            for leave in (Connection.close, Connection.reset):
                for stream in (False, True):
                    s.script(**PREFILL)
                    before = s.state()["aborted"]
                    c = s.connect()
                    c.send(chat(stream))
                    wait_running(s)
                    c.sock.setblocking(False)
                    more, sent, end = request_bytes("GET", "/health") * 4000, 0, time.time() + 1
                    while time.time() < end:
                        try:
                            sent += c.sock.send(more)
                        except BlockingIOError:
                            time.sleep(0.02)
                    self.assertGreater(sent, 1 << 20)
                    self.assertEqual(s.state()["num_running"], 1)
                    leave(c)
                    s.wait_idle(1.5)
                    self.assertEqual(s.state()["aborted"], before + 1)
            s.script(text="x</think>y", prefill_ms=600)
            with s.connect() as c:  # one that stays gets all its answers
                n = 30000
                more = request_bytes("GET", "/health", headers=[("x-request-id", "i" * 30)])
                self.assertGreater(n * len(more), 2 << 20)
                t = threading.Thread(target=c.send, args=(chat(False) + more * n,))
                t.start()
                self.assertIn("choices", c.response().json())
                for _ in range(n):
                    self.assertEqual(c.response().status, 200)
                t.join()

    def test_leaving_while_a_large_body_is_read(self):
        with Server(script=PREFILL, flags=["--skip-server-warmup"]) as s:
            big = request_bytes("POST", "/v1/completions", {"prompt": "word " * 40000})
            for _ in range(10):
                c = s.connect()
                c.send(big)
                c.reset()
            s.wait_idle(20)


class KeepAlive(unittest.TestCase):
    def test_comments_by_the_clock(self):
        with Server(script={"text": "x</think>y", "prefill_ms": 1600},
                    flags=["--sse-keepalive-interval", "0.4", "--skip-server-warmup"]) as s:
            for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
                               ("/v1/completions", {"prompt": "a"})):
                with s.connect() as c:
                    start = time.time()
                    c.send(request_bytes("POST", path, dict(body, stream=True)))
                    self.assertEqual(c.head()[0], 200)
                    self.assertGreater(time.time() - start, 0.35)
                    self.assertLess(time.time() - start, 0.9)
                    times = []
                    while True:
                        piece = c.chunk()
                        if piece != b": keep-alive\n\n":
                            break
                        times.append(time.time())
                    self.assertGreaterEqual(len(times), 3)
                    for a, b in zip(times, times[1:]):
                        self.assertLess(b - a, 0.9)
                    while c.chunk():
                        pass

    def test_none_before_due_and_none_when_off(self):
        for flags, prefill in ((["--sse-keepalive-interval", "0"], 1200), ([], 600)):
            with Server(script={"text": "x</think>y", "prefill_ms": prefill},
                        flags=flags + ["--skip-server-warmup"]) as s:
                self.assertNotIn(b"keep-alive", s.chat(stream=True).body)

    def test_not_without_stream(self):
        with Server(script={"text": "x</think>y", "prefill_ms": 700},
                    flags=["--sse-keepalive-interval", "0.1", "--skip-server-warmup"]) as s:
            self.assertTrue(s.chat().body.startswith(b"{"))


class Stop(unittest.TestCase):
    def test_drain(self):
        for signum in (signal.SIGTERM, signal.SIGINT):
            s = Server(script={"text": "x</think>finished", "prefill_ms": 800})
            with s.connect() as c, s.connect() as idle, s.connect() as idle2:
                idle.send(request_bytes("GET", "/health"))
                idle.response()
                c.send(chat(False))
                wait_running(s)
                s.proc.send_signal(signum)
                time.sleep(0.2)
                r = s.chat()
                self.assertEqual((r.status, r.json()["error"]["message"]), (503, "server shutting down"))
                self.assertEqual(s.get("/health").status, 503)
                self.assertTrue(idle2.is_closed())
                self.assertIn("finished", c.response().text)
            s.stop(signum=0)

    def test_grace_then_abort(self):
        s = Server(script=LONG, flags=["--shutdown-grace", "0.3"])
        with s.connect() as c:
            c.send(chat(False))
            wait_running(s)
            start = time.time()
            s.proc.send_signal(signal.SIGTERM)
            self.assertEqual(c.response().json()["choices"][0]["finish_reason"], "abort")
            self.assertLess(time.time() - start, 3)
        s.stop(signum=0)

    def slow_client(self, s, close):
        """A request whose answer of some MB is with the server's queue when this returns."""
        c = Connection.__new__(Connection)
        c.sock, c.buf = socket.socket(), b""
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        c.sock.settimeout(30)
        c.sock.connect(("127.0.0.1", s.port))
        c.send(request_bytes("POST", "/tokenize", {"prompt": "a b c d " * 400000},
                             [("Connection", "close")] if close else []))
        return c, c.head()

    def test_answers_that_are_still_leaving(self):
        for close in (False, True):
            s = Server(flags=["--skip-server-warmup"])
            c, (status, headers) = self.slow_client(s, close)
            self.assertEqual(status, 200)
            n = int(headers["content-length"])
            self.assertGreater(n, 6 << 20)
            s.proc.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            body = c.exactly(200000)
            time.sleep(2.5)  # longer than a connection lingers
            body += c.exactly(n - len(body))
            self.assertEqual(json.loads(body)["count"], len(json.loads(body)["tokens"]))
            self.assertTrue(c.is_closed())
            c.close()
            s.stop(signum=0)

    def test_nobody_reads_the_last_answer(self):
        s = Server(flags=["--skip-server-warmup", "--shutdown-grace", "0.5"])
        c, _ = self.slow_client(s, False)
        start = time.time()
        s.stop()
        self.assertGreater(time.time() - start, 0.4)
        self.assertLess(time.time() - start, 5)
        c.close()

    def test_text_work_does_not_outlast_the_grace(self):
        body = json.dumps({"prompt": "\u7684" * 20000000}, ensure_ascii=False).encode()
        s = Server(flags=["--skip-server-warmup", "--shutdown-grace", "0.3"])
        with s.connect() as c:
            c.send(request_bytes("POST", "/tokenize", body))
            time.sleep(0.3)
            start = time.time()
            s.stop()
            self.assertLess(time.time() - start, 4)

    def test_second_signal(self):
        s = Server(script=LONG)
        with s.connect() as c:
            c.send(chat(False))
            wait_running(s)
            s.proc.send_signal(signal.SIGTERM)
            time.sleep(0.1)
            start = time.time()
            s.stop(signal.SIGTERM, expect=128 + signal.SIGTERM)
            self.assertLess(time.time() - start, 3)

    def test_grace_bounds_what_is_written(self):
        """A disk that hangs holds nobody up, whoever used the grace before."""
        for grace, least, most in (("0", 1.9, 6), ("3", 4.9, 10)):
            s = Server(env={"FST_FAKE_CLOSE_MS": "40000"}, flags=["--shutdown-grace", grace])
            start = time.time()
            self.assertIn("reason=grace while=writing", s.stop())
            self.assertGreater(time.time() - start, least)
            self.assertLess(time.time() - start, most)

    def test_second_signal_while_closing(self):
        """What an engine writes at its end takes its time on a slow disk."""
        s = Server(env={"FST_FAKE_CLOSE_MS": "20000"})
        s.proc.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        self.assertIn("reason=drained", s.output())
        start = time.time()
        s.stop(signal.SIGTERM, expect=128 + signal.SIGTERM)
        self.assertLess(time.time() - start, 3)

    def test_signal_while_loading(self):
        s = Server(env={"FST_FAKE_OPEN_MS": "20000"}, wait=False)
        time.sleep(0.4)
        start = time.time()
        s.stop()
        self.assertLess(time.time() - start, 2)

    def test_port_taken(self):
        with Server() as s:
            t = Server(wait=False, flags=["--port", str(s.port)])
            self.assertIn("address already in use", t.stop(signum=0, expect=3))


class Stall(unittest.TestCase):
    def test_health_tells_of_a_stall(self):
        with Server(flags=["--health-timeout", "0.5"]) as s:
            self.assertEqual(s.get("/health").status, 200)
            time.sleep(0.8)
            self.assertEqual(s.get("/health").status, 200)  # idle is healthy
            s.script(hang=True, **LONG)
            with s.connect() as c:
                c.send(chat(False))
                time.sleep(1.5)
                r = s.get("/health")
                self.assertEqual(r.status, 503)
                self.assertGreater(r.json()["last_step_age"], 0.5)
            s.wait_idle()
            self.assertEqual(s.get("/health").status, 200)

    def test_a_long_step_is_no_stall(self):
        """What counts is progress inside a step, not its end."""
        with Server(flags=["--health-timeout", "0.5", "--watchdog-timeout", "1"]) as s:
            s.script(hang=True, beat=True, **LONG)
            with s.connect() as c:
                c.send(chat(False))
                wait_running(s)
                for _ in range(10):
                    time.sleep(0.2)
                    self.assertEqual(s.get("/health").status, 200)

    def test_health_while_loading(self):
        s = Server(env={"FST_FAKE_OPEN_MS": "1500"}, wait=False)
        seen, end = [], time.time() + 20
        while time.time() < end:
            try:
                r = s.get("/health")
            except OSError:
                time.sleep(0.02)
                continue
            if r.status == 200:
                break
            self.assertEqual((r.status, r.json()["status"]), (503, "starting"))
            if r.json()["stage"] == "checkpoint":
                seen.append((r.json()["loaded_bytes"], r.json()["total_bytes"]))
            time.sleep(0.05)
        self.assertEqual(seen, sorted(seen))
        self.assertGreater(len(set(seen)), 5)
        s.stop()

    def test_watchdog(self):
        s = Server(flags=["--watchdog-timeout", "0.8"])
        s.script(hang=True, **LONG)
        c = s.connect()
        c.send(chat(False))
        self.assertIn("watchdog", s.stop(signum=0, expect=1))
        c.close()

    def test_the_device_is_lost(self):
        """Open requests end with 500, the process with 1, within five seconds."""
        s = Server()
        with s.connect() as stream, s.connect() as c:
            s.script(**dict(LONG, token_ms=5))
            stream.send(chat(True))
            wait_running(s)
            s.script(text="never", fail_after=0, lost=True)
            start = time.time()
            c.send(chat(False))
            self.assertEqual(c.response().status, 500)
            self.assertIn("device lost", s.stop(signum=0, expect=1))
            self.assertLess(time.time() - start, 5)

    def test_health_generate(self):
        with Server() as s:
            self.assertEqual(s.get("/health_generate").json(), {"status": "ok"})
            s.wait_idle()


if __name__ == "__main__":
    unittest.main()
