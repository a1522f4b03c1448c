// SPDX-License-Identifier: Apache-2.0
// The two ways into the kernels that the program compares: the class of Edge-LLM and the wrappers of its artifacts.
#pragma once

#include "cuda.h"
#include "problem.h"

#include <functional>
#include <string>

namespace device_test
{

//! A problem in the memory of the current device.
struct DeviceProblem
{
    Problem const& host;
    Buffer<Half> q;
    Buffer<Half> k;
    Buffer<Half> v;
    Buffer<Half> o;
    Buffer<int32_t> cuQ;
    Buffer<int32_t> cuKv;
    Buffer<int32_t> pageList;
    Buffer<int32_t> blockBegin;
    Buffer<int32_t> blockEnd;

    explicit DeviceProblem(Problem const& problem)
        : host(problem)
        , q(problem.q.bits)
        , k(problem.k.bits)
        , v(problem.v.bits)
        , o(problem.o.bits)
        , cuQ(problem.cuQ)
        , cuKv(problem.cuKv)
        , pageList(problem.pageList)
        , blockBegin(problem.blockBegin)
        , blockEnd(problem.blockEnd)
    {
    }

    //! Whether the device still holds every input as it was laid out.
    bool inputsAreUnchanged() const
    {
        return q.get() == host.q.bits && k.get() == host.k.bits && (host.made.isPaged() || v.get() == host.v.bits) && cuQ.get() == host.cuQ
            && cuKv.get() == host.cuKv && pageList.get() == host.pageList && blockBegin.get() == host.blockBegin
            && blockEnd.get() == host.blockEnd;
    }
};

//! One way to run a case. All functions act on the current device; false leaves the reason in `reason`.
struct Path
{
    char const* name;
    std::function<bool(Case const&, cudaStream_t)> ready; // loads what `run` will launch
    std::function<bool(DeviceProblem const&, cudaStream_t)> run;
    std::function<std::string()> reason;
};

Path classPath();   // contiguous problems only
Path wrapperPath();

//! The address of a tensor's first element.
inline Half* first(Buffer<Half> const& buffer)
{
    return buffer.data() + Tensor::begin();
}

} // namespace device_test
