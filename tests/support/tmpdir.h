/* tmpdir.h - a folder of a test's own, and whole files in and out of it. */
#ifndef TESTS_SUPPORT_TMPDIR_H
#define TESTS_SUPPORT_TMPDIR_H

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/cm.h"

/* path: at least 64 bytes. */
static inline void tmpdir_make(char *path, size_t size)
{
    const char *root = getenv("TMPDIR");
    snprintf(path, size, "%s/fst-test-XXXXXX", root && *root ? root : "/tmp");
    if (!mkdtemp(path))
        fail_msg("%s: cannot make a folder", path);
}

/* The folder and the files in it (no folders inside). */
static inline void tmpdir_remove(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    char path[1200];
    while (d && (e = readdir(d))) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            unlink(path);
    }
    if (d)
        closedir(d);
    rmdir(dir);
}

static inline void tmpdir_write(const char *dir, const char *name, const void *data, size_t len)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || (len > 0 && fwrite(data, 1, len, f) != len) || fclose(f) != 0)
        fail_msg("%s: cannot write", path);
}

/* Owned (free), NUL-terminated. */
static inline char *tmpdir_read(const char *dir, const char *name, size_t *len)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s: cannot read", path);
    fseek(f, 0, SEEK_END);
    size_t n = (size_t)ftell(f);
    rewind(f);
    char *p = malloc(n + 1);
    if (!p || fread(p, 1, n, f) != n)
        fail_msg("%s: cannot read", path);
    fclose(f);
    p[n] = '\0';
    if (len)
        *len = n;
    return p;
}

#endif
