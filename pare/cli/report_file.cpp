#include "pare/cli/report_file.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <ctime>

#include "pare/cli/output.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/log.h"
#include "pare/support/names.h"
#include "pare/support/output_place.h"

namespace pare {

namespace {

// Only what pare wrote itself makes room for a new page.
void check_replaceable_report(const std::filesystem::path& file) {
  constexpr size_t head_bytes = 4096;
  const InputFile old(file);
  std::string head(head_bytes, '\0');
  head.resize(old.read_at(0, std::as_writable_bytes(std::span(head))));
  refuse_if(!head.empty() && head.find("<meta name=\"generator\" content=\"pare ") == std::string::npos,
            "{} is no report of pare, so --force does not replace it: remove it, or write elsewhere",
            quote(file.string()));
}

ReplaceCheck may_replace_report(const ReportFlags& flags) {
  return flags.force ? check_replaceable_report : ReplaceCheck();
}

}  // namespace

void add_report_flags(CLI::App& command, ReportFlags& flags, const std::string& names) {
  CLI::Option* report = command.add_option(names, flags.file, "write an HTML report, too")->type_name("FILE.html");
  command.add_flag("--force", flags.force, "overwrite an existing report")->needs(report);
}

void check_report_file(const ReportFlags& flags) {
  constexpr uint64_t page_bytes = 4 << 20;
  if (flags.wanted()) {
    check_output(flags.file, OutputKind::file, may_replace_report(flags), page_bytes);
  }
}

void write_report(const ReportFlags& flags, const Report& report) {
  if (!flags.wanted()) {
    return;
  }
  AtomicFile output(flags.file, may_replace_report(flags));
  write_text_file(output.temporary(), to_html(report));
  print_warnings(output.commit());
  log_info("wrote " + escaped(flags.file));
}

ReportOrigin report_origin(const Settings& settings) {
  const char* fixed = std::getenv("SOURCE_DATE_EPOCH");
  const std::time_t now =
      fixed != nullptr ? static_cast<std::time_t>(std::strtoll(fixed, nullptr, 10)) : std::time(nullptr);
  return {settings.command, fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(now))};
}

}  // namespace pare
