#pragma once
// What is wrong with an Architecture: every problem at once, each under its path.

#include "pare/arch/architecture.h"
#include "pare/support/error.h"

namespace pare {

void validate(const Architecture& architecture, Problems& problems);

}  // namespace pare
