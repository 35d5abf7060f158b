/* kv_folder.c - a folder of the disk tier with objects in it, for tests of `firesteel kv`:
 *
 *     kv-folder DIR NUMERICS WEIGHTS PAGES BYTES
 *
 * puts one chain of pages of so many bytes each, prints a line, and keeps the folder until its standard
 * input ends. */
#include "kv/disk.h"

int main(int argc, char **argv)
{
    struct disk_opts o;
    struct store *s;
    int32_t ids[256] = {0};
    if (argc != 6)
        return 2;
    disk_opts_default(&o);
    o.dir = argv[1];
    o.numerics = argv[2];
    o.weights = argv[3];
    int n = (int)strtol(argv[4], NULL, 10);
    size_t bytes = strtoul(argv[5], NULL, 10);
    uint8_t *data = mem_calloc(1, bytes);
    if (!data)
        return 3;
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i * 7 + i / 251);
    if (disk_open(&s, &o) < 0) {
        fprintf(stderr, "%s\n", fst_error_text());
        return 1;
    }
    struct store_run run = {data, bytes};
    struct store_put p = {
        .name = {.ids = ids, .n_ids = 256, .kind = STORE_PAGE}, .runs = &run, .n_runs = 1};
    for (int i = 0; i < n; i++) {
        p.name.parent = p.name.key;
        p.name.key = (struct store_key){{(uint64_t)(i + 1) << 56, (uint64_t)n}};
        p.name.n += 256;
        s->ops->put(s, &p, 1);
        if (!p.kept)
            return 1;
    }
    s->ops->flush(s);
    puts("there");
    fflush(stdout);
    while (getchar() != EOF)
        continue;
    s->ops->close(s);
    mem_free(data);
    return 0;
}
