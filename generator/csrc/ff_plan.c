/* SPDX-License-Identifier: Apache-2.0 */
/* What the functions generated from launch plans are made of: filling one parameter, or failing with its name. */

static inline fmhaforge_status ff_plan_error(const char* what, const char* expression)
{
    return ff_fail(FMHAFORGE_ERROR_INVALID_ARGUMENT, "the launch's %s (%s) does not fit: the arguments are too large", what, expression);
}

static inline void ff_put(ff_launch* launch, size_t index, size_t offset, const void* value, size_t bytes)
{
    memcpy(launch->values + offset, value, bytes);
    launch->params[index] = launch->values + offset;
}

static inline void ff_put_ptr(ff_launch* launch, size_t index, size_t offset, const void* value)
{
    ff_put(launch, index, offset, (const void*)&value, sizeof value);
}

static inline void ff_put_i64(ff_launch* launch, size_t index, size_t offset, int64_t value)
{
    ff_put(launch, index, offset, &value, sizeof value);
}

static inline void ff_put_f32(ff_launch* launch, size_t index, size_t offset, float value)
{
    ff_put(launch, index, offset, &value, sizeof value);
}

static inline void ff_put_i32(ff_launch* launch, size_t index, size_t offset, int64_t value, int* bad)
{
    int32_t narrow = (int32_t)value;
    *bad |= narrow != value;
    ff_put(launch, index, offset, &narrow, sizeof narrow);
}

/*
 * The maps of this thread's last launch. Encoding one is a call into the driver that costs more than to see that nothing changed,
 * and the same launch is often repeated, with the pool of pages or the sequence lengths in the same place.
 */
typedef struct ff_known_map {
    const ff_tensor_map_shape* shape; /* null until a map is known */
    const void* base;
    int64_t dims[FF_MAX_TENSOR_MAP_RANK];
    int64_t strides_bytes[FF_MAX_TENSOR_MAP_RANK];
    ff_tensor_map map;
} ff_known_map;

enum { FF_KNOWN_MAPS = 4 };

static _Thread_local ff_known_map ff_known_maps[FF_KNOWN_MAPS];

static bool ff_is_known(const ff_known_map* known, const void* base, const ff_tensor_map_shape* shape, const int64_t* dims,
    const int64_t* strides_bytes)
{
    size_t bytes = shape->rank * sizeof *dims;
    return known->shape == shape && known->base == base && memcmp(known->dims, dims, bytes) == 0
        && memcmp(known->strides_bytes, strides_bytes, bytes) == 0;
}

static fmhaforge_status ff_encode(const ff_driver_api* driver, const char* name, const void* base, const ff_tensor_map_shape* shape,
    const int64_t* dims, const int64_t* strides_bytes, ff_tensor_map* map)
{
    static const uint32_t element_strides[FF_MAX_TENSOR_MAP_RANK] = {1, 1, 1, 1, 1};
    uint64_t map_dims[FF_MAX_TENSOR_MAP_RANK] = {0};
    uint64_t map_strides[FF_MAX_TENSOR_MAP_RANK] = {0};
    for (size_t i = 0; i < shape->rank; ++i) {
        if (dims[i] < 1 || dims[i] > UINT32_MAX || (i > 0 && strides_bytes[i - 1] < 0)) {
            return ff_fail(FMHAFORGE_ERROR_INVALID_ARGUMENT, "the launch's tensor map %s has extent %lld in dimension %zu", name,
                (long long)dims[i], i);
        }
        map_dims[i] = (uint64_t)dims[i];
        map_strides[i] = i + 1 < shape->rank ? (uint64_t)strides_bytes[i] : 0;
    }
    union {
        const void* in;
        void* out;
    } address = {base};
    CUresult error = driver->cuTensorMapEncodeTiled(map, shape->data_type, shape->rank, address.out, map_dims, map_strides, shape->box,
        element_strides, 0, shape->swizzle, shape->l2_promotion, 0);
    if (error != FF_CUDA_SUCCESS) {
        char what[96];
        (void)snprintf(what, sizeof what, "cuTensorMapEncodeTiled for %s", name);
        return ff_driver_error(FMHAFORGE_ERROR_LAUNCH, error, what);
    }
    return FMHAFORGE_OK;
}

/* Put a tensor map whose dims and strides (one of each per dimension, the last stride unused) were evaluated from the plan. */
static inline fmhaforge_status ff_put_tensor_map(const ff_driver_api* driver, ff_launch* launch, size_t index, size_t offset, const char* name,
    const void* base, const ff_tensor_map_shape* shape, const int64_t* dims, const int64_t* strides_bytes)
{
    ff_known_map* known = &ff_known_maps[index % FF_KNOWN_MAPS];
    if (!ff_is_known(known, base, shape, dims, strides_bytes)) {
        known->shape = NULL;
        fmhaforge_status status = ff_encode(driver, name, base, shape, dims, strides_bytes, &known->map);
        if (status != FMHAFORGE_OK) {
            return status;
        }
        known->base = base;
        memcpy(known->dims, dims, shape->rank * sizeof *dims);
        memcpy(known->strides_bytes, strides_bytes, shape->rank * sizeof *dims);
        known->shape = shape;
    }
    ff_put(launch, index, offset, &known->map, sizeof known->map);
    return FMHAFORGE_OK;
}
