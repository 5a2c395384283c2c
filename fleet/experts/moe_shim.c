/*
 * Quarterdeck's expert shim: preloaded into an unmodified llama-server, it counts which experts each token asks for and
 * which of them are in memory, and has those that are not read before they are touched.
 *
 *     cc -O2 -shared -fPIC -o moe_shim.so moe_shim.c -ldl -lpthread
 *     LD_PRELOAD=/path/moe_shim.so QUARTERDECK_MOE_STATS=experts.stats llama-server ...
 *
 * It uses six functions that libggml-base exports and no layout of any of its structures, so one build serves many
 * versions of llama.cpp. Where one is missing, or a file is none that it understands, it passes everything on
 * untouched. It never prints and never ends the process.
 *
 * Environment, all optional; with none of them it does nothing:
 *
 *     QUARTERDECK_MOE_STATS=FILE       counters, mapped; the layout is `struct head` and `struct cell` below, and
 *                                      fleet/experts/counters.py reads it
 *     QUARTERDECK_MOE_TRACE=FILE       every routing decision; the layout is above `trace_open`
 *     QUARTERDECK_MOE_TRACE_ASKED=FILE traced only while this file is there, each time anew
 *     QUARTERDECK_MOE_TRACE_LIMIT=N    bytes of it at the most; default 256 MiB
 *     QUARTERDECK_MOE_LAZY=1           a model is not read whole when it is loaded, only what every token needs
 *     QUARTERDECK_MOE_PREFETCH=1       routed experts that are not in memory are read at once, side by side
 *     QUARTERDECK_MOE_ROWS=N           up to so many rows of a pass are decoding, more are a prompt; default 1
 *     QUARTERDECK_MOE_AHEAD=N          bytes that are read ahead for one layer of one pass at the most; default 256 MiB
 *
 * Linux, 64 bits. How it works: llama.cpp names the tensor with the experts that were chosen "ffn_moe_topk-LAYER" and
 * shows every tensor to an evaluation callback, when there is one. The setter of that callback is exported and called
 * across libraries, so a preloaded library can stand in between. The page cache itself is the cache of experts: the
 * kernel evicts the least recently used, mincore(2) tells what is there, MADV_WILLNEED reads exactly what is asked for,
 * where a page fault would read some 128 KiB around each page (measured: three times the bytes).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__) && defined(__LP64__)

#define MOST_LAYERS 512           /* LLAMA_MAX_LAYERS */
#define MOST_PARTS 6              /* matrices of one expert: gate, up, down, or gate_up and down */
#define MOST_EXPERTS 65536
#define MOST_MAPS 64
#define MOST_SCHEDULERS 16
#define MOST_TENSORS 262144
#define MOST_ENTRIES 65536
#define MOST_IDS (4u << 20)       /* of one tensor of chosen experts */
#define VECTOR 4096               /* pages of one question to mincore */
/* A question to the kernel about each slice costs 30 us a layer here, 5 % of a model that is all in memory. So when
 * nothing was missing for that many tokens, one pass in four is looked at and the others count as hits; the first miss
 * ends that at once. Where experts are evicted and read again, every pass is looked at. */
#define QUIET 16

enum { PREFETCHES = 1, LAZY = 2, BLIND = 4, AMBIGUOUS = 8, TRACE_FULL = 16 };

/* All numbers are of this machine's byte order. Each is written whole; two of them may be a layer apart. */
struct head {
    char magic[8];                /* "QDMOESTA" */
    uint32_t version;             /* 1 */
    uint32_t head_bytes;          /* where the cells begin */
    uint32_t cell_bytes;
    uint32_t layers;              /* rows of the table: the last layer with experts, and one */
    uint32_t experts;             /* columns */
    uint32_t used;                /* experts that each token is sent through, as seen last */
    uint32_t flags;               /* the enum above */
    uint32_t pid;
    uint32_t page_bytes;
    uint32_t moe_layers;          /* layers that have experts */
    uint64_t token_bytes;         /* of the experts of one token, as seen last */
    uint64_t started_ns;          /* since 1970 */
    uint64_t updated_ns;
    uint64_t passes;              /* a layer of one pass each */
    uint64_t decode_tokens;
    uint64_t decode_requests, decode_hits;         /* different experts of a layer and pass; hit: in memory, all of it */
    uint64_t decode_bytes, decode_missing;         /* of their pages, and of those not in memory */
    uint64_t prompt_tokens;
    uint64_t prompt_requests, prompt_hits, prompt_bytes, prompt_missing;
    uint64_t prefetched_bytes;
    uint64_t spent_ns;            /* in here, counting and asking for reads */
    uint64_t trace_bytes;
    uint64_t unread;              /* passes that were not understood */
    uint64_t assumed;             /* passes that were not looked at, all having been there for long: see QUIET */
    uint64_t reserved[3];
};
struct cell { uint32_t requests, hits, prompt_requests, prompt_hits; };     /* layer by layer, expert by expert */

typedef bool (*eval_callback)(void *tensor, bool ask, void *user);
struct part { int map; uint32_t experts; uint64_t offset, each; int order; };
struct layer { int count; struct part parts[MOST_PARTS]; };
struct map { uint8_t *start; size_t length; dev_t device; ino_t inode; bool alive; };
struct scheduler { void *of; eval_callback inner; void *inner_user; uint32_t rows; };
struct span { uint64_t offset, length; };

static struct {
    bool on, lazy, prefetch, gone;
    uint32_t rows;
    uint64_t ahead, trace_limit;
    const char *stats_path, *trace_path, *trace_asked;
    long page;
    /* of libggml-base */
    const char *(*name)(const void *);
    int64_t (*elements)(const void *), (*row_count)(const void *);
    size_t (*bytes)(const void *);
    void (*get)(const void *, void *, size_t, size_t);
    void (*set_callback)(void *, eval_callback, void *);
    /* of the model */
    struct layer layers[MOST_LAYERS];
    struct map maps[MOST_MAPS];
    int map_count;
    uint32_t layer_count, expert_count, first_layer, last_layer, moe_layers;
    bool ambiguous, blind;
    struct scheduler schedulers[MOST_SCHEDULERS];
    struct head *head;
    struct cell *cells;
    size_t stats_bytes;
    int trace;
    uint64_t trace_bytes;
    bool trace_full;
    uint64_t quiet, dice;         /* passes without a miss */
} shim = {.trace = -1};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;      /* of all above */
static int32_t *chosen;                                        /* what a pass chose; grows to MOST_IDS, under the lock */
static size_t chosen_room;
static uint32_t listed[MOST_EXPERTS];
static uint32_t lacking[MOST_EXPERTS];                         /* pages */
static uint8_t seen[MOST_EXPERTS / 8];

/* ---- files ------------------------------------------------------------------------------------------------------ */

static const struct { uint16_t type; uint16_t values, bytes; } BLOCKS[] = {
    {0, 1, 4}, {1, 1, 2}, {2, 32, 18}, {3, 32, 20}, {6, 32, 22}, {7, 32, 24}, {8, 32, 34}, {10, 256, 84},
    {11, 256, 110}, {12, 256, 144}, {13, 256, 176}, {14, 256, 210}, {15, 256, 292}, {16, 256, 66}, {17, 256, 74},
    {18, 256, 98}, {19, 256, 50}, {20, 32, 18}, {21, 256, 110}, {22, 256, 82}, {23, 256, 136}, {24, 1, 1},
    {25, 1, 2}, {26, 1, 4}, {27, 1, 8}, {28, 1, 8}, {29, 256, 56}, {30, 1, 2}, {34, 256, 54}, {35, 256, 66},
    {39, 32, 17},
};

struct reader { int fd; uint64_t at, size, from; size_t have; uint8_t buffer[65536]; };

static bool take(struct reader *r, void *to, size_t n) {
    uint8_t *out = to;
    while (n) {
        if (r->at < r->from || r->at >= r->from + r->have) {
            ssize_t got = pread(r->fd, r->buffer, sizeof r->buffer, (off_t)r->at);
            if (got <= 0) return false;
            r->from = r->at, r->have = (size_t)got;
        }
        size_t here = (size_t)(r->from + r->have - r->at), part = here < n ? here : n;
        if (out) memcpy(out, r->buffer + (r->at - r->from), part), out += part;
        r->at += part, n -= part;
    }
    return true;
}

static bool skip(struct reader *r, uint64_t n) {
    if (n > r->size - r->at) return false;
    r->at += n;
    return true;
}

static bool take_text(struct reader *r, char *to, size_t room) {       /* a longer one becomes "" */
    uint64_t n;
    to[0] = 0;
    if (!take(r, &n, 8) || n > r->size - r->at) return false;
    if (n >= room) return skip(r, n);
    to[n] = 0;
    return take(r, to, n);
}

static bool skip_value(struct reader *r, uint32_t type) {
    static const uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    uint64_t n;
    if (type == 8) return take(r, &n, 8) && skip(r, n);
    if (type == 9) {
        uint32_t of;
        if (!take(r, &of, 4) || !take(r, &n, 8) || of >= sizeof sizes) return false;
        if (of == 8) {
            if (n > r->size / 8) return false;
            while (n--) if (!skip_value(r, 8)) return false;
            return true;
        }
        return sizes[of] && n <= r->size && skip(r, n * sizes[of]);
    }
    return type < sizeof sizes && sizes[type] && skip(r, sizes[type]);
}

static uint64_t bytes_of(uint32_t type, uint64_t values) {             /* 0: not known */
    for (size_t i = 0; i < sizeof BLOCKS / sizeof *BLOCKS; i++)
        if (BLOCKS[i].type == type) return values % BLOCKS[i].values ? 0 : values / BLOCKS[i].values * BLOCKS[i].bytes;
    return 0;
}

static bool expert_name(const char *name, uint32_t *layer, int *order) {
    char part[16] = "";
    int end = 0;
    if (sscanf(name, "blk.%u.ffn_%15[a-z_].weight%n", layer, part, &end) != 2 || !end || name[end]) return false;
    static const struct { const char *part; int order; } known[] = {
        {"gate_up_exps", 0}, {"gate_exps", 1}, {"up_exps", 2}, {"down_exps", 3}};
    for (size_t i = 0; i < 4; i++)
        if (!strcmp(part, known[i].part)) { *order = known[i].order; return *layer < MOST_LAYERS; }
    return false;
}

static void add_part(uint32_t number, struct part part) {
    struct layer *layer = &shim.layers[number];
    for (int i = 0; i < layer->count; i++)
        if (layer->parts[i].order == part.order) {
            /* Two models with experts in one process: the name of a tensor does not say which it is of. */
            if (layer->parts[i].map != part.map) shim.ambiguous = true;
            else layer->parts[i] = part;
            return;
        }
    if (layer->count == MOST_PARTS || (layer->count && layer->parts[0].experts != part.experts)) return;
    int at = layer->count++;
    for (; at && layer->parts[at - 1].order > part.order; at--) layer->parts[at] = layer->parts[at - 1];
    layer->parts[at] = part;
    if (number + 1 > shim.layer_count) shim.layer_count = number + 1;
    if (part.experts > shim.expert_count) shim.expert_count = part.experts;
}

/* Finds the experts of a GGUF file; what every token needs is asked for at once where the rest is loaded lazily. */
static void read_model(int fd, uint64_t size, int map) {
    struct reader *r = calloc(1, sizeof *r);
    struct span *shared = NULL;
    struct { uint32_t layer; struct part part; } *found = NULL;
    if (!r) return;
    r->fd = fd, r->size = size;
    uint32_t magic, version, alignment = 32, type;
    uint64_t tensors, entries, others = 0, experts = 0;
    char name[256];
    if (!take(r, &magic, 4) || !take(r, &version, 4) || !take(r, &tensors, 8) || !take(r, &entries, 8)) goto done;
    if (version < 2 || version > 3 || tensors > MOST_TENSORS || entries > MOST_ENTRIES) goto done;
    while (entries--) {
        if (!take_text(r, name, sizeof name) || !take(r, &type, 4)) goto done;
        if (type == 4 && !strcmp(name, "general.alignment")) { if (!take(r, &alignment, 4)) goto done; }
        else if (!skip_value(r, type)) goto done;
    }
    if (!alignment || alignment > 1u << 20) goto done;
    shared = calloc(tensors ? tensors : 1, sizeof *shared);
    found = calloc(MOST_LAYERS * MOST_PARTS, sizeof *found);
    if (!shared || !found) goto done;
    for (uint64_t i = 0; i < tensors; i++) {
        uint32_t rank, layer;
        uint64_t sides[4] = {1, 1, 1, 1}, offset, values = 1;
        int order;
        if (!take_text(r, name, sizeof name) || !take(r, &rank, 4) || !rank || rank > 4) goto done;
        for (uint32_t d = 0; d < rank; d++) {
            if (!take(r, &sides[d], 8) || !sides[d] || sides[d] > size * 8 || values > size * 8 / sides[d]) goto done;
            values *= sides[d];
        }
        if (!take(r, &type, 4) || !take(r, &offset, 8)) goto done;
        uint64_t length = bytes_of(type, values);
        if (!length || offset > size || length > size - offset) continue;
        if (rank == 3 && expert_name(name, &layer, &order)) {
            if (sides[2] <= MOST_EXPERTS && length % sides[2] == 0 && experts < MOST_LAYERS * MOST_PARTS) {
                found[experts].layer = layer;
                found[experts++].part = (struct part){map, (uint32_t)sides[2], offset, length / sides[2], order};
            }
        } else if (strcmp(name, "token_embd.weight")) {        /* of which a token needs one row */
            shared[others++] = (struct span){offset, length};
        }
    }
    uint64_t data = (r->at + alignment - 1) / alignment * alignment;
    for (uint64_t i = 0; i < experts; i++) {
        found[i].part.offset += data;
        if (found[i].part.offset + found[i].part.each * found[i].part.experts <= size)
            add_part(found[i].layer, found[i].part);
    }
    if (experts && shim.lazy)
        for (uint64_t i = 0; i < others; i++)
            posix_fadvise(fd, (off_t)(data + shared[i].offset), (off_t)shared[i].length, POSIX_FADV_WILLNEED);
done:
    free(found), free(shared), free(r);
}

static void summarise(void) {
    shim.moe_layers = 0;
    for (uint32_t l = 0; l < shim.layer_count; l++)
        if (shim.layers[l].count) {
            if (!shim.moe_layers++) shim.first_layer = l;
            shim.last_layer = l;
        }
}

/* ---- what others read ------------------------------------------------------------------------------------------- */

static uint64_t clock_ns(clockid_t of) {
    struct timespec t;
    clock_gettime(of, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void *map_memory(void *at, size_t n, int protection, int flags, int fd, off_t offset) {
    return (void *)syscall(SYS_mmap, at, n, protection, flags, fd, offset);
}

/* Under another name first: who opens it sees a whole one, or the one of before. */
static void stats_open(void) {
    size_t cells = (size_t)shim.layer_count * shim.expert_count, size = sizeof(struct head) + cells * sizeof(struct cell);
    char path[4096];
    if (!shim.stats_path || shim.head || !cells) return;
    if (snprintf(path, sizeof path, "%s.%ld", shim.stats_path, (long)getpid()) >= (int)sizeof path) return;
    unlink(path);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0) return;
    /* Its blocks are taken now: on a disk that is full later, a write to a hole would end the process. */
    void *at = posix_fallocate(fd, 0, (off_t)size) ? MAP_FAILED
                                                   : map_memory(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) { unlink(path); return; }
    struct head *head = at;
    memcpy(head->magic, "QDMOESTA", 8);
    head->version = 1, head->head_bytes = sizeof *head, head->cell_bytes = sizeof(struct cell);
    head->layers = shim.layer_count, head->experts = shim.expert_count, head->moe_layers = shim.moe_layers;
    head->pid = (uint32_t)getpid(), head->page_bytes = (uint32_t)shim.page;
    head->started_ns = head->updated_ns = clock_ns(CLOCK_REALTIME);
    if (rename(path, shim.stats_path)) { unlink(path); munmap(at, size); return; }
    shim.head = head, shim.cells = (struct cell *)(head + 1), shim.stats_bytes = size;
}

static void stats_close(void) {
    if (shim.head) syscall(SYS_munmap, shim.head, shim.stats_bytes);
    shim.head = NULL, shim.cells = NULL;
}

static void write_flags(void) {
    if (shim.head)
        shim.head->flags = (shim.prefetch ? PREFETCHES : 0) | (shim.lazy ? LAZY : 0) | (shim.blind ? BLIND : 0)
                           | (shim.ambiguous ? AMBIGUOUS : 0) | (shim.trace_full ? TRACE_FULL : 0);
}

/* A trace: "QDMOETRC", u32 version (1), u32 layers, u32 experts, u32 rows of decoding, u64 started (ns since 1970);
 * then for each layer of each pass u16 layer, u16 experts a row, u32 rows, and u16 for every expert, row by row. */
static struct { size_t used; uint8_t bytes[65536]; } tail;

static void trace_flush(void) {
    size_t done = 0;
    while (shim.trace >= 0 && done < tail.used) {
        ssize_t n = write(shim.trace, tail.bytes + done, tail.used - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) { close(shim.trace); shim.trace = -1, shim.trace_full = true; break; }
        done += (size_t)n;
    }
    tail.used = 0;
}

static void trace_put(const void *from, size_t n) {
    if (tail.used + n > sizeof tail.bytes) trace_flush();
    memcpy(tail.bytes + tail.used, from, n);
    tail.used += n, shim.trace_bytes += n;
}

static void trace_open(void) {
    if (shim.trace_asked && access(shim.trace_asked, F_OK)) return;
    if (!shim.trace_path || shim.trace >= 0 || shim.trace_full || !shim.layer_count) return;
    shim.trace = open(shim.trace_path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (shim.trace < 0) { shim.trace_full = true; return; }
    shim.trace_bytes = 0;
    uint32_t words[4] = {1, shim.layer_count, shim.expert_count, shim.rows};
    uint64_t started = clock_ns(CLOCK_REALTIME);
    trace_put("QDMOETRC", 8), trace_put(words, sizeof words), trace_put(&started, sizeof started);
}

/* Where a pass begins: somebody may have begun, or ceased, to want a trace, or wants a new one. */
static void trace_look(void) {
    static struct timespec since;
    if (!shim.trace_asked) return;
    struct stat about;
    bool wanted = !stat(shim.trace_asked, &about);
    if (!wanted || about.st_ctim.tv_sec != since.tv_sec || about.st_ctim.tv_nsec != since.tv_nsec) {
        trace_flush(), shim.trace_full = false;
        if (shim.trace >= 0) close(shim.trace);
        shim.trace = -1;
    }
    if (wanted) since = about.st_ctim, trace_open();
}

static void trace_pass(uint32_t layer, const int32_t *ids, size_t stride, uint32_t rows, uint32_t used) {
    if (shim.trace < 0) return;
    if (shim.trace_bytes + 8 + 2ull * rows * used > shim.trace_limit) {
        trace_flush(), shim.trace_full = true;
        if (shim.trace >= 0) close(shim.trace);
        shim.trace = -1;
        return;
    }
    uint16_t two[2] = {(uint16_t)layer, (uint16_t)used};
    trace_put(two, sizeof two), trace_put(&rows, sizeof rows);
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t j = 0; j < used; j++) {
            uint16_t id = (uint16_t)ids[row * stride + j];
            trace_put(&id, sizeof id);
        }
    if (layer == shim.last_layer) trace_flush();
}

/* ---- the server's files ----------------------------------------------------------------------------------------- */

static int64_t number(const char *name, int64_t otherwise) {
    const char *text = getenv(name);
    char *end = NULL;
    long long found = text && *text ? strtoll(text, &end, 10) : 0;
    return end && !*end && found >= 0 ? found : otherwise;
}

static const char *path(const char *name) {
    const char *text = getenv(name);
    return text && *text ? strdup(text) : NULL;
}

static void forked(void) { shim.gone = true; }          /* a child has no business here, and the lock may be held */

__attribute__((constructor)) static void begin(void) {
    shim.stats_path = path("QUARTERDECK_MOE_STATS"), shim.trace_path = path("QUARTERDECK_MOE_TRACE");
    shim.trace_asked = path("QUARTERDECK_MOE_TRACE_ASKED");
    shim.lazy = number("QUARTERDECK_MOE_LAZY", 0) > 0, shim.prefetch = number("QUARTERDECK_MOE_PREFETCH", 0) > 0;
    shim.rows = (uint32_t)number("QUARTERDECK_MOE_ROWS", 1) & 0xffff;
    shim.ahead = (uint64_t)number("QUARTERDECK_MOE_AHEAD", 256 << 20);
    shim.trace_limit = (uint64_t)number("QUARTERDECK_MOE_TRACE_LIMIT", 256 << 20);
    shim.page = sysconf(_SC_PAGESIZE);
    shim.on = shim.lazy || shim.prefetch || shim.stats_path || shim.trace_path;
    pthread_atfork(NULL, NULL, forked);
    /* What the server starts is not to be preloaded into. */
    Dl_info own;
    const char *preload = getenv("LD_PRELOAD");
    if (preload && dladdr((void *)begin, &own) && own.dli_fname && !strcmp(own.dli_fname, preload))
        unsetenv("LD_PRELOAD");
}

__attribute__((destructor)) static void finish(void) {
    if (shim.gone || pthread_mutex_trylock(&lock)) return;
    trace_flush();
    pthread_mutex_unlock(&lock);
}

static bool is_model(int fd, struct stat *about) {
    char magic[4];
    return shim.on && !shim.gone && fd >= 0 && !fstat(fd, about) && S_ISREG(about->st_mode)
           && pread(fd, magic, 4, 0) == 4 && !memcmp(magic, "GGUF", 4);
}

/* To somebody who neither owns a file nor may write it, mincore says that all of it is in memory. */
static bool sees_truth(int fd, const struct stat *about) {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    return geteuid() == 0 || about->st_uid == geteuid() || !faccessat(AT_FDCWD, name, W_OK, AT_EACCESS);
}

static void mapped(void *start, size_t length, int fd, const struct stat *about) {
    pthread_mutex_lock(&lock);
    int at = -1;
    bool all_dead = true;
    for (int i = 0; i < shim.map_count; i++) {
        if (shim.maps[i].device == about->st_dev && shim.maps[i].inode == about->st_ino) at = i;
        all_dead = all_dead && !shim.maps[i].alive;
    }
    if (at < 0 && all_dead && shim.map_count) {            /* another model in the place of the one of before */
        memset(shim.layers, 0, sizeof shim.layers);
        shim.map_count = 0, shim.layer_count = shim.expert_count = 0, shim.ambiguous = shim.blind = false;
        stats_close();
    }
    if (at < 0 && shim.map_count < MOST_MAPS) at = shim.map_count++;
    if (at >= 0) {
        shim.maps[at] = (struct map){start, length, about->st_dev, about->st_ino, true};
        shim.blind = shim.blind || !sees_truth(fd, about);
        uint32_t layers = shim.layer_count, experts = shim.expert_count;
        read_model(fd, (uint64_t)about->st_size < length ? (uint64_t)about->st_size : length, at);
        summarise();
        if (shim.layer_count != layers || shim.expert_count != experts) stats_close();    /* a further shard */
        stats_open(), trace_open(), write_flags();
    }
    pthread_mutex_unlock(&lock);
}

static void *mapping(void *at, size_t n, int protection, int flags, int fd, off_t offset) {
    struct stat about;
    bool model = n > 1 << 20 && offset == 0 && !(flags & MAP_ANONYMOUS) && is_model(fd, &about);
    if (model && shim.lazy) flags &= ~MAP_POPULATE;
    void *start = map_memory(at, n, protection, flags, fd, offset);
    if (model && start != MAP_FAILED) {
        int before = errno;
        mapped(start, n, fd, &about);
        errno = before;
    }
    return start;
}

__attribute__((visibility("default"))) void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset) {
    return mapping(at, n, protection, flags, fd, offset);
}

#ifdef __GLIBC__
__attribute__((visibility("default"))) void *mmap64(void *at, size_t n, int protection, int flags, int fd,
                                                    off_t offset) {
    return mapping(at, n, protection, flags, fd, offset);
}
#endif

__attribute__((visibility("default"))) int munmap(void *at, size_t n) {
    if (shim.on && !shim.gone && shim.map_count) {
        pthread_mutex_lock(&lock);
        for (int i = 0; i < shim.map_count; i++)
            if (shim.maps[i].start == at && n >= shim.maps[i].length) shim.maps[i].alive = false;
        pthread_mutex_unlock(&lock);
    }
    return (int)syscall(SYS_munmap, at, n);
}

__attribute__((visibility("default"))) int posix_madvise(void *at, size_t n, int advice) {
    if (advice == POSIX_MADV_WILLNEED && shim.lazy && !shim.gone) {
        bool ours = false;
        pthread_mutex_lock(&lock);
        for (int i = 0; i < shim.map_count; i++) ours = ours || (shim.maps[i].alive && shim.maps[i].start == at);
        ours = ours && shim.layer_count;
        pthread_mutex_unlock(&lock);
        if (ours) return 0;
    }
    int (*real)(void *, size_t, int) = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "posix_madvise");
    return real ? real(at, n, advice) : ENOSYS;
}

static int advise(int fd, off_t offset, off_t n, int advice, const char *name) {
    struct stat about;
    /* It doubles how much the kernel reads around a fault. */
    if (advice == POSIX_FADV_SEQUENTIAL && shim.lazy && is_model(fd, &about)) return 0;
    int (*real)(int, off_t, off_t, int) = (int (*)(int, off_t, off_t, int))dlsym(RTLD_NEXT, name);
    return real ? real(fd, offset, n, advice) : ENOSYS;
}

__attribute__((visibility("default"))) int posix_fadvise(int fd, off_t offset, off_t n, int advice) {
    return advise(fd, offset, n, advice, "posix_fadvise");
}

#ifdef __GLIBC__
__attribute__((visibility("default"))) int posix_fadvise64(int fd, off_t offset, off_t n, int advice) {
    return advise(fd, offset, n, advice, "posix_fadvise64");
}
#endif

/* ---- what was chosen -------------------------------------------------------------------------------------------- */

static uint32_t list_experts(const int32_t *ids, size_t stride, uint32_t rows, uint32_t used, uint32_t experts) {
    uint32_t count = 0;
    memset(seen, 0, (experts + 7) / 8);
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t j = 0; j < used; j++) {
            int32_t id = ids[row * stride + j];
            if (id < 0 || (uint32_t)id >= experts || seen[id / 8] >> id % 8 & 1) continue;
            seen[id / 8] |= (uint8_t)(1u << id % 8);
            listed[count++] = (uint32_t)id;
        }
    if (rows > 1)              /* a batch is computed expert by expert, in order */
        for (uint32_t id = 0, at = 0; id < experts && at < count; id++)
            if (seen[id / 8] >> id % 8 & 1) listed[at++] = id;
    return count;
}

/* Counts the pages of a range that are not in memory, and finds the first and the last of them; false: not mapped. */
static bool look(uintptr_t start, size_t pages, size_t *missing, size_t *first, size_t *last) {
    uint8_t vector[VECTOR];
    *missing = 0;
    for (size_t at = 0; at < pages; at += VECTOR) {
        size_t n = pages - at < VECTOR ? pages - at : VECTOR;
        if (mincore((void *)(start + at * (size_t)shim.page), n * (size_t)shim.page, vector)) return false;
        for (size_t i = 0; i < n; i++)
            if (!(vector[i] & 1)) {
                if (!(*missing)++) *first = at + i;
                *last = at + i;
            }
    }
    return true;
}

static void routed(uint32_t number, const int32_t *ids, size_t stride, uint32_t rows, uint32_t used, bool decoding) {
    struct layer *layer = &shim.layers[number];
    uint64_t began = clock_ns(CLOCK_MONOTONIC), bytes = 0, missing_bytes = 0, asked = 0, hits = 0, token_bytes = 0;
    uint32_t experts = layer->parts[0].experts, count = list_experts(ids, stride, rows, used, experts);
    memset(lacking, 0, count * sizeof *lacking);
    size_t page = (size_t)shim.page;
    shim.dice = shim.dice * 6364136223846793005u + 1442695040888963407u;
    bool assumed = !shim.blind && shim.quiet > QUIET * (uint64_t)shim.moe_layers && shim.dice >> 62;
    /* Matrix by matrix, not expert by expert: so are they computed, and what is needed first is asked for first. */
    for (int p = 0; p < layer->count; p++) {
        const struct part *part = &layer->parts[p];
        const struct map *map = &shim.maps[part->map];
        if (!map->alive) return;
        token_bytes += part->each * used;
        for (uint32_t i = 0; i < count; i++) {
            uintptr_t from = (uintptr_t)map->start + part->offset + listed[i] * part->each;
            uintptr_t start = from & ~(page - 1);
            size_t pages = (from + part->each - start + page - 1) / page, missing = 0, first = 0, last = pages - 1;
            if (from + part->each > (uintptr_t)map->start + map->length) continue;
            if (assumed) { bytes += pages * page; continue; }
            if (!look(start, pages, &missing, &first, &last)) continue;
            bytes += pages * page, missing_bytes += missing * page, lacking[i] += (uint32_t)missing;
            if (shim.blind) missing = pages, first = 0, last = pages - 1;
            size_t wanted = (last - first + 1) * page;
            if (missing && shim.prefetch && asked + wanted <= shim.ahead) {
                madvise((void *)(start + first * page), wanted, MADV_WILLNEED);
                asked += wanted;
            }
        }
    }
    for (uint32_t i = 0; i < count; i++) hits += !lacking[i];
    shim.quiet = missing_bytes ? 0 : shim.quiet + 1;
    struct head *head = shim.head;
    if (!head) return;
    for (uint32_t i = 0; i < count; i++) {
        struct cell *cell = &shim.cells[(size_t)number * shim.expert_count + listed[i]];
        uint32_t hit = !lacking[i] && !shim.blind;
        if (decoding) cell->requests++, cell->hits += hit;
        else cell->prompt_requests++, cell->prompt_hits += hit;
    }
    if (shim.blind) hits = 0, missing_bytes = 0;
    head->used = used, head->passes++;
    head->token_bytes = token_bytes * shim.moe_layers;
    if (decoding) {
        head->decode_tokens += number == shim.first_layer ? rows : 0;
        head->decode_requests += count, head->decode_hits += hits;
        head->decode_bytes += bytes, head->decode_missing += missing_bytes;
    } else {
        head->prompt_tokens += number == shim.first_layer ? rows : 0;
        head->prompt_requests += count, head->prompt_hits += hits;
        head->prompt_bytes += bytes, head->prompt_missing += missing_bytes;
    }
    head->assumed += assumed;
    head->prefetched_bytes += asked;
    head->trace_bytes = shim.trace_bytes;
    head->updated_ns = clock_ns(CLOCK_REALTIME);
    head->spent_ns += clock_ns(CLOCK_MONOTONIC) - began;
    write_flags();
}

/* The chosen experts of a layer: a view of a sorted row each, so rows lie further apart than they are long. */
static void read_choice(uint32_t number, const void *tensor, struct scheduler *mine) {
    int64_t elements = shim.elements(tensor), rows = shim.row_count(tensor);
    size_t span = shim.bytes(tensor);
    int64_t used = rows > 0 ? elements / rows : 0;
    struct layer *layer = &shim.layers[number];
    bool sound = !shim.ambiguous && layer->count && rows > 0 && rows < 1 << 20 && used > 0 && used * rows == elements
                 && used <= (int64_t)layer->parts[0].experts && span % 4 == 0 && span / 4 <= MOST_IDS
                 && span / 4 >= (size_t)elements && (rows == 1 || (span / 4 - (size_t)used) % (size_t)(rows - 1) == 0);
    if (sound && chosen_room < span) {
        int32_t *larger = realloc(chosen, span);
        if (larger) chosen = larger, chosen_room = span;
        else sound = false;
    }
    if (!sound) {
        if (shim.head) shim.head->unread++;
        return;
    }
    shim.get(tensor, chosen, 0, span);
    size_t stride = rows > 1 ? (span / 4 - (size_t)used) / (size_t)(rows - 1) : (size_t)used;
    if (number == shim.first_layer) trace_look();
    trace_pass(number, chosen, stride, (uint32_t)rows, (uint32_t)used);
    /* Behind the last layer's attention a prompt goes on with the rows that are sampled alone: what kind of pass it is,
     * the first layer tells. */
    if (number == shim.first_layer) mine->rows = (uint32_t)rows;
    routed(number, chosen, stride, (uint32_t)rows, (uint32_t)used, mine->rows <= shim.rows);
}

static bool on_tensor(void *tensor, bool ask, void *user) {
    struct scheduler *mine = user;
    eval_callback inner = mine->inner;
    void *inner_user = mine->inner_user;
    static const char prefix[] = "ffn_moe_topk-";
    const char *name = shim.name(tensor);
    bool choice = name && !strncmp(name, prefix, sizeof prefix - 1);
    if (ask) return choice || (inner && inner(tensor, true, inner_user));
    if (choice) {
        char *end;
        long layer = strtol(name + sizeof prefix - 1, &end, 10);
        int before = errno;
        if (end != name + sizeof prefix - 1 && !*end && layer >= 0 && layer < MOST_LAYERS) {
            pthread_mutex_lock(&lock);
            read_choice((uint32_t)layer, tensor, mine);
            pthread_mutex_unlock(&lock);
        }
        errno = before;
        if (!inner || !inner(tensor, true, inner_user)) return true;
    }
    return inner ? inner(tensor, false, inner_user) : true;
}

static bool ready(void) {
    if (!shim.name) {
        *(void **)&shim.elements = dlsym(RTLD_DEFAULT, "ggml_nelements");
        *(void **)&shim.row_count = dlsym(RTLD_DEFAULT, "ggml_nrows");
        *(void **)&shim.bytes = dlsym(RTLD_DEFAULT, "ggml_nbytes");
        *(void **)&shim.get = dlsym(RTLD_DEFAULT, "ggml_backend_tensor_get");
        *(void **)&shim.name = dlsym(RTLD_DEFAULT, "ggml_get_name");
    }
    return shim.name && shim.elements && shim.row_count && shim.bytes && shim.get;
}

__attribute__((visibility("default"))) void ggml_backend_sched_set_eval_callback(void *scheduler, eval_callback callback,
                                                                                 void *user) {
    pthread_mutex_lock(&lock);
    if (!shim.set_callback)
        *(void **)&shim.set_callback = dlsym(RTLD_NEXT, "ggml_backend_sched_set_eval_callback");
    void (*real)(void *, eval_callback, void *) = shim.set_callback;
    struct scheduler *mine = NULL;
    if (shim.on && !shim.gone && shim.layer_count && ready())
        for (int i = 0; i < MOST_SCHEDULERS && !mine; i++)
            if (shim.schedulers[i].of == scheduler || !shim.schedulers[i].of) mine = &shim.schedulers[i];
    if (mine) mine->of = scheduler, mine->inner = callback, mine->inner_user = user;
    pthread_mutex_unlock(&lock);
    if (!real) return;
    if (mine) real(scheduler, on_tensor, mine);
    else real(scheduler, callback, user);
}

#endif
