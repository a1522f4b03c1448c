/* SPDX-License-Identifier: Apache-2.0 */
/* The reason of the last failure, one per thread. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char ff_reason[FF_REASON_BYTES];

/* Store the reason and hand the status back, so that a failing function ends with `return ff_fail(...)`. */
static fmhaforge_status ff_fail(fmhaforge_status status, const char* format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(ff_reason, sizeof ff_reason, format, arguments);
    va_end(arguments);
    return status;
}

const char* fmhaforge_last_reason(void)
{
    return ff_reason;
}

const char* fmhaforge_status_name(fmhaforge_status status)
{
    for (size_t i = 0; i < FF_ARRAY_LENGTH(ff_status_names); ++i) {
        if (ff_status_names[i].value == (int32_t)status) {
            return ff_status_names[i].name;
        }
    }
    return "FMHAFORGE_UNKNOWN_STATUS";
}

static fmhaforge_status ff_require_size(size_t given, size_t known, const char* type)
{
    if (given < known) {
        return ff_fail(FMHAFORGE_ERROR_ABI_MISMATCH,
            "%s.size is %zu, this library needs %zu: set it to sizeof(%s) and build against the header of this bundle", type, given,
            known, type);
    }
    return FMHAFORGE_OK;
}

/*
 * Accept a caller's struct of `given` bytes where this library knows `known` bytes: equal is the common case; larger comes
 * from a newer caller and is fine as long as it asks for nothing this library does not know (its extra bytes are zero).
 * A size that was never set may be anything, so memory is read only up to what a struct can sensibly have.
 */
static fmhaforge_status ff_accept_size(const void* object, size_t given, size_t known, const char* type)
{
    if (given > FF_MAX_STRUCT_BYTES) {
        return ff_fail(FMHAFORGE_ERROR_ABI_MISMATCH, "%s.size is %zu, which no struct has: set it to sizeof(%s)", type, given, type);
    }
    const unsigned char* bytes = (const unsigned char*)object;
    for (size_t i = known; i < given; ++i) {
        if (bytes[i] != 0) {
            return ff_fail(FMHAFORGE_ERROR_ABI_MISMATCH,
                "%s sets fields that this older library does not know (byte %zu): use the library of the newer bundle", type, i);
        }
    }
    return ff_require_size(given, known, type);
}
