#include "pare/decode/sampler.h"
