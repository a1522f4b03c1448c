// SPDX-License-Identifier: Apache-2.0
// Through the wrappers of an Edge-LLM artifact: a module loaded as lazily as Edge-LLM does, descriptors with the problem's strides.
#include "path.h"

#include <map>

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

template <typename T>
T rows3(Tensor const& tensor, Buffer<Half> const& buffer)
{
    return {first(buffer), {tensor.outer, tensor.rows, tensor.heads}, {tensor.outerStride, tensor.rowStride}};
}

template <typename T>
T rows2(Tensor const& tensor, Buffer<Half> const& buffer)
{
    return {first(buffer), {tensor.rows, tensor.heads}, {tensor.rowStride}};
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

struct L14
{
    template <typename M, typename Q, typename K, typename V, typename O, typename C>
    static int32_t call(int32_t (*wrapper)(M*, Q*, K*, V*, O*, C*, int32_t, float, float, float, float, float, int32_t, cudaStream_t), M* module,
        DeviceProblem const& p, cudaStream_t stream)
    {
        Problem const& h = p.host;
        auto q = rows3<Q>(h.q, p.q);
        auto k = rows3<K>(h.k, p.k);
        auto v = rows3<V>(h.v, p.v);
        auto o = rows3<O>(h.o, p.o);
        auto cuKv = offsets<C>(p.cuKv, h.made);
        return wrapper(module, &q, &k, &v, &o, &cuKv, windowOf(h.made), h.made.scale, 1.0F, 1.0F, 1.0F, 1.0F, kSM_COUNT, stream);
    }
};

struct B16
{
    template <typename M, typename Q, typename K, typename V, typename O, typename C, typename B, typename E>
    static int32_t call(
        int32_t (*wrapper)(M*, Q*, K*, V*, O*, C*, B*, E*, int32_t, float, float, float, float, float, int32_t, cudaStream_t), M* module,
        DeviceProblem const& p, cudaStream_t stream)
    {
        Problem const& h = p.host;
        auto q = rows3<Q>(h.q, p.q);
        auto k = rows3<K>(h.k, p.k);
        auto v = rows3<V>(h.v, p.v);
        auto o = rows3<O>(h.o, p.o);
        auto cuKv = offsets<C>(p.cuKv, h.made);
        auto begin = intervals<B>(p.blockBegin, h.made);
        auto end = intervals<E>(p.blockEnd, h.made);
        return wrapper(
            module, &q, &k, &v, &o, &cuKv, &begin, &end, windowOf(h.made), h.made.scale, 1.0F, 1.0F, 1.0F, 1.0F, kSM_COUNT, stream);
    }
};

struct P11
{
    template <typename M, typename Q, typename P, typename L, typename O, typename CQ, typename CK>
    static int32_t call(int32_t (*wrapper)(M*, Q*, P*, L*, O*, CQ*, CK*, int32_t, float, int32_t, cudaStream_t), M* module,
        DeviceProblem const& p, cudaStream_t stream)
    {
        Problem const& h = p.host;
        auto q = rows3<Q>(h.q, p.q);
        auto pages = pool<P>(p);
        auto list = pageList<L>(p);
        auto o = rows3<O>(h.o, p.o);
        auto cuQ = offsets<CQ>(p.cuQ, h.made);
        auto cuKv = offsets<CK>(p.cuKv, h.made);
        return wrapper(module, &q, &pages, &list, &o, &cuQ, &cuKv, windowOf(h.made), h.made.scale, kSM_COUNT, stream);
    }
};

struct R12
{
    template <typename M, typename Q, typename P, typename L, typename O, typename CQ, typename CK>
    static int32_t call(int32_t (*wrapper)(M*, Q*, P*, L*, O*, CQ*, CK*, int32_t, int32_t, float, int32_t, cudaStream_t), M* module,
        DeviceProblem const& p, cudaStream_t stream)
    {
        Problem const& h = p.host;
        auto q = rows2<Q>(h.q, p.q);
        auto pages = pool<P>(p);
        auto list = pageList<L>(p);
        auto o = rows2<O>(h.o, p.o);
        auto cuQ = offsets<CQ>(p.cuQ, h.made);
        auto cuKv = offsets<CK>(p.cuKv, h.made);
        return wrapper(module, &q, &pages, &list, &o, &cuQ, &cuKv, h.made.seqlenQ, windowOf(h.made), h.made.scale, kSM_COUNT, stream);
    }
};

struct N10
{
    template <typename M, typename Q, typename K, typename V, typename O, typename CQ, typename CK>
    static int32_t call(int32_t (*wrapper)(M*, Q*, K*, V*, O*, CQ*, CK*, float, int32_t, cudaStream_t), M* module, DeviceProblem const& p,
        cudaStream_t stream)
    {
        Problem const& h = p.host;
        auto q = rows3<Q>(h.q, p.q);
        auto k = rows3<K>(h.k, p.k);
        auto v = rows3<V>(h.v, p.v);
        auto o = rows3<O>(h.o, p.o);
        auto cuQ = offsets<CQ>(p.cuQ, h.made);
        auto cuKv = offsets<CK>(p.cuKv, h.made);
        return wrapper(module, &q, &k, &v, &o, &cuQ, &cuKv, h.made.scale, h.made.numKvHeads, stream);
    }
};

struct V12
{
    template <typename M, typename Q, typename K, typename V, typename O, typename C>
    static int32_t call(int32_t (*wrapper)(M*, Q*, K*, V*, O*, C*, int32_t, float, float, float, int32_t, cudaStream_t), M* module,
        DeviceProblem const& p, cudaStream_t stream)
    {
        Problem const& h = p.host;
        auto q = rows2<Q>(h.q, p.q);
        auto k = rows2<K>(h.k, p.k);
        auto v = rows2<V>(h.v, p.v);
        auto o = rows2<O>(h.o, p.o);
        auto cu = offsets<C>(p.cuKv, h.made);
        return wrapper(module, &q, &k, &v, &o, &cu, h.made.seqlenQ, fmhaforge_scale_log2(h.made.scale), h.made.scale, 1.0F, kSM_COUNT, stream);
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
