// SPDX-License-Identifier: Apache-2.0
// The host half of tests/device/cpp behind C functions for ctypes: its cases, its answers and its verdicts.
#include "problem.h"

#include <cstring>
#include <map>

using namespace device_test;

namespace
{

#define VARIANT(name, abi, operation, mask, headDim, seqlenQ) makeCase(#name, Operation::operation, Mask::mask, headDim, seqlenQ),

std::vector<Case> const kCASES{
#include "variants.inc"
};

//! The answer of a case, computed once.
Answer const& answerOf(int32_t which)
{
    static std::map<int32_t, Answer> known;
    auto const [place, isNew] = known.try_emplace(which);
    if (isNew)
    {
        place->second = answer(kCASES[static_cast<std::size_t>(which)]);
    }
    return place->second;
}

std::size_t index(int32_t value)
{
    return static_cast<std::size_t>(value);
}

} // namespace

extern "C"
{
    int32_t case_count();
    char const* case_name(int32_t which);
    void case_numbers(int32_t which, int32_t* numbers);
    void case_block(int32_t which, int32_t sequence, int32_t row, int32_t* ends);
    double case_scale(int32_t which);
    void fill(int32_t which, int32_t part, int32_t sequence, int32_t tokens, double* values);
    int32_t expected(int32_t which, int32_t sequence, double* values);
    double half_value(int32_t bits);
    int32_t half_bits(int32_t numerator);
    int32_t verdict(int32_t which, int64_t gap, Half const* logical, int32_t change, char* text, int32_t size);

    int32_t case_count()
    {
        return static_cast<int32_t>(kCASES.size());
    }

    char const* case_name(int32_t which)
    {
        return kCASES[index(which)].variant.c_str();
    }

    //! head_dim, query heads, KV heads, seqlen_q, seqlen_kv, window, two query lengths, two key lengths, extra rows
    void case_numbers(int32_t which, int32_t* numbers)
    {
        Case const& made = kCASES[index(which)];
        for (int32_t const value : {made.headDim, made.numQHeads, made.numKvHeads, made.seqlenQ, made.seqlenKv, made.window, made.qLens[0],
                 made.qLens[1], made.kvLens[0], made.kvLens[1], made.extraRows})
        {
            *numbers++ = value;
        }
    }

    void case_block(int32_t which, int32_t sequence, int32_t row, int32_t* ends)
    {
        auto const block = kCASES[index(which)].block(sequence, row);
        ends[0] = block.first;
        ends[1] = block.second;
    }

    double case_scale(int32_t which)
    {
        return static_cast<double>(kCASES[index(which)].scale);
    }

    //! The logical tokens of one part of a sequence, [tokens][heads][head_dim].
    void fill(int32_t which, int32_t part, int32_t sequence, int32_t tokens, double* values)
    {
        Case const& made = kCASES[index(which)];
        for (int32_t token = 0; token < tokens; ++token)
        {
            for (int32_t head = 0; head < (part == 0 ? made.numQHeads : made.numKvHeads); ++head)
            {
                for (int32_t dim = 0; dim < made.headDim; ++dim)
                {
                    *values++ = element(static_cast<Part>(part), sequence, token, head, dim) / 256.0;
                }
            }
        }
    }

    //! The rows that O has to hold of a sequence; their number. `values` may be null.
    int32_t expected(int32_t which, int32_t sequence, double* values)
    {
        Case const& made = kCASES[index(which)];
        std::vector<double> const& rows = answerOf(which)[index(sequence)];
        if (values != nullptr)
        {
            std::memcpy(values, rows.data(), rows.size() * sizeof(double));
        }
        return static_cast<int32_t>(rows.size()) / (made.numQHeads * made.headDim);
    }

    double half_value(int32_t bits)
    {
        return valueOf(static_cast<Half>(bits));
    }

    int32_t half_bits(int32_t numerator)
    {
        return halfOf256ths(numerator);
    }

    //! Put `logical` (the rows of both sequences) into O, change one thing, and judge: the number of faults, their texts in `text`.
    //! change 1: a guard; 2: a gap or the place after the last row; 3: a row left unwritten; 4: the last element off by 1/16.
    int32_t verdict(int32_t which, int64_t gap, Half const* logical, int32_t change, char* text, int32_t size)
    {
        Problem const problem = layOut(kCASES[index(which)], gap);
        Answer const& right = answerOf(which);
        std::vector<Half> bits = problem.o.bits;
        std::size_t last = 0;
        for (int32_t sequence = 0; sequence < 2; ++sequence)
        {
            std::size_t const width = index(problem.o.heads * problem.o.headDim);
            for (std::size_t row = 0; row < right[index(sequence)].size() / width; ++row)
            {
                bool const isPacked = problem.made.isPacked();
                int64_t const place = static_cast<int64_t>(row) + (isPacked ? problem.cuQ[index(sequence)] : 0);
                last = problem.o.at(isPacked ? 0 : sequence, place, 0, 0);
                std::memcpy(&bits[last], logical, width * sizeof(Half));
                logical += width;
            }
            last += width - 1;
        }
        switch (change)
        {
        case 1: bits[5] = 0; break;
        case 2: bits[last + 1] = 0; break;
        case 3: bits[problem.o.at(0, 0, 0, 0)] = problem.o.bits[problem.o.at(0, 0, 0, 0)]; break;
        case 4: bits[last] = halfOf256ths(static_cast<int>(std::lround(valueOf(bits[last]) * 256.0)) + 16); break;
        default: break;
        }
        Verdict const found = judge(problem, right, bits);
        std::string all;
        for (std::string const& fault : found.faults)
        {
            all += fault + "\n";
        }
        std::strncpy(text, all.c_str(), index(size) - 1);
        return static_cast<int32_t>(found.faults.size());
    }
}
