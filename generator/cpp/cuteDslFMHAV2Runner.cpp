// SPDX-License-Identifier: Apache-2.0
#include "cuteDslFMHAV2Runner.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <stdexcept>

namespace trt_edgellm
{

namespace
{

constexpr int32_t kTOKENS_PER_PAGE = 128;

//! The problem of one shape on the current device.
fmhaforge_problem makeProblem(fmhaforge_operation operation, fmhaforge_mask mask, int32_t numQHeads, int32_t numKVHeads, int32_t headDim)
{
    fmhaforge_problem problem{};
    problem.size = sizeof problem;
    problem.operation = operation;
    problem.mask = mask;
    problem.head_dim = headDim;
    problem.dtype = FMHAFORGE_DTYPE_FLOAT16;
    problem.num_q_heads = numQHeads;
    problem.num_kv_heads = numKVHeads;
    problem.sm = FMHAFORGE_CURRENT_DEVICE;
    problem.seqlen_q = FMHAFORGE_SEQLEN_UNKNOWN;
    return problem;
}

//! Whether the bundle serves a problem on an SM. An SM of 0 or less is no device.
bool isServed(fmhaforge_problem problem, int32_t smVersion, nvinfer1::DataType dataType)
{
    fmhaforge_row const* row = nullptr;
    problem.sm = smVersion;
    return dataType == nvinfer1::DataType::kHALF && smVersion > 0 && fmhaforge_query(&problem, &row) == FMHAFORGE_OK;
}

bool isCausal(CuteDslFMHAV2MaskType maskType)
{
    return maskType == CuteDslFMHAV2MaskType::kCAUSAL || maskType == CuteDslFMHAV2MaskType::kSLIDING_CAUSAL;
}

fmhaforge_mask causalMask(CuteDslFMHAV2MaskType maskType)
{
    return maskType == CuteDslFMHAV2MaskType::kSLIDING_CAUSAL ? FMHAFORGE_MASK_SLIDING_CAUSAL : FMHAFORGE_MASK_CAUSAL;
}

//! INT_MAX means no window; every other value, also a negative one, selects the sliding variant.
fmhaforge_mask causalMask(int32_t slidingWindowSize)
{
    return slidingWindowSize < INT_MAX ? FMHAFORGE_MASK_SLIDING_CAUSAL : FMHAFORGE_MASK_CAUSAL;
}

//! Windows beyond the longest sequence hide nothing; every negative window hides everything.
int32_t windowSizeLeft(int32_t slidingWindowSize)
{
    return std::min(std::max(slidingWindowSize, -1), FMHAFORGE_NO_WINDOW);
}

void require(bool condition, char const* message)
{
    if (!condition)
    {
        throw std::runtime_error(message);
    }
}

void requirePointers(std::initializer_list<void const*> pointers)
{
    require(std::find(pointers.begin(), pointers.end(), nullptr) == pointers.end(), "a device pointer is null");
}

void requireExtents(fmhaforge_problem const& problem, int32_t batchSize, int32_t kvSeqLen)
{
    require(batchSize > 0 && problem.seqlen_q > 0 && kvSeqLen > 0, "batchSize, seqLenQ and kvSeqLen must be > 0");
    require(problem.num_q_heads > 0 && problem.num_kv_heads > 0 && problem.num_q_heads % problem.num_kv_heads == 0,
        "numQHeads and numKVHeads must be > 0, and numQHeads a multiple of numKVHeads");
}

float scaleLog2(float attentionScale)
{
    require(std::isfinite(attentionScale) && attentionScale > 0.0F, "attentionScale must be finite and > 0");
    return fmhaforge_scale_log2(attentionScale);
}

//! Find the row of a problem on the device that work in the stream runs on.
fmhaforge_status query(fmhaforge_problem const& problem, cudaStream_t stream, fmhaforge_row const** row)
{
    fmhaforge_status const status = fmhaforge_attach(stream);
    return status == FMHAFORGE_OK ? fmhaforge_query(&problem, row) : status;
}

//! Find the row of a problem and launch it.
template <typename Args>
fmhaforge_status launch(fmhaforge_problem const& problem, Args const& args,
    fmhaforge_status (*launcher)(fmhaforge_row const*, Args const*, fmhaforge_stream), cudaStream_t stream)
{
    fmhaforge_row const* row = nullptr;
    fmhaforge_status const status = query(problem, stream, &row);
    return status == FMHAFORGE_OK ? launcher(row, &args, stream) : status;
}

//! Broken preconditions are the caller's fault and thrown; everything else is an answer.
bool succeeded(fmhaforge_status status)
{
    if (status == FMHAFORGE_ERROR_INVALID_ARGUMENT)
    {
        throw std::runtime_error(fmhaforge_last_reason());
    }
    return status == FMHAFORGE_OK;
}

//! a * b, or what no stride may be when that does not fit in 64 bits, so that the launch is refused.
int64_t product(int64_t a, int64_t b)
{
    int64_t exact = 0;
    return __builtin_mul_overflow(a, b, &exact) ? INT64_MAX : exact;
}

//! What every operation has: queries and output, whose rows are packed, heads and scale.
template <typename Args>
Args queryArgs(fmhaforge_problem const& problem, int32_t batchSize, void const* q, void* o, float attentionScale)
{
    Args args{};
    args.size = sizeof args;
    args.q = q;
    args.o = o;
    args.batch = batchSize;
    args.num_q_heads = problem.num_q_heads;
    args.num_kv_heads = problem.num_kv_heads;
    args.q_stride_seq = product(problem.num_q_heads, problem.head_dim);
    args.o_stride_seq = args.q_stride_seq;
    args.scale_log2 = scaleLog2(attentionScale);
    return args;
}

//! The sequences of queries and output are problem.seqlen_q rows each.
template <typename Args>
void setQueryBatches(Args& args, fmhaforge_problem const& problem)
{
    args.seqlen_q = problem.seqlen_q;
    args.q_stride_batch = product(args.q_stride_seq, problem.seqlen_q);
    args.o_stride_batch = args.q_stride_batch;
}

//! The keys and values of an operation that has them apart, with packed rows.
template <typename Args>
void setKeysAndValues(Args& args, fmhaforge_problem const& problem, void const* k, void const* v)
{
    args.k = k;
    args.v = v;
    args.k_stride_seq = product(problem.num_kv_heads, problem.head_dim);
    args.v_stride_seq = args.k_stride_seq;
}

//! What the operations with dense Q, K, V and O have in common.
template <typename Args>
Args denseArgs(fmhaforge_problem const& problem, int32_t batchSize, int32_t kvSeqLen, void const* q, void const* k, void const* v, void* o,
    int32_t const* cuKVSeqLens, float attentionScale)
{
    auto args = queryArgs<Args>(problem, batchSize, q, o, attentionScale);
    setQueryBatches(args, problem);
    setKeysAndValues(args, problem, k, v);
    args.cu_kv_seqlens = cuKVSeqLens;
    args.seqlen_kv = kvSeqLen;
    args.k_stride_batch = product(args.k_stride_seq, kvSeqLen);
    args.v_stride_batch = args.k_stride_batch;
    return args;
}

struct Pool
{
    void const* pages;
    int32_t const* pageList;
    int32_t numFlatPages;
    int32_t maxPagesPerSeq;
    int32_t tokensPerPage;
};

//! What the operations with a paged KV pool have in common; checks what the argument struct does not know.
template <typename Args>
Args pagedArgs(fmhaforge_problem const& problem, int32_t batchSize, int32_t kvSeqLen, Pool const& pool, void const* q, void* o,
    int32_t const* cuQSeqLens, int32_t const* cuKVSeqLens, float attentionScale, int32_t slidingWindowSize)
{
    requirePointers({q, pool.pages, pool.pageList, o, cuQSeqLens, cuKVSeqLens});
    requireExtents(problem, batchSize, kvSeqLen);
    require(pool.numFlatPages > 0 && pool.numFlatPages % 2 == 0 && pool.maxPagesPerSeq > 0,
        "numFlatPages must be > 0 and even, and maxPagesPerSeq > 0");
    require(pool.tokensPerPage == kTOKENS_PER_PAGE, "tokensPerPage must be 128");
    require(static_cast<int64_t>(pool.maxPagesPerSeq) * pool.tokensPerPage == kvSeqLen, "kvSeqLen must be maxPagesPerSeq * tokensPerPage");
    require(slidingWindowSize >= 0, "slidingWindowSize must be >= 0, or INT_MAX for none");
    auto args = queryArgs<Args>(problem, batchSize, q, o, attentionScale);
    args.kv_pool = pool.pages;
    args.page_list = pool.pageList;
    args.cu_q_seqlens = cuQSeqLens;
    args.cu_kv_seqlens = cuKVSeqLens;
    args.max_pages = pool.maxPagesPerSeq;
    args.num_flat_pages = pool.numFlatPages;
    args.window_size_left = windowSizeLeft(slidingWindowSize);
    args.pool_stride_head = problem.head_dim;
    args.pool_stride_token = product(problem.num_kv_heads, problem.head_dim);
    args.pool_stride_page = product(args.pool_stride_token, kTOKENS_PER_PAGE);
    args.page_list_stride_plane = pool.maxPagesPerSeq;
    args.page_list_stride_batch = 2 * args.page_list_stride_plane;
    return args;
}

} // namespace

CuteDslFMHAV2Runner::CuteDslFMHAV2Runner(int32_t numQHeads, int32_t numKVHeads, int32_t headDim, int32_t batchSize, int32_t seqLenQ,
    int32_t kvSeqLen, bool useSmallD64)
    : mNumQHeads(numQHeads)
    , mNumKVHeads(numKVHeads)
    , mHeadDim(headDim)
    , mBatchSize(batchSize)
    , mSeqLenQ(seqLenQ)
    , mKVSeqLen(kvSeqLen)
    , mUseSmallD64(useSmallD64)
{
}

bool CuteDslFMHAV2Runner::canImplement(int32_t numQHeads, int32_t numKVHeads, int32_t headSize, int32_t smVersion,
    nvinfer1::DataType dataType, CuteDslFMHAV2MaskType maskType)
{
    fmhaforge_operation operation = FMHAFORGE_OPERATION_LLM;
    fmhaforge_mask mask = causalMask(maskType);
    if (maskType == CuteDslFMHAV2MaskType::kPADDING)
    {
        operation = FMHAFORGE_OPERATION_PADDING;
        mask = FMHAFORGE_MASK_PADDING;
    }
    else if (maskType == CuteDslFMHAV2MaskType::kVISION_BLOCK)
    {
        operation = FMHAFORGE_OPERATION_VISION_BLOCK;
        mask = FMHAFORGE_MASK_VISION_BLOCK;
    }
    else if (!isCausal(maskType))
    {
        return false; // none of the enumerators
    }
    return isServed(makeProblem(operation, mask, numQHeads, numKVHeads, headSize), smVersion, dataType);
}

bool CuteDslFMHAV2Runner::canImplementPaged(int32_t numQHeads, int32_t numKVHeads, int32_t headSize, int32_t smVersion,
    nvinfer1::DataType dataType, CuteDslFMHAV2MaskType maskType)
{
    return isCausal(maskType)
        && isServed(makeProblem(FMHAFORGE_OPERATION_PAGED, causalMask(maskType), numQHeads, numKVHeads, headSize), smVersion, dataType);
}

bool CuteDslFMHAV2Runner::canImplementPagedRagged(int32_t numQHeads, int32_t numKVHeads, int32_t headSize, int32_t smVersion,
    nvinfer1::DataType dataType, CuteDslFMHAV2MaskType maskType)
{
    return isCausal(maskType)
        && isServed(makeProblem(FMHAFORGE_OPERATION_PAGED_RAGGED, causalMask(maskType), numQHeads, numKVHeads, headSize), smVersion,
            dataType);
}

bool CuteDslFMHAV2Runner::canImplementViT(int32_t headSize, int32_t smVersion, nvinfer1::DataType dataType)
{
    return isServed(makeProblem(FMHAFORGE_OPERATION_VIT, FMHAFORGE_MASK_BIDIRECTIONAL, 1, 1, headSize), smVersion, dataType);
}

fmhaforge_problem CuteDslFMHAV2Runner::problem(fmhaforge_operation operation, fmhaforge_mask mask) const
{
    fmhaforge_problem made = makeProblem(operation, mask, mNumQHeads, mNumKVHeads, mHeadDim);
    made.seqlen_q = mSeqLenQ;
    made.flags = mUseSmallD64 ? FMHAFORGE_FLAG_USE_SMALL_D64 : 0U;
    return made;
}

bool CuteDslFMHAV2Runner::preload(fmhaforge_operation operation, fmhaforge_mask mask, cudaStream_t stream) const
{
    fmhaforge_problem const asked = problem(operation, mask);
    fmhaforge_row const* row = nullptr;
    return query(asked, stream, &row) == FMHAFORGE_OK && fmhaforge_preload(row, stream) == FMHAFORGE_OK;
}

bool CuteDslFMHAV2Runner::preflightLlm(cudaStream_t stream, int32_t slidingWindowSize)
{
    return preload(FMHAFORGE_OPERATION_LLM, causalMask(slidingWindowSize), stream);
}

bool CuteDslFMHAV2Runner::preflightPaged(cudaStream_t stream, int32_t slidingWindowSize)
{
    return preload(FMHAFORGE_OPERATION_PAGED, causalMask(slidingWindowSize), stream);
}

bool CuteDslFMHAV2Runner::preflightPagedRagged(cudaStream_t stream, int32_t slidingWindowSize)
{
    return preload(FMHAFORGE_OPERATION_PAGED_RAGGED, causalMask(slidingWindowSize), stream);
}

bool CuteDslFMHAV2Runner::preflightPadding(cudaStream_t stream)
{
    return preload(FMHAFORGE_OPERATION_PADDING, FMHAFORGE_MASK_PADDING, stream);
}

bool CuteDslFMHAV2Runner::preflightVisionBlock(cudaStream_t stream)
{
    return preload(FMHAFORGE_OPERATION_VISION_BLOCK, FMHAFORGE_MASK_VISION_BLOCK, stream);
}

bool CuteDslFMHAV2Runner::preflightViT(cudaStream_t stream)
{
    return preload(FMHAFORGE_OPERATION_VIT, FMHAFORGE_MASK_BIDIRECTIONAL, stream);
}

bool CuteDslFMHAV2Runner::run(void const* qPtr, void const* kPtr, void const* vPtr, void* oPtr, int32_t const* cuKVSeqLens,
    cudaStream_t stream, float attentionScale, int32_t slidingWindowSize)
{
    fmhaforge_problem const asked = problem(FMHAFORGE_OPERATION_LLM, causalMask(slidingWindowSize));
    auto args = denseArgs<fmhaforge_llm_args>(asked, mBatchSize, mKVSeqLen, qPtr, kPtr, vPtr, oPtr, cuKVSeqLens, attentionScale);
    args.window_size_left = windowSizeLeft(slidingWindowSize);
    return launch(asked, args, fmhaforge_launch_llm, stream) == FMHAFORGE_OK;
}

bool CuteDslFMHAV2Runner::runPaged(void const* qPtr, void const* pagedKVPoolPtr, int32_t const* kvCachePageList, void* oPtr,
    int32_t const* cuQSeqLens, int32_t const* cuKVSeqLens, int32_t numFlatPages, int32_t maxPagesPerSeq, int32_t tokensPerPage,
    cudaStream_t stream, float attentionScale, int32_t slidingWindowSize)
{
    fmhaforge_problem const asked = problem(FMHAFORGE_OPERATION_PAGED, causalMask(slidingWindowSize));
    Pool const pool{pagedKVPoolPtr, kvCachePageList, numFlatPages, maxPagesPerSeq, tokensPerPage};
    auto args = pagedArgs<fmhaforge_paged_args>(
        asked, mBatchSize, mKVSeqLen, pool, qPtr, oPtr, cuQSeqLens, cuKVSeqLens, attentionScale, slidingWindowSize);
    setQueryBatches(args, asked);
    return succeeded(launch(asked, args, fmhaforge_launch_paged, stream));
}

bool CuteDslFMHAV2Runner::runPagedRagged(void const* qPtr, void const* pagedKVPoolPtr, int32_t const* kvCachePageList, void* oPtr,
    int32_t const* cuQSeqLens, int32_t const* cuKVSeqLens, int32_t totalQSeqLen, int32_t maxQSeqLen, int32_t numFlatPages,
    int32_t maxPagesPerSeq, int32_t tokensPerPage, cudaStream_t stream, float attentionScale, int32_t slidingWindowSize)
{
    require(totalQSeqLen > 0, "totalQSeqLen must be > 0");
    fmhaforge_problem asked = problem(FMHAFORGE_OPERATION_PAGED_RAGGED, causalMask(slidingWindowSize));
    asked.seqlen_q = maxQSeqLen;
    Pool const pool{pagedKVPoolPtr, kvCachePageList, numFlatPages, maxPagesPerSeq, tokensPerPage};
    auto args = pagedArgs<fmhaforge_paged_ragged_args>(
        asked, mBatchSize, mKVSeqLen, pool, qPtr, oPtr, cuQSeqLens, cuKVSeqLens, attentionScale, slidingWindowSize);
    args.total_seqlen_q = totalQSeqLen;
    args.max_seqlen_q = maxQSeqLen;
    return succeeded(launch(asked, args, fmhaforge_launch_paged_ragged, stream));
}

bool CuteDslFMHAV2Runner::runPadding(void const* qPtr, void const* kPtr, void const* vPtr, void* oPtr, int32_t const* cuQSeqLens,
    int32_t const* cuKVSeqLens, cudaStream_t stream, float attentionScale)
{
    fmhaforge_row const* row = nullptr;
    fmhaforge_problem shapeOnly = makeProblem(FMHAFORGE_OPERATION_PADDING, FMHAFORGE_MASK_PADDING, 1, 1, mHeadDim);
    if (query(shapeOnly, stream, &row) != FMHAFORGE_OK)
    {
        return false; // the head dimension or the device, before any precondition
    }
    fmhaforge_problem const asked = problem(FMHAFORGE_OPERATION_PADDING, FMHAFORGE_MASK_PADDING);
    requirePointers({qPtr, kPtr, vPtr, oPtr, cuQSeqLens, cuKVSeqLens});
    requireExtents(asked, mBatchSize, mKVSeqLen);
    auto args = denseArgs<fmhaforge_padding_args>(asked, mBatchSize, mKVSeqLen, qPtr, kPtr, vPtr, oPtr, cuKVSeqLens, attentionScale);
    args.cu_q_seqlens = cuQSeqLens;
    return succeeded(launch(asked, args, fmhaforge_launch_padding, stream));
}

bool CuteDslFMHAV2Runner::runVisionBlock(void const* qPtr, void const* kPtr, void const* vPtr, void* oPtr, int32_t const* cuKVSeqLens,
    int32_t const* blockBegin, int32_t const* blockEnd, cudaStream_t stream, float attentionScale, int32_t slidingWindowSize)
{
    fmhaforge_problem const asked = problem(FMHAFORGE_OPERATION_VISION_BLOCK, FMHAFORGE_MASK_VISION_BLOCK);
    auto args
        = denseArgs<fmhaforge_vision_block_args>(asked, mBatchSize, mKVSeqLen, qPtr, kPtr, vPtr, oPtr, cuKVSeqLens, attentionScale);
    args.block_begin = blockBegin;
    args.block_end = blockEnd;
    args.block_stride_batch = mSeqLenQ;
    args.window_size_left = slidingWindowSize >= 0 ? windowSizeLeft(slidingWindowSize) : FMHAFORGE_NO_WINDOW;
    return launch(asked, args, fmhaforge_launch_vision_block, stream) == FMHAFORGE_OK;
}

bool CuteDslFMHAV2Runner::run(void const* qPtr, void const* kPtr, void const* vPtr, void* oPtr, int32_t const* cuSeqLens,
    int32_t totalSeqLen, int32_t maxSeqLen, int32_t batchSize, cudaStream_t stream, float attentionScale)
{
    fmhaforge_problem asked = problem(FMHAFORGE_OPERATION_VIT, FMHAFORGE_MASK_BIDIRECTIONAL);
    asked.seqlen_q = maxSeqLen;
    auto args = queryArgs<fmhaforge_vit_args>(asked, batchSize, qPtr, oPtr, attentionScale);
    setKeysAndValues(args, asked, kPtr, vPtr);
    args.cu_seqlens = cuSeqLens;
    args.total_seqlen = totalSeqLen;
    args.max_seqlen = maxSeqLen;
    return launch(asked, args, fmhaforge_launch_vit, stream) == FMHAFORGE_OK;
}

} // namespace trt_edgellm
