/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Types shared by the parts of the library. The generated fmhaforge.c includes this file, then its data, then the other parts,
 * so everything named ff_ has internal linkage and two bundles never meet. Only the tables of rows are an object of their own (ff_rows.h).
 */
#ifndef FF_CORE_H
#define FF_CORE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "ff_driver.h"

#define FF_ARRAY_LENGTH(array) (sizeof(array) / sizeof((array)[0]))

enum { FF_MAX_DEVICES = 64, FF_REASON_BYTES = 768, FF_MAX_TENSOR_MAP_RANK = 5, FF_MAX_STRUCT_BYTES = 4096 };

typedef enum ff_type { FF_TYPE_POINTER, FF_TYPE_I32, FF_TYPE_I64, FF_TYPE_F32 } ff_type;

/*
 * The limits of one field of an argument struct. Integers lie in minimum .. maximum and are multiples of multiple_of; a float is
 * finite, > 0 if minimum is 1, and at most maximum unless that is 0; a pointer is not null and aligned to multiple_of bytes.
 */
typedef struct ff_check {
    const char* name;
    uint32_t offset;
    ff_type type;
    int64_t minimum;
    int64_t maximum;
    int64_t multiple_of;
} ff_check;

typedef enum ff_relation_kind { FF_RELATION_AT_MOST, FF_RELATION_MULTIPLE, FF_RELATION_EQUAL } ff_relation_kind;

/* A relation between two values of the arguments; `left` and `right` are their texts. */
typedef struct ff_relation {
    ff_relation_kind kind;
    const char* left;
    const char* right;
    const char* message;
} ff_relation;

typedef struct ff_operation {
    int32_t id;
    const char* name;
    const char* args_type;
    size_t args_bytes;
    const ff_check* checks;
    size_t check_count;
    fmhaforge_status (*check_relations)(const void* args);
    fmhaforge_status (*check_heads)(int32_t num_q_heads, int32_t num_kv_heads);
    const char* seqlen_q_argument;
} ff_operation;

/* One launch, filled by the function that is generated from a plan. `values` holds the parameters at their offsets. */
typedef struct ff_launch {
    int64_t grid[3];
    uint32_t block[3];
    uint32_t cluster[3];
    uint32_t smem_bytes;
    void* params[FF_MAX_PARAMS];
    alignas(64) unsigned char values[FF_MAX_PARAM_BYTES];
} ff_launch;

/* `check_known` checks what a problem tells of the grid; the argument to blame goes to `blamed`. A seqlen_q below 0 is not known. */
typedef struct ff_plan {
    bool (*is_empty)(const void* args);
    fmhaforge_status (*fill)(const void* args, const ff_driver_api* driver, int64_t sm_count, ff_launch* launch);
    fmhaforge_status (*check_known)(int64_t num_q_heads, int64_t num_kv_heads, int64_t seqlen_q, const char** blamed);
} ff_plan;

/* An argument and its value. */
typedef struct ff_value {
    const char* name;
    int64_t value;
} ff_value;

/* What of a tensor map is known when the library is built, in the driver's numbers. */
typedef struct ff_tensor_map_shape {
    uint32_t rank;
    int data_type;
    int swizzle;
    int l2_promotion;
    uint32_t box[FF_MAX_TENSOR_MAP_RANK];
} ff_tensor_map_shape;

typedef struct ff_name {
    int32_t value;
    const char* name;
} ff_name;

/* The row SMs that can serve a device SM, best first, and the shared memory that a block may ask for there. */
typedef struct ff_arch {
    int32_t device_sm;
    int32_t smem_limit;
    uint32_t count;
    int32_t row_sms[FF_MAX_ARCH_ROWS];
} ff_arch;

typedef struct ff_variant {
    const char* name;
    int32_t first_row;
    int32_t row_count;
} ff_variant;

static fmhaforge_status ff_fail(fmhaforge_status status, const char* format, ...) __attribute__((format(printf, 2, 3)));

#endif
