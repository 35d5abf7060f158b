/* data.h - files of data/ inside the program. */
#ifndef FST_CLIENT_DATA_H
#define FST_CLIENT_DATA_H

#include "base/base.h"

/* English prose, public domain, NUL-terminated. */
const char *client_prose(size_t *len);
/* Published tables (data/published.json). */
const char *client_published(size_t *len);

#endif
