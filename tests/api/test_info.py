"""What the server tells about itself: /metrics against our own counts, /server_info, lists."""

import os
import re
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import ROOT, Server, program  # noqa: E402

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\n"])*"'
SAMPLE = re.compile(r"^(%s)(?:\{((?:%s)(?:,%s)*)?\})? (\S+)$" % (NAME, LABEL, LABEL))


def parse(text):
    """Strict reading of the text format 0.0.4: {name: {labels: value}}, and the types."""
    assert text.endswith("\n")
    values, types, helps, current = {}, {}, set(), None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ")[2]
            assert name not in helps, "two HELP lines for " + name
            helps.add(name)
            current = name
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == current and name not in types
            assert kind in ("counter", "gauge", "histogram")
            types[name] = kind
        else:
            m = SAMPLE.match(line)
            assert m, "no sample: " + line
            name = m.group(1)
            family = re.sub(r"_(bucket|sum|count)$", "", name) if types[current] == "histogram" else name
            assert family == current, "sample of %s below %s" % (name, current)
            labels = tuple(sorted(re.findall(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"', m.group(2) or "")))
            assert labels not in values.get(name, {}), "sample given twice: " + line
            values.setdefault(name, {})[labels] = float(m.group(3))
    for name, kind in types.items():
        if kind == "counter":
            assert name.endswith("_total"), name
        if kind == "histogram":
            buckets = [(float(dict(k)["le"].replace("+Inf", "inf")), v)
                       for k, v in values[name + "_bucket"].items()]
            assert buckets == sorted(buckets) and buckets[-1][0] == float("inf")
            assert [v for _, v in buckets] == sorted(v for _, v in buckets)
            assert buckets[-1][1] == list(values[name + "_count"].values())[0]
    return values, types


class Metrics(unittest.TestCase):
    def get(self, s):
        r = s.get("/metrics")
        self.assertEqual(r.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8")
        return parse(r.text)[0]

    def one(self, values, name, **labels):
        for k, v in values["sglang:" + name].items():
            if all(dict(k).get(a) == b for a, b in labels.items()):
                return v
        raise KeyError(name)

    def test_counts(self):
        with Server(script={"text": "a b</think>c d e f", "token_ms": 2}) as s:
            before = self.get(s)
            prompt = completion = 0
            for i in range(5):
                u = s.chat("word " * (i + 1)).json()["usage"]
                prompt += u["prompt_tokens"]
                completion += u["completion_tokens"]
            for i in range(3):
                e = s.stream(stream_options={"include_usage": True})[-2]["usage"]
                prompt += e["prompt_tokens"]
                completion += e["completion_tokens"]
            s.chat(top_p=7)
            s.get("/nothing")
            after = self.get(s)

            def diff(name, **labels):
                return self.one(after, name, **labels) - (self.one(before, name, **labels)
                                                          if "sglang:" + name in before else 0)
            self.assertEqual(diff("prompt_tokens_total"), prompt)
            self.assertEqual(diff("generation_tokens_total"), completion)
            self.assertEqual(diff("num_requests_total", is_streaming="true"), 3)
            self.assertEqual(diff("num_requests_total", is_streaming="false"), 5)
            self.assertEqual(diff("time_to_first_token_seconds_count"), 8)
            self.assertEqual(diff("e2e_request_latency_seconds_count"), 8)
            self.assertEqual(diff("prompt_tokens_histogram_sum"), prompt)
            self.assertEqual(diff("generation_tokens_histogram_sum"), completion)
            self.assertGreaterEqual(completion, diff("inter_token_latency_seconds_count"))
            self.assertEqual(self.one(after, "http_responses_total", status_code="400"), 1)
            self.assertEqual(self.one(after, "http_responses_total", status_code="404"), 1)
            self.assertEqual(diff("http_requests_total"), 11)
            self.assertLessEqual(self.one(after, "kv_available_tokens") + self.one(after, "kv_used_tokens") +
                                 self.one(after, "kv_evictable_tokens"),
                                 self.one(after, "max_total_num_tokens"))
            self.assertGreater(self.one(after, "process_resident_memory_bytes"), 1 << 20)

    def test_under_load(self):
        with Server(script={"text": "word ", "repeat": True, "eos": False, "token_ms": 20}) as s:
            import threading
            threads = [threading.Thread(target=s.chat, kwargs={"max_tokens": 100}) for _ in range(3)]
            for t in threads:
                t.start()
            seen = 0
            for _ in range(40):
                v = self.get(s)
                seen = max(seen, self.one(v, "num_running_reqs"))
                if self.one(v, "num_running_reqs"):
                    self.assertGreater(self.one(v, "kv_used_tokens"), 0)
            for t in threads:
                t.join()
            self.assertEqual(seen, 3)
            self.assertEqual(self.one(self.get(s), "num_running_reqs"), 0)

    def test_prefix_labels_and_off(self):
        with Server(flags=["--metrics-prefix", "fst_", "--served-model-name", 'we"ird\\']) as s:
            values, _ = parse(s.get("/metrics").text)
            self.assertIn("fst_num_running_reqs", values)
        with Server(flags=["--no-enable-metrics"]) as s:
            self.assertEqual(s.get("/metrics").status, 404)


class Info(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server()

    @classmethod
    def tearDownClass(cls):
        cls.s.stop()

    def test_models(self):
        for path in ("/v1/models", "/models"):
            r = self.s.get(path).json()
            self.assertEqual(r["object"], "list")
            m = r["data"][0]
            self.assertEqual((m["id"], m["object"], m["owned_by"]), ("test", "model", "firesteel"))
            self.assertEqual(m["max_model_len"], 65536)
            self.assertEqual(m["context_length"], 65536)

    def test_server_info(self):
        for path in ("/server_info", "/get_server_info"):
            r = self.s.get(path).json()
            self.assertEqual(r["internal_states"][0]["avg_spec_accept_length"], 3.4)
            self.assertEqual(r["speculative_algorithm"], "DSPARK")
            for k in ("model_path", "served_model_name", "tp_size", "page_size", "version", "host", "port",
                      "chunked_prefill_size", "max_running_requests", "max_total_num_tokens",
                      "max_req_input_len", "context_length"):
                self.assertIn(k, r)
            for k in ("last_gen_throughput", "effective_max_running_requests_per_dp", "memory_usage"):
                self.assertIn(k, r["internal_states"][0])
        self.assertEqual(self.s.post("/set_internal_state", {"reset_spec_stats": True}).status, 200)
        self.assertEqual(self.s.post("/set_internal_state", {"x": 1}).status, 400)

    def test_small_pages(self):
        for path in ("/model_info", "/get_model_info"):
            r = self.s.get(path).json()
            self.assertTrue(r["is_generation"])
            self.assertEqual(r["weight_version"], "default")
        self.assertIn("/v1/chat/completions", self.s.get("/").text)
        self.assertEqual(self.s.get("/get_load").json()[0]["num_reqs"], 0)
        self.assertEqual(self.s.post("/flush_cache", {}).status, 200)
        self.assertEqual(self.s.get("/v1/health").json(), {"status": "ok"})

    def test_log_has_no_secrets_or_prompts(self):
        with Server(flags=["--api-key", "topsecret", "--access-log"]) as s:
            s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "private words"}]},
                   [("Authorization", "Bearer topsecret")])
            end = time.time() + 5
            while "path=/v1/chat" not in s.output() and time.time() < end:
                time.sleep(0.02)  # a thread writes the log
            log = s.output()
            self.assertIn("request end", log)
            self.assertIn("path=/v1/chat/completions status=200", log)
            self.assertNotIn("topsecret", log)
            self.assertNotIn("private", log)


class Documents(unittest.TestCase):
    def test_fields_of_the_manual(self):
        """docs/api.md holds the table of request fields as the program has it."""
        table = subprocess.run([program("firesteel-fake"), "help", "fields"], capture_output=True,
                               text=True, check=True).stdout
        with open(os.path.join(ROOT, "docs", "api.md"), encoding="utf-8") as f:
            self.assertIn(table, f.read())

    def test_each_refused_field_is_refused(self):
        table = subprocess.run([program("firesteel-fake"), "help", "fields"], capture_output=True,
                               text=True, check=True).stdout
        base = {"chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
                "completions": ("/v1/completions", {"prompt": "x"}), "generate": ("/generate", {"text": "x"}),
                "messages": ("/v1/messages", {"messages": [{"role": "user", "content": "x"}]}),
                "responses": ("/v1/responses", {"input": "x"})}
        n = 0
        with Server() as s:
            for line in table.splitlines()[2:]:
                name, on, state, notes = [c.strip() for c in line.strip("|").split("|", 3)]
                name = name.strip("`")
                for where in on.split(", "):
                    path, body = base[where if where != "sampling_params" else "generate"]
                    for value in ({"odd": 1}, [3], 0.25):
                        sent = (dict(body, sampling_params={name: value}) if where == "sampling_params"
                                else dict(body, **{name: value}))
                        r = s.post(path, sent)
                        if state == "refused":
                            n += 1
                            self.assertEqual(r.status, 400, (name, where, value, r.body))
                            self.assertIn(name, r.json()["error"]["message"])
                        elif state == "inert":
                            self.assertEqual(r.status, 200, (name, where, value, r.body))
        self.assertGreater(n, 60)


if __name__ == "__main__":
    unittest.main()
