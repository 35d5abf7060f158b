/* protocol.h - the texts that DeepSeek-V4 was trained on, to the byte.
 *
 * Source: encoding/encoding_dsv4.py of the DeepSeek-V4 checkpoints (MIT licence): tool and
 * response format templates, effort texts; the second effort text is from the V4-Flash-0731
 * release. A model notices a changed space here, so nothing in this file is ours to improve. */
#ifndef FST_CHAT_PROTOCOL_H
#define FST_CHAT_PROTOCOL_H

#define PROTOCOL_BAR       "\xef\xbd\x9c" /* U+FF5C fullwidth vertical line */
#define PROTOCOL_BLANK     "\xe2\x96\x81" /* U+2581 lower one eighth block */
#define PROTOCOL_TAG(name) "<" PROTOCOL_BAR name PROTOCOL_BAR ">"

#define PROTOCOL_BOS             PROTOCOL_TAG("begin" PROTOCOL_BLANK "of" PROTOCOL_BLANK "sentence")
#define PROTOCOL_EOS             PROTOCOL_TAG("end" PROTOCOL_BLANK "of" PROTOCOL_BLANK "sentence")
#define PROTOCOL_USER            PROTOCOL_TAG("User")
#define PROTOCOL_ASSISTANT       PROTOCOL_TAG("Assistant")
#define PROTOCOL_LATEST_REMINDER PROTOCOL_TAG("latest_reminder")
#define PROTOCOL_THINK           "<think>"
#define PROTOCOL_END_THINK       "</think>"

#define PROTOCOL_MARK PROTOCOL_BAR "DSML" PROTOCOL_BAR
#define PROTOCOL_OPEN "<" PROTOCOL_MARK
#define PROTOCOL_END  "</" PROTOCOL_MARK

#define PROTOCOL_CALLS_OPEN  PROTOCOL_OPEN "tool_calls>\n"
#define PROTOCOL_CALLS_CLOSE "\n" PROTOCOL_END "tool_calls>"
#define PROTOCOL_INVOKE_OPEN PROTOCOL_OPEN "invoke name=\""
#define PROTOCOL_INVOKE_GO   "\">\n"
#define PROTOCOL_INVOKE_END  "\n" PROTOCOL_END "invoke>"
#define PROTOCOL_PARAM_OPEN  PROTOCOL_OPEN "parameter name=\""
#define PROTOCOL_PARAM_TEXT  "\" string=\"true\">"
#define PROTOCOL_PARAM_JSON  "\" string=\"false\">"
#define PROTOCOL_PARAM_CLOSE PROTOCOL_END "parameter>"

#define PROTOCOL_RESULT_OPEN  "<tool_result>"
#define PROTOCOL_RESULT_CLOSE "</tool_result>"

/* 890 bytes; one JSON line per tool follows, joined by newlines. */
#define PROTOCOL_TOOLS_HEAD                                                                        \
    "## Tools\n\n"                                                                                 \
    "You have access to a set of tools to help answer the user's question. You can invoke tools "  \
    "by writing a \"" PROTOCOL_OPEN "tool_calls>\" block like the following:\n\n" PROTOCOL_OPEN    \
    "tool_calls>\n" PROTOCOL_OPEN "invoke name=\"$TOOL_NAME\">\n" PROTOCOL_OPEN                    \
    "parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE" PROTOCOL_END       \
    "parameter>\n...\n" PROTOCOL_END "invoke>\n" PROTOCOL_OPEN                                     \
    "invoke name=\"$TOOL_NAME2\">\n...\n" PROTOCOL_END "invoke>\n" PROTOCOL_END "tool_calls>\n\n"  \
    "String parameters should be specified as is and set `string=\"true\"`. For all other types "  \
    "(numbers, booleans, arrays, objects), pass the value in JSON format and set "                 \
    "`string=\"false\"`.\n\n"                                                                      \
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning " \
    "inside <think>...</think> BEFORE any tool calls or final response.\n\n"                       \
    "Otherwise, output directly after </think> with tool calls or final response.\n\n"             \
    "### Available Tool Schemas\n\n"

/* 99 bytes. */
#define PROTOCOL_TOOLS_TAIL                                                                        \
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke "    \
    "tool calls.\n"

/* All of it, for a struct grammar_tool_format (grammar/grammar.h). */
#define PROTOCOL_TOOL_FORMAT                                                                       \
    {                                                                                              \
        .calls_lead = "\n\n", .calls_open = PROTOCOL_CALLS_OPEN,                                   \
        .calls_close = PROTOCOL_CALLS_CLOSE, .invoke_open = PROTOCOL_INVOKE_OPEN,                  \
        .invoke_go = PROTOCOL_INVOKE_GO, .invoke_end = PROTOCOL_INVOKE_END,                        \
        .param_open = PROTOCOL_PARAM_OPEN, .param_text = PROTOCOL_PARAM_TEXT,                      \
        .param_json = PROTOCOL_PARAM_JSON, .param_close = PROTOCOL_PARAM_CLOSE,                    \
        .tag_end = PROTOCOL_END, .mark = PROTOCOL_MARK                                             \
    }

#define PROTOCOL_RESPONSE_FORMAT                                                                   \
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"

/* 476 bytes: "max" of the first releases, "high" of the later ones. */
#define PROTOCOL_EFFORT_ABSOLUTE                                                                   \
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"                            \
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to "     \
    "resolve the root cause, rigorously stress-testing your logic against all potential paths, "   \
    "edge cases, and adversarial scenarios.\n"                                                     \
    "Explicitly write out your entire deliberation process, documenting every intermediate step, " \
    "considered alternative, and rejected hypothesis to ensure absolutely no assumption is left "  \
    "unchecked.\n\n"

/* 528 bytes: "max" of the later releases. */
#define PROTOCOL_EFFORT_BEYOND                                                                     \
    "Reasoning Effort: Beyond maximum \xe2\x80\x94 exhaustive, relentless, and uncompromising.\n"  \
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: "      \
    "exhaustively decompose the problem into its most fundamental components, trace every causal " \
    "chain to its root, and resolve the underlying cause rather than any surface symptom.\n"       \
    "Do not stop reasoning until you have independently verified the solution from multiple "      \
    "angles and are certain that no assumption remains unchecked and no error remains "            \
    "undiscovered.\n\n"

#endif
