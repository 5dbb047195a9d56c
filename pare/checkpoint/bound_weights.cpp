#include "pare/checkpoint/bound_weights.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "pare/checkpoint/config.h"
#include "pare/support/error.h"
#include "pare/support/names.h"

namespace pare {

namespace {

// A * in a name stands for a number: each row of the one tensor of ours is a tensor of theirs.
bool is_row_by_row(const Binding& binding) {
  return binding.stored.find('*') != std::string::npos;
}

// What a binding is called in a file: one name, or one for each row.
std::vector<std::string> stored_names(const Binding& binding, const TensorTable& table) {
  if (!is_row_by_row(binding)) {
    return {binding.stored};
  }
  std::vector<std::string> names;
  for (int64_t row = 0; row < table.at(binding.canonical.front()).shape.front(); ++row) {
    names.push_back(binding.stored);
    names.back().replace(binding.stored.find('*'), 1, std::to_string(row));
  }
  return names;
}

Shape stored_shape(const Binding& binding, const TensorTable& table) {
  std::vector<at::Tensor> without_data;
  for (const std::string& name : binding.canonical) {
    without_data.push_back(at::empty(table.at(name).shape, at::TensorOptions().device(at::kMeta)));
  }
  const at::Tensor joined = binding.layout.join(without_data);
  return (is_row_by_row(binding) ? joined[0] : joined).sizes().vec();
}

// By the shape, and for a square matrix by what the layout makes of one.
bool is_transposed(const Binding& binding, const TensorTable& table) {
  const Shape stored = stored_shape(binding, table);
  const Shape& ours = table.at(binding.canonical.front()).shape;
  if (stored.size() != 2 || ours.size() != 2) {
    return false;
  }
  if (stored[0] != stored[1]) {
    return stored[1] != ours[1];
  }
  const at::Tensor square = at::empty(stored, at::TensorOptions().device(at::kMeta));
  return binding.layout.split(square).front().stride(0) == 1 && stored[0] > 1;
}

// The pieces of the fused tensors read last, until each is taken. Files are walked in the order of our names, which
// takes pieces of a weight and of its bias in turn: so a few tensors are kept, and never many. Threads take turns, so
// that the pieces of a tensor which several of them want are still read once.
class FusedPieces {
 public:
  at::Tensor take(const std::string& name, size_t piece, const Weight& weight, const Layout& layout) {
    const std::lock_guard lock(mutex_);
    auto entry = std::ranges::find(entries_, name, &Entry::name);
    if (entry == entries_.end() || !entry->pieces.at(piece).defined()) {
      if (entry != entries_.end()) {
        entries_.erase(entry);
      }
      if (entries_.size() == 4) {
        entries_.pop_front();
      }
      entries_.push_back({name, layout.split(weight.load())});
      entry = std::prev(entries_.end());
    }
    // A copy, so that one piece does not keep all of them in memory.
    at::Tensor taken = entry->pieces.at(piece).clone(at::MemoryFormat::Contiguous);
    entry->pieces.at(piece).reset();
    if (std::ranges::none_of(entry->pieces, [](const at::Tensor& t) { return t.defined(); })) {
      entries_.erase(entry);
    }
    return taken;
  }

 private:
  struct Entry {
    std::string name;
    std::vector<at::Tensor> pieces;
  };
  std::mutex mutex_;
  std::deque<Entry> entries_;
};

// In pieces, since a table may be large.
bool equal(const Weight& a, const Weight& b) {
  if (!a.can_load_rows() || !b.can_load_rows()) {
    return at::equal(a.load(), b.load());
  }
  constexpr int64_t rows = 4096;
  for (int64_t begin = 0; begin < a.shape().front(); begin += rows) {
    const int64_t count = std::min(rows, a.shape().front() - begin);
    if (!at::equal(a.load_rows(begin, count), b.load_rows(begin, count))) {
      return false;
    }
  }
  return true;
}

// Which tensor of the file each expected name is found under, and what is there without being expected.
struct Matching {
  std::map<std::string, std::string> found;
  std::vector<std::string> unexpected;
  std::map<std::string, std::string> ignored;  // by its name in the file: what the family calls it
};

bool is_ignored(const Family& family, const std::string& name) {
  return std::ranges::any_of(family.ignored, [&](std::string_view pattern) { return glob_match(pattern, name); });
}

Matching match_names(const Family& family, const std::set<std::string>& expected, const Weights& stored,
                     Problems& problems) {
  Matching matching;
  for (const auto& [name, weight] : stored) {
    const std::string current = current_name(family, name);
    const std::string prefixed = std::string(family.base_prefix) + current;
    const std::string& known = expected.contains(current) ? current : prefixed;
    if (!expected.contains(known)) {
      if (is_ignored(family, current) || is_ignored(family, prefixed)) {
        matching.ignored[name] = is_ignored(family, current) ? current : prefixed;
      } else {
        matching.unexpected.push_back(name);
      }
      continue;
    }
    const auto [there, first] = matching.found.emplace(known, name);
    if (!first) {
      problems.add(fmt::format("tensors {} and {} are two spellings of one name", quote(there->second), quote(name)));
    }
  }
  return matching;
}

std::set<std::string> expected_names(const std::vector<Binding>& bindings, const TensorTable& table) {
  std::set<std::string> expected;
  for (const Binding& binding : bindings) {
    const std::vector<std::string> names = stored_names(binding, table);
    expected.insert(names.begin(), names.end());
    expected.insert(binding.copies.begin(), binding.copies.end());
  }
  return expected;
}

// Of several sets of names the one that a file has; the first where it has none.
std::vector<Binding> bindings_found(const Family& family, const Architecture& architecture, const Weights& stored) {
  if (!family.possible_bindings) {
    return family.bindings(architecture);
  }
  std::vector<std::vector<Binding>> sets = family.possible_bindings(architecture);
  Problems ignored;
  const auto missing = [&](const std::vector<Binding>& bindings) {
    const std::set<std::string> expected = expected_names(bindings, tensor_table(architecture));
    return expected.size() - match_names(family, expected, stored, ignored).found.size();
  };
  return *std::ranges::min_element(sets, [&](const auto& a, const auto& b) { return missing(a) < missing(b); });
}

// Kinds of tensors that no family of ours has, by their names.
constexpr std::pair<std::string_view, std::string_view> foreign_tensors[] = {
    {"*.qweight", "quantised weights are not supported: take the checkpoint that these were made from"},
    {"*.qzeros", "quantised weights are not supported: take the checkpoint that these were made from"},
    {"*.weight_packed", "quantised weights are not supported: take the checkpoint that these were made from"},
    {"*.weight_scale*", "quantised weights are not supported: take the checkpoint that these were made from"},
    {"*.weight.absmax", "quantised weights are not supported: take the checkpoint that these were made from"},
    {"*.weight.quant_*", "quantised weights are not supported: take the checkpoint that these were made from"},
    {"*.SCB", "quantised weights are not supported: take the checkpoint that these were made from"},
    {"*.experts.*", "mixtures of experts are not supported"},
    {"*_moe.*", "mixtures of experts are not supported"},
    {"*.lora_*", "adapters are not supported: merge them into the model first"},
    {"*.base_layer.*", "adapters are not supported: merge them into the model first"},
    {"*.adapters.*", "adapters are not supported: merge them into the model first"},
    {"*cross*att*", "cross attention is not supported"},
    {"*.encoder_attn*", "cross attention is not supported"},
};

std::string explained(const std::vector<std::string>& unexpected) {
  std::set<std::string_view> reasons;
  for (const std::string& name : unexpected) {
    for (const auto& [pattern, reason] : foreign_tensors) {
      if (glob_match(pattern, name)) {
        reasons.insert(reason);
      }
    }
  }
  return fmt::format("{}{}", reasons.empty() ? "" : "; ", fmt::join(reasons, "; "));
}

// What is missing is all of the head: transformers would start one at random, and say so in a warning.
std::string without_head(const Family& family) {
  if (family.bare_class.empty()) {
    return "";
  }
  return fmt::format(
      "; the file does not hold the head that architectures in config.json asks for: let it name {} to "
      "read the model without a head",
      family.bare_class);
}

// A family file that forgets a tensor, or binds it twice, is a bug of ours.
void check_complete(const Family& family, const std::vector<Binding>& bindings, const TensorTable& table) {
  std::set<std::string> bound;
  for (const Binding& binding : bindings) {
    for (const std::string& name : binding.canonical) {
      PARE_CHECK(table.contains(name), fmt::format("{} binds {}", family.model_type, name));
      PARE_CHECK(bound.insert(name).second, fmt::format("{} binds {} twice", family.model_type, name));
    }
  }
  for (const TensorSpec& spec : table) {
    PARE_CHECK(bound.contains(spec.name), fmt::format("{} does not bind {}", family.model_type, spec.name));
  }
}

// Places of an identity block: a few numbers of each head, and one that no input has would be found deep in the
// arithmetic of others.
void check_pivots(const TensorTable& table, const Weights& canonical, Problems& problems) {
  for (const TensorSpec& spec : table) {
    if (!spec.index) {
      continue;
    }
    const Weight& weight = canonical.at(spec.name);
    if (weight.dtype() != Dtype::i32) {
      problems.add(fmt::format("tensor {} is stored as {}, expected I32: places of inputs", quote(spec.name),
                               dtype_name(weight.dtype())));
      continue;
    }
    const int64_t inputs = table.at(weight_of(spec.id.module)).shape.back() + spec.shape.back();
    const at::Tensor pivots = weight.load();
    const int64_t least = pivots.min().item<int64_t>(), largest = pivots.max().item<int64_t>();
    if (least < 0 || largest >= inputs) {
      problems.add(fmt::format("tensor {} has the pivot {}, expected places of the {} inputs, 0 to {}",
                               quote(spec.name), least < 0 ? least : largest, inputs, inputs - 1));
      continue;
    }
    const at::Tensor sorted = std::get<0>(pivots.sort(-1));
    const at::Tensor twice = sorted.slice(-1, 1).eq(sorted.slice(-1, 0, -1)).nonzero();
    if (twice.size(0) > 0) {
      const int64_t head = twice[0][0].item<int64_t>(), place = twice[0][1].item<int64_t>();
      problems.add(fmt::format("tensor {} has the pivot {} twice in head {}, expected each input once at most",
                               quote(spec.name), sorted[head][place].item<int64_t>(), head));
    }
  }
}

}  // namespace

Weights canonical_weights(const Family& family, const Architecture& architecture, const Weights& stored,
                          const std::string& subject) {
  const TensorTable table = tensor_table(architecture);
  const std::vector<Binding> bindings = bindings_found(family, architecture, stored);
  check_complete(family, bindings, table);
  Problems problems;
  Matching matching = match_names(family, expected_names(bindings, table), stored, problems);

  Weights canonical;
  std::vector<std::string> missing;
  bool only_head_missing = true;
  std::map<Dtype, std::vector<std::string>> uncomputable;
  const auto recent = std::make_shared<FusedPieces>();
  const auto check_one = [&](const Binding& binding, const std::string& name, const Weight& weight) {
    if (word(weight.dtype()).empty() && !table.at(binding.canonical.front()).index) {
      uncomputable[weight.dtype()].push_back(name);
    }
    const Shape wanted = stored_shape(binding, table);
    if (weight.shape() != wanted) {
      problems.add(fmt::format("tensor {} has shape [{}], expected [{}]", quote(name), fmt::join(weight.shape(), ", "),
                               fmt::join(wanted, ", ")));
    }
  };
  for (const Binding& binding : bindings) {
    if (is_row_by_row(binding)) {
      std::vector<Weight> rows;
      for (const std::string& wanted : stored_names(binding, table)) {
        if (const auto there = matching.found.find(wanted); there != matching.found.end()) {
          rows.push_back(stored.at(there->second));
          check_one(binding, there->second, rows.back());
          problems.add_if(rows.back().dtype() != rows.front().dtype(),
                          "tensor {} is stored as {}, but that of the first head as {}", quote(there->second),
                          dtype_name(rows.back().dtype()), dtype_name(rows.front().dtype()));
        } else {
          missing.push_back(wanted);
          only_head_missing = false;
        }
      }
      if (!rows.empty()) {
        const std::string& ours = binding.canonical.front();
        canonical[ours] = Weight::made(ours, rows.front().dtype(), table.at(ours).shape, rows,
                                       [](std::vector<at::Tensor>& in) { return at::stack(in); });
      }
      continue;
    }
    std::map<std::string, Weight> copies;
    for (const std::string& name : binding.copies) {
      if (const auto copy = matching.found.find(name); copy != matching.found.end()) {
        copies.emplace(copy->second, stored.at(copy->second));
      }
    }
    std::string name;
    if (const auto there = matching.found.find(binding.stored); there != matching.found.end()) {
      name = there->second;
    } else if (!copies.empty()) {
      name = copies.begin()->first;
      copies.erase(copies.begin());
    } else {
      missing.push_back(binding.stored);
      only_head_missing = only_head_missing && table.at(binding.canonical.front()).id.module.sublayer == Sublayer::head;
      continue;
    }
    const Weight& weight = stored.at(name);
    check_one(binding, name, weight);
    for (const auto& [copy_name, copy] : copies) {
      if (copy.shape() != weight.shape() || copy.dtype() != weight.dtype()) {
        problems.add(fmt::format("tensor {} is {} [{}] but {}, which is tied to it, is {} [{}]", quote(name),
                                 dtype_name(weight.dtype()), fmt::join(weight.shape(), ", "), quote(copy_name),
                                 dtype_name(copy.dtype()), fmt::join(copy.shape(), ", ")));
      }
    }
    for (size_t piece = 0; piece < binding.canonical.size(); ++piece) {
      const std::string& ours = binding.canonical[piece];
      canonical[ours] = binding.canonical.size() == 1
                            ? Weight::made(
                                  ours, weight.dtype(), table.at(ours).shape, {weight},
                                  [layout = binding.layout](std::vector<at::Tensor>& in) {
                                    return layout.split(in[0]).at(0).contiguous();
                                  },
                                  binding.layout.by_rows ? Weight::Rows::each : Weight::Rows::all)
                            : Weight::leaf(ours, weight.dtype(), table.at(ours).shape, [=, layout = binding.layout] {
                                return recent->take(name, piece, weight, layout);
                              });
    }
  }
  for (const auto& [dtype, names] : uncomputable) {
    problems.add(
        fmt::format("{} stored as {}, which pare does not compute with: expected float16, bfloat16, float32 or "
                    "float64 (transformers can dequantise a model and save it): {}",
                    names.size() == 1 ? "a tensor is" : fmt::format("{} tensors are", names.size()), dtype_name(dtype),
                    listed(names)));
  }
  if (!missing.empty()) {
    problems.add(fmt::format("{} missing: {}{}",
                             missing.size() == 1 ? "a tensor is" : fmt::format("{} tensors are", missing.size()),
                             listed(missing), only_head_missing ? without_head(family) : ""));
  }
  if (!matching.unexpected.empty()) {
    const size_t count = matching.unexpected.size();
    problems.add(fmt::format("{} unexpected: {}{}", count == 1 ? "a tensor is" : fmt::format("{} tensors are", count),
                             listed(matching.unexpected), explained(matching.unexpected)));
  }
  problems.throw_if_any(subject);
  check_pivots(table, canonical, problems);
  problems.throw_if_any(subject);
  return canonical;
}

std::map<std::string, UnusedName> unused_names(const Family& family, const Architecture& architecture,
                                               const Weights& stored) {
  const std::vector<Binding> bindings = bindings_found(family, architecture, stored);
  Problems found_before;
  const Matching matching =
      match_names(family, expected_names(bindings, tensor_table(architecture)), stored, found_before);
  std::map<std::string, UnusedName> unused;
  for (const auto& [name, known] : matching.ignored) {
    unused[name] = {known, ""};
  }
  for (const Binding& binding : bindings) {
    bool read = matching.found.contains(binding.stored);
    for (const std::string& copy : binding.copies) {
      const auto there = matching.found.find(copy);
      if (there != matching.found.end() && std::exchange(read, true)) {
        unused[there->second] = {copy, binding.stored};
      }
    }
  }
  return unused;
}

std::map<std::string, BoundName> bound_names(const Family& family, const Architecture& architecture,
                                             const Weights& stored) {
  const TensorTable table = tensor_table(architecture);
  const std::vector<Binding> bindings = bindings_found(family, architecture, stored);
  Problems found_before;
  const Matching matching = match_names(family, expected_names(bindings, table), stored, found_before);
  std::map<std::string, BoundName> bound;
  for (const Binding& binding : bindings) {
    for (const std::string& own : stored_names(binding, table)) {
      std::vector<std::string> names = binding.copies;
      names.push_back(own);
      for (const std::string& name : names) {
        const auto there = matching.found.find(name);
        BoundName& entry = bound[name];
        entry.in_file = there == matching.found.end() ? "" : there->second;
        entry.canonical = binding.canonical;
        entry.transposed = is_transposed(binding, table);
        std::ranges::remove_copy(names, std::back_inserter(entry.tied), name);
      }
    }
  }
  return bound;
}

std::vector<std::string> untie_if_different(const Family& family, const Architecture& architecture, Weights& stored,
                                            const std::string& subject) {
  const std::vector<Binding> bindings = bindings_found(family, architecture, stored);
  Problems ignored;  // canonical_weights finds them again
  const Matching matching = match_names(family, expected_names(bindings, tensor_table(architecture)), stored, ignored);
  std::vector<std::string> differences;
  Weights read_untied;
  for (const Binding& binding : bindings) {
    const auto original = matching.found.find(binding.stored);
    for (const std::string& copy_name : binding.copies) {
      const auto copy = matching.found.find(copy_name);
      const bool original_there = original != matching.found.end(), copy_there = copy != matching.found.end();
      if (original_there != copy_there) {  // of another pair the file may hold one, which then serves as both
        read_untied[original_there ? copy_name : binding.stored] =
            stored.at(original_there ? original->second : copy->second);
      }
      if (!original_there || !copy_there) {
        continue;
      }
      const Weight &one = stored.at(original->second), &other = stored.at(copy->second);
      if (one.shape() == other.shape() && one.dtype() == other.dtype() && !word(one.dtype()).empty() &&
          !equal(one, other)) {
        differences.push_back(
            fmt::format("{}: tensors {} and {} differ, though the configuration ties them (tie_word_embeddings): "
                        "taken as two, as transformers does",
                        subject, quote(original->second), quote(copy->second)));
      }
    }
  }
  if (!differences.empty()) {
    stored.merge(read_untied);
  }
  return differences;
}

// Whether a file holds nothing but the base model, whose prefix transformers then leaves out.
static bool is_only_base(const Family& family, const Architecture& architecture) {
  const std::vector<Binding> bindings =
      architecture.task == Task::encoder ? family.bindings(architecture) : std::vector<Binding>();
  return !bindings.empty() && std::ranges::all_of(bindings, [&](const Binding& binding) {
    return binding.stored.starts_with(family.base_prefix);
  });
}

static std::string without_prefix(const Family& family, std::string name) {
  return name.starts_with(family.base_prefix) ? name.substr(family.base_prefix.size()) : name;
}

std::string written_name(const Family& family, const Architecture& architecture, std::string name) {
  return is_only_base(family, architecture) ? without_prefix(family, std::move(name)) : name;
}

Weights family_weights(const Family& family, const Architecture& architecture, const Weights& canonical,
                       const Weights& named_like) {
  const TensorTable table = tensor_table(architecture);
  const std::vector<Binding> bindings = bindings_found(family, architecture, named_like);
  check_complete(family, bindings, table);
  const bool only_base = is_only_base(family, architecture);
  Weights stored;
  for (const Binding& binding : bindings) {
    std::vector<Weight> pieces;
    for (const std::string& name : binding.canonical) {
      pieces.push_back(canonical.at(name));
      if (pieces.back().dtype() != pieces.front().dtype()) {
        throw InputError(fmt::format("tensors {} and {} have the types {} and {}, but the family {} stores them as one",
                                     quote(binding.canonical.front()), quote(name), dtype_name(pieces.front().dtype()),
                                     dtype_name(pieces.back().dtype()), family.model_type));
      }
    }
    if (is_row_by_row(binding)) {
      for (int64_t row = 0; const std::string& full : stored_names(binding, table)) {
        const std::string name = only_base ? without_prefix(family, full) : full;
        stored[name] = Weight::made(name, pieces.front().dtype(), stored_shape(binding, table), pieces,
                                    [row](std::vector<at::Tensor>& in) { return in[0][row].contiguous(); });
        ++row;
      }
      continue;
    }
    const std::string name = only_base ? without_prefix(family, binding.stored) : binding.stored;
    stored[name] = Weight::made(
        name, pieces.front().dtype(), stored_shape(binding, table), pieces,
        [layout = binding.layout](std::vector<at::Tensor>& in) { return layout.join(in).contiguous(); },
        binding.layout.by_rows ? Weight::Rows::each : Weight::Rows::all);
  }
  return stored;
}

}  // namespace pare
