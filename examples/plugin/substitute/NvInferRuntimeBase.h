// SPDX-License-Identifier: Apache-2.0
//
// Stands where TensorRT's header of this name would: the runner's own substitute has the data types.
#pragma once

#include "fmhaforge_nvinfer1.h"
