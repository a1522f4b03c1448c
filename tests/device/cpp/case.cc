// SPDX-License-Identifier: Apache-2.0
#include "case.h"

#include <algorithm>
#include <climits>
#include <cmath>

namespace device_test
{

namespace
{

constexpr int32_t kIMAGE = 30; // rows of an image, and of the text between two
constexpr int kLARGEST = 768;

//! Mixes the bits of a number (the finaliser of a 64-bit hash).
uint64_t mixed(uint64_t x)
{
    x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDULL;
    x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53ULL;
    return x ^ (x >> 33);
}

std::vector<double> elements(Case const& made, Part part, int32_t sequence, int32_t token, int32_t head)
{
    std::vector<double> values(static_cast<std::size_t>(made.headDim));
    for (int32_t dim = 0; dim < made.headDim; ++dim)
    {
        values[static_cast<std::size_t>(dim)] = element(part, sequence, token, head, dim) / 256.0;
    }
    return values;
}

double dot(std::vector<double> const& a, std::vector<double> const& b)
{
    double sum = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i)
    {
        sum += a[i] * b[i];
    }
    return sum;
}

} // namespace

int element(Part part, int32_t sequence, int32_t token, int32_t head, int32_t dim)
{
    uint64_t key = static_cast<uint64_t>(part);
    for (int32_t const coordinate : {sequence, token, head, dim})
    {
        key = mixed(key * 0x9E3779B97F4A7C15ULL + static_cast<uint64_t>(coordinate) + 1);
    }
    return static_cast<int>(key % (2 * kLARGEST + 1)) - kLARGEST;
}

std::vector<int32_t> cumulative(std::vector<int32_t> const& lengths)
{
    std::vector<int32_t> sums{0};
    for (int32_t const length : lengths)
    {
        sums.push_back(sums.back() + length);
    }
    return sums;
}

std::pair<int32_t, int32_t> Case::block(int32_t sequence, int32_t row) const
{
    int32_t const first = row / kIMAGE * kIMAGE + kvLens[static_cast<std::size_t>(sequence)] - qLens[static_cast<std::size_t>(sequence)];
    return row / kIMAGE % 2 == 1 && first >= 0 ? std::pair{first, first + kIMAGE - 1} : std::pair{-1, -1};
}

bool Case::sees(int32_t sequence, int32_t row, int32_t key) const
{
    int32_t const qLen = qLens[static_cast<std::size_t>(sequence)];
    int32_t const kvLen = kvLens[static_cast<std::size_t>(sequence)];
    if (row >= qLen || key >= kvLen)
    {
        return false;
    }
    int32_t const position = row + kvLen - qLen;
    bool const isCausal = key <= position && (window == INT_MAX || key >= position - window);
    switch (mask)
    {
    case Mask::padding:
    case Mask::bidirectional: return true;
    case Mask::vision_block: return isCausal || (block(sequence, row).first <= key && key <= block(sequence, row).second);
    default: return isCausal;
    }
}

Case makeCase(char const* variant, Operation operation, Mask mask, int32_t headDim, int32_t seqlenQ)
{
    Case made{variant, operation, mask, headDim, seqlenQ, seqlenQ + 61, 4, 2, {seqlenQ, seqlenQ}, {seqlenQ + 37, seqlenQ - 20}, INT_MAX,
        static_cast<float>(0.7 / std::sqrt(headDim)), 0};
    if (mask == Mask::sliding_causal || mask == Mask::vision_block)
    {
        made.window = 45;
    }
    if (operation != Operation::llm && operation != Operation::vision_block)
    {
        made.qLens.back() = seqlenQ - 23; // these operations have lengths of their own for queries
    }
    if (operation == Operation::vit)
    {
        made.kvLens = made.qLens;
    }
    if (made.isPacked())
    {
        made.extraRows = 9;
    }
    if (made.isPaged())
    {
        made.seqlenKv = ((made.seqlenKv + kPAGE - 1) / kPAGE + 1) * kPAGE;
    }
    return made;
}

std::vector<double> attend(Case const& made, int32_t sequence, int32_t rows)
{
    int32_t const group = made.numQHeads / made.numKvHeads;
    int32_t const kvLen = made.kvLens[static_cast<std::size_t>(sequence)];
    std::vector<double> out(static_cast<std::size_t>(rows) * static_cast<std::size_t>(made.numQHeads * made.headDim));
    for (int32_t head = 0; head < made.numQHeads; ++head)
    {
        std::vector<std::vector<double>> keys;
        std::vector<std::vector<double>> values;
        for (int32_t key = 0; key < kvLen; ++key)
        {
            keys.push_back(elements(made, Part::k, sequence, key, head / group));
            values.push_back(elements(made, Part::v, sequence, key, head / group));
        }
        for (int32_t row = 0; row < rows; ++row)
        {
            std::vector<double> const query = elements(made, Part::q, sequence, row, head);
            std::vector<double> scores(static_cast<std::size_t>(kvLen), -HUGE_VAL);
            for (int32_t key = 0; key < kvLen; ++key)
            {
                if (made.sees(sequence, row, key))
                {
                    scores[static_cast<std::size_t>(key)] = dot(query, keys[static_cast<std::size_t>(key)]) * static_cast<double>(made.scale);
                }
            }
            double const highest = scores.empty() ? -HUGE_VAL : *std::max_element(scores.begin(), scores.end());
            double total = 0.0;
            double* const line = out.data() + (static_cast<std::size_t>(row) * static_cast<std::size_t>(made.numQHeads) + static_cast<std::size_t>(head)) * static_cast<std::size_t>(made.headDim);
            for (std::size_t key = 0; key < scores.size() && highest > -HUGE_VAL; ++key)
            {
                double const weight = std::exp(scores[key] - highest);
                total += weight;
                for (std::size_t dim = 0; dim < static_cast<std::size_t>(made.headDim) && weight > 0.0; ++dim)
                {
                    line[dim] += weight * values[key][dim];
                }
            }
            for (std::size_t dim = 0; dim < static_cast<std::size_t>(made.headDim) && total > 0.0; ++dim)
            {
                line[dim] /= total;
            }
        }
    }
    return out;
}

} // namespace device_test
