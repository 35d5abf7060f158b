/* classes_gen.c - build-time program: Unicode's data files to the classes that \p{...} names, as ranges
 * of code points, and to pairs of characters that differ in case alone.
 *
 *   classes_gen DerivedGeneralCategory.txt Scripts.txt PropertyValueAliases.txt CaseFolding.txt
 *
 * Lines look like "0041..005A ; Lu # comment", "gc ; Lu ; Uppercase_Letter", "0041; C; 0061; # ...". */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_CODE_POINTS = 0x110000, NAME = 40, VALUES = 400, NAMES = 1200 };

struct values { /* of one property, by code point */
    char name[VALUES][NAME];
    int n;
    uint16_t of[N_CODE_POINTS]; /* index + 1 */
};
static struct values category, script;
static struct {
    char name[NAME];
    uint32_t at, n;
} table[NAMES];
static int n_table;
static uint32_t n_ranges;

static void fail(const char *what, const char *path)
{
    fprintf(stderr, "classes_gen: %s: %s\n", path, what);
    exit(1);
}

static FILE *open_file(const char *path)
{
    FILE *f = fopen(path, "r");
    if (!f)
        fail("cannot be opened", path);
    return f;
}

static void read_values(struct values *v, const char *path)
{
    FILE *f = open_file(path);
    char line[512], value[NAME], *end;

    while (fgets(line, sizeof line, f)) {
        unsigned long first = strtoul(line, &end, 16), last = first;
        int i = 0;

        if (end == line)
            continue;
        if (strncmp(end, "..", 2) == 0)
            last = strtoul(end + 2, &end, 16);
        if (sscanf(end, " ; %39[A-Za-z_]", value) != 1 || last < first || last >= N_CODE_POINTS)
            fail("a line is not CODE..CODE ; VALUE", path);
        while (i < v->n && strcmp(v->name[i], value) != 0)
            i++;
        if (i == VALUES)
            fail("too many values", path);
        if (i == v->n)
            snprintf(v->name[v->n++], NAME, "%s", value);
        for (unsigned long cp = first; cp <= last; cp++)
            v->of[cp] = (uint16_t)(i + 1);
    }
    fclose(f);
    if (v->n < 20)
        fail("has too few values", path);
}

static void add_name(const char *name, uint32_t at, uint32_t n)
{
    for (int i = 0; i < n_table; i++)
        if (strcmp(table[i].name, name) == 0)
            return;
    if (n_table == NAMES)
        fail("too many names", name);
    snprintf(table[n_table].name, NAME, "%s", name);
    table[n_table].at = at;
    table[n_table++].n = n;
}

/* Ranges of the code points whose value is in `in`. */
static void put_class(const struct values *v, const char *in, const char *name)
{
    uint32_t at = n_ranges;

    for (uint32_t cp = 0; cp < N_CODE_POINTS; cp++) {
        uint32_t first = cp;
        while (cp < N_CODE_POINTS && v->of[cp] && in[v->of[cp] - 1])
            cp++;
        if (cp > first) {
            printf("{0x%x,0x%x},%s", (unsigned)first, (unsigned)cp - 1, ++n_ranges % 8 ? "" : "\n");
        }
    }
    add_name(name, at, n_ranges - at);
}

static void read_aliases(const char *path)
{
    FILE *f = open_file(path);
    char line[512], kind[NAME], a[NAME], b[NAME], third[NAME];

    while (fgets(line, sizeof line, f)) {
        int n = sscanf(line, "%39[a-z] ; %39[A-Za-z_] ; %39[A-Za-z_] ; %39[A-Za-z_]", kind, a, b,
                       third);

        if (n < 3 || (strcmp(kind, "gc") != 0 && strcmp(kind, "sc") != 0))
            continue;
        for (int i = 0; n == 4 && i < n_table; i++)
            if (strcmp(table[i].name, a) == 0) {
                add_name(third, table[i].at, table[i].n);
                break;
            }
        for (int i = 0; i < n_table; i++) {
            if (strcmp(table[i].name, a) == 0)
                add_name(b, table[i].at, table[i].n);
            else if (strcmp(table[i].name, b) == 0)
                add_name(a, table[i].at, table[i].n);
        }
    }
    fclose(f);
}

static void put_folds(const char *path)
{
    FILE *f = open_file(path);
    char line[512], kind, *end;
    int n = 0;

    printf("static const uint32_t class_fold[][2] = {\n");
    while (fgets(line, sizeof line, f)) {
        unsigned long from = strtoul(line, &end, 16), to;
        if (end == line || sscanf(end, " ; %c; %lx;", &kind, &to) != 2 ||
            (kind != 'C' && kind != 'S'))
            continue;
        printf("{0x%lx,0x%lx},%s", from, to, ++n % 8 ? "" : "\n");
    }
    printf("};\n");
    fclose(f);
    if (n < 1000)
        fail("has too few pairs", path);
}

int main(int argc, char **argv)
{
    static const char groups[] = "CLMNPSZ";
    char in[VALUES];

    if (argc != 5)
        fail("needs four files", "usage");
    read_values(&category, argv[1]);
    read_values(&script, argv[2]);
    printf("/* made by classes_gen.c from Unicode's data files */\n"
           "static const uint32_t class_range[][2] = {\n");
    for (int i = 0; i < category.n; i++) {
        memset(in, 0, sizeof in);
        in[i] = 1;
        put_class(&category, in, category.name[i]);
    }
    for (const char *g = groups; *g; g++) {
        char name[2] = {*g, 0};
        for (int i = 0; i < category.n; i++)
            in[i] = category.name[i][0] == *g;
        put_class(&category, in, name);
    }
    for (int i = 0; i < category.n; i++)
        in[i] = strlen(category.name[i]) == 2 && category.name[i][0] == 'L' &&
                strchr("ult", category.name[i][1]);
    put_class(&category, in, "LC");
    for (int i = 0; i < script.n; i++) {
        memset(in, 0, sizeof in);
        in[i] = 1;
        put_class(&script, in, script.name[i]);
    }
    printf("};\n");
    read_aliases(argv[3]);
    printf(
        "static const struct {\n    const char *name;\n    uint32_t at, n;\n} class_table[] = {\n");
    for (int i = 0; i < n_table; i++)
        printf("{\"%s\",%u,%u},\n", table[i].name, (unsigned)table[i].at, (unsigned)table[i].n);
    printf("};\n");
    put_folds(argv[4]);
    return 0;
}
