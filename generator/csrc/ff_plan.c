/* SPDX-License-Identifier: Apache-2.0 */
/* What the functions generated from launch plans are made of: filling one parameter, or failing with the names of the arguments. */

/* Say that a value of the launch, computed from `given`, does not fit: the largest argument is named first, the others beside it. */
static fmhaforge_status ff_misfit(const char* what, int overflow, int64_t value, int64_t least, int64_t most, const ff_value* given,
    size_t count, const char** blamed)
{
    char bytes[FF_REASON_BYTES];
    ff_text text = {bytes, sizeof bytes, 0};
    size_t largest = 0;
    for (size_t i = 1; i < count; ++i) {
        largest = given[i].value > given[largest].value ? i : largest;
    }
    ff_append(&text, "%s: %lld ", given[largest].name, (long long)given[largest].value);
    for (size_t i = 0, others = 0; i < count; ++i) {
        if (i != largest) {
            const char* joint = others == 0 ? "with " : others + 2 == count ? "and " : "";
            ++others;
            ff_append(&text, "%s%s %lld%s", joint, given[i].name, (long long)given[i].value, others + 2 < count ? ", " : " ");
        }
    }
    if (overflow != 0) {
        ff_append(&text, FF_SAY_OVERFLOW, what);
    } else if (value > most) {
        ff_append(&text, FF_SAY_TOO_LARGE, what, (long long)value, (long long)most);
    } else {
        ff_append(&text, FF_SAY_TOO_SMALL, what, (long long)value, (long long)least);
    }
    if (blamed != NULL) {
        *blamed = given[largest].name;
    }
    return ff_fail(FMHAFORGE_ERROR_INVALID_ARGUMENT, "%s", bytes);
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

static inline void ff_put_i32(ff_launch* launch, size_t index, size_t offset, int32_t value)
{
    ff_put(launch, index, offset, &value, sizeof value);
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

/* Encode a tensor map whose dims and strides fit. */
static fmhaforge_status ff_encode(const ff_driver_api* driver, const char* name, const void* base, const ff_tensor_map_shape* shape,
    const int64_t* dims, const int64_t* strides_bytes, ff_tensor_map* map)
{
    static const uint32_t element_strides[FF_MAX_TENSOR_MAP_RANK] = {1, 1, 1, 1, 1};
    uint64_t map_dims[FF_MAX_TENSOR_MAP_RANK] = {0};
    uint64_t map_strides[FF_MAX_TENSOR_MAP_RANK] = {0};
    for (size_t i = 0; i < shape->rank; ++i) {
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
