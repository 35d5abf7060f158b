#include "server/peer.h"

#include <fcntl.h>
#include <unistd.h>

void peer_table_release(struct peer_table *t)
{
    mem_free(t->entry);
    *t = (struct peer_table){0};
}

/* "  12: 0100007F:1F90 0100007F:C350 05 00000000:00000000 00:00000000 00000000  0  0 4711 ..." */
static bool parse_line(const char *line, struct peer_entry *e)
{
    char local[80], remote[80];
    unsigned state;
    unsigned long inode;
    if (sscanf(line, " %*[0-9]: %79s %79s %x %*s %*s %*s %*s %*s %lu", local, remote, &state,
               &inode) != 4)
        return false;
    const char *lp = strrchr(local, ':'), *rp = strrchr(remote, ':');
    if (!lp || !rp)
        return false;
    e->local = (uint16_t)strtoul(lp + 1, NULL, 16);
    e->remote = (uint16_t)strtoul(rp + 1, NULL, 16);
    e->owned = inode != 0;
    return true;
}

void peer_table_parse(struct peer_table *t, const char *text, size_t len)
{
    const char *end = text + len;
    for (const char *p = text; p < end;) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((nl ? nl : end) - p);
        char line[512];
        if (n < sizeof line) {
            memcpy(line, p, n);
            line[n] = 0;
            struct peer_entry e;
            if (parse_line(line, &e)) {
                if (t->n == t->cap) {
                    size_t cap = t->cap ? t->cap * 2 : 256;
                    struct peer_entry *more = mem_realloc(t->entry, cap * sizeof *more);
                    if (!more) {
                        t->known = false;
                        return;
                    }
                    t->entry = more;
                    t->cap = cap;
                }
                t->entry[t->n++] = e;
            }
        }
        if (!nl)
            break;
        p = nl + 1;
    }
}

static void read_file(struct peer_table *t, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    struct buf b = {.limit = 64 << 20};
    for (;;) {
        if (!buf_reserve(&b, 65536))
            break;
        ssize_t n = read(fd, b.data + b.len, 65535);
        if (n <= 0)
            break;
        b.len += (size_t)n;
    }
    close(fd);
    if (!b.failed && b.len) {
        t->known = true;
        peer_table_parse(t, b.data, b.len);
    }
    buf_release(&b);
}

void peer_table_read(struct peer_table *t)
{
    *t = (struct peer_table){0};
    read_file(t, "/proc/net/tcp");
    read_file(t, "/proc/net/tcp6");
    /* Sandboxes show an empty table: then nothing is known. */
    if (!t->n)
        t->known = false;
}

enum peer_state peer_lookup(const struct peer_table *t, uint16_t peer_port, uint16_t our_port)
{
    bool ours = false, found = false;
    if (!t->known)
        return PEER_UNKNOWN;
    for (size_t i = 0; i < t->n; i++) {
        const struct peer_entry *e = &t->entry[i];
        if (e->local == peer_port && e->remote == our_port) {
            found = true;
            if (e->owned)
                return PEER_READS;
        } else if (e->local == our_port && e->remote == peer_port) {
            ours = true;
        }
    }
    /* Our own end must be listed, else the table is not of this network namespace. */
    return ours ? PEER_GONE : found ? PEER_GONE : PEER_UNKNOWN;
}
