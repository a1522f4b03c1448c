/* SPDX-License-Identifier: Apache-2.0 */
/* Checks an argument struct against the limits of its operation, which are data. Reads no memory behind the pointers. */
#include <math.h>
#include <string.h>

static fmhaforge_status ff_check_integer(const ff_check* check, int64_t value)
{
    if (value < check->minimum) {
        return ff_fail(FMHAFORGE_ERROR_INVALID_ARGUMENT, "%s: " FF_SAY_BELOW, check->name, (long long)value, (long long)check->minimum,
            (long long)check->minimum);
    }
    if (value > check->maximum) {
        return ff_fail(FMHAFORGE_ERROR_INVALID_ARGUMENT, "%s: " FF_SAY_ABOVE, check->name, (long long)value, (long long)check->maximum,
            (long long)check->maximum);
    }
    if (value % check->multiple_of != 0) {
        return ff_fail(FMHAFORGE_ERROR_INVALID_ARGUMENT, "%s: " FF_SAY_NOT_A_MULTIPLE, check->name, (long long)value,
            (long long)check->multiple_of);
    }
    return FMHAFORGE_OK;
}

static fmhaforge_status ff_check_float(const ff_check* check, float value)
{
    if (!isfinite(value) || (check->minimum > 0 && !(value > 0.0F))) {
        return ff_fail(FMHAFORGE_ERROR_INVALID_ARGUMENT, "%s: %g must be finite%s", check->name, (double)value,
            check->minimum > 0 ? " and > 0" : "");
    }
    if (check->maximum != 0 && value > (float)check->maximum) {
        return ff_fail(FMHAFORGE_ERROR_INVALID_ARGUMENT, "%s: %g is above %lld; give at most %lld", check->name, (double)value,
            (long long)check->maximum, (long long)check->maximum);
    }
    return FMHAFORGE_OK;
}

static fmhaforge_status ff_check_pointer(const ff_check* check, const void* pointer)
{
    if (pointer == NULL) {
        return ff_fail(FMHAFORGE_ERROR_INVALID_ARGUMENT, "%s: is null; pass device memory", check->name);
    }
    if ((uintptr_t)pointer % (uintptr_t)check->multiple_of != 0) {
        return ff_fail(FMHAFORGE_ERROR_INVALID_ARGUMENT, "%s: %p is not aligned to %lld bytes", check->name, pointer,
            (long long)check->multiple_of);
    }
    return FMHAFORGE_OK;
}

static fmhaforge_status ff_check_field(const ff_check* check, const unsigned char* args)
{
    const unsigned char* field = args + check->offset;
    union {
        int32_t i32;
        int64_t i64;
        float f32;
        const void* pointer;
    } value;
    switch (check->type) {
    case FF_TYPE_I32:
        memcpy(&value.i32, field, sizeof value.i32);
        return ff_check_integer(check, value.i32);
    case FF_TYPE_I64:
        memcpy(&value.i64, field, sizeof value.i64);
        return ff_check_integer(check, value.i64);
    case FF_TYPE_F32:
        memcpy(&value.f32, field, sizeof value.f32);
        return ff_check_float(check, value.f32);
    case FF_TYPE_POINTER:
    default:
        memcpy((void*)&value.pointer, field, sizeof value.pointer);
        return ff_check_pointer(check, value.pointer);
    }
}

/* Check either the pointers of `args` or everything else: an empty launch needs no memory, so pointers come last. */
static fmhaforge_status ff_check_fields(const ff_operation* operation, const void* args, bool pointers)
{
    for (size_t i = 0; i < operation->check_count; ++i) {
        const ff_check* check = &operation->checks[i];
        if ((check->type == FF_TYPE_POINTER) == pointers) {
            fmhaforge_status status = ff_check_field(check, (const unsigned char*)args);
            if (status != FMHAFORGE_OK) {
                return status;
            }
        }
    }
    return FMHAFORGE_OK;
}

/* Check a value by the limits of the integer argument `name`. */
static fmhaforge_status ff_check_named(const ff_operation* operation, const char* name, int64_t value)
{
    for (size_t i = 0; i < operation->check_count; ++i) {
        if (strcmp(operation->checks[i].name, name) == 0) {
            return ff_check_integer(&operation->checks[i], value);
        }
    }
    return FMHAFORGE_OK;
}

/* One relation between two values of the arguments; the generated code evaluates both sides. */
static fmhaforge_status ff_check_relation(const ff_relation* relation, int64_t left, int64_t right, int overflow)
{
    bool holds = false;
    if (overflow != 0) {
        return ff_fail(FMHAFORGE_ERROR_INVALID_ARGUMENT, FF_SAY_RELATION_OVERFLOW, relation->message, relation->left, relation->right);
    }
    switch (relation->kind) {
    case FF_RELATION_AT_MOST:
        holds = left <= right;
        break;
    case FF_RELATION_EQUAL:
        holds = left == right;
        break;
    case FF_RELATION_MULTIPLE:
    default:
        holds = right > 0 && left % right == 0;
        break;
    }
    if (holds) {
        return FMHAFORGE_OK;
    }
    return ff_fail(FMHAFORGE_ERROR_INVALID_ARGUMENT, FF_SAY_RELATION, relation->message, relation->left, (long long)left, relation->right,
        (long long)right);
}
