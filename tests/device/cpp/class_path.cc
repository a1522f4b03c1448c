// SPDX-License-Identifier: Apache-2.0
// Through trt_edgellm::CuteDslFMHAV2Runner of the bundle.
#include "path.h"

#include "cuteDslFMHAV2Runner.h"

#include <exception>

namespace device_test
{

namespace
{

using Runner = trt_edgellm::CuteDslFMHAV2Runner;
using MaskType = trt_edgellm::CuteDslFMHAV2MaskType;

thread_local std::string gReason;

Runner runnerOf(Case const& made)
{
    return {made.numQHeads, made.numKvHeads, made.headDim, made.batch(), made.seqlenQ, made.seqlenKv};
}

MaskType maskTypeOf(Case const& made)
{
    switch (made.mask)
    {
    case Mask::sliding_causal: return MaskType::kSLIDING_CAUSAL;
    case Mask::padding: return MaskType::kPADDING;
    case Mask::vision_block: return MaskType::kVISION_BLOCK;
    default: return MaskType::kCAUSAL;
    }
}

//! Whether canImplement of the case's operation says yes to the current device.
bool isImplemented(Case const& made)
{
    int device = 0;
    int major = 0;
    int minor = 0;
    must(cudaGetDevice(&device), "cudaGetDevice");
    must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
    must(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute");
    int const sm = 10 * major + minor;
    auto const half = nvinfer1::DataType::kHALF;
    if (made.operation == Operation::vit)
    {
        return Runner::canImplementViT(made.headDim, sm, half);
    }
    auto const asked = made.operation == Operation::paged ? &Runner::canImplementPaged
        : made.operation == Operation::paged_ragged       ? &Runner::canImplementPagedRagged
                                                          : &Runner::canImplement;
    return asked(made.numQHeads, made.numKvHeads, made.headDim, sm, half, maskTypeOf(made));
}

//! Calls a function of the class; an exception is a failure with its text.
template <typename Function>
bool guarded(Function function)
{
    try
    {
        bool const isDone = function();
        gReason = isDone ? "" : fmhaforge_last_reason();
        return isDone;
    }
    catch (std::exception const& error)
    {
        gReason = std::string("threw: ") + error.what();
        return false;
    }
}

bool preflight(Case const& made, cudaStream_t stream)
{
    Runner runner = runnerOf(made);
    switch (made.operation)
    {
    case Operation::llm: return runner.preflightLlm(stream, made.window);
    case Operation::paged: return runner.preflightPaged(stream, made.window);
    case Operation::paged_ragged: return runner.preflightPagedRagged(stream, made.window);
    case Operation::padding: return runner.preflightPadding(stream);
    case Operation::vision_block: return runner.preflightVisionBlock(stream);
    default: return runner.preflightViT(stream);
    }
}

bool run(DeviceProblem const& p, cudaStream_t stream)
{
    Case const& made = p.host.made;
    Runner runner = runnerOf(made);
    int32_t const pages = p.host.k.outer;
    switch (made.operation)
    {
    case Operation::llm: return runner.run(first(p.q), first(p.k), first(p.v), first(p.o), p.cuKv.data(), stream, made.scale, made.window);
    case Operation::paged:
        return runner.runPaged(first(p.q), first(p.k), p.pageList.data(), first(p.o), p.cuQ.data(), p.cuKv.data(), pages, p.host.maxPages(),
            kPAGE, stream, made.scale, made.window);
    case Operation::paged_ragged:
        return runner.runPagedRagged(first(p.q), first(p.k), p.pageList.data(), first(p.o), p.cuQ.data(), p.cuKv.data(), p.host.q.rows,
            made.seqlenQ, pages, p.host.maxPages(), kPAGE, stream, made.scale, made.window);
    case Operation::padding:
        return runner.runPadding(first(p.q), first(p.k), first(p.v), first(p.o), p.cuQ.data(), p.cuKv.data(), stream, made.scale);
    case Operation::vision_block:
        return runner.runVisionBlock(first(p.q), first(p.k), first(p.v), first(p.o), p.cuKv.data(), p.blockBegin.data(), p.blockEnd.data(),
            stream, made.scale, made.window);
    default:
        return runner.run(first(p.q), first(p.k), first(p.v), first(p.o), p.cuKv.data(), p.host.q.rows, made.seqlenQ, made.batch(), stream,
            made.scale);
    }
}

} // namespace

Path classPath()
{
    return {"class", [](Case const& made, cudaStream_t stream) { return guarded([&] {
                if (!isImplemented(made))
                {
                    throw std::runtime_error("canImplement says no");
                }
                return preflight(made, stream);
            }); },
        [](DeviceProblem const& p, cudaStream_t stream) { return guarded([&] { return run(p, stream); }); }, [] { return gReason; }};
}

} // namespace device_test
