#pragma once
// Everything that a probe measured, as the document of `pare probe --json`: docs/json/probe.schema.json.

#include <nlohmann/json_fwd.hpp>

#include "pare/probes/probe_results.h"

namespace pare {

nlohmann::ordered_json to_json(const ProbeResults& results);

}  // namespace pare
