#include <strings.h>

#include "server/app.h"

bool auth_equal(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b);
    unsigned diff = na != nb;
    for (size_t i = 0; i < nb; i++)
        diff |= (unsigned char)b[i] ^ (unsigned char)(na ? a[i % na] : 0);
    return diff == 0;
}

static const char *presented_key(const struct exch *x)
{
    const char *h = exch_header(x, "authorization");
    if (h && !strncasecmp(h, "Bearer ", 7)) {
        h += 7;
        while (*h == ' ')
            h++;
        return h;
    }
    return exch_header(x, "x-api-key");
}

const char *auth_key(const struct server *s, const struct exch *x)
{
    const char *key = s->o.n_api_keys ? presented_key(x) : NULL;
    return key ? key : "";
}

bool auth_check(const struct server *s, const struct exch *x, bool admin, struct api_error *e)
{
    const char *key = presented_key(x);
    if (admin && s->o.admin_api_key) {
        if (key && auth_equal(key, s->o.admin_api_key))
            return true;
        /* Somebody with a normal key is known but may not; others are not known. */
        if (key)
            for (size_t i = 0; i < s->o.n_api_keys; i++)
                if (auth_equal(key, s->o.api_keys[i]))
                    return api_fail(e, 403, "admin_key_required", NULL,
                                    "this endpoint needs the admin API key");
        return api_fail(e, 401, "invalid_api_key", NULL, "Incorrect or missing API key.");
    }
    if (!s->o.n_api_keys)
        return true;
    bool ok = false;
    for (size_t i = 0; key && i < s->o.n_api_keys; i++)
        ok |= auth_equal(key, s->o.api_keys[i]);
    if (!ok && key && s->o.admin_api_key)
        ok = auth_equal(key, s->o.admin_api_key);
    return ok || api_fail(e, 401, "invalid_api_key", NULL, "Incorrect or missing API key.");
}
