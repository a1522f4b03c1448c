// SPDX-License-Identifier: Apache-2.0
// Through the wrappers of an Edge-LLM artifact: a module loaded as lazily as Edge-LLM does, descriptors with the problem's strides.
#include "path.h"

#include <map>
#include <type_traits>

namespace device_test
{

thread_local int gFirstError = 0;

void recordError(int error)
{
    gFirstError = gFirstError == 0 ? error : gFirstError;
}

} // namespace device_test

#define CUTE_DSL_CUDA_ERROR_CHECK(error) ::device_test::recordError(static_cast<int>(error))
#include "cutedsl_all.h"
#undef CUTE_DSL_CUDA_ERROR_CHECK

#include "fmhaforge.h"

namespace device_test
{

namespace
{

constexpr int32_t kSM_COUNT = 132;

thread_local std::string gReason;

//! Rows as a wrapper wants them: in batches (three extents) or packed (two).
template <typename T>
T rows(Tensor const& tensor, Buffer<Half> const& buffer)
{
    if constexpr (std::extent_v<decltype(T::dynamic_shapes)> == 3)
    {
        return {first(buffer), {tensor.outer, tensor.rows, tensor.heads}, {tensor.outerStride, tensor.rowStride}};
    }
    else
    {
        return {first(buffer), {tensor.rows, tensor.heads}, {tensor.rowStride}};
    }
}

template <typename T>
T offsets(Buffer<int32_t> const& buffer, Case const& made)
{
    return {buffer.data(), {made.batch() + 1}};
}

template <typename T>
T intervals(Buffer<int32_t> const& buffer, Case const& made)
{
    return {buffer.data(), {made.batch(), made.seqlenQ}, {made.seqlenQ}};
}

//! The physical [page, token, head, dim] as the contract's [page, head, token, dim].
template <typename T>
T pool(DeviceProblem const& p)
{
    Tensor const& pages = p.host.k;
    return {first(p.k), {pages.outer, pages.heads, kPAGE, pages.headDim}, {pages.outerStride, pages.headDim, pages.rowStride}};
}

template <typename T>
T pageList(DeviceProblem const& p)
{
    int32_t const pages = p.host.maxPages();
    return {p.pageList.data(), {p.host.made.batch(), 2, pages}, {2 * pages, pages}};
}

//! A window as Edge-LLM's class passes it to the wrappers.
int32_t windowOf(Case const& made)
{
    return made.mask == Mask::causal ? FMHAFORGE_NO_WINDOW : made.window;
}

//! Call a wrapper that takes Q, K, V and O, and then `rest`.
template <typename M, typename Q, typename K, typename V, typename O, typename... Rest>
int32_t callApart(int32_t (*wrapper)(M*, Q*, K*, V*, O*, Rest...), M* module, DeviceProblem const& p, std::common_type_t<Rest>... rest)
{
    auto q = rows<Q>(p.host.q, p.q);
    auto k = rows<K>(p.host.k, p.k);
    auto v = rows<V>(p.host.v, p.v);
    auto o = rows<O>(p.host.o, p.o);
    return wrapper(module, &q, &k, &v, &o, rest...);
}

//! Call a wrapper that takes Q, a pool of pages and its page list, O and both prefix sums, and then `rest`.
template <typename M, typename Q, typename P, typename L, typename O, typename CQ, typename CK, typename... Rest>
int32_t callPaged(
    int32_t (*wrapper)(M*, Q*, P*, L*, O*, CQ*, CK*, Rest...), M* module, DeviceProblem const& p, std::common_type_t<Rest>... rest)
{
    auto q = rows<Q>(p.host.q, p.q);
    auto pages = pool<P>(p);
    auto list = pageList<L>(p);
    auto o = rows<O>(p.host.o, p.o);
    auto cuQ = offsets<CQ>(p.cuQ, p.host.made);
    auto cuKv = offsets<CK>(p.cuKv, p.host.made);
    return wrapper(module, &q, &pages, &list, &o, &cuQ, &cuKv, rest...);
}

struct L14
{
    template <typename M, typename Q, typename K, typename V, typename O, typename C>
    static int32_t call(int32_t (*wrapper)(M*, Q*, K*, V*, O*, C*, int32_t, float, float, float, float, float, int32_t, cudaStream_t), M* module,
        DeviceProblem const& p, cudaStream_t stream)
    {
        auto cuKv = offsets<C>(p.cuKv, p.host.made);
        return callApart(
            wrapper, module, p, &cuKv, windowOf(p.host.made), p.host.made.scale, 1.0F, 1.0F, 1.0F, 1.0F, kSM_COUNT, stream);
    }
};

struct B16
{
    template <typename M, typename Q, typename K, typename V, typename O, typename C, typename B, typename E>
    static int32_t call(
        int32_t (*wrapper)(M*, Q*, K*, V*, O*, C*, B*, E*, int32_t, float, float, float, float, float, int32_t, cudaStream_t), M* module,
        DeviceProblem const& p, cudaStream_t stream)
    {
        auto cuKv = offsets<C>(p.cuKv, p.host.made);
        auto begin = intervals<B>(p.blockBegin, p.host.made);
        auto end = intervals<E>(p.blockEnd, p.host.made);
        return callApart(wrapper, module, p, &cuKv, &begin, &end, windowOf(p.host.made), p.host.made.scale, 1.0F, 1.0F, 1.0F, 1.0F,
            kSM_COUNT, stream);
    }
};

struct P11
{
    template <typename Wrapper, typename M>
    static int32_t call(Wrapper* wrapper, M* module, DeviceProblem const& p, cudaStream_t stream)
    {
        return callPaged(wrapper, module, p, windowOf(p.host.made), p.host.made.scale, kSM_COUNT, stream);
    }
};

struct R12
{
    template <typename Wrapper, typename M>
    static int32_t call(Wrapper* wrapper, M* module, DeviceProblem const& p, cudaStream_t stream)
    {
        return callPaged(wrapper, module, p, p.host.made.seqlenQ, windowOf(p.host.made), p.host.made.scale, kSM_COUNT, stream);
    }
};

struct N10
{
    template <typename M, typename Q, typename K, typename V, typename O, typename CQ, typename CK>
    static int32_t call(int32_t (*wrapper)(M*, Q*, K*, V*, O*, CQ*, CK*, float, int32_t, cudaStream_t), M* module, DeviceProblem const& p,
        cudaStream_t stream)
    {
        auto cuQ = offsets<CQ>(p.cuQ, p.host.made);
        auto cuKv = offsets<CK>(p.cuKv, p.host.made);
        return callApart(wrapper, module, p, &cuQ, &cuKv, p.host.made.scale, p.host.made.numKvHeads, stream);
    }
};

struct V12
{
    template <typename M, typename Q, typename K, typename V, typename O, typename C>
    static int32_t call(int32_t (*wrapper)(M*, Q*, K*, V*, O*, C*, int32_t, float, float, float, int32_t, cudaStream_t), M* module,
        DeviceProblem const& p, cudaStream_t stream)
    {
        auto cu = offsets<C>(p.cuKv, p.host.made);
        return callApart(wrapper, module, p, &cu, p.host.made.seqlenQ, fmhaforge_scale_log2(p.host.made.scale), p.host.made.scale, 1.0F,
            kSM_COUNT, stream);
    }
};

//! A variant's entry points, its module kept as Edge-LLM keeps it: one for the process, value-initialised.
template <typename Abi, auto Wrapper, auto Load, typename Module>
struct Variant
{
    static inline Module module{};

    static bool ready()
    {
        if (module.module == nullptr)
        {
            gFirstError = 0;
            Load(&module);
        }
        return module.module != nullptr && gFirstError == 0;
    }
    static int32_t run(DeviceProblem const& p, cudaStream_t stream)
    {
        return Abi::call(Wrapper, &module, p, stream);
    }
};

struct Entry
{
    bool (*ready)();
    int32_t (*run)(DeviceProblem const&, cudaStream_t);
};

#define VARIANT(name, abi, operation, mask, headDim, seqlenQ)                                                                             \
    {#name, {&Variant<abi, &cute_dsl_##name##_wrapper, &name##_Kernel_Module_Load, name##_Kernel_Module_t>::ready,                         \
                &Variant<abi, &cute_dsl_##name##_wrapper, &name##_Kernel_Module_Load, name##_Kernel_Module_t>::run}},

std::map<std::string, Entry> const kENTRIES{
#include "variants.inc"
};

bool ready(Case const& made, cudaStream_t)
{
    bool const isReady = kENTRIES.at(made.variant).ready();
    gReason = isReady ? "" : "error " + std::to_string(gFirstError) + ": " + fmhaforge_edge_llm_last_reason();
    return isReady;
}

bool run(DeviceProblem const& p, cudaStream_t stream)
{
    int32_t const result = kENTRIES.at(p.host.made.variant).run(p, stream);
    gReason = result == 0 ? "" : "result " + std::to_string(result) + ": " + fmhaforge_edge_llm_last_reason();
    return result == 0;
}

} // namespace

Path wrapperPath()
{
    return {"wrapper", ready, run, [] { return gReason; }};
}

} // namespace device_test
