// SPDX-License-Identifier: Apache-2.0
// One attention problem as plain data, and its answer in double precision from the definition.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace device_test
{

enum class Operation
{
    llm,
    paged,
    paged_ragged,
    padding,
    vision_block,
    vit,
};

enum class Mask
{
    causal,
    sliding_causal,
    padding,
    vision_block,
    bidirectional,
};

enum class Part
{
    q,
    k,
    v,
};

constexpr int32_t kPAGE = 128;

//! Lengths in tokens. Of packed operations seqlenQ is the stated maximum, and extraRows rows follow the last sequence.
struct Case
{
    std::string variant;
    Operation operation;
    Mask mask;
    int32_t headDim;
    int32_t seqlenQ;
    int32_t seqlenKv;
    int32_t numQHeads;
    int32_t numKvHeads;
    std::vector<int32_t> qLens;
    std::vector<int32_t> kvLens;
    int32_t window; // as the C++ class takes it: INT_MAX is none
    float scale;
    int32_t extraRows;

    int32_t batch() const
    {
        return static_cast<int32_t>(qLens.size());
    }
    bool isPaged() const
    {
        return operation == Operation::paged || operation == Operation::paged_ragged;
    }
    //! Whether Q and O are packed.
    bool isPacked() const
    {
        return operation == Operation::vit || operation == Operation::paged_ragged;
    }
    //! The inclusive interval of keys that a row of the mask vision_block sees beside its window; empty as (-1, -1).
    std::pair<int32_t, int32_t> block(int32_t sequence, int32_t row) const;
    //! Whether a row of a sequence sees a key.
    bool sees(int32_t sequence, int32_t row, int32_t key) const;
};

//! The case for a variant: two sequences, heads in groups, rows that see no key, lengths that end within a tile.
Case makeCase(char const* variant, Operation operation, Mask mask, int32_t headDim, int32_t seqlenQ);

//! An element in 256ths, between -768 and 768, from its coordinates alone.
int element(Part part, int32_t sequence, int32_t token, int32_t head, int32_t dim);

//! Prefix sums from 0.
std::vector<int32_t> cumulative(std::vector<int32_t> const& lengths);

//! The attention of every row of a sequence below `rows`, [rows][numQHeads][headDim]; zeros where a row sees no key.
std::vector<double> attend(Case const& made, int32_t sequence, int32_t rows);

} // namespace device_test
