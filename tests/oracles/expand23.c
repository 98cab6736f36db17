/*
 * Lets the engine of OpenZFS 2.3 work on a pool of one top-level vdev on files: begin a RAID-Z expansion, go on
 * with one, or finish it. There is no kernel module of that version here, but its library runs in user space.
 *
 * Build: cc -w expand23.c -o expand23 -L$LIB -l:libzpool.so.6 -l:libnvpair.so.3 -lpthread
 * Run:   LD_LIBRARY_PATH=$LIB expand23 POOL SECONDS PAUSE MOST NEW|- FILE...     (LIB: where 2.3's libraries are)
 *
 * PAUSE is its raidz_expand_pause_point (0: none), MOST its raidz_expand_max_reflow_bytes. With NEW, a file, the
 * vdev is expanded by that. It ends when the expansion has, or after SECONDS; if they are negative the process
 * dies then and leaves the pool as it is, else the pool is exported.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What is needed of the library; it comes without headers. */
typedef struct nvlist nvlist_t;
typedef struct spa spa_t;

struct expand_stats {
    uint64_t state, vdev, start, end, to_move, moved, waits;
};

extern void kernel_init(int mode);
extern int spa_import(char *name, nvlist_t *config, nvlist_t *properties, uint64_t flags);
extern int spa_export(const char *name, nvlist_t **config, int force, int hard_force);
extern int spa_open(const char *name, spa_t **spa, const void *tag);
extern void spa_close(spa_t *spa, const void *tag);
extern int spa_vdev_attach(spa_t *spa, uint64_t guid, nvlist_t *root, int replacing, int rebuild);
extern int spa_raidz_expand_get_stats(spa_t *spa, struct expand_stats *stats);
extern void *spa_get_dsl(spa_t *spa);
extern void txg_wait_synced(void *dsl, uint64_t txg);
extern void spa_config_enter(spa_t *spa, int locks, const void *tag, int reader);
extern void spa_config_exit(spa_t *spa, int locks, const void *tag);

extern nvlist_t *fnvlist_alloc(void);
extern void fnvlist_add_string(nvlist_t *list, const char *name, const char *value);
extern void fnvlist_add_uint64(nvlist_t *list, const char *name, uint64_t value);
extern void fnvlist_add_nvlist(nvlist_t *list, const char *name, nvlist_t *value);
extern void fnvlist_add_nvlist_array(nvlist_t *list, const char *name, nvlist_t *const *values, unsigned count);
extern uint64_t fnvlist_lookup_uint64(nvlist_t *list, const char *name);
extern nvlist_t *fnvlist_lookup_nvlist(nvlist_t *list, const char *name);
extern int nvlist_unpack(char *bytes, size_t size, nvlist_t **list, int flags);
extern int nvlist_lookup_uint64(nvlist_t *list, const char *name, uint64_t *value);
extern int nvlist_lookup_nvlist_array(nvlist_t *list, const char *name, nvlist_t ***values, unsigned *count);
extern int nvlist_add_string(nvlist_t *list, const char *name, const char *value);

extern unsigned raidz_expand_pause_point;
extern unsigned long raidz_expand_max_reflow_bytes;
extern unsigned zfs_txg_timeout;
extern char *spa_config_path;

#define LABEL 262144
#define FINISHED 2
#define CONFIG_LOCK 1

static const char *const tag = "expand23";
static spa_t *spa;
static uint64_t top_guid;
static const char *newcomer;
static volatile int attached = -1;

/* The newest configuration in the labels of a file. */
static nvlist_t *label_of(const char *path, uint64_t *newest)
{
    static char bytes[LABEL];
    nvlist_t *best = NULL;
    int file = open(path, O_RDONLY);
    off_t size = lseek(file, 0, SEEK_END) / LABEL * LABEL;

    *newest = 0;
    for (int number = 0; number < 4; number++) {
        off_t at = number < 2 ? number * LABEL : size - (4 - number) * LABEL;
        nvlist_t *config = NULL;
        uint64_t txg = 0;

        if (pread(file, bytes, LABEL, at) != LABEL ||
            nvlist_unpack(bytes + 16384, 112 * 1024 - 40, &config, 0) != 0)
            continue;
        nvlist_lookup_uint64(config, "txg", &txg);
        if (best == NULL || txg > *newest) {
            best = config;
            *newest = txg;
        }
    }
    close(file);
    return best;
}

/* The configuration to import the pool with: of the newest label, with where the files are now. */
static nvlist_t *pool_config(const char *name, char **files, int count)
{
    nvlist_t *newest = NULL, **children, *root = fnvlist_alloc(), *config = fnvlist_alloc();
    uint64_t best = 0, txg, guid;
    unsigned width;

    for (int file = 0; file < count; file++) {
        nvlist_t *own = label_of(files[file], &txg);

        if (own != NULL && (newest == NULL || txg > best)) {
            newest = own;
            best = txg;
        }
    }
    if (newest == NULL) {
        fprintf(stderr, "no file has a label\n");
        exit(2);
    }
    nvlist_t *top = fnvlist_lookup_nvlist(newest, "vdev_tree");
    uint64_t pool_guid = fnvlist_lookup_uint64(newest, "pool_guid");

    top_guid = fnvlist_lookup_uint64(top, "guid");
    nvlist_lookup_nvlist_array(top, "children", &children, &width);
    for (unsigned child = 0; child < width; child++)
        for (int file = 0; file < count; file++) {
            nvlist_t *own = label_of(files[file], &txg);

            if (own != NULL && nvlist_lookup_uint64(own, "guid", &guid) == 0 &&
                guid == fnvlist_lookup_uint64(children[child], "guid"))
                nvlist_add_string(children[child], "path", files[file]);
        }
    fnvlist_add_string(root, "type", "root");
    fnvlist_add_uint64(root, "id", 0);
    fnvlist_add_uint64(root, "guid", pool_guid);
    fnvlist_add_nvlist_array(root, "children", &top, 1);
    fnvlist_add_uint64(config, "version", 5000);
    fnvlist_add_string(config, "name", name);
    fnvlist_add_uint64(config, "state", 1);
    fnvlist_add_uint64(config, "txg", best);
    fnvlist_add_uint64(config, "pool_guid", pool_guid);
    fnvlist_add_uint64(config, "vdev_children", 1);
    fnvlist_add_nvlist(config, "vdev_tree", root);
    return config;
}

/* Pausing holds up the order itself, so it has a thread of its own. */
static void *attach(void *unused)
{
    nvlist_t *leaf = fnvlist_alloc(), *root = fnvlist_alloc();

    fnvlist_add_string(leaf, "type", "file");
    fnvlist_add_string(leaf, "path", newcomer);
    fnvlist_add_uint64(leaf, "is_log", 0);
    fnvlist_add_string(root, "type", "root");
    fnvlist_add_nvlist_array(root, "children", &leaf, 1);
    attached = spa_vdev_attach(spa, top_guid, root, 0, 0);
    printf("attach: %d\n", attached);
    return unused;
}

static void die(int signal)
{
    _exit(9);
}

/* Waits for the end of the expansion, or so many seconds. */
static void watch(int seconds)
{
    for (int tenth = 0; tenth < abs(seconds) * 10; tenth++) {
        struct expand_stats stats = {0};

        usleep(100000);
        spa_config_enter(spa, CONFIG_LOCK, tag, 1);
        int error = spa_raidz_expand_get_stats(spa, &stats);
        spa_config_exit(spa, CONFIG_LOCK, tag);
        int is_over = error == 0 && stats.state == FINISHED && (newcomer == NULL || attached >= 0);

        if (tenth % 10 == 0 || is_over)
            printf("state %lu moved %lu of %lu\n", stats.state, stats.moved, stats.to_move);
        if (is_over && seconds > 0)
            return;
    }
}

int main(int count, char **words)
{
    if (count < 7) {
        fprintf(stderr, "usage: expand23 POOL SECONDS PAUSE MOST NEW|- FILE...\n");
        return 2;
    }
    char *name = words[1];
    int seconds = atoi(words[2]);
    int error;
    pthread_t thread;

    setvbuf(stdout, NULL, _IONBF, 0);
    raidz_expand_pause_point = atoi(words[3]);
    raidz_expand_max_reflow_bytes = strtoul(words[4], NULL, 0);
    newcomer = strcmp(words[5], "-") == 0 ? NULL : words[5];
    nvlist_t *config = pool_config(name, words + 6, count - 6);

    char *cache;
    asprintf(&cache, "%s.expand23.cache", words[6]);
    spa_config_path = cache;
    unlink(cache);
    zfs_txg_timeout = 1;
    kernel_init(3);
    if ((error = spa_import(name, config, NULL, 0)) != 0 || (error = spa_open(name, &spa, tag)) != 0) {
        fprintf(stderr, "import: %s\n", strerror(error));
        return 1;
    }
    if (seconds < 0) {
        /* At some of its pause points it holds the lock that its figures are read under. */
        signal(SIGALRM, die);
        alarm(-seconds);
    }
    if (newcomer != NULL)
        pthread_create(&thread, NULL, attach, NULL);
    watch(seconds);
    if (seconds < 0)
        pause();
    txg_wait_synced(spa_get_dsl(spa), 0);
    spa_close(spa, tag);
    error = spa_export(name, NULL, 0, 0);
    printf("export: %d\n", error);
    unlink(cache);
    /* Threads of the library are still there. */
    _exit(error != 0);
}
