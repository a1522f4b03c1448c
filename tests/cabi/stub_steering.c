/* SPDX-License-Identifier: Apache-2.0 */
/* What tests do with the stub driver, and the state that they look at. */
#include "stub_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct stub stub = {.lock = PTHREAD_MUTEX_INITIALIZER};
_Thread_local struct context* current;
_Thread_local int capture_mode;

EXPORT void stub_reset(void);
EXPORT void stub_reset(void)
{
    memset(stub.functions, 0, sizeof stub.functions);
    stub.device_count = stub.launch_count = stub.legacy_stream_status = stub.relaxed_loads = stub.load_delay_us = 0;
    current = NULL;
}

EXPORT int stub_add_device(int sm, int smem_limit)
{
    stub.devices[stub.device_count] = (struct device) {sm, smem_limit};
    stub.primary[stub.device_count].device = stub.device_count;
    return stub.device_count++;
}

EXPORT void stub_use_device(int device)
{
    current = device < 0 ? NULL : &stub.primary[device];
}

EXPORT int stub_current_device(void);
EXPORT int stub_current_device(void)
{
    return current == NULL ? -1 : current->device;
}

EXPORT void* stub_new_stream(int device);
EXPORT void* stub_new_stream(int device)
{
    struct stream* stream = calloc(1, sizeof *stream);
    stream->context = &stub.primary[device];
    return stream;
}

EXPORT void stub_set_capturing(struct stream* stream, int capturing);
EXPORT void stub_set_capturing(struct stream* stream, int capturing)
{
    stream->capturing = capturing;
}

/* What cuStreamIsCapturing says of the default stream: 906 while another stream captures. */
EXPORT void stub_set_legacy_stream(int status);
EXPORT void stub_set_legacy_stream(int status)
{
    stub.legacy_stream_status = status;
}

EXPORT void stub_set_load_delay(int microseconds);
EXPORT void stub_set_load_delay(int microseconds)
{
    stub.load_delay_us = microseconds;
}

static size_t slot(const char* name)
{
    for (size_t i = 0; i < MAX_NAMES; ++i) {
        if (stub.functions[i].name[0] == 0) {
            snprintf(stub.functions[i].name, sizeof stub.functions[i].name, "%s", name);
        }
        if (strcmp(stub.functions[i].name, name) == 0) {
            return i;
        }
    }
    abort();
}

/* Make the next `times` calls of a function fail with `code`. */
EXPORT void stub_fail(const char* name, int code, int times);
EXPORT void stub_fail(const char* name, int code, int times)
{
    size_t i = slot(name);
    stub.functions[i].fail_code = code;
    stub.functions[i].fail_times = times;
}

EXPORT int stub_calls(const char* name);
EXPORT int stub_calls(const char* name)
{
    return stub.functions[slot(name)].calls;
}

EXPORT int stub_relaxed_loads(void);
EXPORT int stub_relaxed_loads(void)
{
    return stub.relaxed_loads;
}

EXPORT int stub_capture_mode(void);
EXPORT int stub_capture_mode(void)
{
    return capture_mode;
}

EXPORT int stub_launch_count(void);
EXPORT int stub_launch_count(void)
{
    return stub.launch_count;
}

EXPORT const struct launch* stub_launch(int index);
EXPORT const struct launch* stub_launch(int index)
{
    return &stub.launches[index];
}

int enter(const char* name)
{
    int code = OK;
    pthread_mutex_lock(&stub.lock);
    size_t i = slot(name);
    ++stub.functions[i].calls;
    if (stub.functions[i].fail_times > 0) {
        --stub.functions[i].fail_times;
        code = stub.functions[i].fail_code;
    }
    pthread_mutex_unlock(&stub.lock);
    return code;
}

void load_slowly(void)
{
    if (stub.load_delay_us > 0) {
        nanosleep(&(struct timespec) {0, stub.load_delay_us * 1000L}, NULL);
    }
}
