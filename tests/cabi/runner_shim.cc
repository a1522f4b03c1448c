// SPDX-License-Identifier: Apache-2.0
// CuteDslFMHAV2Runner behind C functions for ctypes. Every function gives 1 for true, 0 for false, -1 for an exception (its text in `thrown`).
#include "cuteDslFMHAV2Runner.h"

#include <cstdio>
#include <exception>
#include <type_traits>

using trt_edgellm::CuteDslFMHAV2MaskType;
using trt_edgellm::CuteDslFMHAV2Runner;

// The signatures of the documented class, written out: a change of the header does not compile.
using Runner = CuteDslFMHAV2Runner;
static_assert(std::is_constructible<Runner, int32_t, int32_t, int32_t>::value, "the last four arguments have defaults");
static_assert(std::is_constructible<Runner, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, bool>::value, "constructor");
static_assert(!std::is_copy_constructible<Runner>::value && !std::is_copy_assignable<Runner>::value, "copies are deleted");
static_assert(std::is_nothrow_destructible<Runner>::value, "destructor");
static bool (*const kCanImplement)(int32_t, int32_t, int32_t, int32_t, nvinfer1::DataType, CuteDslFMHAV2MaskType) = &Runner::canImplement;
static bool (*const kCanImplementPaged)(int32_t, int32_t, int32_t, int32_t, nvinfer1::DataType, CuteDslFMHAV2MaskType)
    = &Runner::canImplementPaged;
static bool (*const kCanImplementViT)(int32_t, int32_t, nvinfer1::DataType) = &Runner::canImplementViT;
static bool (Runner::*const kPreflightLlm)(cudaStream_t, int32_t) = &Runner::preflightLlm;
static bool (Runner::*const kPreflightPaged)(cudaStream_t, int32_t) = &Runner::preflightPaged;
static bool (Runner::*const kPreflightPadding)(cudaStream_t) = &Runner::preflightPadding;
static bool (Runner::*const kPreflightVisionBlock)(cudaStream_t) = &Runner::preflightVisionBlock;
static bool (Runner::*const kPreflightViT)(cudaStream_t) = &Runner::preflightViT;
static bool (Runner::*const kRun)(void const*, void const*, void const*, void*, int32_t const*, cudaStream_t, float, int32_t) = &Runner::run;
static bool (Runner::*const kRunPaged)(void const*, void const*, int32_t const*, void*, int32_t const*, int32_t const*, int32_t, int32_t,
    int32_t, cudaStream_t, float, int32_t)
    = &Runner::runPaged;
static bool (Runner::*const kRunPadding)(void const*, void const*, void const*, void*, int32_t const*, int32_t const*, cudaStream_t, float)
    = &Runner::runPadding;
static bool (Runner::*const kRunVisionBlock)(void const*, void const*, void const*, void*, int32_t const*, int32_t const*, int32_t const*,
    cudaStream_t, float, int32_t)
    = &Runner::runVisionBlock;
static bool (Runner::*const kRunViT)(void const*, void const*, void const*, void*, int32_t const*, int32_t, int32_t, int32_t, cudaStream_t,
    float)
    = &Runner::run;

static char gThrown[512];

namespace
{

template <typename Function>
int guarded(Function function)
{
    try
    {
        return function() ? 1 : 0;
    }
    catch (std::exception const& error)
    {
        std::snprintf(gThrown, sizeof gThrown, "%s", error.what());
        return -1;
    }
}

template <typename T>
T* device(int64_t address)
{
    return reinterpret_cast<T*>(address);
}

} // namespace

extern "C"
{
    char const* thrown()
    {
        return gThrown;
    }

    char const* reason()
    {
        return fmhaforge_last_reason();
    }

    Runner* make(int32_t const* sizes, bool useSmallD64)
    {
        return new Runner(sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], useSmallD64);
    }

    void destroy(Runner* runner)
    {
        delete runner;
    }

    int can_implement(int which, int32_t q, int32_t kv, int32_t d, int32_t sm, int32_t type, int mask)
    {
        auto const dataType = static_cast<nvinfer1::DataType>(type);
        auto const maskType = static_cast<CuteDslFMHAV2MaskType>(mask);
        switch (which)
        {
        case 0: return kCanImplement(q, kv, d, sm, dataType, maskType) ? 1 : 0;
        case 1: return kCanImplementPaged(q, kv, d, sm, dataType, maskType) ? 1 : 0;
        case 2: return Runner::canImplementPagedRagged(q, kv, d, sm, dataType, maskType) ? 1 : 0;
        default: return kCanImplementViT(d, sm, dataType) ? 1 : 0;
        }
    }

    int preflight(Runner* runner, int which, void* stream, int32_t window)
    {
        auto const cudaStream = static_cast<cudaStream_t>(stream);
        switch (which)
        {
        case 0: return guarded([&] { return (runner->*kPreflightLlm)(cudaStream, window); });
        case 1: return guarded([&] { return (runner->*kPreflightPaged)(cudaStream, window); });
        case 2: return guarded([&] { return runner->preflightPagedRagged(cudaStream, window); });
        case 3: return guarded([&] { return (runner->*kPreflightPadding)(cudaStream); });
        case 4: return guarded([&] { return (runner->*kPreflightVisionBlock)(cudaStream); });
        default: return guarded([&] { return (runner->*kPreflightViT)(cudaStream); });
        }
    }

    // p: the device pointers in the order of the function; n: its integers but for the window.
    int run(Runner* runner, int which, int64_t const* p, int32_t const* n, void* stream, float scale, int32_t window)
    {
        auto const cudaStream = static_cast<cudaStream_t>(stream);
        auto const in = [&](int i) { return device<void const>(p[i]); };
        auto const ids = [&](int i) { return device<int32_t const>(p[i]); };
        auto* const o = device<void>(p[3]);
        switch (which)
        {
        case 0: return guarded([&] { return (runner->*kRun)(in(0), in(1), in(2), o, ids(4), cudaStream, scale, window); });
        case 1:
            return guarded([&] {
                return (runner->*kRunPaged)(in(0), in(1), ids(2), o, ids(4), ids(5), n[0], n[1], n[2], cudaStream, scale, window);
            });
        case 2:
            return guarded([&] {
                return runner->runPagedRagged(
                    in(0), in(1), ids(2), o, ids(4), ids(5), n[3], n[4], n[0], n[1], n[2], cudaStream, scale, window);
            });
        case 3: return guarded([&] { return (runner->*kRunPadding)(in(0), in(1), in(2), o, ids(4), ids(5), cudaStream, scale); });
        case 4:
            return guarded(
                [&] { return (runner->*kRunVisionBlock)(in(0), in(1), in(2), o, ids(4), ids(5), ids(6), cudaStream, scale, window); });
        default: return guarded([&] { return (runner->*kRunViT)(in(0), in(1), in(2), o, ids(4), n[0], n[1], n[2], cudaStream, scale); });
        }
    }
}
