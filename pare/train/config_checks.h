#pragma once

#include "pare/support/error.h"
#include "pare/train/config.h"

namespace pare {

// Each problem under its dotted key. Of the task only where all else is right: its words would repeat what is wrong.
void check_config(const TrainConfig& config, Problems& problems);

}  // namespace pare
