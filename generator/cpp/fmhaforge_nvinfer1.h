// SPDX-License-Identifier: Apache-2.0
//
// nvinfer1::DataType for builds without TensorRT: the type and the numbers that TensorRT 10 gives it. Include TensorRT's header first
// where there is one; this substitute then stays away.
#pragma once

#include <cstdint>

#if !defined(NV_INFER_RUNTIME_BASE_H)
namespace nvinfer1
{

enum class DataType : int32_t
{
    kFLOAT = 0,
    kHALF = 1,
    kINT8 = 2,
    kINT32 = 3,
    kBOOL = 4,
    kUINT8 = 5,
    kFP8 = 6,
    kBF16 = 7,
    kINT64 = 8,
    kINT4 = 9,
};

} // namespace nvinfer1
#endif
