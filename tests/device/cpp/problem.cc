// SPDX-License-Identifier: Apache-2.0
#include "problem.h"

#include <algorithm>

namespace device_test
{

namespace
{

constexpr std::size_t kGUARD = 256; // elements before and after a tensor
constexpr double kRELATIVE_BOUND = 4e-4; // docs/numerics.md
constexpr double kTOLERANCE = 2e-3;
constexpr int32_t kUNUSED_PAGE = -1;

std::vector<Half> const kPOISON{kNAN, kINFINITY, 0xFE01, 0xFC00};
std::vector<Half> const kSENTINEL{0x7EA5};

//! Where a logical token of K or V lies: outer entry and row of the tensor.
struct Place
{
    int64_t outer;
    int64_t row;
};

void setRow(Tensor& tensor, Place place, Part part, int32_t sequence, int32_t token)
{
    for (int32_t head = 0; head < tensor.heads; ++head)
    {
        for (int32_t dim = 0; dim < tensor.headDim; ++dim)
        {
            tensor.bits[tensor.at(place.outer, place.row, head, dim)] = halfOf256ths(element(part, sequence, token, head, dim));
        }
    }
}

//! Where row `row` of a sequence lies in Q and O.
Place queryPlace(Problem const& problem, int32_t sequence, int32_t row)
{
    return problem.made.isPacked() ? Place{0, problem.cuQ[static_cast<std::size_t>(sequence)] + row} : Place{sequence, row};
}

//! Page ids in an order that is neither rising nor the same for K and V, and the rest of each list unused.
std::vector<int32_t> scatteredPages(Case const& made, int32_t total)
{
    std::vector<int32_t> list(static_cast<std::size_t>(made.batch() * 2 * (made.seqlenKv / kPAGE)), kUNUSED_PAGE);
    int32_t next = 0;
    for (int32_t line = 0; line < made.batch() * 2; ++line)
    {
        int32_t const used = (made.kvLens[static_cast<std::size_t>(line / 2)] + kPAGE - 1) / kPAGE;
        for (int32_t i = 0; i < used; ++i)
        {
            list[static_cast<std::size_t>(line * (made.seqlenKv / kPAGE) + i)] = total - 1 - (next++ * 5) % total; // 5 and total have no common factor
        }
    }
    return list;
}

int32_t pageCount(Case const& made)
{
    int32_t pages = 2; // at least one that no list names
    for (int32_t const length : made.kvLens)
    {
        pages += 2 * ((length + kPAGE - 1) / kPAGE);
    }
    return pages % 5 == 0 ? pages + 2 : pages;
}

Tensor keysOrValues(Case const& made, int64_t gap)
{
    if (made.isPaged())
    {
        return {pageCount(made), kPAGE, made.numKvHeads, made.headDim, gap, kPOISON};
    }
    if (made.isPacked())
    {
        return {1, cumulative(made.kvLens).back() + made.extraRows, made.numKvHeads, made.headDim, gap, kPOISON};
    }
    return {made.batch(), made.seqlenKv, made.numKvHeads, made.headDim, gap, kPOISON};
}

Tensor queries(Case const& made, int64_t gap, std::vector<Half> const& fill)
{
    int32_t const total = cumulative(made.qLens).back() + made.extraRows;
    return {made.isPacked() ? 1 : made.batch(), made.isPacked() ? total : made.seqlenQ, made.numQHeads, made.headDim, gap, fill};
}

void fillKeysAndValues(Problem& problem)
{
    for (int32_t sequence = 0; sequence < problem.made.batch(); ++sequence)
    {
        for (int32_t token = 0; token < problem.made.kvLens[static_cast<std::size_t>(sequence)]; ++token)
        {
            for (int32_t plane = 0; plane < 2; ++plane)
            {
                Place place{sequence, token};
                if (problem.made.isPaged())
                {
                    int32_t const entry = (sequence * 2 + plane) * problem.maxPages() + token / kPAGE;
                    place = {problem.pageList[static_cast<std::size_t>(entry)], token % kPAGE};
                }
                else if (problem.made.isPacked())
                {
                    place = {0, problem.cuKv[static_cast<std::size_t>(sequence)] + token};
                }
                setRow(plane == 0 || problem.made.isPaged() ? problem.k : problem.v, place, plane == 0 ? Part::k : Part::v, sequence, token);
            }
        }
    }
}

//! The rows of a sequence that O has to hold: packed operations write the queries alone, the others every row.
int32_t writtenRows(Case const& made, int32_t sequence)
{
    return made.isPacked() ? made.qLens[static_cast<std::size_t>(sequence)] : made.seqlenQ;
}

} // namespace

Tensor::Tensor(int32_t outerExtent, int32_t rowExtent, int32_t headCount, int32_t headSize, int64_t gap, std::vector<Half> const& fill)
    : outer(outerExtent)
    , rows(rowExtent)
    , heads(headCount)
    , headDim(headSize)
    , rowStride(static_cast<int64_t>(headCount) * headSize + gap)
    , outerStride(rowStride * rowExtent + gap)
    , bits(2 * kGUARD + static_cast<std::size_t>(outerStride * outerExtent))
{
    for (std::size_t i = 0; i < bits.size(); ++i)
    {
        bits[i] = fill[i % fill.size()];
    }
}

std::size_t Tensor::begin()
{
    return kGUARD;
}

std::size_t Tensor::at(int64_t outerIndex, int64_t row, int32_t head, int32_t dim) const
{
    return kGUARD + static_cast<std::size_t>(outerIndex * outerStride + row * rowStride + static_cast<int64_t>(head) * headDim + dim);
}

Problem layOut(Case const& made, int64_t gap)
{
    Problem problem{made, queries(made, gap, kPOISON), keysOrValues(made, gap), made.isPaged() ? Tensor{0, 0, 0, 0, 0, kPOISON} : keysOrValues(made, gap),
        queries(made, 2 * gap, kSENTINEL), cumulative(made.qLens), cumulative(made.kvLens), {}, {}, {}};
    if (made.isPaged())
    {
        problem.pageList = scatteredPages(made, problem.k.outer);
    }
    for (int32_t sequence = 0; sequence < made.batch(); ++sequence)
    {
        for (int32_t row = 0; row < made.qLens[static_cast<std::size_t>(sequence)]; ++row)
        {
            setRow(problem.q, queryPlace(problem, sequence, row), Part::q, sequence, row);
        }
        for (int32_t row = 0; row < made.seqlenQ && made.operation == Operation::vision_block; ++row)
        {
            problem.blockBegin.push_back(made.block(sequence, row).first);
            problem.blockEnd.push_back(made.block(sequence, row).second);
        }
    }
    fillKeysAndValues(problem);
    return problem;
}

Answer answer(Case const& made)
{
    Answer all;
    for (int32_t sequence = 0; sequence < made.batch(); ++sequence)
    {
        all.push_back(attend(made, sequence, writtenRows(made, sequence)));
    }
    return all;
}

Verdict judge(Problem const& problem, Answer const& expected, std::vector<Half> const& bits)
{
    std::vector<bool> owned(bits.size(), false);
    double squaredError = 0.0;
    double squaredSize = 0.0;
    double violation = 0.0;
    bool isFinite = true;
    bool areZeros = true;
    for (int32_t sequence = 0; sequence < problem.made.batch(); ++sequence)
    {
        double const* want = expected[static_cast<std::size_t>(sequence)].data();
        for (int32_t row = 0; row < writtenRows(problem.made, sequence); ++row)
        {
            Place const place = queryPlace(problem, sequence, row);
            bool isBlind = true;
            for (int32_t key = 0; key < problem.made.kvLens[static_cast<std::size_t>(sequence)] && isBlind; ++key)
            {
                isBlind = !problem.made.sees(sequence, row, key);
            }
            for (int32_t element = 0; element < problem.made.numQHeads * problem.made.headDim; ++element, ++want)
            {
                std::size_t const index = problem.o.at(place.outer, place.row, 0, element);
                double const got = valueOf(bits[index]);
                owned[index] = true;
                isFinite = isFinite && std::isfinite(got);
                areZeros = areZeros && (!isBlind || got == 0.0);
                double const distance = std::isfinite(got) ? std::fabs(got - *want) : 0.0;
                squaredError += distance * distance;
                squaredSize += *want * *want;
                violation = std::max(violation, distance / (kTOLERANCE + kTOLERANCE * std::fabs(*want)));
            }
        }
    }
    bool isUntouched = true;
    for (std::size_t i = 0; i < bits.size(); ++i)
    {
        isUntouched = isUntouched && (owned[i] || bits[i] == problem.o.bits[i]);
    }
    Verdict verdict{{}, std::sqrt(squaredError / squaredSize), violation};
    auto const note = [&](bool isWrong, char const* text) {
        if (isWrong)
        {
            verdict.faults.emplace_back(text);
        }
    };
    note(!isFinite, "a row that has to be written holds NaN or Inf, or was left unwritten");
    note(!areZeros, "a row that sees no key is not exactly 0");
    note(!isUntouched, "something was written outside the rows that belong to O");
    note(!(verdict.relativeError <= kRELATIVE_BOUND), "the relative error is over 4e-4");
    note(!(violation <= 1.0), "an element is too far off");
    if (!isFinite)
    {
        verdict.relativeError = verdict.worstViolation = HUGE_VAL;
    }
    return verdict;
}

std::vector<Half> logicalBits(Problem const& problem, std::vector<Half> const& bits)
{
    std::vector<Half> rows;
    for (int32_t sequence = 0; sequence < problem.made.batch(); ++sequence)
    {
        for (int32_t row = 0; row < writtenRows(problem.made, sequence); ++row)
        {
            Place const place = queryPlace(problem, sequence, row);
            auto const first = bits.begin() + static_cast<std::ptrdiff_t>(problem.o.at(place.outer, place.row, 0, 0));
            rows.insert(rows.end(), first, first + problem.made.numQHeads * problem.made.headDim);
        }
    }
    return rows;
}

} // namespace device_test
