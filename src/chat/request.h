/* request.h - building blocks of a chat_request, for the files of this folder. */
#ifndef FST_CHAT_REQUEST_H
#define FST_CHAT_REQUEST_H

#include "chat/chat.h"

/* Copies into the request's arena; data NULL and r->failed when out of memory. */
struct chat_str chat_copy(struct chat_request *r, const char *s, size_t len);
/* Prompt-style JSON of a value. */
struct chat_str chat_copy_json(struct chat_request *r, json_val *v);
/* Room for one more element in an arena array of n: the array, moved if need be. */
void *chat_grow(struct chat_request *r, void *array, size_t n, size_t size);

/* Text of v if it is exactly `s`. */
bool chat_json_is(json_val *v, const char *s);

enum { CHAT_TOOLS_MAX = 512 };

/* For readers of bodies.  A refusal about `path`, which the text continues: ": expected string, got
 * number"; error_param and error_code are set.  Returns FST_EINVAL. */
enum fst_status chat_refuse(struct chat_request *r, const char *path, const char *code,
                            const char *fmt, ...) __attribute__((format(printf, 4, 5)));
enum fst_status chat_wrong_type(struct chat_request *r, const char *path, const char *expected,
                                json_val *v);
/* At most 64 bytes of a string that the client sent, cut at a code point. */
const char *chat_shown(json_val *v, char out[68]);
/* A member that is absent or null leaves *out as it is. */
enum fst_status chat_get_bool(struct chat_request *r, json_val *o, const char *key,
                              const char *path, bool *out);
/* A part that is no text: refused, or a placeholder where the server has them. */
enum fst_status chat_other_part(struct chat_request *r, struct chat_message *m, const char *path,
                                json_val *type);
/* One place where an effort may stand.  *seen when it does. */
enum fst_status chat_read_effort(struct chat_request *r, json_val *v, const char *path,
                                 bool *thinking, bool *seen);

/* The tools of a request in another dialect: an array or null, each element added, or left out, by `read`, which
 * is told its place for refusals. */
typedef enum fst_status chat_tool_reader(struct chat_request *r, json_val *v, const char *path);
enum fst_status chat_read_tools(struct chat_request *r, json_val *v, chat_tool_reader *read);

/* A string, or an array of text parts. */
enum fst_status chat_read_content(struct chat_request *r, struct chat_message *m, json_val *v,
                                  const char *path);
/* Thinking and effort in every place of a body where OpenAI's clients put them. */
enum fst_status chat_read_thinking(struct chat_request *r, json_val *body);

/* tools.c: a tool from its function object. */
bool chat_tool_from_json(struct chat_request *r, struct chat_tool *t, json_val *function);
const struct chat_tool *chat_find_tool(const struct chat_tool *tools, size_t n, const char *name,
                                       size_t len);
const struct chat_param *chat_find_param(const struct chat_tool *t, const char *name, size_t len);
/* CHAT_T_* bits that a JSON value satisfies. */
unsigned chat_types_of(json_val *v);

#endif
