"""The HTTP layer over raw sockets: framing, limits, keys, connections."""

import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import ROOT, Connection, Server, in_threads, program, request_bytes  # noqa: E402


class Http(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server(script={"text": "done.</think>hello"})

    @classmethod
    def tearDownClass(cls):
        cls.s.stop()

    def body(self, **kw):
        return dict({"messages": [{"role": "user", "content": "hi"}]}, **kw)

    def test_keep_alive_and_headers(self):
        with self.s.connect() as c:
            for i in range(5):
                c.send(request_bytes("GET", "/health", headers=[("X-Request-Id", "my-%d" % i)]))
                r = c.response()
                self.assertEqual(r.status, 200)
                self.assertEqual(r.headers["x-request-id"], "my-%d" % i)
                self.assertTrue(r.headers["server"].startswith("firesteel/"))
                self.assertEqual(r.json(), {"status": "ok"})

    def test_generated_request_ids_differ(self):
        self.assertNotEqual(self.s.get("/health").headers["x-request-id"],
                            self.s.get("/health").headers["x-request-id"])

    def test_pipelining_keeps_order(self):
        with self.s.connect() as c:
            chat = request_bytes("POST", "/v1/chat/completions", self.body())
            c.send(chat + request_bytes("GET", "/health") + chat + request_bytes("GET", "/v1/models"))
            self.assertIn("choices", c.response().json())
            self.assertEqual(c.response().json(), {"status": "ok"})
            self.assertIn("choices", c.response().json())
            self.assertEqual(c.response().json()["object"], "list")

    def test_many_pipelined(self):
        with self.s.connect() as c:
            n = 3000
            c.send(request_bytes("GET", "/health") * n)
            for _ in range(n):
                self.assertEqual(c.response().status, 200)

    def test_connection_close_and_http10(self):
        with self.s.connect() as c:
            c.send(request_bytes("GET", "/health", headers=[("Connection", "close")]))
            r = c.response()
            self.assertEqual(r.headers["connection"], "close")
            self.assertTrue(c.is_closed())
        with self.s.connect() as c:
            c.send(b"GET /health HTTP/1.0\r\n\r\n")
            self.assertEqual(c.response().status, 200)
            self.assertTrue(c.is_closed())
        with self.s.connect() as c:  # a stream without chunks ends by closing
            data = json.dumps(self.body(stream=True)).encode()
            c.send(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            r = c.response()
            self.assertNotIn("transfer-encoding", r.headers)
            self.assertTrue(r.body.endswith(b"data: [DONE]\n\n"))

    def test_chunked_body(self):
        data = json.dumps(self.body()).encode()
        with self.s.connect() as c:
            c.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            for i in range(0, len(data), 7):
                piece = data[i:i + 7]
                c.send(b"%x;ext=1\r\n%s\r\n" % (len(piece), piece))
            c.send(b"0\r\nTrailer: yes\r\n\r\n")
            self.assertEqual(c.response().json()["choices"][0]["message"]["content"], "hello")
            c.send(request_bytes("GET", "/health"))
            self.assertEqual(c.response().status, 200)

    def test_byte_by_byte(self):
        with self.s.connect() as c:
            for b in request_bytes("POST", "/v1/chat/completions", self.body()):
                c.send(bytes([b]))
            self.assertEqual(c.response().status, 200)

    def test_expect_100(self):
        data = json.dumps(self.body()).encode()
        with self.s.connect() as c:
            c.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                   b"Content-Length: %d\r\n\r\n" % len(data))
            self.assertEqual(c.head()[0], 100)
            c.send(data)
            self.assertEqual(c.response().status, 200)
        with self.s.connect() as c:
            c.send(b"POST /generate HTTP/1.1\r\nHost: x\r\nExpect: something\r\nContent-Length: 2\r\n\r\n{}")
            self.assertEqual(c.response().status, 417)

    def test_head_and_options(self):
        with self.s.connect() as c:
            c.send(request_bytes("HEAD", "/health") + request_bytes("GET", "/health"))
            r = c.response(head_only=True)
            self.assertEqual((r.status, r.headers["content-length"]), (200, "15"))
            self.assertEqual(c.response().json(), {"status": "ok"})
        r = self.s.call("OPTIONS", "/v1/chat/completions")
        self.assertEqual(r.status, 204)
        self.assertIn("POST", r.headers["allow"])
        self.assertNotIn("content-length", r.headers)

    def test_query_percent_and_absolute_form(self):
        for path in ("/health?beta=true", "/%68ealth", "http://host:1/health?x", "/health/",
                     "//health"[1:]):
            self.assertEqual(self.s.get(path).status, 200, path)
        self.assertEqual(self.s.post("/v1/chat/completions?beta=true", self.body()).status, 200)
        for bad in ("/a%zz", "/a%0", "/a%", "/%00"):
            self.assertEqual(self.s.get(bad).status, 400, bad)

    def test_unknown_path_and_method(self):
        r = self.s.get("/nothing")
        self.assertEqual(r.status, 404)
        self.assertIn("unknown endpoint", r.json()["error"]["message"])
        self.assertEqual(r.json()["error"]["type"], "not_found_error")
        r = self.s.get("/v1/chat/completions")
        self.assertEqual(r.status, 405)
        self.assertIn("POST", r.headers["allow"])
        self.assertEqual(self.s.call("DELETE", "/health").status, 405)
        self.assertEqual(self.s.call("PATCH", "/health").status, 405)
        self.assertEqual(self.s.call("PUT", "/generate", {"text": "a"}).status, 200)

    def test_malformed(self):
        for bad in (b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\r\nBad Header\r\n\r\n", b"\x00\x01\x02\x03",
                    b"GET /health HTTP/9.9\r\n\r\n",
                    b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
                    b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
                    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
                    b"POST /generate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                    b"GET /health HTTP/1.1\nHost: x\n\n"):
            with self.s.connect() as c:
                c.send(bad)
                r = c.response()
                self.assertEqual(r.status, 400, bad)
                self.assertIn("bad HTTP request", r.json()["error"]["message"])
                self.assertTrue(c.is_closed())

    def test_framing_that_a_proxy_may_read_otherwise(self):
        """Each of these has two readings; the second request must not be found behind it."""
        body = b'{"prompt":"a"}'
        chunked = b"Transfer-Encoding: chunked\r\n\r\n"
        for version, rest in (
                (b"1.1", chunked + b"e\r\n" + body + b"XX0\r\n\r\n"),
                (b"1.1", chunked + b"e\r\n" + body + b"\n\n0\r\n\r\n"),
                (b"1.1", chunked + b"e\rX" + body + b"\r\n0\r\n\r\n"),
                (b"1.1", chunked + b"e;a\rX" + body + b"\r\n0\r\n\r\n"),
                (b"1.1", chunked + b"e\r\n" + body + b"\r\n0\rX\r\n"),
                (b"1.1", chunked + b"e\r\n" + body + b"\r\n0\r\n\rX"),
                (b"1.1", b"Content-Length: 14\r\n\rX" + body),
                (b"1.1", b"A:\rXContent-Length: 14\r\n\r\n" + body),
                (b"1.1", b"Transfer-Encoding: gzip, chunked\r\n\r\ne\r\n" + body + b"\r\n0\r\n\r\n"),
                (b"1.0", b"Connection: keep-alive\r\n" + chunked + b"e\r\n" + body + b"\r\n0\r\n\r\n")):
            with self.subTest(version=version, rest=rest), self.s.connect() as c:
                c.send(b"POST /v1/completions HTTP/" + version + b"\r\nHost: x\r\n" + rest +
                       request_bytes("GET", "/health"))
                self.assertEqual(c.response().status, 400)
                self.assertTrue(c.is_closed())

    def test_header_limits(self):
        with self.s.connect() as c:
            c.send(b"GET /health HTTP/1.1\r\n" + b"A: %s\r\n\r\n" % (b"x" * 60000))
            self.assertEqual(c.response().status, 200)
        for flood in (b"A: %s\r\n\r\n" % (b"x" * (1 << 20)), b"A: b\r\n" * 10000 + b"\r\n"):
            with self.s.connect() as c:
                try:
                    c.send(b"GET /health HTTP/1.1\r\n" + flood)
                except (BrokenPipeError, ConnectionResetError):
                    pass
                self.assertEqual(c.response().status, 431)
        with self.s.connect() as c:
            try:
                c.send(b"GET /" + b"a" * 100000)
            except (BrokenPipeError, ConnectionResetError):
                pass
            self.assertEqual(c.response().status, 431)

    def test_upgrade_is_not_followed(self):
        with self.s.connect() as c:
            c.send(request_bytes("GET", "/health", headers=[("Connection", "Upgrade, HTTP2-Settings"),
                                                            ("Upgrade", "h2c")]))
            self.assertEqual(c.response().status, 200)

    def test_client_gone_in_the_middle(self):
        for cut in (1, 20, 60):
            with self.s.connect() as c:
                c.send(request_bytes("POST", "/generate", {"text": "abc"})[:cut])
        self.assertEqual(self.s.get("/health").status, 200)
        self.s.wait_idle()

    def test_ipv6(self):
        with Server(flags=["--host", "localhost"], wait=False) as s:
            s.wait_ready()
            try:
                c = Connection(s.port, host="::1")
            except OSError:
                self.skipTest("no IPv6 loopback on this machine")
            with c:
                c.send(request_bytes("GET", "/health"))
                self.assertEqual(c.response().status, 200)


class Limits(unittest.TestCase):
    def test_body_limit(self):
        with Server(flags=["--max-body-mb", "1"]) as s:
            with s.connect() as c:  # told before the body is sent
                c.send(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n")
                r = c.response()
                self.assertEqual(r.status, 413)
                self.assertEqual(r.json()["error"]["type"], "request_too_large")
            with s.connect() as c:
                try:
                    c.send(b"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
                    for _ in range(20):
                        c.send(b"20000\r\n" + b"x" * 0x20000 + b"\r\n")
                except (BrokenPipeError, ConnectionResetError):
                    pass
                self.assertEqual(c.response().status, 413)
            s.wait_idle()

    def test_chunks_are_bounded(self):
        """A chunk that cannot fit is refused by its size; extensions count as headers."""
        head = b"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        with Server() as s:
            for size in (b"4000001", b"ffffffffffffffff"):
                with s.connect(timeout=5) as c:
                    c.send(head + size + b"\r\n")
                    self.assertEqual(c.response().status, 413)
            for flood in (b"1;" + b"x" * 3000000, b"1;x=" + b"y" * 3000000, b"1;x=y\r\n \r\n" * 50000):
                with s.connect() as c:
                    try:
                        c.send(head + flood + b"\r\n \r\n0\r\n\r\n")
                    except (BrokenPipeError, ConnectionResetError):
                        pass
                    self.assertEqual(c.response().status, 431)

    def test_answers_that_nobody_takes(self):
        """Pipelined requests wait while 16 MiB of answers do; none is lost when they are read."""
        n = 40000
        data = request_bytes("GET", "/server_info") * n
        with Server() as s:
            size = len(s.get("/server_info").body)
            self.assertGreater(n * size, 48 << 20)
            for half_close in (False, True):
                with s.connect() as c:
                    before = s.info()["http"]["requests"]

                    def send():
                        c.send(data)
                        if half_close:
                            c.sock.shutdown(socket.SHUT_WR)
                    t = threading.Thread(target=send)
                    t.start()
                    last, now = -9, 0
                    while now > last + 1:  # this question is one, too
                        time.sleep(0.5)
                        last, now = now, s.info()["http"]["requests"] - before
                    self.assertLess(now * size, 30 << 20)
                    for _ in range(n):
                        self.assertEqual(c.response().status, 200)
                    t.join()
                    if half_close:
                        self.assertTrue(c.is_closed())

    @unittest.skipUnless(os.environ.get("FST_TEST_SIZE") == "long", "takes 40 s")
    def test_one_answer_that_nobody_takes(self):
        with Server() as s:
            c = socket.socket()
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            c.connect(("127.0.0.1", s.port))
            c.sendall(request_bytes("POST", "/tokenize", {"prompt": "a b " * 1000000}))
            end = time.time() + 40
            while s.info()["http"]["connections"] > 1 and time.time() < end:
                time.sleep(1)
            self.assertEqual(s.info()["http"]["connections"], 1)
            c.close()

    def test_helpers_are_made_at_the_start(self):
        """A large body needs a thread; there may be no memory for one when it comes."""
        with Server() as s:
            with open("/proc/%d/statm" % s.proc.pid) as f:
                now = int(f.read().split()[0]) * resource.getpagesize()
            if now > 1 << 40:
                self.skipTest("a sanitizer's address space cannot be limited")
            resource.prlimit(s.proc.pid, resource.RLIMIT_AS, (now + (6 << 20), now + (6 << 20)))
            self.assertIn(s.post("/tokenize", {"prompt": "a b " * 40000}).status, (200, 503))
            self.assertEqual(s.get("/health").status, 200)

    def test_full_size_body(self):
        with Server() as s:
            body = b'{"text":"a","x":"' + b"y" * ((64 << 20) - 100) + b'"}'
            self.assertEqual(s.post("/generate", body).status, 200)
            with s.connect() as c:
                c.send(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (65 << 20))
                self.assertEqual(c.response().status, 413)

    def test_deep_nesting(self):
        with Server() as s:
            for depth in (100, 200):
                body = b'{"text":"a","x":' + b"[" * depth + b"]" * depth + b"}"
                self.assertEqual(s.post("/generate", body).status, 200, depth)
            for depth in (300, 10000, 1000000):
                for o, c in ((b"[", b"]"), (b'{"a":', b"}")):
                    body = b'{"text":"a","x":' + o * depth + b"1" + c * depth + b"}"
                    r = s.post("/generate", body)
                    self.assertEqual(r.status, 400, depth)
            r = s.post("/generate", b"[" * (5 << 20))
            self.assertEqual(r.status, 400)
            self.assertEqual(s.get("/health").status, 200)

    def test_max_connections(self):
        with Server(flags=["--max-connections", "8"]) as s:
            held = [s.connect() for _ in range(8)]
            time.sleep(0.2)
            with s.connect() as c:
                r = c.response()
                self.assertEqual(r.status, 503)
                self.assertEqual(r.headers["retry-after"], "1")
            for c in held:
                c.close()
            time.sleep(0.2)
            self.assertEqual(s.get("/health").status, 200)

    def test_idle_timeout(self):
        with Server(flags=["--timeout-keep-alive", "0.4"]) as s:
            with s.connect() as c:
                c.send(request_bytes("GET", "/health"))
                c.response()
                start = time.time()
                self.assertTrue(c.is_closed(5))
                self.assertGreater(time.time() - start, 0.2)

    def test_slow_loris(self):
        with Server() as s:
            socks = [s.connect() for _ in range(200)]
            for step in range(3):
                for c in socks:
                    c.send(b"G" if step == 0 else b"E" if step == 1 else b"T")
                self.assertEqual(s.get("/health").status, 200)
            for c in socks:
                c.close()
            end = time.time() + 5
            while s.info()["http"]["connections"] > 1 and time.time() < end:
                time.sleep(0.05)
            self.assertEqual(s.info()["http"]["connections"], 1)

    def test_slow_reader_is_dropped(self):
        """A reader that takes nothing must not make the queue grow beyond its cap."""
        with Server(script={"text": "word ", "repeat": True, "eos": False, "chunk": 300,
                            "token_ms": 40}) as s:
            c = socket.socket()
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            c.connect(("127.0.0.1", s.port))
            c.sendall(request_bytes("POST", "/generate", {
                "text": "a", "stream": True, "sampling_params": {"max_new_tokens": 60000}}))
            end = time.time() + 60
            while s.state()["aborted"] < 1 and time.time() < end:
                time.sleep(0.02)
            self.assertEqual(s.state()["aborted"], 1)
            s.wait_idle()
            c.close()
            self.assertEqual(s.get("/health").status, 200)

    def test_random_malformed(self):
        import random
        base = request_bytes("POST", "/v1/chat/completions", {"messages": [
            {"role": "user", "content": "hi"}], "stream": True})
        n = 400 if os.environ.get("FST_TEST_SIZE") != "long" else 10000
        with Server() as s:
            def some(k):
                r = random.Random(5 + k)
                for _ in range(n // 4):
                    data = bytearray(base)
                    for _ in range(r.randint(1, 6)):
                        i = r.randrange(len(data))
                        what = r.random()
                        if what < 0.5:
                            data[i] = r.randrange(256)
                        elif what < 0.75:
                            del data[i:i + r.randint(1, 9)]
                        else:
                            data[i:i] = bytes(r.randrange(256) for _ in range(r.randint(1, 9)))
                    with s.connect(timeout=20) as c:
                        try:
                            c.send(bytes(data))
                            c.sock.shutdown(socket.SHUT_WR)
                            while c.more():
                                pass
                        except OSError:
                            pass
            in_threads(4, some)
            self.assertEqual(s.get("/health").status, 200)
            s.wait_idle()


class Keys(unittest.TestCase):
    def test_keys(self):
        with Server(flags=["--api-key", "sekret", "--api-key", "other"]) as s:
            for path in ("/health", "/metrics", "/", "/v1/health"):
                self.assertEqual(s.get(path).status, 200, path)
            self.assertEqual(s.call("OPTIONS", "/v1/models").status, 204)
            for headers in ([], [("Authorization", "Bearer wrong")], [("Authorization", "sekret")],
                            [("x-api-key", "")], [("Authorization", "Bearer sekret2")],
                            [("Authorization", "Bearer sekre")]):
                for path in ("/v1/models", "/server_info", "/nothing"):
                    r = s.get(path, headers)
                    self.assertEqual(r.status, 401, (headers, path))
                    self.assertEqual(r.json()["error"]["type"], "authentication_error")
                    self.assertEqual(r.json()["error"]["code"], "invalid_api_key")
            for headers in ([("Authorization", "Bearer sekret")], [("authorization", "bearer other")],
                            [("X-Api-Key", "sekret")]):
                self.assertEqual(s.get("/v1/models", headers).status, 200, headers)
            self.assertNotIn("sekret", s.output())

    def test_admin_key(self):
        with Server(flags=["--api-key", "user", "--admin-api-key", "root"]) as s:
            def abort(key):
                return s.post("/abort_request", {"abort_all": True},
                              [("Authorization", "Bearer " + key)]).status
            self.assertEqual([abort("root"), abort("user"), abort("no")], [200, 403, 401])

    def test_cors(self):
        with Server(flags=["--cors"]) as s:
            self.assertEqual(s.get("/health").headers["access-control-allow-origin"], "*")
            r = s.call("OPTIONS", "/v1/chat/completions")
            self.assertEqual(r.headers["access-control-allow-methods"], "GET, POST, OPTIONS")
            self.assertEqual(r.headers["access-control-allow-headers"], "*")
        with Server() as s:
            self.assertNotIn("access-control-allow-origin", s.get("/health").headers)

    def test_public_address_needs_a_key(self):
        for host in ("0.0.0.0", "::"):
            p = subprocess.run([program("firesteel-fake"), "serve", "--host", host, "--port", "0"],
                               capture_output=True, text=True, timeout=60, cwd=ROOT)
            self.assertEqual(p.returncode, 2, p.stderr)
            self.assertIn("--api-key", p.stderr)
        with Server(flags=["--host", "0.0.0.0", "--allow-public"]) as s:
            self.assertIn("warn", s.output())
            self.assertEqual(s.get("/health").status, 200)


if __name__ == "__main__":
    unittest.main()
