/* SPDX-License-Identifier: Apache-2.0 */
/* What tests/device/cpp uses of cuda_runtime.h, for cudart_stand_in.c. */
#pragma once

#include <stddef.h>

typedef struct CUstream_st* cudaStream_t;
typedef struct CUgraph_st* cudaGraph_t;
typedef struct CUgraphExec_st* cudaGraphExec_t;
typedef struct CUgraphNode_st* cudaGraphNode_t;

enum cudaError_t { cudaSuccess = 0 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal = 0 };
enum cudaDeviceAttr { cudaDevAttrComputeCapabilityMajor = 75, cudaDevAttrComputeCapabilityMinor = 76 };
enum { cudaStreamNonBlocking = 1 };

extern "C"
{
    cudaError_t cudaGetDeviceCount(int* count);
    cudaError_t cudaSetDevice(int device);
    cudaError_t cudaGetDevice(int* device);
    cudaError_t cudaDeviceSynchronize();
    cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
    char const* cudaGetErrorName(cudaError_t error);
    char const* cudaGetErrorString(cudaError_t error);
    cudaError_t cudaMalloc(void** memory, size_t bytes);
    cudaError_t cudaFree(void* memory);
    cudaError_t cudaMemcpy(void* to, void const* from, size_t bytes, cudaMemcpyKind kind);
    cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
    cudaError_t cudaStreamDestroy(cudaStream_t stream);
    cudaError_t cudaStreamSynchronize(cudaStream_t stream);
    cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
    cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
    cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count);
    cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags);
    cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
    cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
    cudaError_t cudaGraphDestroy(cudaGraph_t graph);
}
