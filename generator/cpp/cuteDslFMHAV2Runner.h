// SPDX-License-Identifier: Apache-2.0
//
// CuteDslFMHAV2Runner over libfmhaforge. Every answer and every launch comes from the library's table, so canImplement is true exactly
// when load and launch would succeed. Needs neither TensorRT nor CUDA headers; uses TensorRT's nvinfer1::DataType where it is there.
#pragma once

#include <climits>
#include <cstdint>

#if defined(__has_include)
#if __has_include(<NvInferRuntimeBase.h>)
#include <NvInferRuntimeBase.h>
#else
#include "fmhaforge_nvinfer1.h"
#endif
#else
#include "fmhaforge_nvinfer1.h"
#endif

#include "fmhaforge.h"

typedef struct CUstream_st* cudaStream_t; // the very type of the CUDA headers

namespace trt_edgellm
{

enum class CuteDslFMHAV2MaskType
{
    kCAUSAL,
    kSLIDING_CAUSAL,
    kPADDING,
    kVISION_BLOCK,
};

//! Runs context attention of one shape: dense (BSND), native paged (NHD pool), padding, vision-block and packed ViT.
//!
//! All pointers are device pointers; work is enqueued in the stream and not waited for. A function that returns false has stored the
//! reason in fmhaforge_last_reason(). std::runtime_error: an attention scale that is not finite and > 0, and in runPaged,
//! runPagedRagged and runPadding a pointer or extent that breaks a precondition.
class CuteDslFMHAV2Runner
{
public:
    //! batchSize, seqLenQ and kvSeqLen are physical extents. useSmallD64 lets run() take the small-tile variant for short queries.
    CuteDslFMHAV2Runner(int32_t numQHeads, int32_t numKVHeads, int32_t headDim, int32_t batchSize = 0, int32_t seqLenQ = 0,
        int32_t kvSeqLen = 0, bool useSmallD64 = true);
    ~CuteDslFMHAV2Runner() = default;
    CuteDslFMHAV2Runner(CuteDslFMHAV2Runner const&) = delete;
    CuteDslFMHAV2Runner& operator=(CuteDslFMHAV2Runner const&) = delete;

    //! Whether the bundle serves this dense shape on that SM.
    static bool canImplement(int32_t numQHeads, int32_t numKVHeads, int32_t headSize, int32_t smVersion,
        nvinfer1::DataType dataType, CuteDslFMHAV2MaskType maskType);
    //! Whether the bundle serves this shape with a paged KV pool on that SM.
    static bool canImplementPaged(int32_t numQHeads, int32_t numKVHeads, int32_t headSize, int32_t smVersion,
        nvinfer1::DataType dataType, CuteDslFMHAV2MaskType maskType);
    //! Whether the bundle serves packed queries over a paged KV pool on that SM.
    static bool canImplementPagedRagged(int32_t numQHeads, int32_t numKVHeads, int32_t headSize, int32_t smVersion,
        nvinfer1::DataType dataType, CuteDslFMHAV2MaskType maskType);
    //! Whether the bundle serves packed bidirectional attention on that SM.
    static bool canImplementViT(int32_t headSize, int32_t smVersion, nvinfer1::DataType dataType);

    //! Load the exact variant that the matching run will select; launches nothing. Do so before a graph capture.
    bool preflightLlm(cudaStream_t stream, int32_t slidingWindowSize = INT_MAX);
    bool preflightPaged(cudaStream_t stream, int32_t slidingWindowSize = INT_MAX);
    bool preflightPagedRagged(cudaStream_t stream, int32_t slidingWindowSize = INT_MAX);
    bool preflightPadding(cudaStream_t stream);
    bool preflightVisionBlock(cudaStream_t stream);
    bool preflightViT(cudaStream_t stream);

    //! Causal or sliding-causal attention over dense FP16 K/V; slidingWindowSize keys left of the diagonal are seen, and it.
    bool run(void const* qPtr, void const* kPtr, void const* vPtr, void* oPtr, int32_t const* cuKVSeqLens, cudaStream_t stream,
        float attentionScale, int32_t slidingWindowSize = INT_MAX);

    //! Causal or sliding-causal attention over an FP16 NHD paged KV pool.
    bool runPaged(void const* qPtr, void const* pagedKVPoolPtr, int32_t const* kvCachePageList, void* oPtr,
        int32_t const* cuQSeqLens, int32_t const* cuKVSeqLens, int32_t numFlatPages, int32_t maxPagesPerSeq,
        int32_t tokensPerPage, cudaStream_t stream, float attentionScale, int32_t slidingWindowSize = INT_MAX);

    //! runPaged with packed Q and O [totalQSeqLen, numQHeads, headDim]; only valid rows are written.
    bool runPagedRagged(void const* qPtr, void const* pagedKVPoolPtr, int32_t const* kvCachePageList, void* oPtr,
        int32_t const* cuQSeqLens, int32_t const* cuKVSeqLens, int32_t totalQSeqLen, int32_t maxQSeqLen, int32_t numFlatPages,
        int32_t maxPagesPerSeq, int32_t tokensPerPage, cudaStream_t stream, float attentionScale,
        int32_t slidingWindowSize = INT_MAX);

    //! Attention without causality, with independent logical lengths.
    bool runPadding(void const* qPtr, void const* kPtr, void const* vPtr, void* oPtr, int32_t const* cuQSeqLens,
        int32_t const* cuKVSeqLens, cudaStream_t stream, float attentionScale);

    //! Sliding-causal attention, or blockBegin <= key <= blockEnd of the row. A negative window is none.
    bool runVisionBlock(void const* qPtr, void const* kPtr, void const* vPtr, void* oPtr, int32_t const* cuKVSeqLens,
        int32_t const* blockBegin, int32_t const* blockEnd, cudaStream_t stream, float attentionScale,
        int32_t slidingWindowSize);

    //! Packed, bidirectional attention within each sequence.
    bool run(void const* qPtr, void const* kPtr, void const* vPtr, void* oPtr, int32_t const* cuSeqLens, int32_t totalSeqLen,
        int32_t maxSeqLen, int32_t batchSize, cudaStream_t stream, float attentionScale);

private:
    fmhaforge_problem problem(fmhaforge_operation operation, fmhaforge_mask mask) const;
    bool preload(fmhaforge_operation operation, fmhaforge_mask mask, cudaStream_t stream) const;

    int32_t mNumQHeads;
    int32_t mNumKVHeads;
    int32_t mHeadDim;
    int32_t mBatchSize;
    int32_t mSeqLenQ;
    int32_t mKVSeqLen;
    bool mUseSmallD64;
};

} // namespace trt_edgellm
