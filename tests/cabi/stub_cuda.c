/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 for tests: made-up devices, contexts and streams. It understands the fake cubins of the tests (JSON after an ELF
 * header), decides by itself which kernels a device finds in one, and records every launch with the bytes of its parameters.
 * Tests steer it and read it through the stub_ functions.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_DEVICES = 8, MAX_LAUNCHES = 4096, MAX_PARAMS = 64, MAX_BYTES = 4096, MAX_NAMES = 32 };
enum { OK = 0, INVALID_VALUE = 1, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500 };

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

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct device devices[MAX_DEVICES];
static int device_count;
static struct context primary[MAX_DEVICES];
static _Thread_local struct context* current;
static _Thread_local int capture_mode;
static int legacy_stream_status;
static int relaxed_loads;
static int load_delay_us;
static struct launch launches[MAX_LAUNCHES];
static int launch_count;
static struct {
    char name[64];
    int calls;
    int fail_code;
    int fail_times;
} functions[MAX_NAMES];

#define EXPORT __attribute__((visibility("default")))

/* -- steering ------------------------------------------------------------------------------------------------------------------ */

EXPORT void stub_reset(void);
EXPORT void stub_reset(void)
{
    memset(functions, 0, sizeof functions);
    device_count = launch_count = legacy_stream_status = relaxed_loads = load_delay_us = 0;
    current = NULL;
}

EXPORT int stub_add_device(int sm, int smem_limit);
EXPORT int stub_add_device(int sm, int smem_limit)
{
    devices[device_count] = (struct device) {sm, smem_limit};
    primary[device_count].device = device_count;
    return device_count++;
}

EXPORT void stub_use_device(int device);
EXPORT void stub_use_device(int device)
{
    current = device < 0 ? NULL : &primary[device];
}

EXPORT int stub_current_device(void);
EXPORT int stub_current_device(void)
{
    return current == NULL ? -1 : current->device;
}

EXPORT void* stub_new_stream(int device);
EXPORT void* stub_new_stream(int device)
{
    struct stream* stream = calloc(1, sizeof *stream);
    stream->context = &primary[device];
    return stream;
}

EXPORT void stub_set_capturing(struct stream* stream, int capturing);
EXPORT void stub_set_capturing(struct stream* stream, int capturing)
{
    stream->capturing = capturing;
}

/* What cuStreamIsCapturing says of the default stream: 906 while another stream captures. */
EXPORT void stub_set_legacy_stream(int status);
EXPORT void stub_set_legacy_stream(int status)
{
    legacy_stream_status = status;
}

EXPORT void stub_set_load_delay(int microseconds);
EXPORT void stub_set_load_delay(int microseconds)
{
    load_delay_us = microseconds;
}

static size_t slot(const char* name)
{
    for (size_t i = 0; i < MAX_NAMES; ++i) {
        if (functions[i].name[0] == 0) {
            snprintf(functions[i].name, sizeof functions[i].name, "%s", name);
        }
        if (strcmp(functions[i].name, name) == 0) {
            return i;
        }
    }
    abort();
}

/* Make the next `times` calls of a function fail with `code`. */
EXPORT void stub_fail(const char* name, int code, int times);
EXPORT void stub_fail(const char* name, int code, int times)
{
    size_t i = slot(name);
    functions[i].fail_code = code;
    functions[i].fail_times = times;
}

EXPORT int stub_calls(const char* name);
EXPORT int stub_calls(const char* name)
{
    return functions[slot(name)].calls;
}

EXPORT int stub_relaxed_loads(void);
EXPORT int stub_relaxed_loads(void)
{
    return relaxed_loads;
}

EXPORT int stub_capture_mode(void);
EXPORT int stub_capture_mode(void)
{
    return capture_mode;
}

EXPORT int stub_launch_count(void);
EXPORT int stub_launch_count(void)
{
    return launch_count;
}

EXPORT const struct launch* stub_launch(int index);
EXPORT const struct launch* stub_launch(int index)
{
    return &launches[index];
}

static int enter(const char* name)
{
    int code = OK;
    pthread_mutex_lock(&lock);
    size_t i = slot(name);
    ++functions[i].calls;
    if (functions[i].fail_times > 0) {
        --functions[i].fail_times;
        code = functions[i].fail_code;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

#define ENTER()                            \
    do {                                   \
        int code_ = enter(__func__ + 5);   \
        if (code_ != OK) {                 \
            return code_;                  \
        }                                  \
    } while (0)

/* -- the driver: functions fake_cuX, handed out as cuX ------------------------------------------------------------------------- */

/* STUB_SM in the environment is a device, for programs that know nothing of the stub_ functions. */
static int fake_cuInit(unsigned flags)
{
    ENTER();
    const char* sm = getenv("STUB_SM");
    if (sm != NULL && device_count == 0) {
        stub_use_device(stub_add_device(atoi(sm), 101376));
    }
    return flags == 0 && device_count > 0 ? OK : 100;
}

static int fake_cuGetErrorName(int error, const char** name)
{
    *name = error == NOT_FOUND ? "CUDA_ERROR_NOT_FOUND" : "CUDA_ERROR_STUB";
    return OK;
}

static int fake_cuGetErrorString(int error, const char** text)
{
    (void)error;
    *text = "made by the stub";
    return OK;
}

static int fake_cuDeviceGet(int* device, int ordinal)
{
    ENTER();
    *device = ordinal;
    return ordinal < device_count ? OK : 101;
}

static int fake_cuDeviceGetAttribute(int* value, int attribute, int device)
{
    ENTER();
    switch (attribute) {
    case 16:
        *value = 100 + device;
        return OK;
    case 75:
        *value = devices[device].sm / 10;
        return OK;
    case 76:
        *value = devices[device].sm % 10;
        return OK;
    case 97:
        *value = devices[device].smem_limit;
        return OK;
    default:
        return INVALID_VALUE;
    }
}

static int fake_cuDevicePrimaryCtxRetain(struct context** context, int device)
{
    ENTER();
    *context = &primary[device];
    return OK;
}

static int fake_cuCtxSetCurrent(struct context* context)
{
    ENTER();
    current = context;
    return OK;
}

static int fake_cuCtxGetDevice(int* device)
{
    ENTER();
    if (current == NULL) {
        return INVALID_CONTEXT;
    }
    *device = current->device;
    return OK;
}

static int fake_cuStreamGetCtx(struct stream* stream, struct context** context)
{
    ENTER();
    *context = stream->context;
    return OK;
}

static int fake_cuStreamIsCapturing(struct stream* stream, int* status)
{
    ENTER();
    *status = (uintptr_t)stream > 2 ? stream->capturing : 0;
    return (uintptr_t)stream < 2 ? legacy_stream_status : OK;
}

static int fake_cuThreadExchangeStreamCaptureMode(int* mode)
{
    ENTER();
    int old = capture_mode;
    capture_mode = *mode;
    *mode = old;
    return OK;
}

static int fake_cuLibraryLoadData(struct library** library, const char* code, int* jit_options, void** jit_values, unsigned jit_count,
    int* library_options, void** library_values, unsigned library_count)
{
    (void)jit_options, (void)jit_values, (void)jit_count, (void)library_options, (void)library_values, (void)library_count;
    ENTER();
    if (memcmp(code + 64, "FAKE", 4) != 0) {
        return 200;
    }
    if (load_delay_us > 0) {
        nanosleep(&(struct timespec) {0, load_delay_us * 1000L}, NULL);
    }
    pthread_mutex_lock(&lock);
    relaxed_loads += capture_mode == 2;
    pthread_mutex_unlock(&lock);
    *library = calloc(1, sizeof **library);
    (*library)->code = code + 68;
    return OK;
}

static int fake_cuLibraryUnload(struct library* library)
{
    ENTER();
    library->unloaded = 1;
    return OK;
}

static int tegra(int sm)
{
    return sm == 87 || sm == 101 || sm == 110;
}

/* NVIDIA's binary compatibility, written from its documentation and not from the library's table. */
static int runs_on(int built, int exact, int device)
{
    if (built == device || (!exact && built + device == 211)) {
        return 1;
    }
    return !exact && !tegra(built) && !tegra(device) && built / 10 == device / 10 && built % 10 < device % 10;
}

static int fake_cuLibraryGetKernel(struct kernel** kernel, struct library* library, const char* symbol)
{
    ENTER();
    char key[160];
    snprintf(key, sizeof key, "\"%s\": [", symbol);
    const char* sizes = strstr(library->code, key);
    int built = atoi(strstr(library->code, "\"sm\": ") + 6);
    int exact = strncmp(strstr(library->code, "\"exact\": ") + 9, "true", 4) == 0;
    if (sizes == NULL || current == NULL || library->unloaded || !runs_on(built, exact, devices[current->device].sm)) {
        return NOT_FOUND;
    }
    struct kernel* made = calloc(1, sizeof *made);
    made->library = library;
    snprintf(made->symbol, sizeof made->symbol, "%s@%d", symbol, built);
    char* end = NULL;
    for (sizes += strlen(key); *sizes != ']'; sizes = end + strspn(end, ", ")) {
        made->param_bytes[made->param_count++] = (int)strtol(sizes, &end, 10);
    }
    *kernel = made;
    return OK;
}

static int fake_cuKernelGetFunction(struct kernel** function, struct kernel* kernel)
{
    ENTER();
    *function = kernel;
    return OK;
}

static int fake_cuKernelSetAttribute(int attribute, int value, struct kernel* kernel, int device)
{
    ENTER();
    if (attribute != 8 || value < 0 || value > devices[device].smem_limit) {
        return INVALID_VALUE;
    }
    kernel->smem_bytes[device] = value;
    return OK;
}

struct config {
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t smem_bytes;
    struct stream* stream;
    uint32_t* attributes;
    uint32_t attribute_count;
};

static int record(const struct config* config, const uint32_t* cluster, struct kernel* kernel, void** params)
{
    if (current == NULL) {
        return INVALID_CONTEXT;
    }
    if (kernel->library->unloaded || config->smem_bytes > (uint32_t)kernel->smem_bytes[current->device]) {
        return INVALID_HANDLE;
    }
    pthread_mutex_lock(&lock);
    struct launch* made = &launches[launch_count < MAX_LAUNCHES ? launch_count : MAX_LAUNCHES - 1];
    memset(made, 0, sizeof *made);
    snprintf(made->symbol, sizeof made->symbol, "%s", kernel->symbol);
    memcpy(made->grid, config->grid, sizeof made->grid);
    memcpy(made->block, config->block, sizeof made->block);
    memcpy(made->cluster, cluster, sizeof made->cluster);
    made->smem_bytes = config->smem_bytes;
    made->device = current->device;
    made->stream = (uint64_t)(uintptr_t)config->stream;
    uint32_t end = 0;
    for (int i = 0; i < kernel->param_count; ++i) {
        uint32_t bytes = (uint32_t)kernel->param_bytes[i];
        uint32_t alignment = bytes > 8 ? 64 : bytes;
        end = (end + alignment - 1) / alignment * alignment;
        memcpy(made->params + end, params[i], bytes);
        end += bytes;
    }
    made->param_bytes = end;
    ++launch_count;
    pthread_mutex_unlock(&lock);
    return OK;
}

static int fake_cuLaunchKernel(struct kernel* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
    unsigned block_y, unsigned block_z, unsigned smem_bytes, struct stream* stream, void** params, void** extra)
{
    ENTER();
    static const uint32_t no_cluster[3] = {1, 1, 1};
    struct config config = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, smem_bytes, stream, NULL, 0};
    return extra == NULL ? record(&config, no_cluster, function, params) : INVALID_VALUE;
}

static int fake_cuLaunchKernelEx(const struct config* config, struct kernel* function, void** params, void** extra)
{
    ENTER();
    if (extra != NULL || config->attribute_count != 1 || config->attributes[0] != 4) {
        return INVALID_VALUE;
    }
    return record(config, config->attributes + 2, function, params);
}

/* The "tensor map" is simply its arguments, one after the other. */
static int fake_cuTensorMapEncodeTiled(unsigned char* map, int data_type, uint32_t rank, void* base, const uint64_t* dims,
    const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides, int interleave, int swizzle, int l2, int fill)
{
    ENTER();
    uint32_t head[8] = {(uint32_t)data_type, rank, (uint32_t)swizzle, (uint32_t)l2};
    for (uint32_t i = 0; i < rank; ++i) {
        if (element_strides[i] != 1) {
            return INVALID_VALUE;
        }
    }
    if (interleave != 0 || fill != 0 || (uintptr_t)map % 64 != 0 || rank > 5) {
        return INVALID_VALUE;
    }
    memset(map, 0, 128);
    memcpy(map, head, 16);
    memcpy(map + 16, &base, 8);
    memcpy(map + 24, dims, 8 * rank);
    memcpy(map + 64, strides, 8 * (rank - 1));
    memcpy(map + 96, box, 4 * rank);
    return OK;
}

EXPORT int cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t flags, int* found);
EXPORT int cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t flags, int* found)
{
#define ENTRY(name) {#name, (void*)fake_##name}
    static const struct {
        const char* name;
        void* function;
    } entries[] = {
        ENTRY(cuInit), ENTRY(cuGetErrorName), ENTRY(cuGetErrorString), ENTRY(cuDeviceGet),
        ENTRY(cuDeviceGetAttribute), ENTRY(cuDevicePrimaryCtxRetain), ENTRY(cuCtxSetCurrent),
        ENTRY(cuCtxGetDevice), ENTRY(cuStreamGetCtx), ENTRY(cuStreamIsCapturing), ENTRY(cuThreadExchangeStreamCaptureMode),
        ENTRY(cuLibraryLoadData), ENTRY(cuLibraryUnload), ENTRY(cuLibraryGetKernel), ENTRY(cuKernelGetFunction),
        ENTRY(cuKernelSetAttribute), ENTRY(cuLaunchKernel), ENTRY(cuLaunchKernelEx), ENTRY(cuTensorMapEncodeTiled),
    };
    *found = 1;
    *function = NULL;
    if (version != 12000 || flags != 0) {
        return INVALID_VALUE;
    }
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; ++i) {
        if (strcmp(entries[i].name, symbol) == 0) {
            *function = entries[i].function;
            *found = 0;
            return OK;
        }
    }
    return NOT_FOUND;
}
