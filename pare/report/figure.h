#pragma once
// A figure's numbers: whether they fit each other, and as a table.

#include <optional>
#include <string>

#include "pare/report/report.h"

namespace pare {

void check_figure(const Figure& figure);  // InternalError where they do not

struct FigureTable {
  std::string html;
  size_t rows = 0;
};
FigureTable table_of(const Figure& figure);

// Of a figure whose numbers are all the same, that number in a sentence: there is nothing to see in a plot of it.
std::optional<std::string> constant_text(const Figure& figure);

const char* word(FigureKind kind);
std::string axis_title(const FigureAxis& axis);  // "attention entropy (nats)"

}  // namespace pare
