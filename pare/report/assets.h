#pragma once
// The files of pare/report/assets and the charting library, as tools/embed_assets.py writes them into the build.

#include <span>
#include <string_view>

namespace pare {

struct ReportAssets {
  std::string_view style, script;
  std::string_view script_hash;  // SHA-256 in base64: the one script that a page lets run
  // plotly.js, compressed by gzip, in base64, in pieces that every compiler takes; none where it was not there.
  std::span<const std::string_view> plotly;
  std::string_view plotly_notice;  // its version and copyright
};

const ReportAssets& report_assets();

}  // namespace pare
