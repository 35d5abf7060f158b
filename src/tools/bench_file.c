#include "tools/bench_file.h"

#include <sys/utsname.h>

#include "base/clock.h"
#include "base/json.h"

static void cpu_name(char *out, size_t size)
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[512];
    snprintf(out, size, "unknown CPU");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
            line[strcspn(line, "\n")] = 0;
            snprintf(out, size, "%s", strchr(line, ':') + 2);
            break;
        }
    if (f)
        fclose(f);
}

void bench_file_host(char card[BENCH_CARD_MAX], char driver[BENCH_DRIVER_MAX])
{
    struct utsname un;
    uname(&un);
    cpu_name(card, BENCH_CARD_MAX);
    snprintf(driver, BENCH_DRIVER_MAX, "Linux %.64s", un.release);
}

void bench_file_head(struct buf *o, const char *card, const char *driver, const char *command)
{
    char date[CLOCK_ISO_SIZE];
    clock_iso(date, clock_wall_ns());
    buf_puts(o, "{\"card\":");
    json_put_string(o, card, strlen(card));
    buf_puts(o, ",\"driver\":");
    json_put_string(o, driver, strlen(driver));
    buf_printf(o, ",\"date\":\"%s\",\"build\":\"firesteel %s\",\"command\":", date, FST_VERSION);
    json_put_string(o, command, strlen(command));
}

static void quote(struct buf *o, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "-_./:=,+@%";
    if (*word && strspn(word, plain) == strlen(word)) {
        buf_puts(o, word);
        return;
    }
    buf_putc(o, '\'');
    for (; *word; word++)
        if (*word == '\'')
            buf_puts(o, "'\\''");
        else
            buf_putc(o, *word);
    buf_putc(o, '\'');
}

void bench_file_command(struct buf *o, int argc, char **argv, const char *without)
{
    char name[80];
    buf_puts(o, "firesteel");
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        if (!strncmp(word, "--", 2)) {
            size_t n = strcspn(word + 2, "=");
            snprintf(name, sizeof name, " %.*s ", (int)FST_MIN(n, sizeof name - 3), word + 2);
            for (char *p = name; *p; p++)
                *p = *p == '_' ? '-' : *p;
            if (strstr(without, name)) {
                i += word[2 + n] != '=';
                continue;
            }
        }
        buf_putc(o, ' ');
        quote(o, word);
    }
}
