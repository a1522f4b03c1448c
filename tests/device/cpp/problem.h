// SPDX-License-Identifier: Apache-2.0
// A case laid out in host memory, with poison in every place that must not be read, and what O has to hold.
#pragma once

#include "case.h"
#include "half.h"

#include <string>
#include <vector>

namespace device_test
{

//! float16 [outer][rows][heads][headDim] with strides in elements, in the middle of a guarded array.
struct Tensor
{
    int32_t outer;
    int32_t rows;
    int32_t heads;
    int32_t headDim;
    int64_t rowStride;
    int64_t outerStride;
    std::vector<Half> bits;

    //! Full of the pattern `fill`; `gap` elements follow each row and each outer entry.
    Tensor(int32_t outerExtent, int32_t rowExtent, int32_t headCount, int32_t headSize, int64_t gap, std::vector<Half> const& fill);

    //! Where an element lies in `bits`.
    std::size_t at(int64_t outerIndex, int64_t row, int32_t head, int32_t dim) const;
    //! Where the first element lies in `bits`.
    static std::size_t begin();
};

//! k is the pool of paged operations, v is empty then. Page ids stand in [batch][2][maxPages], block ends in [batch][seqlenQ].
struct Problem
{
    Case made;
    Tensor q;
    Tensor k;
    Tensor v;
    Tensor o;
    std::vector<int32_t> cuQ;
    std::vector<int32_t> cuKv;
    std::vector<int32_t> pageList;
    std::vector<int32_t> blockBegin;
    std::vector<int32_t> blockEnd;

    int32_t maxPages() const
    {
        return made.seqlenKv / kPAGE;
    }
};

//! Lay a case out; `gap` widens every stride (a multiple of 8 elements).
Problem layOut(Case const& made, int64_t gap);

//! The attention of every sequence's rows, as `attend` gives them.
using Answer = std::vector<std::vector<double>>;
Answer answer(Case const& made);

struct Verdict
{
    std::vector<std::string> faults; // empty: right
    double relativeError;
    double worstViolation; // in units of the distance that an element may have
};

//! Compare the bits of O with the answer, and every guard, gap and row that is not O's with what stood there before.
Verdict judge(Problem const& problem, Answer const& expected, std::vector<Half> const& bits);

//! The rows of O that have to be written, one after the other, whatever the strides.
std::vector<Half> logicalBits(Problem const& problem, std::vector<Half> const& bits);

} // namespace device_test
