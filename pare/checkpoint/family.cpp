#include "pare/checkpoint/family.h"

#include <fmt/format.h>

#include <algorithm>

#include "pare/arch/architecture_json.h"
#include "pare/arch/validate.h"
#include "pare/checkpoint/config.h"
#include "pare/checkpoint/unread_families.h"
#include "pare/support/error.h"
#include "pare/support/names.h"

namespace pare {

Binder::Binder(const Architecture& architecture) : known_(tensor_table(architecture)) {}

void Binder::module(const std::string& stored, const std::vector<std::string>& canonical, const Layout& layout) {
  for (const std::string suffix : {".weight", ".bias"}) {
    if (!known_.contains(canonical.front() + suffix)) {
      continue;
    }
    Binding binding{stored + suffix, {}, layout, {}};
    for (const std::string& name : canonical) {
      binding.canonical.push_back(name + suffix);
    }
    bindings_.push_back(std::move(binding));
  }
}

void Binder::tensor(const std::string& stored, const std::string& canonical, const Layout& layout) {
  if (known_.contains(canonical)) {
    bindings_.push_back({stored, {canonical}, layout, {}});
  }
}

void Binder::row(const std::string& stored, const std::vector<std::string>& canonical, Stored how,
                 const Attention& attention) {
  const int64_t groups = how == Stored::by_key_heads ? attention.kv_heads : how == Stored::in_four_parts ? 4 : 1;
  std::vector<int64_t> rows;
  for (const std::string& name : canonical) {
    const TensorSpec* spec = known_.find(known_.contains(name) ? name : name + ".weight");
    rows.push_back(spec ? spec->shape.front() / groups : 0);
  }
  Layout layout = canonical.size() > 1 ? stacked(rows, groups) : plain();
  if (how == Stored::transposed) {
    layout = transposed(std::move(layout));
  } else if (how == Stored::one_in_front || how == Stored::two_in_front) {
    layout = leading_ones(how == Stored::one_in_front ? 1 : 2);
  } else if (how == Stored::number) {
    layout = number();
  } else if (how == Stored::turned_back) {
    layout = exchanged_halves(rows.front() / attention.head_width);
  }
  if (known_.contains(canonical.front())) {
    bindings_.push_back({stored, canonical, layout});
  } else {
    module(stored, canonical, layout);
  }
}

void Binder::copy(const std::string& copy, const std::string& canonical) {
  for (Binding& binding : bindings_) {
    if (binding.canonical.front() == canonical) {
      binding.copies.push_back(copy);
    }
  }
}

const Family& find_family(const std::string& model_type, const std::string& subject,
                          const std::vector<std::string>& remarks) {
  std::vector<const Family*> all = families();
  all.push_back(&native_family());
  std::vector<std::string> known;
  for (const Family* family : all) {
    if (family->model_type == model_type) {
      return *family;
    }
    known.emplace_back(family->model_type);
  }
  const std::string further = fmt::format("{}{}", remarks.empty() ? "" : "; ", fmt::join(remarks, "; "));
  for (const UnreadFamily& unread : unread_families()) {
    refuse_if(unread.model_type == model_type,
              "{}: model_type {} is not supported: it {}; 'pare families' lists those that are{}", subject,
              quote(model_type), unread.why, further);
  }
  throw InputError(fmt::format("{}: model_type {} is not supported{}; supported are {}{}", subject, quote(model_type),
                               did_you_mean(model_type, known, " (did you mean '{}'?)"), fmt::join(known, ", "),
                               further));
}

std::string current_name(const Family& family, std::string name) {
  for (const auto& [older, newer] : family.renamed) {
    if (name.ends_with(older)) {
      name.replace(name.size() - older.size(), older.size(), newer);
    }
  }
  return name;
}

Architecture read_architecture(const Family& family, const nlohmann::json& json, const std::string& subject,
                               std::optional<std::set<std::string>> tensors, ConfigRemarks remarks) {
  if (tensors) {
    std::set<std::string> current;
    for (const std::string& name : *tensors) {
      current.insert(current_name(family, name));
    }
    tensors = std::move(current);
  }
  Config config(json, subject, std::move(tensors), remarks);
  Architecture architecture = family.read_config(config);
  config.finish();
  Problems problems;
  validate(architecture, problems);
  problems.throw_if_any(subject);
  return architecture;
}

namespace {

// /blocks/0/attention/skip -> blocks[0].attention.skip
std::string readable(const std::string& pointer) {
  std::string path;
  for (size_t begin = 1; begin <= pointer.size();) {
    const size_t end = std::min(pointer.find('/', begin), pointer.size());
    const std::string part = pointer.substr(begin, end - begin);
    const bool index = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    path += index ? "[" + part + "]" : (path.empty() ? "" : ".") + part;
    begin = end + 1;
  }
  return path;
}

// Every leaf in which two Architectures differ.
void compare(const Architecture& wanted, const Architecture& expressed, Problems& problems) {
  const nlohmann::json ours = nlohmann::json(architecture_to_json(wanted)).flatten();
  const nlohmann::json theirs = nlohmann::json(architecture_to_json(expressed)).flatten();
  for (const auto& [pointer, value] : ours.items()) {
    if (!theirs.contains(pointer) || theirs[pointer] != value) {
      problems.add(fmt::format("{} is {}, but the family can only say {}", readable(pointer), value.dump(),
                               theirs.contains(pointer) ? theirs[pointer].dump() : "nothing"));
    }
  }
  for (const auto& [pointer, value] : theirs.items()) {
    if (!ours.contains(pointer)) {
      problems.add(fmt::format("{} is absent, but in the family it is {}", readable(pointer), value.dump()));
    }
  }
}

}  // namespace

nlohmann::ordered_json family_config(const Family& family, const Architecture& architecture) {
  const std::string subject = fmt::format("a model of the family {}", family.model_type);
  nlohmann::ordered_json config = family.write_config(architecture);
  std::set<std::string> tensors;
  for (const Binding& binding : family.bindings(architecture)) {
    tensors.insert(binding.stored);
  }
  // What the family cannot say is found by reading back what it did say.
  Architecture expressed = read_architecture(family, nlohmann::json(config), subject, std::move(tensors));
  expressed.name = architecture.name;
  Problems problems;
  compare(architecture, expressed, problems);
  problems.throw_if_any(subject);
  return config;
}

DenseMlp dense_mlp(const Block& block) {
  if (!block.mlp) {
    return {};
  }
  const auto as_dense = []<class Kind>(const Kind& kind) {
    if constexpr (std::is_same_v<Kind, DenseMlp>) {
      return kind;
    } else {
      return DenseMlp{.width = kind.width};  // that can be read back, so that what differs is the kind
    }
  };
  return std::visit(as_dense, block.mlp->kind);
}

}  // namespace pare
