/* SPDX-License-Identifier: Apache-2.0 */
/* The stub driver's libraries, kernels, launches and tensor maps. */
#include "stub_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fake_cuLibraryLoadData(struct library** library, const char* code, int* jit_options, void** jit_values, unsigned jit_count,
    int* library_options, void** library_values, unsigned library_count)
{
    (void)jit_options, (void)jit_values, (void)jit_count, (void)library_options, (void)library_values, (void)library_count;
    ENTER();
    if (memcmp(code + 64, "FAKE", 4) != 0) {
        return 200;
    }
    load_slowly();
    pthread_mutex_lock(&stub.lock);
    stub.relaxed_loads += capture_mode == 2;
    pthread_mutex_unlock(&stub.lock);
    *library = calloc(1, sizeof **library);
    (*library)->code = code + 68;
    return OK;
}

static int fake_cuLibraryUnload(struct library* library)
{
    ENTER();
    library->unloaded = 1;
    return OK;
}

static int tegra(int sm)
{
    return sm == 87 || sm == 101 || sm == 110;
}

/* NVIDIA's binary compatibility, written from its documentation and not from the library's table. */
static int runs_on(int built, int exact, int device)
{
    if (built == device || (!exact && built + device == 211)) {
        return 1;
    }
    return !exact && !tegra(built) && !tegra(device) && built / 10 == device / 10 && built % 10 < device % 10;
}

static int fake_cuLibraryGetKernel(struct kernel** kernel, struct library* library, const char* symbol)
{
    ENTER();
    char key[160];
    snprintf(key, sizeof key, "\"%s\": [", symbol);
    const char* sizes = strstr(library->code, key);
    int built = atoi(strstr(library->code, "\"sm\": ") + 6);
    int exact = strncmp(strstr(library->code, "\"exact\": ") + 9, "true", 4) == 0;
    if (sizes == NULL || current == NULL || library->unloaded || !runs_on(built, exact, stub.devices[current->device].sm)) {
        return NOT_FOUND;
    }
    struct kernel* made = calloc(1, sizeof *made);
    made->library = library;
    snprintf(made->symbol, sizeof made->symbol, "%s@%d", symbol, built);
    char* end = NULL;
    for (sizes += strlen(key); *sizes != ']'; sizes = end + strspn(end, ", ")) {
        made->param_bytes[made->param_count++] = (int)strtol(sizes, &end, 10);
    }
    *kernel = made;
    return OK;
}

/* Bring a kernel's code to the current context, which a driver that loads lazily does at first need. Whether it was there already. */
static int bring(struct kernel* kernel)
{
    pthread_mutex_lock(&stub.lock);
    int place = 0;
    while (place < MAX_CONTEXTS - 1 && kernel->contexts[place] != NULL && kernel->contexts[place] != current) {
        ++place;
    }
    int known = kernel->contexts[place] == current;
    kernel->contexts[place] = current;
    pthread_mutex_unlock(&stub.lock);
    return known;
}

static int fake_cuKernelGetFunction(struct kernel** function, struct kernel* kernel)
{
    ENTER();
    bring(kernel);
    *function = kernel;
    return OK;
}

static int fake_cuKernelSetAttribute(int attribute, int value, struct kernel* kernel, int device)
{
    ENTER();
    if (attribute != 8 || value < 0 || value > stub.devices[device].smem_limit) {
        return INVALID_VALUE;
    }
    kernel->smem_bytes[device] = value;
    return OK;
}

struct config {
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t smem_bytes;
    struct stream* stream;
    uint32_t* attributes;
    uint32_t attribute_count;
};

static int record(const struct config* config, const uint32_t* cluster, struct kernel* kernel, void** params)
{
    if (current == NULL) {
        return INVALID_CONTEXT;
    }
    if (kernel->library->unloaded || config->smem_bytes > (uint32_t)kernel->smem_bytes[current->device]) {
        return INVALID_HANDLE;
    }
    if (!bring(kernel) && (uintptr_t)config->stream > 2 && config->stream->capturing) {
        return CAPTURE_UNSUPPORTED;
    }
    pthread_mutex_lock(&stub.lock);
    struct launch* made = &stub.launches[stub.launch_count < MAX_LAUNCHES ? stub.launch_count : MAX_LAUNCHES - 1];
    memset(made, 0, sizeof *made);
    snprintf(made->symbol, sizeof made->symbol, "%s", kernel->symbol);
    memcpy(made->grid, config->grid, sizeof made->grid);
    memcpy(made->block, config->block, sizeof made->block);
    memcpy(made->cluster, cluster, sizeof made->cluster);
    made->smem_bytes = config->smem_bytes;
    made->device = current->device;
    made->stream = (uint64_t)(uintptr_t)config->stream;
    uint32_t end = 0;
    for (int i = 0; i < kernel->param_count; ++i) {
        uint32_t bytes = (uint32_t)kernel->param_bytes[i];
        uint32_t alignment = bytes > 8 ? 64 : bytes;
        end = (end + alignment - 1) / alignment * alignment;
        memcpy(made->params + end, params[i], bytes);
        end += bytes;
    }
    made->param_bytes = end;
    ++stub.launch_count;
    pthread_mutex_unlock(&stub.lock);
    return OK;
}

static int fake_cuLaunchKernel(struct kernel* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
    unsigned block_y, unsigned block_z, unsigned smem_bytes, struct stream* stream, void** params, void** extra)
{
    ENTER();
    static const uint32_t no_cluster[3] = {1, 1, 1};
    struct config config = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, smem_bytes, stream, NULL, 0};
    return extra == NULL ? record(&config, no_cluster, function, params) : INVALID_VALUE;
}

static int fake_cuLaunchKernelEx(const struct config* config, struct kernel* function, void** params, void** extra)
{
    ENTER();
    if (extra != NULL || config->attribute_count != 1 || config->attributes[0] != 4) {
        return INVALID_VALUE;
    }
    return record(config, config->attributes + 2, function, params);
}

/* The "tensor map" is simply its arguments, one after the other. */
static int fake_cuTensorMapEncodeTiled(unsigned char* map, int data_type, uint32_t rank, void* base, const uint64_t* dims,
    const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides, int interleave, int swizzle, int l2, int fill)
{
    ENTER();
    uint32_t head[8] = {(uint32_t)data_type, rank, (uint32_t)swizzle, (uint32_t)l2};
    for (uint32_t i = 0; i < rank; ++i) {
        if (element_strides[i] != 1) {
            return INVALID_VALUE;
        }
    }
    if (interleave != 0 || fill != 0 || (uintptr_t)map % 64 != 0 || rank > 5) {
        return INVALID_VALUE;
    }
    memset(map, 0, 128);
    memcpy(map, head, 16);
    memcpy(map + 16, &base, 8);
    memcpy(map + 24, dims, 8 * rank);
    memcpy(map + 64, strides, 8 * (rank - 1));
    memcpy(map + 96, box, 4 * rank);
    return OK;
}

const struct entry kernel_entries[] = {
    ENTRY(cuLibraryLoadData), ENTRY(cuLibraryUnload), ENTRY(cuLibraryGetKernel), ENTRY(cuKernelGetFunction), ENTRY(cuKernelSetAttribute),
    ENTRY(cuLaunchKernel), ENTRY(cuLaunchKernelEx), ENTRY(cuTensorMapEncodeTiled), {NULL, NULL},
};
