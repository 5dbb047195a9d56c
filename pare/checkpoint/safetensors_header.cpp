// The header of a safetensors file: JSON text from anyone, checked whole before any number in it is used.

#include <fmt/format.h>

#include <algorithm>

#include "pare/checkpoint/safetensors.h"
#include "pare/support/error.h"
#include "pare/support/json.h"
#include "pare/support/mapped.h"
#include "pare/support/names.h"

namespace pare {

namespace {

using nlohmann::json;

std::string kind_of(const json& value) {
  return value.is_number_float() || (value.is_number_integer() && !value.is_number_unsigned())
             ? value.dump()
             : std::string(value.type_name());
}

Metadata read_metadata(const json& value, Problems& problems) {
  Metadata metadata;
  if (value.is_null()) {
    return metadata;
  }
  if (!value.is_object()) {
    problems.add(fmt::format("__metadata__ is {}, expected an object of strings", value.type_name()));
    return metadata;
  }
  for (const auto& [key, entry] : value.items()) {
    if (entry.is_string()) {
      metadata[key] = entry.get<std::string>();
    } else {
      problems.add(fmt::format("__metadata__ {} is {}, expected a string", quote(key), entry.type_name()));
    }
  }
  return metadata;
}

// Reads one tensor's entry; each function adds what is wrong to the problems and then returns false or nothing.
class Entry {
 public:
  Entry(const std::string& name, const json& fields, Problems& problems)
      : name_(name), fields_(fields), problems_(problems) {}

  bool has_the_right_fields() {
    if (!fields_.is_object()) {
      return problem(fmt::format("is {}, expected an object with dtype, shape and data_offsets", fields_.type_name()));
    }
    bool right = true;
    for (const char* key : {"dtype", "shape", "data_offsets"}) {
      right = (fields_.contains(key) || problem(fmt::format("has no {}", key))) && right;
    }
    for (const auto& [key, value] : fields_.items()) {
      bool known = key == "dtype" || key == "shape" || key == "data_offsets";
      right = (known || problem(fmt::format("has the unknown field {}", quote(key)))) && right;
    }
    return right;
  }

  bool read_dtype(Dtype& dtype) {
    const json& value = fields_["dtype"];
    if (!value.is_string()) {
      return problem(fmt::format("has a dtype that is {}, expected a string", value.type_name()));
    }
    const std::string& word = value.get_ref<const std::string&>();
    std::optional<Dtype> found = dtype_from_name(word);
    if (!found) {
      return problem(fmt::format("has the unknown dtype {}{}", quote(word), did_you_mean(word, dtype_names())));
    }
    dtype = *found;
    return true;
  }

  bool read_shape(std::vector<int64_t>& shape) {
    const json& value = fields_["shape"];
    if (!value.is_array()) {
      return problem(fmt::format("has a shape that is {}, expected a list", value.type_name()));
    }
    shape.reserve(value.size());
    for (const json& dimension : value) {
      if (!dimension.is_number_unsigned() || dimension.get<uint64_t>() > INT64_MAX) {
        return problem(fmt::format("has {} in its shape, expected integers from 0 to 2^63 - 1", kind_of(dimension)));
      }
      shape.push_back(dimension.get<int64_t>());
    }
    return true;
  }

  bool read_offsets(uint64_t& begin, uint64_t& end) {
    const json& value = fields_["data_offsets"];
    bool pair = value.is_array() && value.size() == 2;
    if (!pair || !value[0].is_number_unsigned() || !value[1].is_number_unsigned()) {
      std::string found = pair ? fmt::format("[{}, {}]", kind_of(value[0]), kind_of(value[1])) : value.type_name();
      return problem(fmt::format("has data_offsets {}, expected two non-negative integers", found));
    }
    begin = value[0].get<uint64_t>();
    end = value[1].get<uint64_t>();
    if (begin > end) {
      return problem(fmt::format("has reversed data_offsets: it begins at {} and ends at {}", begin, end));
    }
    // No file is that long, and what is shorter can be added to without wrapping around.
    if (end > INT64_MAX) {
      return problem(fmt::format("has data_offsets that end at {}, expected less than 2^63", end));
    }
    return true;
  }

  bool check_size(const StoredTensor& tensor) {
    std::optional<uint64_t> wanted = byte_size(tensor.dtype, tensor.shape);
    if (!wanted) {
      return problem(
          fmt::format("has a shape of {} dimensions that overflows or does not fill whole bytes", tensor.shape.size()));
    }
    uint64_t found = tensor.end - tensor.begin;
    if (*wanted != found) {
      return problem(fmt::format("has {} bytes of data, but its shape and dtype {} need {}", found,
                                 dtype_name(tensor.dtype), *wanted));
    }
    return true;
  }

 private:
  bool problem(const std::string& text) {
    problems_.add(fmt::format("tensor {} {}", quote(name_), text));
    return false;
  }

  const std::string& name_;
  const json& fields_;
  Problems& problems_;
};

// The tensors must tile the data exactly: nothing twice, nothing hidden in between, nothing missing.
void check_layout(const std::map<std::string, StoredTensor>& tensors, uint64_t data_begin, uint64_t file_size,
                  Problems& problems) {
  using Item = std::map<std::string, StoredTensor>::value_type;
  std::vector<const Item*> order = mapped(tensors, [](const Item& item) { return &item; });
  std::ranges::sort(order, [](const Item* a, const Item* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  uint64_t expected = data_begin;
  const Item* previous = nullptr;
  for (const Item* item : order) {
    const auto& [name, tensor] = *item;
    if (tensor.begin > expected) {
      problems.add(fmt::format("{} bytes before tensor {} belong to no tensor", tensor.begin - expected, quote(name)));
    } else if (tensor.begin < expected) {
      problems.add(fmt::format("tensor {} begins at byte {}, inside tensor {}, which ends at byte {}", quote(name),
                               tensor.begin, quote(previous->first), expected));
    }
    if (tensor.end > expected) {
      expected = tensor.end;
      previous = item;
    }
  }
  problems.add_if(expected < file_size, "{} bytes after the last tensor belong to no tensor", file_size - expected);
  if (expected > file_size) {
    auto past = std::ranges::find_if(order, [&](const Item* i) { return i->second.end > file_size; });
    size_t count =
        static_cast<size_t>(std::ranges::count_if(order, [&](const Item* i) { return i->second.end > file_size; }));
    problems.add(fmt::format("tensor {} ends at byte {} but the file has {}{}: an incomplete download?",
                             quote((*past)->first), (*past)->second.end, file_size,
                             count > 1 ? fmt::format(", and {} more tensors end later", count - 1) : ""));
  }
}

}  // namespace

std::optional<uint64_t> byte_size(Dtype dtype, std::span<const int64_t> shape) {
  int64_t bits = dtype_bits(dtype);
  bool empty = false;
  for (int64_t dimension : shape) {
    empty = empty || dimension == 0;
    // Zero counts as one, so that no partial product (a stride, say) can overflow anywhere else either.
    if (__builtin_mul_overflow(bits, std::max<int64_t>(dimension, 1), &bits)) {
      return std::nullopt;
    }
  }
  if (empty) {
    return 0;
  }
  return bits % 8 == 0 ? std::optional(static_cast<uint64_t>(bits / 8)) : std::nullopt;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t file_size, const std::string& subject) {
  if (!text.starts_with('{')) {
    throw InputError(fmt::format("{}: the header begins with {}, expected '{{': not a safetensors file?", subject,
                                 quote(text.substr(0, 1))));
  }
  json root = parse_json(text, subject + ": the header");
  SafetensorsHeader header;
  Problems problems;
  uint64_t data_begin = 8 + text.size();
  for (const auto& [name, fields] : root.items()) {
    if (name == "__metadata__") {
      header.metadata = read_metadata(fields, problems);
      continue;
    }
    Entry entry(name, fields, problems);
    if (!entry.has_the_right_fields()) {
      continue;
    }
    StoredTensor tensor;
    bool read = entry.read_dtype(tensor.dtype);
    read = entry.read_shape(tensor.shape) && read;
    read = entry.read_offsets(tensor.begin, tensor.end) && read;
    if (!read || !entry.check_size(tensor)) {
      continue;
    }
    tensor.begin += data_begin;
    tensor.end += data_begin;
    header.tensors.emplace(name, std::move(tensor));
  }
  // With an entry left out, the layout would show holes that are not there.
  if (problems.empty()) {
    check_layout(header.tensors, data_begin, file_size, problems);
  }
  problems.throw_if_any(subject);
  return header;
}

}  // namespace pare
