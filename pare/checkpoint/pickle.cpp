#include "pare/checkpoint/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "pare/support/error.h"
#include "pare/support/names.h"

namespace pare {

namespace {

constexpr size_t most_values = 1 << 21, most_parts = 16, most_dimensions = 64, longest_key = 255, least_copied = 4096;

// Which Python objects may be named, and what their numbers are.
constexpr std::string_view ordered_dict = "collections.OrderedDict", untyped = "torch.storage.UntypedStorage",
                           tensor_v1 = "torch._utils._rebuild_tensor", tensor_v2 = "torch._utils._rebuild_tensor_v2",
                           tensor_v3 = "torch._utils._rebuild_tensor_v3", parameter = "torch._utils._rebuild_parameter";
constexpr std::array<std::pair<std::string_view, Dtype>, 11> storage_types = {{
    {"torch.FloatStorage", Dtype::f32},
    {"torch.DoubleStorage", Dtype::f64},
    {"torch.HalfStorage", Dtype::f16},
    {"torch.BFloat16Storage", Dtype::bf16},
    {"torch.LongStorage", Dtype::i64},
    {"torch.IntStorage", Dtype::i32},
    {"torch.ShortStorage", Dtype::i16},
    {"torch.CharStorage", Dtype::i8},
    {"torch.ByteStorage", Dtype::u8},
    {"torch.BoolStorage", Dtype::boolean},
    {"torch.ComplexFloatStorage", Dtype::c64},
}};
constexpr std::array<std::pair<std::string_view, Dtype>, 19> element_types = {{
    {"torch.float32", Dtype::f32},
    {"torch.float64", Dtype::f64},
    {"torch.float16", Dtype::f16},
    {"torch.bfloat16", Dtype::bf16},
    {"torch.int64", Dtype::i64},
    {"torch.int32", Dtype::i32},
    {"torch.int16", Dtype::i16},
    {"torch.int8", Dtype::i8},
    {"torch.uint64", Dtype::u64},
    {"torch.uint32", Dtype::u32},
    {"torch.uint16", Dtype::u16},
    {"torch.uint8", Dtype::u8},
    {"torch.bool", Dtype::boolean},
    {"torch.complex64", Dtype::c64},
    {"torch.float8_e4m3fn", Dtype::f8_e4m3},
    {"torch.float8_e5m2", Dtype::f8_e5m2},
    {"torch.float8_e8m0fnu", Dtype::f8_e8m0},
    {"torch.float8_e4m3fnuz", Dtype::f8_e4m3fnuz},
    {"torch.float8_e5m2fnuz", Dtype::f8_e5m2fnuz},
}};

template <size_t count>
std::optional<Dtype> type_named(const std::array<std::pair<std::string_view, Dtype>, count>& types,
                                std::string_view name) {
  const auto found = std::ranges::find(types, name, &std::pair<std::string_view, Dtype>::first);
  return found == types.end() ? std::nullopt : std::optional(found->second);
}

bool is_known(std::string_view name) {
  constexpr std::string_view others[] = {ordered_dict, untyped, tensor_v1, tensor_v2, tensor_v3, parameter};
  return std::ranges::find(others, name) != std::end(others) || type_named(storage_types, name) ||
         type_named(element_types, name);
}

// The stack machine that a pickle is a program for. Each instruction adds one value at most, so that memory grows no
// faster than the bytes that ask for it.
class Machine {
 public:
  Machine(std::string_view bytes, const std::string& subject) : bytes_(bytes), subject_(subject) {}

  Pickle run() {
    while (step()) {
    }
    if (stack_.size() != 1 || !marks_.empty()) {
      fail("the end leaves {} values, expected one", stack_.size());
    }
    pickle_.root = stack_.front();
    pickle_.end = place_;
    return std::move(pickle_);
  }

 private:
  template <typename... Arguments>
  [[noreturn]] void fail(fmt::format_string<Arguments...> text, Arguments&&... arguments) const {
    throw InputError(fmt::format("{}: damaged pickle: byte {}: {}", subject_, started_,
                                 fmt::format(text, std::forward<Arguments>(arguments)...)));
  }

  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - place_) {
      fail("{} more bytes are needed, and {} are left", count, bytes_.size() - place_);
    }
    const std::string_view taken = bytes_.substr(place_, static_cast<size_t>(count));
    place_ += taken.size();
    return taken;
  }

  uint64_t number(size_t size) {
    uint64_t value = 0;
    std::memcpy(&value, take(size).data(), size);  // little-endian, as this machine is
    return value;
  }

  std::string line() {
    const size_t end = bytes_.find('\n', place_);
    if (end == std::string_view::npos) {
      fail("a line without an end");
    }
    std::string text(take(end - place_));
    ++place_;
    return text;
  }

  void push(PickleValue value) {
    if (pickle_.values.size() == most_values) {
      fail("more than {} values", most_values);
    }
    pickle_.values.push_back(std::move(value));
    stack_.push_back(static_cast<PickleIndex>(pickle_.values.size() - 1));
  }

  // Values above the last mark, or all.
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  void need(size_t count) const {
    if (stack_.size() - floor() < count) {
      fail("{} values are needed, and {} are there", count, stack_.size() - floor());
    }
  }

  PickleIndex pop() {
    need(1);
    const PickleIndex top = stack_.back();
    stack_.pop_back();
    return top;
  }

  std::vector<PickleIndex> pop_several(size_t count) {
    need(count);
    std::vector<PickleIndex> items(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return items;
  }

  std::vector<PickleIndex> pop_to_mark() {
    if (marks_.empty()) {
      fail("there is no mark");
    }
    std::vector<PickleIndex> items = pop_several(stack_.size() - marks_.back());
    marks_.pop_back();
    return items;
  }

  template <typename Value>
  Value& as(PickleIndex index, std::string_view expected) {
    Value* value = std::get_if<Value>(&pickle_.values[index]);
    if (value == nullptr) {
      fail("{}, expected {}", kind_of(pickle_.values[index]), expected);
    }
    return *value;
  }

  uint64_t size_at(PickleIndex index) {
    const int64_t value = as<int64_t>(index, "a whole number");
    if (value < 0) {
      fail("{}, expected a number that is not negative", value);
    }
    return static_cast<uint64_t>(value);
  }

  // What is named again and again is copied each time. A file spells nearly all that it says.
  void count_copied(size_t count) {
    copied_ += count;
    if (copied_ > 2 * bytes_.size() + least_copied) {
      fail("tensors with more sizes and names than {} bytes can spell", bytes_.size());
    }
  }

  void push_tensor(PickledTensor tensor) {
    count_copied(tensor.shape.size() + tensor.strides.size() + tensor.storage.key.size());
    push(std::move(tensor));
  }

  // Few: one tuple can be named again and again, and is copied each time.
  const std::vector<PickleIndex>& tuple_at(PickleIndex index, size_t most, std::string_view expected) {
    const std::vector<PickleIndex>& items = as<PickledTuple>(index, expected).items;
    if (items.size() > most) {
      fail("a tuple of {}, expected {} of at most {}", items.size(), expected, most);
    }
    return items;
  }

  std::vector<int64_t> sizes_at(PickleIndex index) {
    std::vector<int64_t> sizes;
    for (const PickleIndex item : tuple_at(index, most_dimensions, "a tuple of sizes")) {
      sizes.push_back(static_cast<int64_t>(size_at(item)));
    }
    return sizes;
  }

  void remember(uint64_t number) {
    need(1);
    const size_t most = std::min(most_values, bytes_.size());  // counted from 0: each has its bytes
    if (number > most) {
      fail("number {} of the memo, expected at most {}", number, most);
    }
    if (number >= memo_.size()) {
      memo_.resize(static_cast<size_t>(number) + 1, none);
    }
    memo_[static_cast<size_t>(number)] = stack_.back();
  }

  void recall(uint64_t number) {
    if (number >= memo_.size() || memo_[static_cast<size_t>(number)] == none) {
      fail("the memo has no number {}", number);
    }
    stack_.push_back(memo_[static_cast<size_t>(number)]);
  }

  void push_global(const std::string& module, const std::string& name) {
    std::string whole = module + "." + name;
    refuse_if(!is_known(whole),
              "{} asks for the Python object {}, which is no part of a state dict; nothing was run. Only dicts of "
              "tensors are read: load the file in a place that may be lost, and save its tensors with "
              "safetensors.torch.save_file",
              subject_, quote(whole));
    push(PickledGlobal{std::move(whole)});
  }

  void set_items(const std::vector<PickleIndex>& items) {
    need(1);
    if (items.size() % 2 != 0) {
      fail("a key without a value");
    }
    PickledDict& dict = as<PickledDict>(stack_.back(), "a dict");
    for (size_t i = 0; i < items.size(); i += 2) {
      dict.entries.emplace_back(items[i], items[i + 1]);
    }
  }

  void append(const std::vector<PickleIndex>& items) {
    need(1);
    std::vector<PickleIndex>& list = as<PickledList>(stack_.back(), "a list").items;
    list.insert(list.end(), items.begin(), items.end());
  }

  // ('storage', type, key, where it was, count), and in old files the view that it is, or None.
  void push_storage() {
    const std::vector<PickleIndex> parts = tuple_at(pop(), most_parts, "the tuple of a storage");
    if (parts.size() != 5 && parts.size() != 6) {
      fail("a storage of {} parts, expected five", parts.size());
    }
    if (as<std::string>(parts[0], "the word 'storage'") != "storage") {
      fail("{}, expected 'storage'", quote(as<std::string>(parts[0], "")));
    }
    if (parts.size() == 6) {
      as<std::monostate>(parts[5], "a storage that is no view of another");
    }
    const std::string& type = as<PickledGlobal>(parts[1], "the type of a storage").name;
    const std::optional<Dtype> dtype = type_named(storage_types, type);
    if (!dtype && type != untyped) {
      fail("{}, expected the type of a storage", quote(type));
    }
    const std::string& key = as<std::string>(parts[2], "the key of a storage");
    if (key.size() > longest_key) {
      fail("the key of a storage has {} characters, expected at most {}", key.size(), longest_key);
    }
    count_copied(key.size());
    push(PickledStorage{key, dtype, size_at(parts[4])});
  }

  // storage, offset, sizes, strides; then what training needs, and in the third version the type.
  PickledTensor rebuilt(const std::vector<PickleIndex>& arguments, std::string_view function) {
    const size_t least = function == tensor_v1 ? 4 : function == tensor_v2 ? 6 : 7;
    if (arguments.size() < least) {
      fail("{} has {} arguments, expected {}", function, arguments.size(), least);
    }
    if (arguments.size() > least) {  // that its bytes are to be negated, or conjugated
      fail("a tensor with metadata, such as one that is stored negated: save a copy of it (tensor.clone())");
    }
    PickledTensor tensor{.storage = as<PickledStorage>(arguments[0], "a storage"),
                         .offset = size_at(arguments[1]),
                         .shape = sizes_at(arguments[2]),
                         .strides = sizes_at(arguments[3])};
    std::optional<Dtype> dtype = tensor.storage.dtype;
    if (function == tensor_v3) {
      const std::string& type = as<PickledGlobal>(arguments[6], "a type of elements").name;
      dtype = type_named(element_types, type);
    }
    if (!dtype) {
      fail("a tensor without a type of its elements");
    }
    if (tensor.shape.size() != tensor.strides.size()) {
      fail("{} sizes and {} strides", tensor.shape.size(), tensor.strides.size());
    }
    tensor.dtype = *dtype;
    return tensor;
  }

  void reduce() {
    const std::vector<PickleIndex> arguments = tuple_at(pop(), most_parts, "a tuple of arguments");
    const std::string function = as<PickledGlobal>(pop(), "a Python object that can be called").name;
    if (function == ordered_dict) {
      if (!arguments.empty()) {
        fail("an OrderedDict with arguments, expected an empty one that is filled");
      }
      push(PickledDict{});
    } else if (function == parameter) {
      if (arguments.empty()) {
        fail("a parameter without a tensor");
      }
      push_tensor(as<PickledTensor>(arguments[0], "a tensor"));
    } else if (function == tensor_v1 || function == tensor_v2 || function == tensor_v3) {
      push_tensor(rebuilt(arguments, function));
    } else {
      fail("{} is called, which is a type", quote(function));
    }
  }

  void push_string(uint64_t length) {
    const std::string_view text = take(length);
    for (size_t i = 0; i < text.size();) {
      const size_t character = utf8_length(text.substr(i));
      if (character == 0) {
        fail("a text that is not UTF-8");
      }
      i += character;
    }
    push(std::string(text));
  }

  void push_long(uint64_t length) {
    const std::string_view digits = take(length);
    if (length > 8) {
      push(PickledOther{});
      return;
    }
    uint64_t value = !digits.empty() && (static_cast<unsigned char>(digits.back()) & 0x80) != 0 ? ~uint64_t{0} : 0;
    std::memcpy(&value, digits.data(), digits.size());
    push(static_cast<int64_t>(value));
  }

  void push_skipped(uint64_t length) {
    take(length);
    push(PickledOther{});
  }

  void push_tuple(std::vector<PickleIndex> items) { push(PickledTuple{std::move(items)}); }

  // False at the end.
  bool step() {
    started_ = place_;
    const unsigned char code = static_cast<unsigned char>(take(1)[0]);
    switch (code) {
      case 0x80:  // PROTO
        if (const uint64_t version = number(1); version < 2 || version > 5) {
          fail("protocol {}, expected 2 to 5", version);
        }
        return true;
      case 0x95:  // FRAME: how far one may read ahead
        number(8);
        return true;
      case '.':
        return false;
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case 'N':
        push(std::monostate{});
        return true;
      case 0x88:
      case 0x89:
        push(code == 0x88);
        return true;
      case 'J':
        push(int64_t{static_cast<int32_t>(number(4))});
        return true;
      case 'K':
        push(static_cast<int64_t>(number(1)));
        return true;
      case 'M':
        push(static_cast<int64_t>(number(2)));
        return true;
      case 0x8a:
        push_long(number(1));
        return true;
      case 'G':
        push_skipped(8);
        return true;
      case 'X':
        push_string(number(4));
        return true;
      case 0x8c:
        push_string(number(1));
        return true;
      case 0x8d:
        push_string(number(8));
        return true;
      case 'B':
      case 'C':
        push_skipped(number(code == 'B' ? 4 : 1));
        return true;
      case ')':
        push_tuple({});
        return true;
      case 0x85:
      case 0x86:
      case 0x87:
        push_tuple(pop_several(code - 0x84u));
        return true;
      case 't':
        push_tuple(pop_to_mark());
        return true;
      case ']':
        push(PickledList{});
        return true;
      case 'a':
        append(pop_several(1));
        return true;
      case 'e':
        append(pop_to_mark());
        return true;
      case '}':
        push(PickledDict{});
        return true;
      case 's':
        set_items(pop_several(2));
        return true;
      case 'u':
        set_items(pop_to_mark());
        return true;
      case 'q':
        remember(number(1));
        return true;
      case 'r':
        remember(number(4));
        return true;
      case 0x94:
        remember(memo_.size());
        return true;
      case 'h':
      case 'j':
        recall(number(code == 'h' ? 1 : 4));
        return true;
      case 'c': {
        const std::string module = line();
        push_global(module, line());
        return true;
      }
      case 0x93: {
        const std::string name = as<std::string>(pop(), "the name of an object");
        push_global(as<std::string>(pop(), "the name of a module"), name);
        return true;
      }
      case 'Q':
        push_storage();
        return true;
      case 'R':
        reduce();
        return true;
      case 'b':  // the attributes of an OrderedDict: versions of modules, which no tensor depends on
        pop();
        need(1);
        as<PickledDict>(stack_.back(), "a dict");
        return true;
      default:
        fail("instruction 0x{:02x} is none that tensors need", code);
    }
  }

  static constexpr PickleIndex none = ~PickleIndex{0};
  const std::string_view bytes_;
  const std::string& subject_;
  size_t place_ = 0, started_ = 0, copied_ = 0;
  Pickle pickle_;
  std::vector<PickleIndex> stack_, memo_;
  std::vector<size_t> marks_;
};

}  // namespace

std::string_view kind_of(const PickleValue& value) {
  constexpr std::string_view kinds[] = {"None",    "a bool", "a number", "a text", "a number or bytes",
                                        "a tuple", "a list", "a dict",   "a type", "a bare storage",
                                        "a tensor"};
  static_assert(std::size(kinds) == std::variant_size_v<PickleValue>);
  return kinds[value.index()];
}

Pickle parse_pickle(std::string_view bytes, const std::string& subject) {
  return Machine(bytes, subject).run();
}

}  // namespace pare
