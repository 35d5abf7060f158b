/* number.c - shortest decimals, and reading them back. */
#include "base/number.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>

static pthread_once_t number_once = PTHREAD_ONCE_INIT;
static locale_t number_locale; /* "C": a point, whatever the program's locale says */

static void setup(void)
{
    number_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    FST_ASSERT(number_locale != (locale_t)0);
}

double number_parse(const char *s, char **end)
{
    pthread_once(&number_once, setup);
    return strtod_l(s, end, number_locale);
}

/* x >= 0 with the fewest digits that read back, as %e prints it: "d.ddde[+-]dd".  Up to 15 digits
 * every decimal is the nearest one of its length to the double it reads as, so %e finds it; with 16
 * a neighbour can read back where the nearest does not (2^-44: at powers of two the gap below is
 * half the gap above).  A subnormal number has fewer digits to begin with. */
static void shortest(char out[40], double x)
{
    locale_t before = uselocale(number_locale);

    for (int digits = x < DBL_MIN ? 1 : 15; digits <= 17; digits++) {
        snprintf(out, 40, "%.*e", digits - 1, x);
        if (number_parse(out, NULL) == x)
            break;
        if (digits == 16 && out[16] < '9') {
            out[16]++; /* the last digit: one before the point, the point, 15 more */
            if (number_parse(out, NULL) == x)
                break;
        }
    }
    uselocale(before);
}

void number_put(struct buf *b, double x)
{
    char e[40], digits[20];
    int n = 0, exp10;

    if (isnan(x)) {
        buf_puts(b, "nan");
        return;
    }
    if (signbit(x))
        buf_putc(b, '-');
    if (isinf(x)) {
        buf_puts(b, "inf");
        return;
    }
    pthread_once(&number_once, setup);
    shortest(e, fabs(x));
    for (const char *p = e; *p != 'e'; p++)
        if (*p != '.')
            digits[n++] = *p;
    exp10 = (int)strtol(strchr(e, 'e') + 1, NULL, 10);
    while (n > 1 && digits[n - 1] == '0')
        n--;
    if (exp10 >= -4 && exp10 < 0) {
        buf_puts(b, "0.");
        buf_append(b, "000", (size_t)(-exp10 - 1));
        buf_append(b, digits, (size_t)n);
    } else if (exp10 >= 0 && exp10 < 16) {
        for (int i = 0; i <= exp10 || i < n; i++) {
            if (i == exp10 + 1)
                buf_putc(b, '.');
            buf_putc(b, i < n ? digits[i] : '0');
        }
        if (n <= exp10 + 1)
            buf_puts(b, ".0");
    } else {
        buf_putc(b, digits[0]);
        if (n > 1) {
            buf_putc(b, '.');
            buf_append(b, digits + 1, (size_t)n - 1);
        }
        buf_printf(b, "e%c%02d", exp10 < 0 ? '-' : '+', exp10 < 0 ? -exp10 : exp10);
    }
}
