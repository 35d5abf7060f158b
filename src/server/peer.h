/* peer.h - has a half-closed peer gone for good?
 *
 * A FIN says that the client will send no more.  Whether it still reads (shutdown of one direction)
 * or closed its socket looks the same on the wire until we write.  For a peer on this machine the
 * kernel's socket table tells: a closed socket that waits for our FIN belongs to no process (inode
 * 0).  For others conn.c writes an interim "100 Continue", which HTTP/1.1 clients skip, and a
 * closed socket answers with a reset.  The table is read once for all connections in question. */
#ifndef FST_SERVER_PEER_H
#define FST_SERVER_PEER_H

#include "base/base.h"

struct peer_table {
    struct peer_entry {
        uint16_t local, remote;
        bool owned; /* by a process */
    } * entry;      /* owned */
    size_t n, cap;
    bool known; /* the table could be read */
};
void peer_table_read(struct peer_table *t);
/* The same from text in the format of /proc/net/tcp (for tests); appends. */
void peer_table_parse(struct peer_table *t, const char *text, size_t len);
void peer_table_release(struct peer_table *t);

enum peer_state { PEER_UNKNOWN, PEER_READS, PEER_GONE };
/* State of the socket bound to peer_port and connected to our_port; for loopback peers only. */
enum peer_state peer_lookup(const struct peer_table *t, uint16_t peer_port, uint16_t our_port);

#endif
