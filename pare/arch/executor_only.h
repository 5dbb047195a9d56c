#pragma once
// What only the executor runs so far: the engine on CPUs, ONNX graphs, GGUF files and our own Python ask here first,
// and leave it to the executor or refuse.

#include <optional>
#include <string>

#include "pare/arch/architecture.h"

namespace pare {

// The first such form, in words: "norms over all queries at once". Absent: none.
std::optional<std::string> executor_only(const Architecture& architecture);

}  // namespace pare
