/* bench_file.h - the result file of every bench: {card, driver, date, build, command, ..., rows}. */
#ifndef FST_TOOLS_BENCH_FILE_H
#define FST_TOOLS_BENCH_FILE_H

#include "base/base.h"

enum { BENCH_CARD_MAX = 256, BENCH_DRIVER_MAX = 96 };

/* Card and driver of this computer: its processor and its kernel. */
void bench_file_host(char card[BENCH_CARD_MAX], char driver[BENCH_DRIVER_MAX]);
/* From "{" to the command's end; the caller goes on with a comma. */
void bench_file_head(struct buf *o, const char *card, const char *driver, const char *command);
/* "firesteel" and the arguments as a shell takes them, without the options named in `without` (blanks around) and
 * their values. */
void bench_file_command(struct buf *o, int argc, char **argv, const char *without);

#endif
