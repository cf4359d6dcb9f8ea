/* A response cache: it keeps entries in a list. Its settings make it fail (`fail`), give wrong entries (`give`), take entries in
 * a wrong way (`take`), or block while a file exists (`hold`). It logs its settings and its end, and reports a metric. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host.h"

typedef struct Cache Cache;
typedef struct Entry Entry;
typedef struct CacheAllocator CacheAllocator;

Error *TRITONCACHE_ApiVersion(uint32_t *, uint32_t *);
Error *TRITONCACHE_CacheEntryNew(Entry **);
Error *TRITONCACHE_CacheEntryDelete(Entry *);
Error *TRITONCACHE_CacheEntryBufferCount(Entry *, size_t *);
Error *TRITONCACHE_CacheEntryAddBuffer(Entry *, void *, BufferAttributes *);
Error *TRITONCACHE_CacheEntryGetBuffer(Entry *, size_t, void **, BufferAttributes *);
Error *TRITONCACHE_CacheEntrySetBuffer(Entry *, size_t, void *, BufferAttributes *);
Error *TRITONCACHE_Copy(CacheAllocator *, Entry *);

#ifndef API_MINOR
#define API_MINOR 1
#endif

typedef struct Kept {
    struct Kept *next;
    char *key;
    void *bytes;
    size_t size;
} Kept;

struct Cache {
    pthread_mutex_t lock;
    Kept *kept;
    char fail[32], give[32], take[32], hold[512];
    Family *family;
    Metric *metric;
};

static Error *say(const char *text, const char *more) {
    char line[1024];
    snprintf(line, sizeof line, "cache: %s%s", text, more);
    return TRITONSERVER_LogMessage(LOG_INFO, __FILE__, __LINE__, line);
}

static Error *refuse(const char *what) { return TRITONSERVER_ErrorNew(INTERNAL, what); }

/* Returns an error if a call did not fail. */
static Error *fails(Error *error, const char *what) {
    if (!error) {
        return refuse(what);
    }
    TRITONSERVER_ErrorDelete(error);
    return NULL;
}

/* Copies the value of a setting out of an object of strings; empty without it. */
static void setting(const char *config, const char *name, char *value, size_t size) {
    char head[64];
    snprintf(head, sizeof head, "\"%s\":\"", name);
    const char *found = strstr(config, head);
    value[0] = 0;
    if (found) {
        found += strlen(head);
        snprintf(value, size, "%.*s", (int)(strchr(found, '"') - found), found);
    }
}

/* Calls of an own entry, right and wrong. */
static Error *try_entry(void) {
    Entry *entry;
    BufferAttributes *attributes;
    void *base;
    size_t count, size;
    char bytes[7] = "answer";
    TRY(TRITONCACHE_CacheEntryNew(&entry));
    TRY(TRITONSERVER_BufferAttributesNew(&attributes));
    TRY(fails(TRITONCACHE_CacheEntryAddBuffer(entry, bytes, attributes), "a buffer without bytes"));
    TRY(TRITONSERVER_BufferAttributesSetByteSize(attributes, 7));
    TRY(fails(TRITONCACHE_CacheEntryAddBuffer(entry, NULL, attributes), "a null pointer"));
    TRY(fails(TRITONCACHE_CacheEntryAddBuffer(NULL, bytes, attributes), "no entry"));
    TRY(fails(TRITONCACHE_CacheEntryAddBuffer(entry, bytes, NULL), "no attributes"));
    TRY(TRITONSERVER_BufferAttributesSetMemoryType(attributes, MEMORY_GPU));
    TRY(fails(TRITONCACHE_CacheEntryAddBuffer(entry, bytes, attributes), "memory of a GPU"));
    TRY(TRITONSERVER_BufferAttributesSetMemoryType(attributes, MEMORY_CPU_PINNED));
    TRY(TRITONCACHE_CacheEntryAddBuffer(entry, bytes, attributes));
    TRY(TRITONCACHE_CacheEntryBufferCount(entry, &count));
    TRY(fails(TRITONCACHE_CacheEntryBufferCount(NULL, &count), "no entry"));
    TRY(fails(TRITONCACHE_CacheEntryGetBuffer(entry, 1, &base, attributes), "an index too far"));
    TRY(TRITONSERVER_BufferAttributesSetByteSize(attributes, 0));
    TRY(TRITONCACHE_CacheEntryGetBuffer(entry, 0, &base, attributes));
    TRY(TRITONSERVER_BufferAttributesByteSize(attributes, &size));
    if (count != 1 || base != bytes || size != 7) {
        return refuse("another buffer");
    }
    TRY(fails(TRITONCACHE_CacheEntrySetBuffer(entry, 1, bytes, NULL), "an index too far"));
    TRY(TRITONSERVER_BufferAttributesSetMemoryType(attributes, MEMORY_GPU));
    TRY(fails(TRITONCACHE_CacheEntrySetBuffer(entry, 0, bytes, attributes), "memory of a GPU"));
    TRY(fails(TRITONCACHE_Copy(NULL, entry), "no allocator"));
    TRY(fails(TRITONCACHE_Copy((CacheAllocator *)entry, entry), "an entry as an allocator"));
    TRY(TRITONSERVER_BufferAttributesDelete(attributes));
    TRY(TRITONCACHE_CacheEntryDelete(entry));
    return fails(TRITONCACHE_CacheEntryDelete(entry), "a second release");
}

EXPORTED Error *TRITONCACHE_CacheInitialize(Cache **cache, const char *config) {
    uint32_t major, minor;
    TRY(TRITONCACHE_ApiVersion(&major, &minor));
    if (major != 0 || minor < API_MINOR) {
        return TRITONSERVER_ErrorNew(UNSUPPORTED, "triton cache API version does not support this cache");
    }
    TRY(try_entry());
    TRY(say("initialized with ", config));
    Cache *made = calloc(1, sizeof *made);
    setting(config, "fail", made->fail, sizeof made->fail);
    setting(config, "give", made->give, sizeof made->give);
    setting(config, "take", made->take, sizeof made->take);
    setting(config, "hold", made->hold, sizeof made->hold);
    pthread_mutex_init(&made->lock, NULL);
    if (strcmp(made->fail, "initialize") == 0 || strcmp(made->give, "nothing") == 0) {
        bool has_error = made->fail[0];
        free(made);
        return has_error ? TRITONSERVER_ErrorNew(INVALID_ARG, "the cache refuses its settings on purpose") : NULL;
    }
    TRY(TRITONSERVER_MetricFamilyNew(&made->family, 1, "nv_cache_num_entries", "Entries of a cache of the tests"));
    TRY(TRITONSERVER_MetricNew(&made->metric, made->family, NULL, 0));
    *cache = made;
    return NULL;
}

EXPORTED Error *TRITONCACHE_CacheFinalize(Cache *cache) {
    while (cache->kept) {
        Kept *first = cache->kept;
        cache->kept = first->next;
        free(first->key);
        free(first->bytes);
        free(first);
    }
    TRY(TRITONSERVER_MetricDelete(cache->metric));
    TRY(TRITONSERVER_MetricFamilyDelete(cache->family));
    bool has_error = strcmp(cache->fail, "finalize") == 0;
    free(cache);
    TRY(say("finalized", ""));
    return has_error ? refuse("the cache fails on purpose") : NULL;
}

static Kept *find(Cache *cache, const char *key) {
    Kept *kept = cache->kept;
    while (kept && strcmp(kept->key, key) != 0) {
        kept = kept->next;
    }
    return kept;
}

/* Gives an entry as it is, or in the wrong way that the settings name. */
static Error *give(Cache *cache, Kept *kept, Entry *entry, CacheAllocator *allocator) {
    BufferAttributes *attributes;
    char *bytes = kept->bytes;
    size_t size = kept->size;
    if (strcmp(cache->give, "changed") == 0) {
        bytes[0] = 'x';
    } else if (strcmp(cache->give, "less") == 0) {
        size--;
    }
    TRY(TRITONSERVER_BufferAttributesNew(&attributes));
    TRY(TRITONSERVER_BufferAttributesSetByteSize(attributes, strcmp(cache->give, "huge") == 0 ? (size_t)1 << 40 : size));
    Error *error = TRITONCACHE_CacheEntryAddBuffer(entry, bytes, attributes);
    if (!error && strcmp(cache->give, "twice") == 0) {
        error = TRITONCACHE_CacheEntryAddBuffer(entry, bytes, attributes);
    } else if (!error && strcmp(cache->give, "null") == 0) {
        error = TRITONCACHE_CacheEntrySetBuffer(entry, 0, NULL, NULL);
    } else if (!error && strcmp(cache->give, "deleted") == 0) {
        error = TRITONCACHE_CacheEntryDelete(entry);
    }
    TRY(TRITONSERVER_BufferAttributesDelete(attributes));
    TRY(error);
    return strcmp(cache->give, "uncopied") == 0 ? NULL : TRITONCACHE_Copy(allocator, entry);
}

EXPORTED Error *TRITONCACHE_CacheLookup(Cache *cache, const char *key, Entry *entry, CacheAllocator *allocator) {
    while (cache->hold[0] && access(cache->hold, F_OK) == 0) {
        usleep(1000);
    }
    if (strcmp(cache->fail, "lookup") == 0) {
        return TRITONSERVER_ErrorNew(UNAVAILABLE, "the lookup fails on purpose");
    }
    pthread_mutex_lock(&cache->lock);
    Kept *kept = find(cache, key);
    Error *error = kept ? give(cache, kept, entry, allocator) : TRITONSERVER_ErrorNew(NOT_FOUND, "no such entry");
    pthread_mutex_unlock(&cache->lock);
    return error;
}

/* Takes an entry by the memory of the cache, or in the wrong way that the settings name. */
static Error *take(Cache *cache, Kept *kept, Entry *entry, CacheAllocator *allocator) {
    BufferAttributes *attributes;
    size_t count;
    void *base;
    TRY(TRITONCACHE_CacheEntryBufferCount(entry, &count));
    TRY(TRITONSERVER_BufferAttributesNew(&attributes));
    Error *error = TRITONCACHE_CacheEntryGetBuffer(entry, 0, &base, attributes);
    if (!error) {
        error = TRITONSERVER_BufferAttributesByteSize(attributes, &kept->size);
    }
    if (!error && (count != 1 || base || kept->size == 0)) {
        error = refuse("another entry than Triton's");
    }
    if (!error && strcmp(cache->take, "less") == 0) {
        error = TRITONSERVER_BufferAttributesSetByteSize(attributes, --kept->size);
    }
    if (!error && strcmp(cache->take, "null") != 0) {
        kept->bytes = malloc(kept->size);
        error = TRITONCACHE_CacheEntrySetBuffer(entry, 0, kept->bytes, cache->take[0] ? attributes : NULL);
    }
    TRY(TRITONSERVER_BufferAttributesDelete(attributes));
    TRY(error);
    return TRITONCACHE_Copy(allocator, entry);
}

#ifndef NO_INSERT
EXPORTED
#endif
Error *TRITONCACHE_CacheInsert(Cache *cache, const char *key, Entry *entry, CacheAllocator *allocator) {
    if (strcmp(cache->fail, "insert") == 0) {
        return TRITONSERVER_ErrorNew(UNAVAILABLE, "the insertion fails on purpose");
    }
    pthread_mutex_lock(&cache->lock);
    Error *error = find(cache, key) ? TRITONSERVER_ErrorNew(ALREADY_EXISTS, "the entry exists") : NULL;
    if (!error) {
        Kept *kept = calloc(1, sizeof *kept);
        error = take(cache, kept, entry, allocator);
        if (error) {
            free(kept->bytes);
            free(kept);
        } else {
            kept->key = strdup(key);
            kept->next = cache->kept;
            cache->kept = kept;
            error = TRITONSERVER_MetricIncrement(cache->metric, 1);
        }
    }
    pthread_mutex_unlock(&cache->lock);
    return error;
}
