/* disk_index.h - what the tier remembers of its files between runs: sizes, times, hits.  SQLite.
 *
 * The files are the truth: whatever the index says without a file is forgotten, and a file that it does
 * not know is read.  So a call that fails costs a scan, and nothing else; it says so once in the log and
 * from then on does nothing. */
#ifndef FST_KV_DISK_INDEX_H
#define FST_KV_DISK_INDEX_H

#include "kv/disk_set.h"

struct disk_index;

/* Opens the index of a folder; made anew (said in the log) when it is damaged or of another version.  read_only: made
 * or repaired for nobody.  NULL: there is none to be had. */
struct disk_index *disk_index_open(const char *dir, bool read_only);
void disk_index_close(struct disk_index *x); /* NULL is fine, here and below */
/* Add all rows to a set as DISK_CLAIMED, realms included.  False: it could not be read to its end; what was
 * read is in the set, and the index is made anew unless it was opened read_only. */
bool disk_index_load(struct disk_index *x, struct disk_set *s);
/* Between begin and end, all of it or nothing.  The set's realms are written at once. */
void disk_index_begin(struct disk_index *x, const struct disk_set *s);
void disk_index_put(struct disk_index *x, const struct disk_set *s, const struct disk_entry *e);
void disk_index_remove(struct disk_index *x, const struct disk_set *s, const struct disk_entry *e);
bool disk_index_end(struct disk_index *x); /* false: nothing was kept */

#endif
