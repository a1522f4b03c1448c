// SPDX-License-Identifier: Apache-2.0
// A consumer of the Edge-LLM ABI, written from the contract alone: it takes the wrappers' argument types and the extents of the descriptors by
// templates, asserts arities and ranks, redefines the error hook, and loads modules as lazily as Edge-LLM does.
// The test writes variants.inc: one VARIANT(name, abi_class) for each variant of the artifact.
#include <array>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>

namespace consumer
{
thread_local int gFirstError = 0;

void recordError(int error)
{
    gFirstError = gFirstError == 0 ? error : gFirstError;
}
} // namespace consumer

#define CUTE_DSL_CUDA_ERROR_CHECK(error) ::consumer::recordError(static_cast<int>(error))
#include "cutedsl_all.h"
#undef CUTE_DSL_CUDA_ERROR_CHECK

namespace consumer
{

// -- what the contract says of each ABI class: number of arguments, and rank of each tensor in their order ------------------------

struct L14 { static constexpr std::size_t arity = 14; static constexpr std::array<int, 5> ranks{3, 3, 3, 3, 1}; };
struct B16 { static constexpr std::size_t arity = 16; static constexpr std::array<int, 7> ranks{3, 3, 3, 3, 1, 2, 2}; };
struct P11 { static constexpr std::size_t arity = 11; static constexpr std::array<int, 6> ranks{3, 4, 3, 3, 1, 1}; };
struct R12 { static constexpr std::size_t arity = 12; static constexpr std::array<int, 6> ranks{2, 4, 3, 2, 1, 1}; };
struct N10 { static constexpr std::size_t arity = 10; static constexpr std::array<int, 6> ranks{3, 3, 3, 3, 1, 1}; };
struct V12 { static constexpr std::size_t arity = 12; static constexpr std::array<int, 5> ranks{2, 2, 2, 2, 1}; };

template <typename T>
constexpr int kShapeRank = static_cast<int>(std::extent<decltype(T::dynamic_shapes)>::value);

template <typename T, typename = void>
struct StrideRank : std::integral_constant<int, 0>
{
};

template <typename T>
struct StrideRank<T, std::void_t<decltype(T::dynamic_strides)>>
    : std::integral_constant<int, static_cast<int>(std::extent<decltype(T::dynamic_strides)>::value)>
{
    static_assert(std::is_same<std::remove_extent_t<decltype(T::dynamic_strides)>, int64_t>::value, "strides are int64_t");
};

//! The numbers of one call, taken one after the other.
struct Reader
{
    int64_t const* tensors;
    int32_t const* ints;
    float const* floats;
    cudaStream_t stream;
};

template <typename T>
struct Argument;

template <typename T>
struct Argument<T*>
{
    T value{};

    explicit Argument(Reader& reader)
    {
        static_assert(StrideRank<T>::value == kShapeRank<T> - 1, "one stride less than extents");
        value.data = reinterpret_cast<void*>(*reader.tensors++);
        for (int i = 0; i < kShapeRank<T>; ++i)
        {
            value.dynamic_shapes[i] = static_cast<int32_t>(*reader.tensors++);
        }
        if constexpr (StrideRank<T>::value > 0)
        {
            for (auto& stride : value.dynamic_strides)
            {
                stride = *reader.tensors++;
            }
        }
    }

    T* get()
    {
        return &value;
    }
};

template <>
struct Argument<int32_t>
{
    int32_t value;
    explicit Argument(Reader& reader) : value(*reader.ints++) {}
    int32_t get() const { return value; }
};

template <>
struct Argument<float>
{
    float value;
    explicit Argument(Reader& reader) : value(*reader.floats++) {}
    float get() const { return value; }
};

template <>
struct Argument<cudaStream_t>
{
    cudaStream_t value;
    explicit Argument(Reader& reader) : value(reader.stream) {}
    cudaStream_t get() const { return value; }
};

//! Matches plain function pointers only: no overloads, no templates, no noexcept.
template <typename Function>
struct Wrapper;

template <typename Module, typename... Args>
struct Wrapper<int32_t (*)(Module*, Args...)>
{
    using ModuleType = Module;
    static constexpr std::size_t arity = sizeof...(Args) + 1;

    template <typename Abi>
    static constexpr bool ranksAre()
    {
        std::size_t index = 0;
        bool equal = true;
        ((equal = equal && matches<Args>(Abi::ranks, index)), ...);
        return equal && index == Abi::ranks.size();
    }

    static int32_t call(int32_t (*function)(Module*, Args...), Module* module, Reader reader)
    {
        std::tuple<Argument<Args>...> values{Argument<Args>(reader)...};
        return std::apply([&](auto&... value) { return function(module, value.get()...); }, values);
    }

private:
    template <typename T, typename Ranks>
    static constexpr bool matches(Ranks const& ranks, std::size_t& index)
    {
        if constexpr (std::is_pointer<T>::value && !std::is_same<T, cudaStream_t>::value)
        {
            return index < ranks.size() && kShapeRank<std::remove_pointer_t<T>> == ranks[index++];
        }
        return true;
    }
};

template <typename Module>
struct LazyModule
{
    Module module{};
    bool isLoaded{false};
};

//! Load once; a failure may be tried again.
template <auto Loader, auto Unloader, typename Module>
bool ensureLoaded(LazyModule<Module>& state) noexcept
{
    if (state.isLoaded)
    {
        return true;
    }
    gFirstError = 0;
    Loader(&state.module);
    state.isLoaded = gFirstError == 0 && state.module.module != nullptr;
    if (!state.isLoaded && state.module.module != nullptr)
    {
        Unloader(&state.module);
        state.module = Module{};
    }
    return state.isLoaded;
}

struct Entry
{
    char const* name;
    bool (*load)();
    bool (*unload)();
    int32_t (*call)(Reader);
};

template <auto Function, auto Loader, auto Unloader, typename Module, typename Abi>
struct Variant
{
    using Traits = Wrapper<decltype(Function)>;
    static_assert(std::is_same<typename Traits::ModuleType, Module>::value, "argument 0 is the module");
    static_assert(Traits::arity == Abi::arity, "number of arguments");
    static_assert(Traits::template ranksAre<Abi>(), "ranks of the descriptors");
    static inline LazyModule<Module> state{};

    static bool load()
    {
        return ensureLoaded<Loader, Unloader>(state);
    }

    static bool unload()
    {
        gFirstError = 0;
        Unloader(&state.module);
        state = LazyModule<Module>{};
        return gFirstError == 0;
    }

    static int32_t call(Reader reader)
    {
        return Traits::call(Function, &state.module, reader);
    }
};

#define VARIANT(name, abi)                                                                                                                \
    {#name, &Variant<&cute_dsl_##name##_wrapper, &name##_Kernel_Module_Load, &name##_Kernel_Module_Unload, name##_Kernel_Module_t, abi>::load,     \
        &Variant<&cute_dsl_##name##_wrapper, &name##_Kernel_Module_Load, &name##_Kernel_Module_Unload, name##_Kernel_Module_t, abi>::unload,        \
        &Variant<&cute_dsl_##name##_wrapper, &name##_Kernel_Module_Load, &name##_Kernel_Module_Unload, name##_Kernel_Module_t, abi>::call},

static Entry const kEntries[] = {
#include "variants.inc"
};

} // namespace consumer

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int entry_count();
EXPORT char const* entry_name(int index);
EXPORT int entry_load(int index);
EXPORT int entry_unload(int index);
EXPORT int entry_call(int index, int64_t const* tensors, int32_t const* ints, float const* floats, void* stream);
EXPORT int first_error();
EXPORT char const* reason();

int entry_count()
{
    return static_cast<int>(sizeof consumer::kEntries / sizeof consumer::kEntries[0]);
}

char const* entry_name(int index)
{
    return consumer::kEntries[index].name;
}

int entry_load(int index)
{
    return consumer::kEntries[index].load() ? 1 : 0;
}

int entry_unload(int index)
{
    return consumer::kEntries[index].unload() ? 1 : 0;
}

int entry_call(int index, int64_t const* tensors, int32_t const* ints, float const* floats, void* stream)
{
    return consumer::kEntries[index].call({tensors, ints, floats, static_cast<cudaStream_t>(stream)});
}

int first_error()
{
    return consumer::gFirstError;
}

char const* reason()
{
    return fmhaforge_edge_llm_last_reason();
}
