#include "pare/support/json.h"

#include <fmt/format.h>

#include <vector>

#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/names.h"

namespace pare {

namespace {

using nlohmann::json;

constexpr size_t max_depth = 64;

// Builds the value from the parser's events. The library's own builder takes the last of two equal keys, and with a
// callback that could object it walks the whole parent after every child: minutes for a large header.
class Builder {
 public:
  explicit Builder(const std::string& subject) : subject_(subject) {}

  json take() { return std::move(root_); }

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(int64_t value) { return add(value); }
  bool number_unsigned(uint64_t value) { return add(value); }
  bool number_float(double value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(json::binary_t&) { return false; }  // JSON text has none

  bool key(std::string& name) {
    key_ = std::move(name);
    return true;
  }
  bool start_object(size_t) { return open(json::object()); }
  bool start_array(size_t) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool parse_error(size_t, const std::string& token, const json::exception& error) {
    // Without the tag in front: "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    std::string_view text = error.what();
    text.remove_prefix(std::min(text.size(), text.find("] ") + 2));
    const bool like_python = token.ends_with('N') || token.ends_with('I');
    throw InputError(fmt::format("{} is not valid JSON: {}{}", subject_, escaped(text),
                                 like_python ? " (NaN and Infinity are no numbers: expected a finite one)" : ""));
  }

 private:
  json* insert(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    json& parent = *open_.back();
    if (parent.is_array()) {
      return &parent.emplace_back(std::move(value));
    }
    auto [place, added] = parent.emplace(key_, std::move(value));
    if (!added) {
      throw InputError(fmt::format("{}: the key {} appears twice in one object", subject_, quote(key_)));
    }
    return &*place;
  }

  bool add(json value) {
    insert(std::move(value));
    return true;
  }

  bool open(json value) {
    refuse_if(open_.size() == max_depth, "{}: nested deeper than {} levels", subject_, max_depth);
    open_.push_back(insert(std::move(value)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string& subject_;
  json root_;
  std::vector<json*> open_;  // a parent does not grow, so does not move its children, while one of them is open
  std::string key_;
};

}  // namespace

json parse_json(std::string_view text, const std::string& subject) {
  refuse_lfs_pointer(text, subject);
  Builder builder(subject);
  json::sax_parse(text, &builder);
  return builder.take();
}

std::string json_text(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string json_shown(const nlohmann::json& value) {
  return escaped(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace pare
