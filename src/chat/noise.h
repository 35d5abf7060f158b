/* noise.h - lines of a system text that change from request to request and mean little. */
#ifndef FST_CHAT_NOISE_H
#define FST_CHAT_NOISE_H

#include "chat/request.h"

/* m without the billing lines at its front; m itself when there are none.  Out of memory: r->failed. */
const struct chat_message *noise_without_billing(struct chat_request *r,
                                                 const struct chat_message *m);
/* m without the lines that state the date or the time; those are appended to `lines`, each with its
 * line break.  m itself when there are none.  Out of memory: r->failed. */
const struct chat_message *noise_without_dates(struct chat_request *r, const struct chat_message *m,
                                               struct buf *lines);
/* Whether a line (without its break) does; for tests. */
bool noise_is_date(const char *line, size_t len);

#endif
