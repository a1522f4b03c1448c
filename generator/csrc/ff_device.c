/* SPDX-License-Identifier: Apache-2.0 */
/* What the library knows of each device, made at first sight and kept for the life of the process. */
#include <stdlib.h>

typedef struct ff_device {
    CUdevice handle;
    int sm;
    int sm_count;
    int smem_limit;
    const ff_arch* arch;
    _Atomic(CUkernel) kernels[FF_ROW_COUNT]; /* published last, when the kernel is ready to launch */
} ff_device;

static _Atomic(ff_device*) ff_devices[FF_MAX_DEVICES];
static _Atomic(CUcontext) ff_default_context;

static const ff_arch* ff_find_arch(int32_t sm)
{
    for (size_t i = 0; i < FF_ARRAY_LENGTH(ff_archs); ++i) {
        if (ff_archs[i].device_sm == sm) {
            return &ff_archs[i];
        }
    }
    return NULL;
}

static fmhaforge_status ff_device_attribute(const ff_driver_api* driver, CUdevice handle, int attribute, int* value)
{
    CUresult error = driver->cuDeviceGetAttribute(value, attribute, handle);
    return error == FF_CUDA_SUCCESS ? FMHAFORGE_OK : ff_driver_error(FMHAFORGE_ERROR_DRIVER, error, "cuDeviceGetAttribute");
}

static fmhaforge_status ff_device_sm(const ff_driver_api* driver, CUdevice handle, int* sm)
{
    int major = 0;
    int minor = 0;
    fmhaforge_status status = ff_device_attribute(driver, handle, FF_DEVICE_COMPUTE_CAPABILITY_MAJOR, &major);
    if (status == FMHAFORGE_OK) {
        status = ff_device_attribute(driver, handle, FF_DEVICE_COMPUTE_CAPABILITY_MINOR, &minor);
    }
    *sm = major * 10 + minor;
    return status;
}

static fmhaforge_status ff_read_device(const ff_driver_api* driver, ff_device* device)
{
    fmhaforge_status status = ff_device_sm(driver, device->handle, &device->sm);
    if (status == FMHAFORGE_OK) {
        status = ff_device_attribute(driver, device->handle, FF_DEVICE_MULTIPROCESSOR_COUNT, &device->sm_count);
    }
    if (status == FMHAFORGE_OK) {
        status = ff_device_attribute(driver, device->handle, FF_DEVICE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &device->smem_limit);
    }
    device->arch = ff_find_arch(device->sm);
    return status;
}

static fmhaforge_status ff_add_device(const ff_driver_api* driver, CUdevice handle, ff_device** device)
{
    *device = atomic_load_explicit(&ff_devices[handle], memory_order_relaxed);
    if (*device != NULL) {
        return FMHAFORGE_OK;
    }
    ff_device* made = (ff_device*)calloc(1, sizeof *made);
    if (made == NULL) {
        return ff_fail(FMHAFORGE_ERROR_OUT_OF_MEMORY, "no host memory for the state of device %d", handle);
    }
    made->handle = handle;
    fmhaforge_status status = ff_read_device(driver, made);
    if (status != FMHAFORGE_OK) {
        free(made);
        return status;
    }
    atomic_store_explicit(&ff_devices[handle], made, memory_order_release);
    *device = made;
    return FMHAFORGE_OK;
}

static fmhaforge_status ff_get_device(const ff_driver_api* driver, CUdevice handle, ff_device** device)
{
    if (handle < 0 || handle >= FF_MAX_DEVICES) {
        return ff_fail(FMHAFORGE_ERROR_WRONG_DEVICE, "device %d is beyond the %d that the library serves: limit CUDA_VISIBLE_DEVICES",
            handle, FF_MAX_DEVICES);
    }
    *device = atomic_load_explicit(&ff_devices[handle], memory_order_acquire);
    if (*device != NULL) {
        return FMHAFORGE_OK;
    }
    (void)pthread_mutex_lock(&ff_slow_path);
    fmhaforge_status status = ff_add_device(driver, handle, device);
    (void)pthread_mutex_unlock(&ff_slow_path);
    return status;
}

/* The primary context of device 0, retained once and never released: kernels may be in flight until the process ends. */
static fmhaforge_status ff_retain_default_context(const ff_driver_api* driver, CUcontext* context)
{
    fmhaforge_status status = FMHAFORGE_OK;
    (void)pthread_mutex_lock(&ff_slow_path);
    *context = atomic_load_explicit(&ff_default_context, memory_order_relaxed);
    if (*context == NULL) {
        CUdevice handle = 0;
        CUresult error = driver->cuDeviceGet(&handle, 0);
        if (error == FF_CUDA_SUCCESS) {
            error = driver->cuDevicePrimaryCtxRetain(context, handle);
        }
        if (error == FF_CUDA_SUCCESS) {
            atomic_store_explicit(&ff_default_context, *context, memory_order_release);
        } else {
            status = ff_driver_error(FMHAFORGE_ERROR_DRIVER, error, "making the primary context of device 0");
        }
    }
    (void)pthread_mutex_unlock(&ff_slow_path);
    return status;
}

/* The two special handles (legacy and per-thread default stream) belong to whatever context is current. */
static bool ff_is_default_stream(CUstream stream)
{
    return (uintptr_t)stream <= 2;
}

/* Give a thread that has no context the one of its stream, else the primary context of device 0, as the runtime API does. */
static fmhaforge_status ff_make_context_current(const ff_driver_api* driver, CUstream stream)
{
    CUcontext context = NULL;
    if (!ff_is_default_stream(stream)) {
        CUresult error = driver->cuStreamGetCtx(stream, &context);
        if (error != FF_CUDA_SUCCESS) {
            return ff_driver_error(FMHAFORGE_ERROR_DRIVER, error, "cuStreamGetCtx on the stream given");
        }
    } else {
        fmhaforge_status status = ff_retain_default_context(driver, &context);
        if (status != FMHAFORGE_OK) {
            return status;
        }
    }
    CUresult error = driver->cuCtxSetCurrent(context);
    return error == FF_CUDA_SUCCESS ? FMHAFORGE_OK : ff_driver_error(FMHAFORGE_ERROR_DRIVER, error, "cuCtxSetCurrent");
}

/* The device of the current context, or device 0 when there is none; makes no context. */
static fmhaforge_status ff_peek_device(const ff_driver_api* driver, ff_device** device)
{
    CUdevice handle = 0;
    CUresult error = driver->cuCtxGetDevice(&handle);
    if (error == FF_CUDA_ERROR_INVALID_CONTEXT) {
        error = driver->cuDeviceGet(&handle, 0);
    }
    return error == FF_CUDA_SUCCESS ? ff_get_device(driver, handle, device)
                                    : ff_driver_error(FMHAFORGE_ERROR_DRIVER, error, "finding the current device");
}

/* The device of the calling thread's current context. */
static fmhaforge_status ff_current_device(const ff_driver_api* driver, CUstream stream, ff_device** device)
{
    CUdevice handle = 0;
    CUresult error = driver->cuCtxGetDevice(&handle);
    if (error == FF_CUDA_ERROR_INVALID_CONTEXT) {
        fmhaforge_status status = ff_make_context_current(driver, stream);
        if (status != FMHAFORGE_OK) {
            return status;
        }
        error = driver->cuCtxGetDevice(&handle);
    }
    if (error != FF_CUDA_SUCCESS) {
        return ff_driver_error(FMHAFORGE_ERROR_DRIVER, error, "cuCtxGetDevice");
    }
    return ff_get_device(driver, handle, device);
}
