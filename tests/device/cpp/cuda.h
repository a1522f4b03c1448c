// SPDX-License-Identifier: Apache-2.0
// What the program needs of the CUDA runtime, released by destructors.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace device_test
{

//! The CUDA runtime failed where it must not; nothing after it can be trusted.
struct CudaError : std::runtime_error
{
    using std::runtime_error::runtime_error;
};

inline void must(cudaError_t error, char const* call)
{
    if (error != cudaSuccess)
    {
        throw CudaError(std::string(call) + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")");
    }
}

//! Device memory with a copy of a vector; null when it is empty.
template <typename T>
class Buffer
{
public:
    explicit Buffer(std::vector<T> const& content) : mCount(content.size())
    {
        if (mCount > 0)
        {
            must(cudaMalloc(&mData, mCount * sizeof(T)), "cudaMalloc");
            set(content);
        }
    }
    ~Buffer()
    {
        (void)cudaFree(mData);
    }
    Buffer(Buffer const&) = delete;
    Buffer& operator=(Buffer const&) = delete;

    void set(std::vector<T> const& content)
    {
        must(cudaMemcpy(mData, content.data(), mCount * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy to the device");
        // A copy from pageable memory may return while the device still writes, and other streams would not wait for it.
        must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }
    std::vector<T> get() const
    {
        std::vector<T> content(mCount);
        if (mCount > 0)
        {
            must(cudaMemcpy(content.data(), mData, mCount * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy from the device");
        }
        return content;
    }
    T* data() const
    {
        return static_cast<T*>(mData);
    }

private:
    std::size_t mCount;
    void* mData = nullptr;
};

class Stream
{
public:
    Stream()
    {
        must(cudaStreamCreateWithFlags(&mStream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    }
    ~Stream()
    {
        (void)cudaStreamDestroy(mStream);
    }
    Stream(Stream const&) = delete;
    Stream& operator=(Stream const&) = delete;

    cudaStream_t get() const
    {
        return mStream;
    }
    void wait() const
    {
        must(cudaStreamSynchronize(mStream), "cudaStreamSynchronize");
    }

private:
    cudaStream_t mStream = nullptr;
};

//! A graph of what `work` enqueues, captured in global mode.
class Graph
{
public:
    template <typename Work>
    Graph(Stream const& stream, Work work)
    {
        must(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
        work();
        must(cudaStreamEndCapture(stream.get(), &mGraph), "cudaStreamEndCapture");
    }
    ~Graph()
    {
        if (mExec != nullptr)
        {
            (void)cudaGraphExecDestroy(mExec);
        }
        (void)cudaGraphDestroy(mGraph);
    }
    Graph(Graph const&) = delete;
    Graph& operator=(Graph const&) = delete;

    std::size_t nodes() const
    {
        std::size_t count = 0;
        must(cudaGraphGetNodes(mGraph, nullptr, &count), "cudaGraphGetNodes");
        return count;
    }
    void launch(Stream const& stream)
    {
        if (mExec == nullptr)
        {
            must(cudaGraphInstantiateWithFlags(&mExec, mGraph, 0), "cudaGraphInstantiateWithFlags");
        }
        must(cudaGraphLaunch(mExec, stream.get()), "cudaGraphLaunch");
    }

private:
    cudaGraph_t mGraph = nullptr;
    cudaGraphExec_t mExec = nullptr;
};

} // namespace device_test
