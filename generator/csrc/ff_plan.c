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

/* Encode a tensor map whose dims and strides were evaluated from the plan. */
static inline fmhaforge_status ff_put_tensor_map(const ff_driver_api* driver, ff_launch* launch, size_t index, size_t offset, const char* name,
    const void* base, const ff_tensor_map_shape* shape, const int64_t* dims, const int64_t* strides_bytes)
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
    ff_tensor_map map;
    CUresult error = driver->cuTensorMapEncodeTiled(&map, shape->data_type, shape->rank, address.out, map_dims, map_strides, shape->box,
        element_strides, 0, shape->swizzle, shape->l2_promotion, 0);
    if (error != FF_CUDA_SUCCESS) {
        char what[96];
        (void)snprintf(what, sizeof what, "cuTensorMapEncodeTiled for %s", name);
        return ff_driver_error(FMHAFORGE_ERROR_LAUNCH, error, what);
    }
    ff_put(launch, index, offset, &map, sizeof map);
    return FMHAFORGE_OK;
}
