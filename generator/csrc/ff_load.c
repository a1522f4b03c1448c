/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a row's kernel ready on a device: once per row and device, under one lock, published last. A failure leaves nothing
 * behind, so the next call tries again. Nothing is ever unloaded after it was published, because graphs may hold it.
 */

/* Describe the failure of a driver call that was made for a row. */
static fmhaforge_status ff_row_error(fmhaforge_status status, CUresult error, const char* call, const fmhaforge_row* row)
{
    char what[192];
    (void)snprintf(what, sizeof what, "%s of %s for SM %d", call, row->variant, row->sm);
    return ff_driver_error(status, error, what);
}

/* Whether this row's machine code runs on the device, by the architecture table. */
static fmhaforge_status ff_check_row_serves(const ff_device* device, const fmhaforge_row* row)
{
    if (!ff_runs_on(row, device->sm, device->arch)) {
        return ff_fail(FMHAFORGE_ERROR_WRONG_DEVICE,
            "%s for SM %d does not run on device %d, which is SM %d: query a row for SM %d", row->variant, row->sm, device->handle,
            device->sm, device->sm);
    }
    int32_t smem_bytes = row->smem_bytes + row->static_smem_bytes;
    if (smem_bytes > device->smem_limit) {
        return ff_fail(FMHAFORGE_ERROR_WRONG_DEVICE, "%s for SM %d needs %d bytes of shared memory, device %d gives at most %d",
            row->variant, row->sm, smem_bytes, device->handle, device->smem_limit);
    }
    return FMHAFORGE_OK;
}

/* A first load inside stream capture could break the capture, so it is refused before anything is touched. */
static fmhaforge_status ff_check_not_capturing(const ff_driver_api* driver, const fmhaforge_row* row, CUstream stream)
{
    int capture = FF_CAPTURE_STATUS_NONE;
    CUresult error = driver->cuStreamIsCapturing(stream, &capture);
    if (error == FF_CUDA_SUCCESS && capture == FF_CAPTURE_STATUS_NONE) {
        return FMHAFORGE_OK;
    }
    if (error == FF_CUDA_SUCCESS || error == FF_CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
        return ff_fail(FMHAFORGE_ERROR_STREAM_CAPTURING,
            "%s for SM %d is not loaded and the stream is capturing: call fmhaforge_preload before the capture begins, then try again",
            row->variant, row->sm);
    }
    return ff_driver_error(FMHAFORGE_ERROR_DRIVER, error, "cuStreamIsCapturing on the stream given");
}

/* Ready a kernel of a loaded library in the current context. */
static fmhaforge_status ff_ready_kernel(const ff_driver_api* driver, const ff_device* device, const fmhaforge_row* row,
    const char* symbol, CUlibrary library, CUkernel* kernel)
{
    CUresult error = driver->cuLibraryGetKernel(kernel, library, symbol);
    if (error == FF_CUDA_ERROR_NOT_FOUND) {
        return ff_fail(FMHAFORGE_ERROR_LOAD, "%s for SM %d loaded on device %d (SM %d), but holds no kernel %s for it", row->variant,
            row->sm, device->handle, device->sm, symbol);
    }
    if (error != FF_CUDA_SUCCESS) {
        return ff_row_error(FMHAFORGE_ERROR_LOAD, error, "cuLibraryGetKernel", row);
    }
    /* The driver loads lazily; asking for the function brings the code to this device now, not at the first launch. */
    CUfunction function = NULL;
    error = driver->cuKernelGetFunction(&function, *kernel);
    if (error != FF_CUDA_SUCCESS || function == NULL) {
        return ff_row_error(FMHAFORGE_ERROR_LOAD, error, "cuKernelGetFunction", row);
    }
    error = driver->cuKernelSetAttribute(FF_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, row->smem_bytes, *kernel, device->handle);
    if (error != FF_CUDA_SUCCESS) {
        return ff_row_error(FMHAFORGE_ERROR_LOAD, error, "cuKernelSetAttribute (dynamic shared memory)", row);
    }
    return FMHAFORGE_OK;
}

static fmhaforge_status ff_load_library(const ff_driver_api* driver, const ff_device* device, const fmhaforge_row* row, CUkernel* kernel)
{
    CUlibrary library = NULL;
    CUresult error = driver->cuLibraryLoadData(&library, row->cubin, NULL, NULL, 0, NULL, NULL, 0);
    if (error != FF_CUDA_SUCCESS) {
        return ff_row_error(FMHAFORGE_ERROR_LOAD, error, "cuLibraryLoadData", row);
    }
    fmhaforge_status status = ff_ready_kernel(driver, device, row, ff_row_codes[row->index].symbol, library, kernel);
    if (status != FMHAFORGE_OK) {
        (void)driver->cuLibraryUnload(library);
    }
    return status;
}

/* Another thread may be capturing in global mode; loading must neither fail for that nor break its capture. */
static fmhaforge_status ff_exchange_capture_mode(const ff_driver_api* driver, int* mode)
{
    CUresult error = driver->cuThreadExchangeStreamCaptureMode(mode);
    return error == FF_CUDA_SUCCESS ? FMHAFORGE_OK : ff_driver_error(FMHAFORGE_ERROR_DRIVER, error, "cuThreadExchangeStreamCaptureMode");
}

static fmhaforge_status ff_load(const ff_driver_api* driver, ff_device* device, const fmhaforge_row* row, CUkernel* kernel)
{
    int mode = FF_CAPTURE_MODE_RELAXED;
    fmhaforge_status status = ff_exchange_capture_mode(driver, &mode);
    if (status != FMHAFORGE_OK) {
        return status;
    }
    status = ff_load_library(driver, device, row, kernel);
    (void)driver->cuThreadExchangeStreamCaptureMode(&mode);
    if (status == FMHAFORGE_OK) {
        atomic_store_explicit(&device->kernels[row->index], *kernel, memory_order_release);
    }
    return status;
}

/* The kernel of a row on a device, loaded by the first caller; others wait for it. */
static fmhaforge_status ff_get_kernel(
    const ff_driver_api* driver, ff_device* device, const fmhaforge_row* row, CUstream stream, CUkernel* kernel)
{
    *kernel = atomic_load_explicit(&device->kernels[row->index], memory_order_acquire);
    if (*kernel != NULL) {
        return FMHAFORGE_OK;
    }
    fmhaforge_status status = ff_check_row_serves(device, row);
    if (status == FMHAFORGE_OK) {
        status = ff_check_not_capturing(driver, row, stream);
    }
    if (status != FMHAFORGE_OK) {
        return status;
    }
    (void)pthread_mutex_lock(&ff_slow_path);
    *kernel = atomic_load_explicit(&device->kernels[row->index], memory_order_relaxed);
    if (*kernel == NULL) {
        status = ff_load(driver, device, row, kernel);
    }
    (void)pthread_mutex_unlock(&ff_slow_path);
    return status;
}

/*
 * Bring the code of a kernel that was made ready on this device to the current context, which may be another one of the device: the driver
 * would do so at the first launch there, which may be captured. Within a capture it is too late, and nothing is done.
 */
static fmhaforge_status ff_bring_to_context(const ff_driver_api* driver, const fmhaforge_row* row, CUstream stream, CUkernel kernel)
{
    int capture = FF_CAPTURE_STATUS_NONE;
    if (driver->cuStreamIsCapturing(stream, &capture) != FF_CUDA_SUCCESS || capture != FF_CAPTURE_STATUS_NONE) {
        return FMHAFORGE_OK;
    }
    int mode = FF_CAPTURE_MODE_RELAXED;
    fmhaforge_status status = ff_exchange_capture_mode(driver, &mode);
    if (status != FMHAFORGE_OK) {
        return status;
    }
    CUfunction function = NULL;
    CUresult error = driver->cuKernelGetFunction(&function, kernel);
    (void)driver->cuThreadExchangeStreamCaptureMode(&mode);
    return error == FF_CUDA_SUCCESS ? FMHAFORGE_OK : ff_row_error(FMHAFORGE_ERROR_LOAD, error, "cuKernelGetFunction", row);
}

/* Whether `row` is a row of this very library, not of another bundle in the process. */
static fmhaforge_status ff_check_row(const fmhaforge_row* row)
{
    if (row == NULL) {
        return ff_fail(FMHAFORGE_ERROR_INVALID_ARGUMENT, "row is null: take one from fmhaforge_query or fmhaforge_find_row");
    }
    uintptr_t distance = (uintptr_t)row - (uintptr_t)ff_rows;
    if (distance >= sizeof ff_rows || distance % sizeof ff_rows[0] != 0) {
        return ff_fail(FMHAFORGE_ERROR_INVALID_ARGUMENT, "row is not of this library: take it from fmhaforge_query of the same library");
    }
    return FMHAFORGE_OK;
}

fmhaforge_status fmhaforge_attach(fmhaforge_stream stream)
{
    const ff_driver_api* driver = NULL;
    ff_device* device = NULL;
    fmhaforge_status status = ff_get_driver(&driver);
    return status == FMHAFORGE_OK ? ff_current_device(driver, stream, &device) : status;
}

fmhaforge_status fmhaforge_preload(const fmhaforge_row* row, fmhaforge_stream stream)
{
    const ff_driver_api* driver = NULL;
    ff_device* device = NULL;
    CUkernel kernel = NULL;
    fmhaforge_status status = ff_check_row(row);
    if (status == FMHAFORGE_OK) {
        status = ff_get_driver(&driver);
    }
    if (status == FMHAFORGE_OK) {
        status = ff_current_device(driver, stream, &device);
    }
    if (status != FMHAFORGE_OK) {
        return status;
    }
    kernel = atomic_load_explicit(&device->kernels[row->index], memory_order_acquire);
    return kernel != NULL ? ff_bring_to_context(driver, row, stream, kernel) : ff_get_kernel(driver, device, row, stream, &kernel);
}
