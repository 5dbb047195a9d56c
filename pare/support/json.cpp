#include "pare/support/json.h"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "pare/support/error.h"
#include "pare/support/text.h"

namespace pare {

namespace {

constexpr int max_depth = 64;

// The library's own words, without the tag in front: "[json.exception.parse_error.101] parse error at line 1, ...".
std::string explain(const nlohmann::json::exception& error) {
  std::string_view text = error.what();
  size_t tag = text.find("] ");
  if (tag != std::string_view::npos) {
    text.remove_prefix(tag + 2);
  }
  return escaped(text);
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& subject) {
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> open_objects;
  auto watch = [&](int depth, Event event, nlohmann::json& value) {
    if (depth >= max_depth && (event == Event::object_start || event == Event::array_start)) {
      throw InputError(fmt::format("{}: nested deeper than {} levels", subject, max_depth));
    }
    if (event == Event::object_start) {
      open_objects.emplace_back();
    } else if (event == Event::object_end) {
      open_objects.pop_back();
    } else if (event == Event::key) {
      const std::string& key = value.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second) {
        throw InputError(fmt::format("{}: the key {} appears twice in one object", subject, quote(key)));
      }
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text, watch);
  } catch (const nlohmann::json::exception& error) {
    throw InputError(fmt::format("{} is not valid JSON: {}", subject, explain(error)));
  }
}

}  // namespace pare
