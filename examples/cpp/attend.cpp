// SPDX-License-Identifier: Apache-2.0
//
// Uses CuteDslFMHAV2Runner as Edge-LLM does: ask, preflight, run. Without a device it says why it can't go on, and exits with 0.
#include "cuteDslFMHAV2Runner.h"

#include <cstdint>
#include <cstdio>
#include <vector>

#if defined(ATTEND_WITH_CUDA)
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

using trt_edgellm::CuteDslFMHAV2MaskType;
using trt_edgellm::CuteDslFMHAV2Runner;

namespace
{

constexpr int32_t kBATCH = 1;
constexpr int32_t kSEQLEN = 256;
constexpr int32_t kQ_HEADS = 8;
constexpr int32_t kKV_HEADS = 2;
constexpr int32_t kHEAD_DIM = 128;

#if defined(ATTEND_WITH_CUDA)
//! Attention over values that are all 1: every row of the output must be 1.
bool attend(CuteDslFMHAV2Runner& runner, cudaStream_t stream)
{
    std::size_t const qElements = static_cast<std::size_t>(kBATCH) * kSEQLEN * kQ_HEADS * kHEAD_DIM;
    std::size_t const kvElements = static_cast<std::size_t>(kBATCH) * kSEQLEN * kKV_HEADS * kHEAD_DIM;
    std::vector<__half> ones(qElements, __float2half(1.0F));
    std::vector<int32_t> const lengths{0, kSEQLEN};
    __half* q = nullptr;
    __half* kv = nullptr;
    __half* o = nullptr;
    int32_t* cuKVSeqLens = nullptr;
    bool ok = cudaMalloc(&q, qElements * sizeof(__half)) == cudaSuccess && cudaMalloc(&o, qElements * sizeof(__half)) == cudaSuccess
        && cudaMalloc(&kv, kvElements * sizeof(__half)) == cudaSuccess
        && cudaMalloc(&cuKVSeqLens, lengths.size() * sizeof(int32_t)) == cudaSuccess
        && cudaMemcpy(q, ones.data(), qElements * sizeof(__half), cudaMemcpyHostToDevice) == cudaSuccess
        && cudaMemcpy(kv, ones.data(), kvElements * sizeof(__half), cudaMemcpyHostToDevice) == cudaSuccess
        && cudaMemcpy(cuKVSeqLens, lengths.data(), lengths.size() * sizeof(int32_t), cudaMemcpyHostToDevice) == cudaSuccess;
    ok = ok && runner.run(q, kv, kv, o, cuKVSeqLens, stream, 0.088388F) && cudaStreamSynchronize(stream) == cudaSuccess
        && cudaMemcpy(ones.data(), o, qElements * sizeof(__half), cudaMemcpyDeviceToHost) == cudaSuccess;
    for (__half const value : ones)
    {
        ok = ok && __half2float(value) == 1.0F;
    }
    cudaFree(q);
    cudaFree(kv);
    cudaFree(o);
    cudaFree(cuKVSeqLens);
    return ok;
}
#else
bool attend(CuteDslFMHAV2Runner&, cudaStream_t)
{
    return true; // built without the CUDA toolkit: loading is as far as this example goes
}
#endif

} // namespace

int main()
{
    bool const served = CuteDslFMHAV2Runner::canImplement(
        kQ_HEADS, kKV_HEADS, kHEAD_DIM, 90, nvinfer1::DataType::kHALF, CuteDslFMHAV2MaskType::kCAUSAL);
    std::printf("head_dim %d, causal, on SM 90: %s\n", kHEAD_DIM, served ? "yes" : fmhaforge_last_reason());

    CuteDslFMHAV2Runner runner(kQ_HEADS, kKV_HEADS, kHEAD_DIM, kBATCH, kSEQLEN, kSEQLEN);
    cudaStream_t stream = nullptr;
    if (!runner.preflightLlm(stream))
    {
        std::printf("not run: %s\n", fmhaforge_last_reason());
        return 0;
    }
    bool const right = attend(runner, stream);
    std::printf("run: %s\n", right ? "right" : fmhaforge_last_reason());
    return right ? 0 : 1;
}
