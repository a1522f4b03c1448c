// SPDX-License-Identifier: Apache-2.0
// float16 as its bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <stdexcept>

namespace device_test
{

using Half = uint16_t;

constexpr Half kPOSITIVE_ZERO = 0x0000;
constexpr Half kNEGATIVE_ZERO = 0x8000;
constexpr Half kINFINITY = 0x7C00;
constexpr Half kNAN = 0x7E00;

//! The value of a float16.
inline double valueOf(Half bits)
{
    double const sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    int const exponent = (bits >> 10) & 0x1F;
    int const fraction = bits & 0x3FF;
    if (exponent == 0x1F)
    {
        return fraction == 0 ? sign * HUGE_VAL : std::nan("");
    }
    return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25));
}

//! The float16 of `numerator` / 256, |numerator| <= 2047, which is exact.
inline Half halfOf256ths(int numerator)
{
    if (numerator == 0)
    {
        return kPOSITIVE_ZERO;
    }
    int fraction = std::abs(numerator);
    if (fraction > 2047)
    {
        throw std::out_of_range("a float16 does not hold these 256ths exactly");
    }
    int exponent = 15 + 2; // of 1024 / 256
    while (fraction < 1024)
    {
        fraction *= 2;
        --exponent;
    }
    return static_cast<Half>((numerator < 0 ? 0x8000 : 0) | (exponent << 10) | (fraction - 1024));
}

} // namespace device_test
