/* SPDX-License-Identifier: Apache-2.0 */
/* One launch: check, evaluate the row's plan, find the kernel, hand it to the driver. The same road for every operation. */

static CUresult ff_launch_cluster(const ff_driver_api* driver, ff_launch* launch, CUfunction function, CUstream stream)
{
    ff_launch_attribute attribute = {.id = FF_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION};
    ff_launch_config config = {.smem_bytes = launch->smem_bytes, .stream = stream, .attributes = &attribute, .attribute_count = 1};
    for (size_t i = 0; i < 3; ++i) {
        attribute.value.cluster[i] = launch->cluster[i];
        config.grid[i] = (uint32_t)launch->grid[i];
        config.block[i] = launch->block[i];
    }
    return driver->cuLaunchKernelEx(&config, function, launch->params, NULL);
}

static CUresult ff_launch_plain(const ff_driver_api* driver, ff_launch* launch, CUfunction function, CUstream stream)
{
    return driver->cuLaunchKernel(function, (unsigned)launch->grid[0], (unsigned)launch->grid[1], (unsigned)launch->grid[2],
        launch->block[0], launch->block[1], launch->block[2], launch->smem_bytes, stream, launch->params, NULL);
}

static fmhaforge_status ff_submit(const ff_driver_api* driver, const fmhaforge_row* row, ff_launch* launch, CUkernel kernel, CUstream stream)
{
    /* The driver takes a context-independent kernel where it takes a function, and uses it in the current context. */
    union {
        CUkernel kernel;
        CUfunction function;
    } handle = {kernel};
    bool cluster = launch->cluster[0] * launch->cluster[1] * launch->cluster[2] > 1;
    CUresult error = cluster ? ff_launch_cluster(driver, launch, handle.function, stream)
                             : ff_launch_plain(driver, launch, handle.function, stream);
    if (error != FF_CUDA_SUCCESS) {
        return ff_row_error(FMHAFORGE_ERROR_LAUNCH, error, cluster ? "cuLaunchKernelEx" : "cuLaunchKernel", row);
    }
    return FMHAFORGE_OK;
}

static fmhaforge_status ff_launch_on_device(const fmhaforge_row* row, const ff_plan* plan, const void* args, CUstream stream)
{
    const ff_driver_api* driver = NULL;
    ff_device* device = NULL;
    CUkernel kernel = NULL;
    ff_launch launch;
    fmhaforge_status status = ff_get_driver(&driver);
    if (status == FMHAFORGE_OK) {
        status = ff_current_device(driver, stream, &device);
    }
    if (status == FMHAFORGE_OK) {
        status = ff_get_kernel(driver, device, row, stream, &kernel);
    }
    if (status == FMHAFORGE_OK) {
        status = plan->fill(args, driver, device->sm_count, &launch);
    }
    if (status == FMHAFORGE_OK) {
        status = ff_submit(driver, row, &launch, kernel, stream);
    }
    return status;
}

/* Checks everything that the host can see, without touching the driver. `empty` says that there is nothing to do. */
static fmhaforge_status ff_check_launch(
    const fmhaforge_row* row, const ff_operation* operation, const void* args, const ff_plan** plan, bool* empty)
{
    size_t given = 0;
    fmhaforge_status status = ff_check_row(row);
    if (status != FMHAFORGE_OK) {
        return status;
    }
    if (row->operation != operation->id) {
        const char* name = ff_find_operation(row->operation)->name;
        return ff_fail(FMHAFORGE_ERROR_INVALID_ARGUMENT, "row %s is of operation %s: launch it with fmhaforge_launch_%s", row->variant, name, name);
    }
    if (args == NULL) {
        return ff_fail(FMHAFORGE_ERROR_INVALID_ARGUMENT, "%s: args is null", operation->name);
    }
    memcpy(&given, args, sizeof given);
    status = ff_accept_size(args, given, operation->args_bytes, operation->args_type);
    if (status == FMHAFORGE_OK) {
        status = ff_check_fields(operation, args, false);
    }
    if (status == FMHAFORGE_OK) {
        status = operation->check_relations(args);
    }
    if (status != FMHAFORGE_OK) {
        return status;
    }
    *plan = &ff_plans[ff_row_codes[row->index].plan];
    *empty = (*plan)->is_empty(args);
    return *empty ? FMHAFORGE_OK : ff_check_fields(operation, args, true);
}

static fmhaforge_status ff_launch_row(const fmhaforge_row* row, const ff_operation* operation, const void* args, CUstream stream)
{
    const ff_plan* plan = NULL;
    bool empty = false;
    fmhaforge_status status = ff_check_launch(row, operation, args, &plan, &empty);
    if (status != FMHAFORGE_OK || empty) {
        return status;
    }
    return ff_launch_on_device(row, plan, args, stream);
}

float fmhaforge_scale_log2(float attention_scale)
{
    return (float)((double)attention_scale * 1.4426950408889634074);
}
