/* unicode_gen.c - build-time program: Unicode's data files to a two-level table of class bits.
 *
 *   unicode_gen DerivedGeneralCategory.txt PropList.txt > unicode_table.h
 *
 * Lines look like "0041..005A    ; Lu # comment" or "0020 ; White_Space # comment". */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_CODE_POINTS = 0x110000, BLOCK = 256, N_BLOCKS = N_CODE_POINTS / BLOCK };

/* As in split.h. */
enum { LETTER = 1, MARK = 2, NUMBER = 4, PUNCT = 8, SYMBOL = 16, SPACE = 32 };

static uint8_t class_of[N_CODE_POINTS];

static void fail(const char *what, const char *path)
{
    fprintf(stderr, "unicode_gen: %s: %s\n", path, what);
    exit(1);
}

static uint8_t bits_for(const char *value, int want_space)
{
    if (want_space)
        return strcmp(value, "White_Space") == 0 ? SPACE : 0;
    switch (value[0]) {
    case 'L':
        return LETTER;
    case 'M':
        return MARK;
    case 'N':
        return NUMBER;
    case 'P':
        return PUNCT;
    case 'S':
        return SYMBOL;
    default:
        return 0;
    }
}

static void read_file(const char *path, int want_space)
{
    FILE *f = fopen(path, "r");
    char line[512];
    long n = 0;

    if (!f)
        fail("cannot be opened", path);
    while (fgets(line, sizeof line, f)) {
        unsigned long first, last;
        char value[64], *end;

        first = strtoul(line, &end, 16);
        if (end == line)
            continue; /* comment or empty */
        last = first;
        if (strncmp(end, "..", 2) == 0)
            last = strtoul(end + 2, &end, 16);
        if (sscanf(end, " ; %63[A-Za-z_]", value) != 1 || last < first || last >= N_CODE_POINTS)
            fail("a line is not CODE..CODE ; VALUE", path);
        for (unsigned long cp = first; cp <= last; cp++) {
            class_of[cp] |= bits_for(value, want_space);
            n++;
        }
    }
    fclose(f);
    /* General_Category names every code point; White_Space has 25 among PropList's thousands. */
    if (want_space ? n < 25 : n != N_CODE_POINTS)
        fail("does not cover what it should", path);
}

int main(int argc, char **argv)
{
    static int first_like[N_BLOCKS]; /* number of the distinct block */
    static int distinct[N_BLOCKS];
    int n = 0;

    if (argc != 3) {
        fprintf(stderr, "usage: unicode_gen DerivedGeneralCategory.txt PropList.txt\n");
        return 2;
    }
    read_file(argv[1], 0);
    read_file(argv[2], 1);
    for (int b = 0; b < N_BLOCKS; b++) {
        int k;
        for (k = 0; k < n; k++)
            if (memcmp(class_of + b * BLOCK, class_of + distinct[k] * BLOCK, BLOCK) == 0)
                break;
        if (k == n)
            distinct[n++] = b;
        first_like[b] = k;
    }
    printf("/* Made by unicode_gen at build time. */\n");
    printf("static const uint8_t unicode_block[%d] = {", N_BLOCKS);
    for (int b = 0; b < N_BLOCKS; b++)
        printf("%s%d,", b % 24 ? " " : "\n    ", first_like[b]);
    printf("\n};\nstatic const uint8_t unicode_class[%d][%d] = {\n", n, BLOCK);
    for (int k = 0; k < n; k++) {
        printf("    {");
        for (int i = 0; i < BLOCK; i++)
            printf("%s%d,", i % 24 ? " " : "\n     ", class_of[distinct[k] * BLOCK + i]);
        printf("},\n");
    }
    printf("};\n");
    return n > 256 ? 1 : 0;
}
