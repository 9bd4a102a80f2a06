// What a model's shape chooses from; `shape.h`, made for each model, holds its choices.
#pragma once

#include "element.h"

namespace fastgen {

enum class Norm { RMS, LAYER };
enum class Arrangement { PRE_NORM, POST_NORM, PARALLEL, PARALLEL_NORMS };
enum class Activation { SILU, GELU, GELU_TANH, RELU };

constexpr int EVERYTHING = 0x3fffffff;  // the window of a layer without one

}  // namespace fastgen
