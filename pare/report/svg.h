#pragma once
// A figure as one still picture, for pages that run no script.

#include <string>

#include "pare/report/report.h"

namespace pare {

// Of lines and points; InternalError for what else there is. The same figure is the same bytes.
std::string to_svg(const Figure& figure);

}  // namespace pare
