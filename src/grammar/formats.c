/* formats.c - the formats of strings, each as an expression that holds valid texts only.
 *
 * Some are narrower than their standard: a model writes the common forms, and what is valid nowhere
 * must not come out.  Sources: RFC 3339 (dates and times; no leap seconds), RFC 5321 (e-mail without
 * quoted names or address literals), RFC 1123 (host names), RFC 2673 and 4291 (addresses; no zone, no
 * embedded IPv4), RFC 3986 (URIs), RFC 4122, RFC 6901, ISO 8601 durations as in RFC 3339 A. */
#include "grammar/schema.h"

#define YEAR "(?:000[1-9]|00[1-9]\\d|0[1-9]\\d\\d|[1-9]\\d{3})"
#define LEAP "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                       \
    "(?:" YEAR "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|"  \
    "30)|02-(?:0[1-9]|1\\d|2[0-8]))|" LEAP "-02-29)"
#define CLOCK                                                                                      \
    "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
#define HOST  LABEL "(?:\\." LABEL "){0,5}"
#define ATOM  "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,32}"
#define BYTE  "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4  BYTE "(?:\\." BYTE "){3}"
#define H16   "[0-9A-Fa-f]{1,4}"
#define IPV6                                                                                       \
    "(?:(?:" H16 ":){7}" H16 "|(?:" H16 ":){1,7}:|(?:" H16 ":){1,6}:" H16 "|(?:" H16               \
    ":){1,5}(?::" H16 "){1,2}|(?:" H16 ":){1,4}(?::" H16 "){1,3}|(?:" H16 ":){1,3}(?::" H16        \
    "){1,4}|(?:" H16 ":){1,2}(?::" H16 "){1,5}|" H16 ":(?:(?::" H16 "){1,6})|:(?:(?::" H16         \
    "){1,7}|:))"
#define PCHAR  "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define TAIL   "(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR "|[/?])*)?"
#define PORT   "(?::\\d{1,5})?"
#define SCHEME "[A-Za-z][A-Za-z0-9+.-]*"
#define PATH   "(?:/" PCHAR "*)*"
#define URI    SCHEME ":(?://" HOST PORT PATH "|" PCHAR "+" PATH ")" TAIL

static const struct {
    const char *name, *re; /* re NULL: of the standard, but not kept */
} formats[] = {
    {"date", DATE},
    {"time", CLOCK},
    {"date-time", DATE "T" CLOCK},
    {"duration",
     "P(?:\\d{1,9}W|(?:\\d{1,9}Y(?:\\d{1,9}M(?:\\d{1,9}D)?)?|\\d{1,9}M(?:\\d{1,9}D)?|\\d{1,9}D)(?:"
     "T(?:\\d{1,9}H(?:\\d{1,9}M(?:\\d{1,9}S)?)?|\\d{1,9}M(?:\\d{1,9}S)?|\\d{1,9}S))?|T(?:\\d{1,9}"
     "H(?:\\d{1,9}M(?:\\d{1,9}S)?)?|\\d{1,9}M(?:\\d{1,9}S)?|\\d{1,9}S))"},
    {"email", ATOM "(?:\\." ATOM "){0,3}@" HOST},
    {"hostname", HOST},
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"uri", URI},
    {"uri-reference", "(?:" URI "|/?(?:[A-Za-z0-9._~-]+" PATH ")?" TAIL ")"},
    {"uuid", "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"},
    {"json-pointer", "(?:/(?:[^/~]|~[01])*)*"},
    {"relative-json-pointer", "(?:0|[1-9]\\d*)(?:#|(?:/(?:[^/~]|~[01])*)*)"},
    {"idn-email", NULL},
    {"idn-hostname", NULL},
    {"iri", NULL},
    {"iri-reference", NULL},
    {"uri-template", NULL},
    {"regex", NULL},
};

const struct lang *format_lang(struct compile *c, const char *name, size_t len, const char *path,
                               bool *known)
{
    for (size_t i = 0; i < FST_COUNT(formats); i++) {
        struct regex_opts o = {.style = REGEX_ECMA, .where = path};

        if (strlen(formats[i].name) != len || memcmp(formats[i].name, name, len) != 0)
            continue;
        *known = true;
        return formats[i].re ? lang_from_regex(c, formats[i].re, strlen(formats[i].re), &o) : NULL;
    }
    *known = false;
    return NULL;
}
