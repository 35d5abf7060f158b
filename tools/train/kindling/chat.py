"""Prompt renderer: chat messages to the text that DeepSeek-V4 reads.

Follows `encoding_dsv4.py` of the DeepSeek-V4 checkpoints. The three fixed texts below are part of that protocol and
have to be exact to the byte, so they stand here as they are; everything else is ours.

A conversation is a list of dicts with `role` and `content` and, where they apply, `reasoning_content`, `tool_calls`,
`tool_call_id`, `tools`, `response_format`, `task`, `wo_eos`.
"""

import json

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
USER, ASSISTANT, THINK, END_THINK = "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"
DSML, REMINDER = "｜DSML｜", "<｜latest_reminder｜>"
TASK_TOKENS = {t: f"<｜{t}｜>" for t in ("action", "query", "authority", "domain", "title", "read_url")}

TOOLS_HEAD = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"""
TOOLS_TAIL = """

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""
EFFORT_ABSOLUTE = """Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.

"""
EFFORT_BEYOND = """Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying cause rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no assumption remains unchecked and no error remains undiscovered.

"""
EFFORT_TEXT = {"preview": {"max": EFFORT_ABSOLUTE}, "official": {"high": EFFORT_ABSOLUTE, "max": EFFORT_BEYOND}}


def to_json(value):
    """JSON in the style of the prompt format: Python's default separators, non-ASCII characters as they are."""
    return json.dumps(value, ensure_ascii=False)


def _function(tool):
    fn = tool.get("function", tool)
    return {k: v for k, v in fn.items() if k != "strict" and v is not None}


def tools_block(tools):
    return TOOLS_HEAD + "\n".join(to_json(_function(t)) for t in tools) + TOOLS_TAIL


def call_block(calls):
    """The DSML text of an assistant's tool calls; `arguments` may be an object or its JSON text."""
    out = [f"<{DSML}tool_calls>"]
    for call in calls:
        fn = call.get("function", call)
        args = fn["arguments"]
        if isinstance(args, str):
            args = json.loads(args or "{}")
        out.append(f'<{DSML}invoke name="{fn["name"]}">')
        params = [
            f'<{DSML}parameter name="{k}" string="{"true" if isinstance(v, str) else "false"}">'
            f"{v if isinstance(v, str) else to_json(v)}</{DSML}parameter>"
            for k, v in args.items()
        ]
        out.append("\n".join(params))  # no parameters: an empty line
        out.append(f"</{DSML}invoke>")
    out.append(f"</{DSML}tool_calls>")
    return "\n".join(out)


def _flatten(content):
    if isinstance(content, str) or content is None:
        return content or ""
    return "\n\n".join(p["text"] if p.get("type") == "text" else f"[Unsupported {p.get('type')}]" for p in content)


def _merge(messages):
    """Tool results and user texts that follow each other become one user turn of blocks."""
    turns = []
    for m in messages:
        role = m["role"]
        if role in ("tool", "user"):
            block = (
                ("result", m.get("tool_call_id"), _flatten(m.get("content")))
                if role == "tool"
                else ("text", None, _flatten(m.get("content")))
            )
            last = turns[-1] if turns else None
            if last is None or last["role"] != "user" or (role == "user" and last.get("task")):
                turns.append({"role": "user", "blocks": []})
            turns[-1]["blocks"].append(block)
            for key in ("task", "wo_eos", "tools"):
                if key in m:
                    turns[-1][key] = m[key]
        else:
            turns.append(dict(m))
    order = {}
    for t in turns:
        if t["role"] == "assistant" and t.get("tool_calls"):
            order = {c.get("id") or c.get("function", {}).get("id"): i for i, c in enumerate(t["tool_calls"])}
        elif t["role"] == "user":
            results = sorted((b for b in t["blocks"] if b[0] == "result"), key=lambda b: order.get(b[1], 0))
            results = iter(results)
            t["blocks"] = [next(results) if b[0] == "result" else b for b in t["blocks"]]
    return turns


def render(messages, thinking=True, effort=None, profile="official", drop_thinking=True, add_bos=True):
    """The prompt text of a conversation, generation header included."""
    turns = _merge(messages)
    drop = drop_thinking and not any(t.get("tools") for t in turns)
    asks = ("user", "developer")
    last = max((i for i, t in enumerate(turns) if t["role"] in asks), default=-1)
    if thinking and drop:
        keep = ("user", "system", "assistant", "tool", "latest_reminder", "direct_search_results")
        turns = [t for i, t in enumerate(turns) if i >= last or t["role"] in keep]
        last = max((i for i, t in enumerate(turns) if t["role"] in asks), default=-1)
    out = [BOS if add_bos else ""]
    if thinking and effort:
        out.append(EFFORT_TEXT[profile].get(effort, ""))
    for i, t in enumerate(turns):
        role, content = t["role"], _flatten(t.get("content"))
        extra = ""
        if t.get("tools"):
            extra += "\n\n" + tools_block(t["tools"])
        if t.get("response_format"):
            extra += (
                "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
                + to_json(t["response_format"])
            )
        if role == "system":
            out.append(content + extra)
        elif role == "developer":
            out.append(USER + content + extra)
        elif role == "user":
            out.append(
                USER
                + "\n\n".join(f"<tool_result>{b[2]}</tool_result>" if b[0] == "result" else b[2] for b in t["blocks"])
            )
        elif role == "latest_reminder":
            out.append(REMINDER + content)
        elif role == "assistant":
            if thinking and not (i and turns[i - 1].get("task")) and (not drop or i > last):
                out.append((t.get("reasoning_content") or t.get("reasoning") or "") + END_THINK)
            out.append(content)
            if t.get("tool_calls"):
                out.append("\n\n" + call_block(t["tool_calls"]))
            out.append("" if t.get("wo_eos") else EOS)
        else:
            raise ValueError(f"Unknown role: {role}")
        if i + 1 < len(turns) and turns[i + 1]["role"] not in ("assistant", "latest_reminder"):
            continue
        think = THINK if thinking and (not drop or i >= last) else END_THINK
        task = t.get("task")
        if task == "action":
            out.append(ASSISTANT + (THINK if thinking else END_THINK) + TASK_TOKENS["action"])
        elif task:
            out.append(TASK_TOKENS[task])
        elif role in asks:
            out.append(ASSISTANT + think)
    return "".join(out)
