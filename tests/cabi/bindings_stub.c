/* SPDX-License-Identifier: Apache-2.0 */
/* A libcuda.so.1 with the functions that fmhaforge.driver calls. Each writes its arguments as a line to the file $STUB_LOG, so that the
   test sees what the real cuda.bindings make of the runtime's calls. One device of SM 86; handles are fixed numbers. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, INVALID_PTX = 218, NOT_FOUND = 500 };
enum { CONTEXT = 0x100, LIBRARY = 0x200, KERNEL = 0x300, FUNCTION = 0x400, UNKNOWN_ADDRESS = 0xbad0 };

#define SAY(...)                                   \
    do {                                           \
        FILE* log = fopen(getenv("STUB_LOG"), "a"); \
        fprintf(log, __VA_ARGS__);                 \
        fputc('\n', log);                          \
        fclose(log);                               \
    } while (0)

static uintptr_t current, stack[16];
static int depth;

static int fake_cuInit(unsigned flags) { SAY("init %u", flags); return SUCCESS; }
static int fake_cuDriverGetVersion(int* version) { *version = 13000; return SUCCESS; }
static int fake_cuDeviceGetCount(int* count) { *count = 1; return SUCCESS; }
static int fake_cuDeviceGet(int* device, int ordinal) { *device = ordinal; return ordinal ? INVALID_DEVICE : SUCCESS; }
static int fake_cuDeviceGetName(char* name, int size, int device) { snprintf(name, size, "Stub %d", device); return SUCCESS; }

static int fake_cuDeviceGetAttribute(int* value, int attribute, int device)
{
    enum { SM_COUNT = 16, MAJOR = 75, MINOR = 76, PAGEABLE = 88, SMEM_OPTIN = 97 };
    *value = attribute == MAJOR ? 8 : attribute == MINOR ? 6 : attribute == SM_COUNT ? 132 : attribute == SMEM_OPTIN ? 101376 : 0;
    return device || (*value == 0 && attribute != PAGEABLE) ? INVALID_VALUE : SUCCESS;
}

static int fake_cuCtxGetCurrent(uintptr_t* context) { *context = current; return SUCCESS; }
static int fake_cuCtxGetId(uintptr_t context, uint64_t* id) { SAY("id of %lx", context); *id = 7; return SUCCESS; }
static int fake_cuCtxGetDevice(int* device) { *device = 0; return current ? SUCCESS : INVALID_CONTEXT; }
static int fake_cuDevicePrimaryCtxRetain(uintptr_t* context, int device) { SAY("retain %d", device); *context = CONTEXT; return SUCCESS; }
static int fake_cuCtxPushCurrent(uintptr_t context) { SAY("push %lx", context); stack[depth++] = current; current = context; return SUCCESS; }
static int fake_cuCtxPopCurrent(uintptr_t* context) { *context = current; current = stack[--depth]; SAY("pop"); return SUCCESS; }
static int fake_cuCtxSynchronize(void) { SAY("synchronize"); return SUCCESS; }
static int fake_cuStreamGetCtx(uintptr_t stream, uintptr_t* context) { SAY("context of stream %lx", stream); *context = CONTEXT; return SUCCESS; }
static int fake_cuStreamIsCapturing(uintptr_t stream, int* status) { SAY("capturing %lx", stream); *status = 0; return SUCCESS; }

static int fake_cuPointerGetAttribute(void* data, int attribute, uint64_t address)
{
    enum { MEMORY_TYPE = 2, BUFFER_ID = 7, IS_MANAGED = 8, ORDINAL = 9 };
    SAY("pointer attribute %d of %lx", attribute, address);
    if (attribute == IS_MANAGED) {
        *(char*)data = 0;
    } else if (attribute == BUFFER_ID) {
        *(uint64_t*)data = 1ull << 40;
    } else {
        *(int*)data = attribute == MEMORY_TYPE ? 2 : 0;
    }
    return address == UNKNOWN_ADDRESS ? INVALID_VALUE : SUCCESS;
}

static int fake_cuLibraryLoadData(uintptr_t* library, const char* code, const int* options, void** values, unsigned count, void* library_options,
                                  void** library_values, unsigned library_count)
{
    (void)library_options, (void)library_values;
    SAY("load %.8s with %u and %u options", code[0] == 0x7f ? "a cubin" : code, count, library_count);
    *library = LIBRARY;
    if (count == 0) {
        return SUCCESS;
    }
    SAY("options %d %d, log of %lu bytes", options[0], options[1], (unsigned long)(uintptr_t)values[1]);
    strcpy(values[0], "ptxas says why");
    return strstr(code, "bad") ? INVALID_PTX : SUCCESS;
}

static int fake_cuLibraryUnload(uintptr_t library) { SAY("unload %lx", library); return SUCCESS; }
static int fake_cuLibraryGetKernelCount(unsigned* count, uintptr_t library) { SAY("count %lx", library); *count = 1; return SUCCESS; }
static int fake_cuLibraryGetKernel(uintptr_t* kernel, uintptr_t library, const char* name) { SAY("kernel %s of %lx", name, library); *kernel = KERNEL; return SUCCESS; }
static int fake_cuKernelSetAttribute(int attribute, int value, uintptr_t kernel, int device) { SAY("attribute %d = %d of %lx on %d", attribute, value, kernel, device); return SUCCESS; }
static int fake_cuKernelGetFunction(uintptr_t* function, uintptr_t kernel) { SAY("function of %lx", kernel); *function = FUNCTION; return SUCCESS; }
static int fake_cuFuncLoad(uintptr_t function) { SAY("finish %lx", function); return SUCCESS; }

static int fake_cuLaunchKernel(uintptr_t kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned smem, uintptr_t stream,
                               void** params, void** extra)
{
    SAY("launch %lx grid %u %u %u block %u %u %u smem %u stream %lx, first %lx, extra %d", kernel, gx, gy, gz, bx, by, bz, smem, stream,
        (unsigned long)*(uint64_t*)params[0], extra != NULL);
    return SUCCESS;
}

typedef struct {
    int id;
    char padding[4];
    unsigned x, y, z;
    char rest[52];
} attribute_t;

typedef struct {
    unsigned gx, gy, gz, bx, by, bz, smem;
    uintptr_t stream;
    const attribute_t* attributes;
    unsigned count;
} config_t;

static int fake_cuLaunchKernelEx(const config_t* c, uintptr_t kernel, void** params, void** extra)
{
    SAY("launch %lx grid %u %u %u block %u %u %u smem %u stream %lx, %u attribute %d cluster %u %u %u, last %lx, extra %d", kernel, c->gx, c->gy, c->gz,
        c->bx, c->by, c->bz, c->smem, c->stream, c->count, c->attributes->id, c->attributes->x, c->attributes->y, c->attributes->z,
        (unsigned long)*(uint64_t*)params[1], extra != NULL);
    return SUCCESS;
}

static int fake_cuTensorMapEncodeTiled(char* map, int type, unsigned rank, uintptr_t base, const uint64_t* dims, const uint64_t* strides, const unsigned* box,
                                       const unsigned* steps, int interleave, int swizzle, int promotion, int fill)
{
    SAY("map type %d rank %u base %lx dims %lu %lu stride %lu box %u %u steps %u %u interleave %d swizzle %d promotion %d fill %d aligned %d", type, rank,
        base, dims[0], dims[1], strides[0], box[0], box[1], steps[0], steps[1], interleave, swizzle, promotion, fill, (uintptr_t)map % 64 == 0);
    memset(map, 'm', 128);
    return SUCCESS;
}

static int fake_cuMemAlloc(uint64_t* address, size_t size) { *address = (uint64_t)(uintptr_t)malloc(size); SAY("allocate %zu", size); return SUCCESS; }
static int fake_cuMemFree(uint64_t address) { free((void*)(uintptr_t)address); SAY("free"); return SUCCESS; }
static int fake_cuMemcpyHtoD(uint64_t to, const void* from, size_t size) { memcpy((void*)(uintptr_t)to, from, size); return SUCCESS; }
static int fake_cuMemcpyDtoH(void* to, uint64_t from, size_t size) { memcpy(to, (void*)(uintptr_t)from, size); return SUCCESS; }

int cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t flags, int* found);

int cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t flags, int* found)
{
#define ENTRY(name) {#name, (void*)fake_##name}
    static const struct {
        const char* name;
        void* function;
    } entries[] = {
        {"cuGetProcAddress", (void*)cuGetProcAddress_v2}, ENTRY(cuInit), ENTRY(cuDriverGetVersion), ENTRY(cuDeviceGetCount), ENTRY(cuDeviceGet),
        ENTRY(cuDeviceGetName), ENTRY(cuDeviceGetAttribute), ENTRY(cuCtxGetCurrent), ENTRY(cuCtxGetDevice), ENTRY(cuCtxGetId), ENTRY(cuDevicePrimaryCtxRetain),
        ENTRY(cuCtxPushCurrent), ENTRY(cuCtxPopCurrent), ENTRY(cuCtxSynchronize), ENTRY(cuStreamGetCtx), ENTRY(cuStreamIsCapturing),
        ENTRY(cuPointerGetAttribute), ENTRY(cuLibraryLoadData), ENTRY(cuLibraryUnload), ENTRY(cuLibraryGetKernelCount), ENTRY(cuLibraryGetKernel),
        ENTRY(cuKernelSetAttribute), ENTRY(cuKernelGetFunction), ENTRY(cuFuncLoad), ENTRY(cuLaunchKernel), ENTRY(cuLaunchKernelEx),
        ENTRY(cuTensorMapEncodeTiled), ENTRY(cuMemAlloc), ENTRY(cuMemFree), ENTRY(cuMemcpyHtoD), ENTRY(cuMemcpyDtoH),
    };
    (void)version, (void)flags;
    *function = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; ++i) {
        if (strcmp(entries[i].name, symbol) == 0) {
            *function = entries[i].function;
        }
    }
    if (found) {
        *found = *function == NULL;
    }
    return *function ? SUCCESS : NOT_FOUND;
}
