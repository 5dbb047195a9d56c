// The header of a GGUF file: bytes from anyone, checked whole before any number in it is used.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "pare/support/error.h"
#include "pare/support/gguf.h"
#include "pare/support/json.h"
#include "pare/support/names.h"

namespace pare {

static_assert(std::endian::native == std::endian::little, "GGUF is little-endian and copied as it is");

namespace {

using nlohmann::json;

constexpr GgufBlock blocks[] = {
    {GgufType::f32, "F32", 1, 4},         {GgufType::f16, "F16", 1, 2},
    {GgufType::q4_0, "Q4_0", 32, 18},     {GgufType::q4_1, "Q4_1", 32, 20},
    {GgufType::q5_0, "Q5_0", 32, 22},     {GgufType::q5_1, "Q5_1", 32, 24},
    {GgufType::q8_0, "Q8_0", 32, 34},     {GgufType{9}, "Q8_1", 32, 36},
    {GgufType::q2_k, "Q2_K", 256, 84},    {GgufType::q3_k, "Q3_K", 256, 110},
    {GgufType::q4_k, "Q4_K", 256, 144},   {GgufType::q5_k, "Q5_K", 256, 176},
    {GgufType::q6_k, "Q6_K", 256, 210},   {GgufType{15}, "Q8_K", 256, 292},
    {GgufType{16}, "IQ2_XXS", 256, 66},   {GgufType{17}, "IQ2_XS", 256, 74},
    {GgufType{18}, "IQ3_XXS", 256, 98},   {GgufType{19}, "IQ1_S", 256, 50},
    {GgufType::iq4_nl, "IQ4_NL", 32, 18}, {GgufType{21}, "IQ3_S", 256, 110},
    {GgufType{22}, "IQ2_S", 256, 82},     {GgufType::iq4_xs, "IQ4_XS", 256, 136},
    {GgufType{24}, "I8", 1, 1},           {GgufType{25}, "I16", 1, 2},
    {GgufType{26}, "I32", 1, 4},          {GgufType{27}, "I64", 1, 8},
    {GgufType::f64, "F64", 1, 8},         {GgufType{29}, "IQ1_M", 256, 56},
    {GgufType::bf16, "BF16", 1, 2},       {GgufType{34}, "TQ1_0", 256, 54},
    {GgufType{35}, "TQ2_0", 256, 66},     {GgufType::mxfp4, "MXFP4", 32, 17},
    {GgufType{40}, "NVFP4", 64, 36},      {GgufType{41}, "Q1_0", 128, 18},
};

// What a value of the metadata may be.
enum class ValueType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

constexpr uint64_t least_bytes(ValueType type) {  // of one value
  constexpr uint64_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
  return sizes[static_cast<uint32_t>(type)];
}

constexpr int deepest = 8;                       // arrays of arrays
constexpr uint64_t most_values = 1 << 24;        // in all arrays; vocabularies have some hundred thousand
constexpr size_t longest_name = 65'535;          // of keys, as the format has it
constexpr uint64_t most_dimensions = 4;          // as ggml has it
constexpr uint64_t default_alignment = 32;       // where general.alignment says nothing
constexpr uint64_t most_alignment = 1ULL << 20;  // beyond are damaged files

// The header goes on behind the bytes that are there.
struct NeedsMore {};

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) {
      return false;
    }
    text.remove_prefix(length);
  }
  return true;
}

// The number that was meant where a float32 was written of it.
double shortest(float value) {
  return std::isfinite(value) ? std::strtod(fmt::format("{}", value).c_str(), nullptr) : static_cast<double>(value);
}

class Reader {
 public:
  Reader(std::string_view bytes, uint64_t file_size, const std::string& subject)
      : bytes_(bytes), file_size_(file_size), subject_(subject) {}

  uint64_t at() const { return at_; }

  // `count` things of at least `size` bytes each must still fit into the file.
  void expect(uint64_t count, uint64_t size, const std::string& what) const {
    const uint64_t left = file_size_ - at_;
    refuse_if(count > left / size, "{}: {} at byte {} would take more than the {} bytes that are left: {}", subject_,
              what, at_, left, "a damaged file, or an incomplete download?");
  }

  template <typename Value>
  Value take(const char* what) {
    Value value;
    std::memcpy(&value, bytes_of(sizeof value, what), sizeof value);
    return value;
  }

  std::string string(const char* what) {
    const auto length = take<uint64_t>(what);
    expect(length, 1, fmt::format("{} of {} bytes", what, length));
    return std::string(bytes_of(length, what), length);
  }

  json value(ValueType type, const std::string& key, int depth = 0) {
    switch (type) {
      case ValueType::u8:
        return take<uint8_t>("a value");
      case ValueType::i8:
        return take<int8_t>("a value");
      case ValueType::u16:
        return take<uint16_t>("a value");
      case ValueType::i16:
        return take<int16_t>("a value");
      case ValueType::u32:
        return take<uint32_t>("a value");
      case ValueType::i32:
        return take<int32_t>("a value");
      case ValueType::f32:
        return shortest(take<float>("a value"));
      case ValueType::boolean: {
        const auto byte = take<uint8_t>("a value");
        refuse_if(byte > 1, "{}: the metadata {} is the byte {}, expected 0 or 1", subject_, quote(key), byte);
        return byte == 1;
      }
      case ValueType::string: {
        std::string text = string("a string");
        refuse_if(!is_utf8(text), "{}: the metadata {} has a string that is not UTF-8", subject_, quote(key));
        return text;
      }
      case ValueType::array:
        return array(key, depth);
      case ValueType::u64:
        return take<uint64_t>("a value");
      case ValueType::i64:
        return take<int64_t>("a value");
      case ValueType::f64:
        return take<double>("a value");
    }
    PARE_UNREACHABLE("a type of metadata without a reader");
  }

  ValueType value_type(const std::string& key) {
    const auto number = take<uint32_t>("a type");
    refuse_if(number > static_cast<uint32_t>(ValueType::f64),
              "{}: the metadata {} has the type {}, expected 0 to 12: a damaged file?", subject_, quote(key), number);
    return static_cast<ValueType>(number);
  }

 private:
  const char* bytes_of(uint64_t count, const char* what) {
    expect(count, 1, what);
    if (count > bytes_.size() - at_) {
      throw NeedsMore();
    }
    const char* const begin = bytes_.data() + at_;
    at_ += count;
    return begin;
  }

  json array(const std::string& key, int depth) {
    refuse_if(depth == deepest, "{}: the metadata {} has arrays nested deeper than {}", subject_, quote(key), deepest);
    const ValueType type = value_type(key);
    const auto count = take<uint64_t>("a count");
    expect(count, least_bytes(type), fmt::format("an array of {} values", count));
    values_ += std::min(count, most_values + 1);  // each takes more memory than its byte in the file
    refuse_if(values_ > most_values, "{}: the metadata {} has more than {} values in arrays: a damaged file?", subject_,
              quote(key), most_values);
    json list = json::array();
    list.get_ref<json::array_t&>().reserve(count);
    for (uint64_t i = 0; i < count; ++i) {
      list.push_back(value(type, key, depth + 1));
    }
    return list;
  }

  std::string_view bytes_;
  uint64_t file_size_, at_ = 0, values_ = 0;
  const std::string& subject_;
};

void check_begin(Reader& reader, const std::string& subject) {
  const auto magic = reader.take<std::array<char, 4>>("the magic number");
  refuse_if(std::string_view(magic.data(), 4) != "GGUF", "{} begins with {}, expected 'GGUF': not a GGUF file?",
            subject, quote(std::string_view(magic.data(), 4)));
  const auto version = reader.take<uint32_t>("the version");
  refuse_if(version > 0xFFFF && (version & 0xFFFF) == 0,
            "{} is GGUF for big-endian machines, which pare does not read: convert it to little-endian", subject);
  refuse_if(version != 2 && version != 3,
            "{} is GGUF of version {}; read are 2 and 3: convert the model again with a current llama.cpp", subject,
            version);
}

uint64_t alignment_of(const GgufMetadata& metadata, const std::string& subject) {
  const auto found = metadata.find("general.alignment");
  if (found == metadata.end()) {
    return default_alignment;
  }
  const bool number = found->second.is_number_unsigned();
  const uint64_t value = number ? found->second.get<uint64_t>() : 0;
  refuse_if(!std::has_single_bit(value) || value > most_alignment,
            "{}: general.alignment is {}, expected a power of two up to {}", subject, json_shown(found->second),
            most_alignment);
  return value;
}

// `begin` is relative to the data, until they are placed.
GgufTensor read_tensor(Reader& reader, const std::string& name, uint64_t file_size, const std::string& subject) {
  const auto dimensions = reader.take<uint32_t>("a number of dimensions");
  refuse_if(dimensions < 1 || dimensions > most_dimensions, "{}: tensor {} has {} dimensions, expected 1 to {}",
            subject, quote(name), dimensions, most_dimensions);
  GgufTensor tensor;
  uint64_t elements = 1;
  for (uint32_t i = 0; i < dimensions; ++i) {
    const auto size = reader.take<uint64_t>("a dimension");
    refuse_if(
        size == 0 || size > INT64_MAX || __builtin_mul_overflow(elements, size, &elements) || elements > INT64_MAX / 8,
        "{}: tensor {} has a dimension of {}, expected a size that a file can hold", subject, quote(name), size);
    tensor.shape.push_back(static_cast<int64_t>(size));
  }
  const uint64_t row = static_cast<uint64_t>(tensor.shape.front());
  std::ranges::reverse(tensor.shape);
  tensor.type = static_cast<GgufType>(reader.take<uint32_t>("a type"));
  const GgufBlock* const block = gguf_block(tensor.type);
  refuse_if(block == nullptr,
            "{}: tensor {} is of the type {}, which is none of GGUF's: a newer file, or a damaged one?", subject,
            quote(name), static_cast<uint32_t>(tensor.type));
  refuse_if(row % block->elements != 0, "{}: tensor {} has rows of {} elements, expected a multiple of {} for {}",
            subject, quote(name), row, block->elements, block->name);
  tensor.begin = reader.take<uint64_t>("an offset");
  const uint64_t bytes = elements / block->elements * block->bytes;
  refuse_if(
      tensor.begin > file_size || bytes > file_size - tensor.begin,
      "{}: tensor {} begins at byte {} of the data and has {} bytes, but the file has {}: an incomplete download?",
      subject, quote(name), tensor.begin, bytes, file_size);
  tensor.end = tensor.begin + bytes;
  return tensor;
}

// One behind the other, each at the next multiple of the alignment: nothing twice, nothing hidden in between.
void place(std::map<std::string, GgufTensor>& tensors, uint64_t header_end, uint64_t alignment, uint64_t file_size,
           const std::string& subject) {
  const auto aligned = [alignment](uint64_t at) { return (at + alignment - 1) / alignment * alignment; };
  const uint64_t data = aligned(header_end);
  std::vector<std::map<std::string, GgufTensor>::value_type*> order;
  for (auto& item : tensors) {
    order.push_back(&item);
  }
  std::ranges::sort(order, {}, [](const auto* item) { return item->second.begin; });
  Problems problems;
  uint64_t expected = 0;
  for (auto* item : order) {
    auto& [name, tensor] = *item;
    problems.add_if(tensor.begin % alignment != 0, "tensor {} begins at byte {} of the data, no multiple of {}",
                    quote(name), tensor.begin, alignment);
    problems.add_if(tensor.begin < expected, "tensor {} begins at byte {} of the data, inside the one before it",
                    quote(name), tensor.begin);
    problems.add_if(tensor.begin > expected, "{} bytes before tensor {} belong to no tensor", tensor.begin - expected,
                    quote(name));
    expected = aligned(std::max(expected, tensor.end));
    tensor.begin += data;
    tensor.end += data;
    problems.add_if(tensor.end > file_size, "tensor {} ends at byte {} but the file has {}: an incomplete download?",
                    quote(name), tensor.end, file_size);
  }
  problems.add_if(problems.empty() && !order.empty() && file_size > data + expected,
                  "{} bytes after the last tensor belong to no tensor", file_size - data - expected);
  problems.throw_if_any(subject);
}

GgufHeader read_all(Reader& reader, uint64_t file_size, const std::string& subject) {
  check_begin(reader, subject);
  const auto tensors = reader.take<uint64_t>("a count"), values = reader.take<uint64_t>("a count");
  // A tensor has at least a length, a dimension and its size, a type and an offset; a value a length, a type, a byte.
  reader.expect(tensors, 32, fmt::format("a list of {} tensors", tensors));
  reader.expect(values, 13, fmt::format("metadata of {} values", values));
  GgufHeader header;
  for (uint64_t i = 0; i < values; ++i) {
    const std::string key = reader.string("a key");
    refuse_if(key.empty() || key.size() > longest_name || !is_utf8(key),
              "{}: the key of value {} of the metadata is {}, expected 1 to {} bytes of UTF-8", subject, i, quote(key),
              longest_name);
    json value = reader.value(reader.value_type(key), key);
    refuse_if(!header.metadata.emplace(key, std::move(value)).second, "{}: the metadata has {} twice", subject,
              quote(key));
  }
  const uint64_t alignment = alignment_of(header.metadata, subject);
  for (uint64_t i = 0; i < tensors; ++i) {
    const std::string name = reader.string("a name");
    refuse_if(name.empty() || !is_utf8(name), "{}: the name of tensor {} is {}, expected UTF-8", subject, i,
              quote(name));
    GgufTensor tensor = read_tensor(reader, name, file_size, subject);
    refuse_if(!header.tensors.emplace(name, std::move(tensor)).second, "{} has tensor {} twice", subject, quote(name));
  }
  place(header.tensors, reader.at(), alignment, file_size, subject);
  return header;
}

}  // namespace

const GgufBlock* gguf_block(GgufType type) {
  const auto found = std::ranges::find(blocks, type, &GgufBlock::type);
  return found == std::end(blocks) ? nullptr : found;
}

std::optional<GgufHeader> parse_gguf_header(std::string_view bytes, uint64_t file_size, const std::string& subject) {
  PARE_CHECK(bytes.size() <= file_size, "more bytes than the file has");
  Reader reader(bytes, file_size, subject);
  try {
    return read_all(reader, file_size, subject);
  } catch (const NeedsMore&) {
    return std::nullopt;
  }
}

}  // namespace pare
