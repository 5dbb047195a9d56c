#pragma once
// Lines for people, on stderr; stdout belongs to results. Commands call it: a library hands back what it has to say.

#include <string>
#include <string_view>

namespace pare {

void log_info(std::string_view line);
void log_warning(std::string_view line);  // "warning: LINE"; shown even when quiet

void set_quiet(bool quiet);
bool is_quiet();

// Nothing at all, not even warnings: another process says for this one what there is to say.
void set_silent(bool silent);
bool is_silent();

// Whether stderr is a terminal that can draw a line again.
bool can_redraw();

// The line that stays below all others on a terminal, such as a progress bar; empty removes it.
void show_status(std::string line);

}  // namespace pare
