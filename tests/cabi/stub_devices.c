/* SPDX-License-Identifier: Apache-2.0 */
/* The stub driver's devices, contexts and streams, and the way to all of its functions. */
#include "stub_cuda.h"

#include <stdlib.h>
#include <string.h>

/* STUB_SM in the environment is a device, for programs that know nothing of the stub_ stub.functions. */
static int fake_cuInit(unsigned flags)
{
    ENTER();
    load_slowly();
    const char* sm = getenv("STUB_SM");
    if (sm != NULL && stub.device_count == 0) {
        stub_use_device(stub_add_device(atoi(sm), 101376));
    }
    return flags == 0 && stub.device_count > 0 ? OK : 100;
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
    return ordinal < stub.device_count ? OK : 101;
}

static int fake_cuDeviceGetAttribute(int* value, int attribute, int device)
{
    ENTER();
    switch (attribute) {
    case 16:
        *value = 100 + device;
        return OK;
    case 75:
        *value = stub.devices[device].sm / 10;
        return OK;
    case 76:
        *value = stub.devices[device].sm % 10;
        return OK;
    case 97:
        *value = stub.devices[device].smem_limit;
        return OK;
    default:
        return INVALID_VALUE;
    }
}

static int fake_cuDevicePrimaryCtxRetain(struct context** context, int device)
{
    ENTER();
    *context = &stub.primary[device];
    return OK;
}

static int fake_cuCtxSetCurrent(struct context* context)
{
    ENTER();
    current = context;
    return OK;
}

static int fake_cuCtxGetCurrent(struct context** context)
{
    ENTER();
    *context = current;
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
    return (uintptr_t)stream < 2 ? stub.legacy_stream_status : OK;
}

static int fake_cuThreadExchangeStreamCaptureMode(int* mode)
{
    ENTER();
    int old = capture_mode;
    capture_mode = *mode;
    *mode = old;
    return OK;
}

/* Another context of a device, current from now on. It is never freed. */
EXPORT int cuCtxCreate_v2(struct context** context, unsigned flags, int device);
EXPORT int cuCtxCreate_v2(struct context** context, unsigned flags, int device)
{
    current = *context = malloc(sizeof **context);
    current->device = device;
    return flags == 0 ? OK : INVALID_VALUE;
}

static const struct entry device_entries[] = {
    ENTRY(cuInit), ENTRY(cuGetErrorName), ENTRY(cuGetErrorString), ENTRY(cuDeviceGet), ENTRY(cuDeviceGetAttribute),
    ENTRY(cuDevicePrimaryCtxRetain), ENTRY(cuCtxSetCurrent), ENTRY(cuCtxGetCurrent), ENTRY(cuCtxGetDevice), ENTRY(cuStreamGetCtx), ENTRY(cuStreamIsCapturing),
    ENTRY(cuThreadExchangeStreamCaptureMode), {NULL, NULL},
};

static void* find(const struct entry* entries, const char* symbol)
{
    for (; entries->name != NULL; ++entries) {
        if (strcmp(entries->name, symbol) == 0) {
            return entries->function;
        }
    }
    return NULL;
}

EXPORT int cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t flags, int* found);
EXPORT int cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t flags, int* found)
{
    *found = 1;
    *function = NULL;
    if (version != 12000 || flags != 0) {
        return INVALID_VALUE;
    }
    *function = find(device_entries, symbol);
    if (*function == NULL) {
        *function = find(kernel_entries, symbol);
    }
    *found = *function == NULL;
    return *function != NULL ? OK : NOT_FOUND;
}
