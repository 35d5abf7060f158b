#include "client/data.h"

/* A file of data/ as read-only bytes with a NUL behind. */
#define FILE_BYTES(name, file)                                                                     \
    __asm__(".section .rodata\n"                                                                   \
            ".global fst_data_" #name "\n"                                                         \
            ".global fst_data_" #name "_end\n"                                                     \
            "fst_data_" #name ":\n"                                                                \
            ".incbin \"" file "\"\n"                                                               \
            "fst_data_" #name "_end:\n"                                                            \
            ".byte 0\n"                                                                            \
            ".text\n");                                                                            \
    extern const char fst_data_##name[], fst_data_##name##_end[]

FILE_BYTES(prose, "prose.txt");
FILE_BYTES(published, "published.json");

const char *client_prose(size_t *len)
{
    *len = (size_t)(fst_data_prose_end - fst_data_prose);
    return fst_data_prose;
}

const char *client_published(size_t *len)
{
    *len = (size_t)(fst_data_published_end - fst_data_published);
    return fst_data_published;
}
