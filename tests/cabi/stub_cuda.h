/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 for tests: made-up devices, contexts and streams. It understands the fake cubins of the tests (JSON after an ELF
 * header), decides by itself which kernels a device finds in one, and records every launch with the bytes of its parameters.
 * Tests steer it and read it through the stub_ functions (stub_steering.c). The driver's functions cuX are called fake_cuX, and handed out
 * by cuGetProcAddress from a table in each file: devices, contexts and streams in stub_devices.c; code and launches in stub_kernels.c.
 */
#ifndef STUB_CUDA_H
#define STUB_CUDA_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum { MAX_DEVICES = 8, MAX_CONTEXTS = 16, MAX_LAUNCHES = 4096, MAX_PARAMS = 64, MAX_BYTES = 4096, MAX_NAMES = 32 };
enum { OK = 0, INVALID_VALUE = 1, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, CAPTURE_UNSUPPORTED = 900 };

struct device {
    int sm;
    int smem_limit;
};

struct context {
    int device;
};

struct stream {
    struct context* context;
    int capturing;
};

struct library {
    const char* code;
    int unloaded;
};

struct kernel {
    struct library* library;
    char symbol[128];
    int param_count;
    int param_bytes[MAX_PARAMS];
    int smem_bytes[MAX_DEVICES];
    struct context* contexts[MAX_CONTEXTS]; /* that its code was brought to */
};

struct launch {
    char symbol[128];
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t cluster[3];
    uint32_t smem_bytes;
    int32_t device;
    uint64_t stream;
    uint32_t param_bytes;
    unsigned char params[MAX_BYTES];
};

/* What all threads share. */
extern struct stub {
    pthread_mutex_t lock;
    struct device devices[MAX_DEVICES];
    int device_count;
    struct context primary[MAX_DEVICES];
    int legacy_stream_status;
    int relaxed_loads;
    int load_delay_us;
    struct launch launches[MAX_LAUNCHES];
    int launch_count;
    struct {
        char name[64];
        int calls;
        int fail_code;
        int fail_times;
    } functions[MAX_NAMES];
} stub;

extern _Thread_local struct context* current;
extern _Thread_local int capture_mode;

EXPORT int stub_add_device(int sm, int smem_limit);
EXPORT void stub_use_device(int device);

/* Count a call of a driver function; the code that it must fail with, or OK. */
int enter(const char* name);

#define ENTER()                            \
    do {                                   \
        int code_ = enter(__func__ + 5);   \
        if (code_ != OK) {                 \
            return code_;                  \
        }                                  \
    } while (0)

/* Take as long as tests want loading, and the first use of the driver, to take. */
void load_slowly(void);

/* The functions of a file, by name; the last has no name. */
struct entry {
    const char* name;
    void* function;
};

#define ENTRY(name) {#name, (void*)fake_##name}

extern const struct entry kernel_entries[];

#endif
