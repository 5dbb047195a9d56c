#pragma once
// The flag `--report FILE.html` of several commands: a page besides what they print.

#include <string>

#include "pare/cli/commands.h"
#include "pare/report/origin.h"

namespace pare {

struct ReportFlags {
  std::string file;  // empty: no page
  bool force = false;
  bool wanted() const { return !file.empty(); }
};

void add_report_flags(CLI::App& command, ReportFlags& flags, const std::string& names = "--report");
// Before the work: InputError where the page could not be written, or an input would be lost by it.
void check_report_file(const ReportFlags& flags);
void write_report(const ReportFlags& flags, const Report& report);

// The command as it was given, now. SOURCE_DATE_EPOCH sets the time, for who wants the same bytes again.
ReportOrigin report_origin(const Settings& settings);

}  // namespace pare
