/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the CUDA runtime that tests/device/cpp needs, over the stub driver: memory is the host's, kernels do nothing.
 * With it the program's calls, refusals and graphs are tested where there is no GPU; only its numbers must come out wrong.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NO_DEVICE = 100, STREAM_CAPTURE = 900, MAJOR = 75, MINOR = 76 };

struct stream;

/* Of the stub driver. */
int stub_add_device(int sm, int smem_limit);
void stub_use_device(int device);
int stub_current_device(void);
void* stub_new_stream(int device);
void stub_set_capturing(struct stream* stream, int capturing);
int stub_launch_count(void);

#define EXPORT __attribute__((visibility("default")))
#define FUNCTION(name, ...) EXPORT int name(__VA_ARGS__); EXPORT int name(__VA_ARGS__)

static int devices;
static int launches_before;
static struct stream* captured;

/* STAND_IN_DEVICES says how many devices of SM 90 there are; 0 by default. */
FUNCTION(cudaGetDeviceCount, int* count)
{
    const char* asked = getenv("STAND_IN_DEVICES");
    for (devices = 0; asked != NULL && devices < atoi(asked); ++devices) {
        (void)stub_add_device(90, 232448);
    }
    *count = devices;
    return devices > 0 ? SUCCESS : NO_DEVICE;
}

FUNCTION(cudaSetDevice, int device)
{
    stub_use_device(device);
    return device < devices ? SUCCESS : INVALID_VALUE;
}

FUNCTION(cudaGetDevice, int* device)
{
    *device = stub_current_device();
    return SUCCESS;
}

FUNCTION(cudaDeviceSynchronize, void)
{
    return captured == NULL ? SUCCESS : STREAM_CAPTURE;
}

FUNCTION(cudaDeviceGetAttribute, int* value, int attribute, int device)
{
    (void)device;
    *value = attribute == MAJOR ? 9 : 0;
    return attribute == MAJOR || attribute == MINOR ? SUCCESS : INVALID_VALUE;
}

EXPORT const char* cudaGetErrorName(int error);
EXPORT const char* cudaGetErrorName(int error)
{
    return error == SUCCESS ? "cudaSuccess" : "cudaErrorOfTheStandIn";
}

EXPORT const char* cudaGetErrorString(int error);
EXPORT const char* cudaGetErrorString(int error)
{
    return error == NO_DEVICE ? "no device in the stand-in" : "refused by the stand-in";
}

FUNCTION(cudaMalloc, void** memory, size_t bytes)
{
    *memory = captured == NULL ? malloc(bytes) : NULL;
    return *memory != NULL ? SUCCESS : STREAM_CAPTURE;
}

FUNCTION(cudaFree, void* memory)
{
    free(memory);
    return SUCCESS;
}

FUNCTION(cudaMemcpy, void* to, const void* from, size_t bytes, int kind)
{
    (void)kind;
    memcpy(to, from, bytes);
    return captured == NULL ? SUCCESS : STREAM_CAPTURE;
}

FUNCTION(cudaStreamCreateWithFlags, struct stream** stream, unsigned flags)
{
    (void)flags;
    *stream = stub_new_stream(stub_current_device());
    return SUCCESS;
}

FUNCTION(cudaStreamDestroy, struct stream* stream)
{
    free(stream);
    return SUCCESS;
}

FUNCTION(cudaStreamSynchronize, struct stream* stream)
{
    return stream == captured ? STREAM_CAPTURE : SUCCESS;
}

FUNCTION(cudaStreamBeginCapture, struct stream* stream, int mode)
{
    (void)mode;
    stub_set_capturing(stream, 1);
    captured = stream;
    launches_before = stub_launch_count();
    return SUCCESS;
}

/* A graph is the number of launches since the capture began, plus 1, as a pointer. */
FUNCTION(cudaStreamEndCapture, struct stream* stream, void** graph)
{
    stub_set_capturing(stream, 0);
    captured = NULL;
    *graph = (void*)(intptr_t)(stub_launch_count() - launches_before + 1);
    return SUCCESS;
}

FUNCTION(cudaGraphGetNodes, void* graph, void* nodes, size_t* count)
{
    *count = (size_t)(intptr_t)graph - 1;
    return nodes == NULL ? SUCCESS : INVALID_VALUE;
}

FUNCTION(cudaGraphInstantiateWithFlags, void** exec, void* graph, unsigned long long flags)
{
    *exec = graph;
    return flags == 0 ? SUCCESS : INVALID_VALUE;
}

FUNCTION(cudaGraphLaunch, void* exec, struct stream* stream)
{
    return exec != NULL && stream != captured ? SUCCESS : INVALID_VALUE;
}

FUNCTION(cudaGraphExecDestroy, void* exec)
{
    return exec != NULL ? SUCCESS : INVALID_VALUE;
}

FUNCTION(cudaGraphDestroy, void* graph)
{
    return graph != NULL ? SUCCESS : INVALID_VALUE;
}
