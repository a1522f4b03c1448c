/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the CUDA driver API that the library uses, declared here so that no CUDA header is needed to build it. */
#ifndef FF_DRIVER_H
#define FF_DRIVER_H

#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st* CUcontext;
typedef struct CUstream_st* CUstream;
typedef struct CUlib_st* CUlibrary;
typedef struct CUkern_st* CUkernel;
typedef struct CUfunc_st* CUfunction;

enum {
    FF_CUDA_SUCCESS = 0,
    FF_CUDA_ERROR_INVALID_CONTEXT = 201,
    FF_CUDA_ERROR_NOT_FOUND = 500,
    FF_CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    FF_DEVICE_MULTIPROCESSOR_COUNT = 16,
    FF_DEVICE_COMPUTE_CAPABILITY_MAJOR = 75,
    FF_DEVICE_COMPUTE_CAPABILITY_MINOR = 76,
    FF_DEVICE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
    FF_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    FF_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
    FF_CAPTURE_STATUS_NONE = 0,
    FF_CAPTURE_MODE_RELAXED = 2,
    /* The oldest CUDA whose driver has the library API (cuLibraryLoadData). */
    FF_DRIVER_VERSION = 12000
};

typedef struct ff_launch_attribute {
    int32_t id;
    int32_t pad;
    union {
        uint32_t cluster[3];
        unsigned char bytes[64];
    } value;
} ff_launch_attribute;

typedef struct ff_launch_config {
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t smem_bytes;
    CUstream stream;
    ff_launch_attribute* attributes;
    uint32_t attribute_count;
} ff_launch_config;

typedef struct ff_tensor_map {
    alignas(64) uint64_t opaque[16];
} ff_tensor_map;

_Static_assert(sizeof(ff_launch_attribute) == 72, "layout of CUlaunchAttribute");
_Static_assert(sizeof(ff_launch_config) == 56, "layout of CUlaunchConfig");
_Static_assert(sizeof(ff_tensor_map) == 128, "layout of CUtensorMap");

/* X(name, parameters): every entry point, looked up by cuGetProcAddress at FF_DRIVER_VERSION. */
#define FF_DRIVER_FUNCTIONS(X)                                                                                                   \
    X(cuInit, (unsigned flags))                                                                                                  \
    X(cuGetErrorName, (CUresult error, const char** name))                                                                       \
    X(cuGetErrorString, (CUresult error, const char** text))                                                                     \
    X(cuDeviceGet, (CUdevice * device, int ordinal))                                                                             \
    X(cuDeviceGetAttribute, (int* value, int attribute, CUdevice device))                                                        \
    X(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                                                          \
    X(cuCtxSetCurrent, (CUcontext context))                                                                                      \
    X(cuCtxGetDevice, (CUdevice * device))                                                                                       \
    X(cuStreamGetCtx, (CUstream stream, CUcontext * context))                                                                    \
    X(cuStreamIsCapturing, (CUstream stream, int* status))                                                                       \
    X(cuThreadExchangeStreamCaptureMode, (int* mode))                                                                            \
    X(cuLibraryLoadData, (CUlibrary * library, const void* code, int* jit_options, void** jit_values, unsigned jit_count,       \
                             int* library_options, void** library_values, unsigned library_count))                               \
    X(cuLibraryUnload, (CUlibrary library))                                                                                      \
    X(cuLibraryGetKernel, (CUkernel * kernel, CUlibrary library, const char* name))                                              \
    X(cuKernelGetFunction, (CUfunction * function, CUkernel kernel))                                                             \
    X(cuKernelSetAttribute, (int attribute, int value, CUkernel kernel, CUdevice device))                                        \
    X(cuLaunchKernel, (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,                \
                          unsigned block_y, unsigned block_z, unsigned smem_bytes, CUstream stream, void** params, void** extra)) \
    X(cuLaunchKernelEx, (const ff_launch_config* config, CUfunction function, void** params, void** extra))                      \
    X(cuTensorMapEncodeTiled, (ff_tensor_map * map, int data_type, uint32_t rank, void* base, const uint64_t* dims,              \
                                  const uint64_t* strides_bytes, const uint32_t* box, const uint32_t* element_strides,           \
                                  int interleave, int swizzle, int l2_promotion, int out_of_bounds_fill))

typedef struct ff_driver_api {
#define FF_DECLARE(name, parameters) CUresult(*name) parameters;
    FF_DRIVER_FUNCTIONS(FF_DECLARE)
#undef FF_DECLARE
} ff_driver_api;

#endif
