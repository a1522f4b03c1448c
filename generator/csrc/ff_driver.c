/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the driver at run time and initialises it once per process. Nothing here runs before the first call that needs a GPU. */
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

typedef CUresult (*ff_get_proc_address)(const char* symbol, void** function, int version, uint64_t flags, int* found);

/* One lock for every slow path: opening the driver, first sight of a device, loading a kernel. */
static pthread_mutex_t ff_slow_path = PTHREAD_MUTEX_INITIALIZER;
static ff_driver_api ff_driver_functions;
static _Atomic(const ff_driver_api*) ff_driver;
/* The process that uses the driver (upper half) and how many of its threads have begun to (lower half), in one word; 0 is nobody. */
static _Atomic(uint64_t) ff_driver_users;

/* Describe a driver error; `what` names the call that failed. */
static fmhaforge_status ff_driver_error(fmhaforge_status status, CUresult error, const char* what)
{
    const char* name = NULL;
    const char* text = NULL;
    if (ff_driver_functions.cuGetErrorName != NULL && ff_driver_functions.cuGetErrorString != NULL) {
        (void)ff_driver_functions.cuGetErrorName(error, &name);
        (void)ff_driver_functions.cuGetErrorString(error, &text);
    }
    return ff_fail(status, "%s failed: %s (%d): %s", what, name != NULL ? name : "CUDA error", error, text != NULL ? text : "no text");
}

static fmhaforge_status ff_find_functions(void* library)
{
    ff_get_proc_address get = NULL;
    *(void**)&get = dlsym(library, "cuGetProcAddress_v2");
    if (get == NULL) {
        return ff_fail(FMHAFORGE_ERROR_NO_DRIVER,
            "the CUDA driver is older than CUDA 12.0 (it has no cuGetProcAddress_v2): install a driver of CUDA 12.0 or newer");
    }
    static const char* const names[] = {
#define FF_NAME(name, parameters) #name,
        FF_DRIVER_FUNCTIONS(FF_NAME)
#undef FF_NAME
    };
    void** slots[] = {
#define FF_SLOT(name, parameters) (void**)&ff_driver_functions.name,
        FF_DRIVER_FUNCTIONS(FF_SLOT)
#undef FF_SLOT
    };
    for (size_t i = 0; i < FF_ARRAY_LENGTH(names); ++i) {
        int found = 0;
        *slots[i] = NULL;
        CUresult error = get(names[i], slots[i], FF_DRIVER_VERSION, 0, &found);
        if (error != FF_CUDA_SUCCESS || *slots[i] == NULL) {
            return ff_fail(FMHAFORGE_ERROR_NO_DRIVER, "the CUDA driver has no %s: install a driver of CUDA 12.0 or newer", names[i]);
        }
    }
    return FMHAFORGE_OK;
}

static fmhaforge_status ff_open_driver(void)
{
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        return ff_fail(FMHAFORGE_ERROR_NO_DRIVER, "no CUDA driver: %s", dlerror());
    }
    fmhaforge_status status = ff_find_functions(library);
    if (status != FMHAFORGE_OK) {
        return status;
    }
    CUresult error = ff_driver_functions.cuInit(0);
    if (error != FF_CUDA_SUCCESS) {
        return ff_driver_error(FMHAFORGE_ERROR_NO_DRIVER, error, "cuInit");
    }
    return FMHAFORGE_OK;
}

/*
 * A child of fork() must not use CUDA once its parent has; say so instead of hanging on a copied lock. The parent counts as a user from
 * before it locks until after it unlocked: a child that was forked meanwhile by another thread has a copy of a lock that nobody will open.
 */
static fmhaforge_status ff_check_fork(void)
{
    uint64_t users = atomic_load_explicit(&ff_driver_users, memory_order_acquire);
    if (users != 0 && users >> 32 != (uint32_t)getpid()) {
        return ff_fail(FMHAFORGE_ERROR_FORKED,
            "this process was forked from process %ld after that had used CUDA, and CUDA does not survive fork: "
            "start workers before the first use or by spawn (exec)",
            (long)(users >> 32));
    }
    return FMHAFORGE_OK;
}

/* Become one of the users. The word is 0 or of this process. */
static void ff_begin_use(void)
{
    uint64_t first = (uint64_t)(uint32_t)getpid() << 32 | 1;
    uint64_t users = atomic_load_explicit(&ff_driver_users, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(
        &ff_driver_users, &users, users == 0 ? first : users + 1, memory_order_acq_rel, memory_order_relaxed)) {
    }
}

/* Be no user any more, after a failure; the last one leaves nobody. */
static void ff_end_use(void)
{
    uint64_t users = atomic_load_explicit(&ff_driver_users, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(
        &ff_driver_users, &users, (uint32_t)users == 1 ? 0 : users - 1, memory_order_acq_rel, memory_order_relaxed)) {
    }
}

/* Hand out the driver's functions, opening the driver on the first call. A failure is not remembered: the next call tries again. */
static fmhaforge_status ff_get_driver(const ff_driver_api** api)
{
    fmhaforge_status status = ff_check_fork();
    if (status != FMHAFORGE_OK) {
        return status;
    }
    *api = atomic_load_explicit(&ff_driver, memory_order_acquire);
    if (*api != NULL) {
        return FMHAFORGE_OK;
    }
    ff_begin_use();
    (void)pthread_mutex_lock(&ff_slow_path);
    *api = atomic_load_explicit(&ff_driver, memory_order_relaxed);
    if (*api == NULL) {
        status = ff_open_driver();
        if (status == FMHAFORGE_OK) {
            *api = &ff_driver_functions;
            atomic_store_explicit(&ff_driver, *api, memory_order_release);
        }
    }
    (void)pthread_mutex_unlock(&ff_slow_path);
    if (status != FMHAFORGE_OK) {
        ff_end_use();
    }
    return status;
}
