/* SPDX-License-Identifier: Apache-2.0 */
/* Loops for bench/launch.py: the host time of launches without Python between them, ours and the driver's own call. */
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef int (*launch_function)(const void* row, const void* args, void* stream);
typedef int (*driver_function)(void* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
    unsigned smem_bytes, void* stream, void** params, void** extra);

static int64_t now(void)
{
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Nanoseconds for `count` launches through the library, or minus the status of the first that fails. */
int64_t time_launch(launch_function launch, const void* row, const void* args, void* stream, int count)
{
    int64_t begin = now();
    for (int i = 0; i < count; ++i) {
        int status = launch(row, args, stream);
        if (status != 0) {
            return -status;
        }
    }
    return now() - begin;
}

/* Nanoseconds for `count` calls of cuLaunchKernel, or minus the error of the first that fails. `sizes` is grid, block, bytes of shared memory. */
int64_t time_driver(driver_function launch, void* kernel, const unsigned* sizes, void* stream, void** params, int count)
{
    int64_t begin = now();
    for (int i = 0; i < count; ++i) {
        int error = launch(kernel, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], stream, params, NULL);
        if (error != 0) {
            return -error;
        }
    }
    return now() - begin;
}
