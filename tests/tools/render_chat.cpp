// Chat templates with variables, for tests/conformance/chat_templates.py.
//   render_chat CASES OUT   a JSON list of {template, variables, now}; for each {text} or {error}. `now` has the fields
//   of
//                           a struct tm.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pare/data/chat_template.h"
#include "pare/support/error.h"
#include "pare/support/files.h"

int main(int count, char** words) {
  using json = nlohmann::ordered_json;
  if (count != 3) {
    fmt::print(stderr, "render_chat CASES OUT\n");
    return 1;
  }
  json out = json::array();
  for (const json& each : json::parse(pare::read_text_file(words[1], 1'000'000'000))) {
    std::tm now = {};
    const std::vector<int> fields = each.value("now", std::vector<int>{126, 6, 26, 12, 34, 56, 0, 206});
    now.tm_year = fields[0];
    now.tm_mon = fields[1];
    now.tm_mday = fields[2];
    now.tm_hour = fields[3];
    now.tm_min = fields[4];
    now.tm_sec = fields[5];
    now.tm_wday = fields[6];
    now.tm_yday = fields[7];
    try {
      const pare::ChatTemplate made(each.at("template").get<std::string>(), "template");
      out.push_back({{"text", made.render(each.at("variables"), now)}});
    } catch (const pare::InputError& error) {
      out.push_back({{"error", error.what()}});
    }
  }
  pare::write_text_file(words[2], out.dump(-1, ' ', false, json::error_handler_t::replace));
  return 0;
}
