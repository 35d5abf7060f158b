"""Starts servers for black-box tests and speaks raw HTTP to them.  Standard library only."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("FST_BUILD", os.path.join(ROOT, "build"))
MODEL = os.path.join(ROOT, "models", "kindling")


def program(name):
    return os.path.join(BUILD, name)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Response:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    @property
    def text(self):
        return self.body.decode()


class Connection:
    """A raw connection that reads exactly one response at a time."""

    def __init__(self, port, host="127.0.0.1", timeout=60):
        self.sock = socket.create_connection((host, port), timeout=timeout)
        self.buf = b""

    def send(self, data):
        self.sock.sendall(data)

    def more(self):
        data = self.sock.recv(65536)
        self.buf += data
        return bool(data)

    def until(self, mark):
        while mark not in self.buf:
            if not self.more():
                raise EOFError("closed before %r; got %r" % (mark, self.buf[-300:]))
        head, self.buf = self.buf.split(mark, 1)
        return head

    def exactly(self, n):
        while len(self.buf) < n:
            if not self.more():
                raise EOFError("closed in a body")
        data, self.buf = self.buf[:n], self.buf[n:]
        return data

    def head(self):
        lines = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        version, status = lines[0].split(" ")[:2]
        assert version == "HTTP/1.1", lines[0]
        headers = {}
        for line in lines[1:]:
            name, value = line.split(":", 1)
            headers[name.strip().lower()] = value.strip()
        return int(status), headers

    def chunk(self):
        """One chunk of a chunked body; b"" is the last."""
        size = int(self.until(b"\r\n"), 16)
        data = self.exactly(size)
        assert self.exactly(2) == b"\r\n"
        return data

    def response(self, head_only=False, skip_interim=True):
        status, headers = self.head()
        while skip_interim and 100 <= status < 200:
            status, headers = self.head()
        if head_only or status in (204, 100):
            return Response(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while True:
                piece = self.chunk()
                if not piece:
                    return Response(status, headers, body)
                body += piece
        if "content-length" in headers:
            return Response(status, headers, self.exactly(int(headers["content-length"])))
        while self.more():
            pass
        body, self.buf = self.buf, b""
        return Response(status, headers, body)

    def is_closed(self, timeout=5):
        self.sock.settimeout(timeout)
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True
        except socket.timeout:
            return False

    def reset(self):
        import struct
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *a):
        self.sock.close()


def request_bytes(method, path, body=None, headers=(), host="127.0.0.1"):
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = ["%s %s HTTP/1.1" % (method, path), "Host: " + host]
    lines += ["%s: %s" % h for h in headers]
    if body is not None:
        lines.append("Content-Length: %d" % len(data))
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + data


def events(body):
    """SSE events of a stream as parsed JSON; "[DONE]" as that string; comments as (':', text)."""
    out = []
    for block in body.decode("utf-8").split("\n\n"):
        if not block:
            continue
        if block.startswith(":"):
            out.append((":", block[1:].strip()))
            continue
        assert block.startswith("data: "), block
        assert "\n" not in block, block
        data = block[6:]
        out.append(data if data == "[DONE]" else json.loads(data))
    return out


def frames(body):
    """SSE events as (id, event, data): what is absent is None, data is parsed; comments are left out."""
    out = []
    for block in body.decode("utf-8").split("\n\n"):
        if not block or block.startswith(":"):
            continue
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        assert set(lines) <= {"id", "event", "data"} and "data" in lines, block
        data = lines["data"]
        out.append((int(lines["id"]) if "id" in lines else None, lines.get("event"),
                    data if data == "[DONE]" else json.loads(data)))
    return out


class Server:
    """A server process.  fake: over the scripted engine, in a folder of its own.  user: whose it is, not ours."""

    def __init__(self, fake=True, flags=(), env=None, wait=True, script=None, tokenizer=None, user=None,
                 model=None):
        self.port = free_port()
        self.fake = fake
        self.dir = tempfile.mkdtemp(prefix="firesteel-test-")
        self.log = open(os.path.join(self.dir, "log"), "w+")
        if fake:
            shutil.copy(tokenizer or os.path.join(MODEL, "tokenizer.json"), self.dir)
            self.script(**(script or {"text": "ok"}))
        model = self.dir if fake else model or MODEL
        self.proc = subprocess.Popen(
            [program("firesteel-fake" if fake else "firesteel"), "serve", "--model", model,
             "--served-model-name", "test", "--port", str(self.port)] + list(flags),
            stdout=self.log, stderr=subprocess.STDOUT, env=dict(os.environ, **(env or {})), user=user)
        if wait:
            self.wait_ready()

    def script(self, **kw):
        path = os.path.join(self.dir, "script.json")
        with open(path + ".new", "w") as f:
            json.dump(kw, f)
        os.rename(path + ".new", path)

    def wait_ready(self, seconds=120):
        end = time.time() + seconds
        while time.time() < end:
            assert self.proc.poll() is None, "server ended: " + self.output()
            with contextlib.suppress(OSError, EOFError):
                if self.get("/health").status == 200:
                    return
            time.sleep(0.03)
        raise AssertionError("not ready: " + self.output())

    def output(self):
        with open(self.log.name) as f:
            return f.read()

    def connect(self, **kw):
        return Connection(self.port, **kw)

    def call(self, method, path, body=None, headers=()):
        with self.connect() as c:
            c.send(request_bytes(method, path, body, headers))
            return c.response(head_only=method == "HEAD")

    def get(self, path, headers=()):
        return self.call("GET", path, headers=headers)

    def post(self, path, body, headers=()):
        return self.call("POST", path, body, headers)

    def chat(self, content="hi", **kw):
        return self.post("/v1/chat/completions",
                         dict({"messages": [{"role": "user", "content": content}]}, **kw))

    def stream(self, content="hi", **kw):
        r = self.chat(content, stream=True, **kw)
        assert r.status == 200, r.body
        return events(r.body)

    def state(self):
        return self.get("/server_info").json()["internal_states"][0]

    def info(self):
        return self.get("/server_info").json()

    def wait_idle(self, seconds=10):
        """Wait until nothing is running or held; returns the last state."""
        end = time.time() + seconds
        while True:
            i = self.info()
            s = i["internal_states"][0]
            idle = (s["num_running"] == s["num_waiting"] == s["slots_used"] == s["kv_tokens_used"] ==
                    i["http"]["generations"] == 0)
            if idle or time.time() > end:
                assert idle, "not idle after %.1f s: %r" % (seconds, (s, i["http"]))
                assert i["http"]["handles_taken"] == i["http"]["handles_given"], i["http"]
                return s
            time.sleep(0.01)

    def stop(self, signum=signal.SIGTERM, expect=0):
        if self.proc.poll() is None:
            self.proc.send_signal(signum)
        try:
            code = self.proc.wait(60)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            raise AssertionError("did not stop: " + self.output())
        text = self.output()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)
        assert code == expect, "exit status %d: %s" % (code, text[-3000:])
        assert "Sanitizer" not in text, text[-3000:]
        return text

    def __enter__(self):
        return self

    def __exit__(self, kind, *a):
        if kind:
            sys.stderr.write(self.output()[-2000:])
            self.proc.kill()
            self.proc.wait()
            self.log.close()
            shutil.rmtree(self.dir, ignore_errors=True)
        else:
            self.stop()


def in_threads(n, body):
    """body(i) in n threads; raises the first failure."""
    failed = []

    def run(i):
        try:
            body(i)
        except BaseException as e:  # noqa: handed to the caller
            failed.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failed:
        raise failed[0]
