/* profile.c - which effort texts a checkpoint knows. */
#include "base/json.h"
#include "chat/chat.h"

enum { ENCODER_MAX = 1 << 20, CONFIG_MAX = 1 << 24 };

static bool read_file(const char *dir, const char *name, size_t max, struct buf *out)
{
    char path[4096];
    size_t n = 1;
    FILE *f;

    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return false;
    f = fopen(path, "rb");
    if (!f)
        return false;
    while (n > 0 && out->len < max && buf_reserve(out, 16384)) {
        n = fread(out->data + out->len, 1, 16384, f);
        out->len += n;
        out->data[out->len] = 0;
    }
    fclose(f);
    return out->len > 0;
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
