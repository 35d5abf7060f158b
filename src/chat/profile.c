/* profile.c - which effort texts a checkpoint knows. */
#include <limits.h>

#include "base/file.h"
#include "base/json.h"
#include "chat/chat.h"

enum { ENCODER_MAX = 1 << 20, CONFIG_MAX = 1 << 24 };

/* A file of the folder, if there is one and it is not too long. */
static bool read_file(const char *dir, const char *name, size_t max, struct buf *out)
{
    char path[PATH_MAX];

    if (file_join(path, sizeof path, dir, name) < 0 || !file_exists(path))
        return false;
    return file_read(out, path, max) == FST_OK && out->len > 0;
}

/* `NAME... "low"` on one line. */
static bool assigns_low(const char *text)
{
    const char *at = strstr(text, "DEFAULT_REASONING_EFFORT");
    const char *end = at ? strchr(at, '\n') : NULL;
    const char *low = at ? strstr(at, "low") : NULL;

    return low && (!end || low < end);
}

enum chat_profile chat_profile_detect(const char *model_dir)
{
    enum chat_profile profile = CHAT_PROFILE_PREVIEW;
    struct buf text = {0};
    struct json_doc *doc = NULL;
    const char *word;
    size_t len;

    if (read_file(model_dir, "encoding/encoding_dsv4.py", ENCODER_MAX, &text) &&
        assigns_low(text.data) && strstr(text.data, "REASONING_EFFORT_PROMPTS"))
        profile = CHAT_PROFILE_OFFICIAL;
    buf_reset(&text);
    if (read_file(model_dir, "config.json", CONFIG_MAX, &text) &&
        json_parse(&doc, text.data, text.len) == FST_OK) {
        word = json_string(json_get(json_root(doc), "dsv4_reasoning_effort_profile"), &len);
        if (word && strcmp(word, "official") == 0)
            profile = CHAT_PROFILE_OFFICIAL;
        else if (word && strcmp(word, "preview") == 0)
            profile = CHAT_PROFILE_PREVIEW;
        json_free(doc);
    }
    buf_release(&text);
    return profile;
}
