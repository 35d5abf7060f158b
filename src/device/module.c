/* module.c - finds and loads the module of a device. */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "device/device.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct device opened;
static bool is_open;

static uint64_t digest_of(const char *path)
{
    struct file_map m = {0};
    uint64_t h = 0;

    if (file_map_open(&m, path) == FST_OK)
        h = hash64(m.data, m.size, 0);
    file_map_release(&m);
    return h;
}

static enum fst_status load(const struct device_module **out, const char *name, uint64_t *digest)
{
    char folder[PATH_MAX - 64], path[PATH_MAX];
    const char *given = getenv("FIRESTEEL_MODULES");
    if (given && *given)
        snprintf(folder, sizeof folder, "%s", given);
    else if (!file_program_folder(folder, sizeof folder))
        snprintf(folder, sizeof folder, ".");
    snprintf(path, sizeof path, "%s/libfiresteel_%s.so", folder, name);
    if (access(path, R_OK) != 0)
        return fst_error(FST_EMACHINE, "--device %s: there is no module %s (make gpu builds it)",
                         name, path);
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!so)
        return fst_error(FST_EMACHINE, "--device %s: %s", name, dlerror());
    const struct device_module *m = dlsym(so, "fst_device_module");
    if (!m || m->version != DEVICE_MODULE_VERSION || strcmp(m->build, FST_VERSION) != 0 ||
        m->device_bytes != sizeof(struct device)) {
        dlclose(so);
        return fst_error(FST_EMACHINE, "--device %s: %s is of another build than this program",
                         name, path);
    }
    *out = m;
    *digest = digest_of(path);
    return FST_OK;
}

enum fst_status device_open(const struct device **out, const char *name)
{
    static const struct device_host host = {fst_verror, base_assert_failed};
    const struct device_module *m = NULL;
    enum fst_status rc = FST_OK;
    uint64_t digest = 0;
    *out = NULL;
    if (strcmp(name, "cpu") == 0)
        return FST_OK;
    pthread_mutex_lock(&lock);
    if (is_open && strcmp(opened.name, name) != 0)
        rc = fst_error(FST_EUNSUPPORTED, "--device %s: %s is open already", name, opened.name);
    if (!is_open && (rc = load(&m, name, &digest)) == FST_OK &&
        (rc = m->open(&opened, &host)) == FST_OK) {
        opened.digest = digest;
        is_open = true;
    }
    if (rc == FST_OK)
        *out = &opened;
    pthread_mutex_unlock(&lock);
    return rc;
}
