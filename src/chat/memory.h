/* memory.h - what the model really wrote: call id -> the sampled ids of the turn that made the call.
 *
 * A client sends an assistant's turn back as messages: arguments spelled by its own JSON writer,
 * thoughts dropped or renamed.  Rendered, that text is tokenised to other ids than were sampled, and
 * everything behind it changes.  The server therefore keeps the ids of each turn that made calls
 * under the ids of those calls, and chat_render puts them into the prompt where a request sends such
 * a turn back unchanged in meaning.
 *
 * Least recently used turns go first, bounded by a number of call ids and of bytes.  A tenant is part of
 * the key.  With a folder the turns outlive the process: see memory_file.c.
 *
 * Threads: everything here may be called from any thread.  A turn never changes once it is in. */
#ifndef FST_CHAT_MEMORY_H
#define FST_CHAT_MEMORY_H

#include "base/hash.h"
#include "chat/chat.h"

/* An assistant's turn that made calls. */
struct chat_turn {
    struct hash128 tenant; /* chat_memory_tenant */
    enum chat_start start; /* where the prompt left off: what the template wrote before ids[0] */
    const int32_t *ids;    /* as sampled, up to and with the end of the turn */
    size_t n_ids;
    size_t n_thought;        /* ids up to and with the one that closed the thoughts; 0: none did */
    struct chat_str content; /* as it was given to the client */
    struct chat_str reasoning;
    const struct chat_call *calls;
    size_t n_calls;
};

struct chat_memory;
struct chat_memory_opts {
    const struct tokenizer *tokenizer; /* borrowed, outlives the memory */
    size_t max_ids;                    /* 100,000 call ids */
    size_t max_bytes;                  /* 256 MiB of turns */
    const char
        *dir; /* NULL: nothing on disk.  Made if it is not there; a folder that cannot be used
                        is one warning, and the memory goes on without it */
};
void chat_memory_opts_default(struct chat_memory_opts *o);

/* Only FST_ENOMEM. */
enum fst_status chat_memory_new(struct chat_memory **out, const struct chat_memory_opts *o);
void chat_memory_free(struct chat_memory *m); /* saves; NULL is fine */

/* Who may have a turn back: made from an API key and what else divides users; NULL counts as "".  The
 * texts themselves are not kept.  The same texts give the same tenant for the same folder. */
struct hash128 chat_memory_tenant(const struct chat_memory *m, const char *key, const char *salt);

/* Copies the turn.  One that is larger than the bounds, or holds ids that no turn may hold (another
 * role's mark, an end inside), is not kept: FST_EBUDGET, FST_EINVAL.  FST_ENOMEM.  A turn with one of
 * its call ids gives way. */
enum fst_status chat_memory_add(struct chat_memory *m, const struct chat_turn *turn);

/* Appends what the model left out of a turn because its reply was ended for it: the end of the block,
 * after a single call where several may not be, and the end of the turn.  Only FST_ENOMEM. */
enum fst_status chat_turn_close(const struct tokenizer *t, struct tokenizer_ids *ids);

/* The turn that made this call, as most recently used; NULL: not known to this tenant.  Give it back
 * with chat_turn_unref. */
const struct chat_turn *chat_memory_find(struct chat_memory *m, struct hash128 tenant,
                                         struct chat_str call_id);
void chat_turn_unref(const struct chat_turn *t); /* NULL is fine */
/* Whether a message says the same: the same calls in the same order, arguments equal as JSON, content
 * equal but for white space at its ends.  Its reasoning does not count.  Only FST_ENOMEM. */
enum fst_status chat_turn_matches(const struct chat_turn *t, const struct chat_message *m,
                                  bool *matches);
/* Bytes of the ids, for people. */
enum fst_status chat_memory_text(const struct chat_memory *m, const int32_t *ids, size_t n,
                                 struct buf *out);

/* Writes what has been added since, and compacts the file when more than half of it is dead.  Slow
 * (disk); does nothing without a folder. */
void chat_memory_save(struct chat_memory *m);

struct chat_memory_stats {
    size_t n_ids, n_turns, n_bytes;
    uint64_t added, evicted, found, missed;
    uint64_t spliced, changed; /* turns sent back as they were; with another content or arguments */
    uint64_t file_bytes;       /* 0: none */
    bool on_disk;              /* the folder is in use */
};
void chat_memory_get_stats(struct chat_memory *m, struct chat_memory_stats *out);
/* Counts a turn that was sent back. */
void chat_memory_count(struct chat_memory *m, bool spliced);

#endif
