/* number.h - numbers as text, the same under every locale. */
#ifndef FST_NUMBER_H
#define FST_NUMBER_H

#include "base/base.h"

/* Nearest double to the decimal at s, as strtod in the C locale; *end (if not NULL) is where it
 * stopped, s when there was no number.  Overflow gives an infinity. */
double number_parse(const char *s, char **end);

/* The fewest digits that read back, written as Python's repr: "0.1", "1.0", "1e-05", "1e+16",
 * "inf", "-inf", "nan". */
void number_put(struct buf *b, double x);

#endif
