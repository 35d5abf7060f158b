/* secret.c - what tells keys and salts of users apart in a folder of kept prompts, over restarts.
 *
 * Prompts are kept under digests of their key and salt with a secret, so that the folder alone tells neither.
 * Who may read it may be asked whether a key is a guess, so it is for its owner's eyes. */
#include <limits.h>

#include "base/file.h"
#include "base/log.h"
#include "base/rng.h"
#include "server/app.h"

enum fst_status secret_of_folder(const char *dir, struct hash128 *out)
{
    char path[PATH_MAX];
    struct buf text = {0};
    struct file_log f = {0};
    struct hash128 made = {rng_os(), rng_os()};
    FST_TRY(file_join(path, sizeof path, dir, "secret"));
    enum fst_status rc = file_read(&text, path, 4096);
    bool wrong = rc == FST_EBUDGET || (rc == FST_OK && text.len && text.len != sizeof *out);
    if (wrong) { /* what was kept with it can be found by nobody: a new one, or each start would keep more of that */
        log_warn(
            "tiers",
            "%s is no secret of %zu bytes: it is made anew, and what was kept before is not found",
            path, sizeof *out);
        file_remove(path);
    }
    /* Opened to write only when there is none: what lies in a folder that cannot be written is found too. */
    if (wrong || rc == FST_ENOTFOUND || (rc == FST_OK && text.len == 0)) {
        rc = file_log_open(&f, path);
        if (rc == FST_OK && f.size == 0)
            rc = file_log_append(&f, path, &made, sizeof made);
        buf_reset(&text);
        if (rc == FST_OK)
            rc = file_read(&text, path, 4096);
        file_log_release(&f);
    }
    if (rc == FST_OK && text.len != sizeof *out)
        rc = fst_error(FST_EFORMAT, "%s: %zu bytes, expected %zu", path, text.len, sizeof *out);
    if (rc == FST_OK)
        memcpy(out, buf_str(&text), sizeof *out);
    buf_release(&text);
    return rc;
}
