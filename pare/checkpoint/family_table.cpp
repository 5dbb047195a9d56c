#include "pare/checkpoint/family_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "pare/support/mapped.h"

namespace pare {

namespace {

Draft draft_of(const Architecture& a) {
  return {.a = a, .block = a.blocks.front(), .mlp = dense_mlp(a.blocks.front()), .layers = std::ssize(a.blocks)};
}

std::string class_name(const FamilyTable& table, const ClassRow& row) {
  return fmt::format("{}{}", table.classes, row.ending);
}

// Every family has one.
std::string bare_class(const FamilyTable& table) {
  std::string name;
  for (const ClassRow& row : table.heads.classes) {
    name = row.task == Task::encoder ? class_name(table, row) : name;
  }
  return name;
}

// A row of a class may be one tensor of a module whose others are elsewhere.
bool is_one_tensor(std::string_view ours) {
  return ours.ends_with(".weight") || ours.ends_with(".bias");
}

bool is_matrix(std::string_view ours) {
  return ours == "head" || ours == "head.weight";
}

std::string behind_prefix(const FamilyTable& table, const std::string& theirs) {
  return theirs.starts_with(table.base_prefix) ? theirs.substr(table.base_prefix.size()) : theirs;
}

// What tells a file of the class from those of others.
std::vector<std::string> needed_tensors(const FamilyTable& table, const ClassRow& row, bool tied) {
  std::vector<std::string> needed;
  for (const TensorRow& tensor : row.tensors) {
    const std::string_view ours = tensor.ours.all.front();
    const bool matrix = is_matrix(ours), in_base = tensor.theirs.starts_with(table.base_prefix);
    const bool masked = row.task == Task::masked_lm, told_by_layer = masked && row.head.transform.has_value();
    if ((row.task == Task::encoder && in_base) || (matrix && told_by_layer) || ours == "head.transform.norm") {
      continue;
    }
    if (matrix && tied && (masked || row.task == Task::causal_lm)) {
      // A tied head need not be stored; but only a file of a class with a head has the prefix.
      needed.push_back(fmt::format("{}*", table.base_prefix));
      continue;
    }
    const std::string module = (in_base ? "*" : "") + behind_prefix(table, tensor.theirs);
    if (is_one_tensor(ours)) {
      needed.push_back(module);
      continue;
    }
    const auto is_same_without = [&](const ClassRow& other) {
      return !other.tensors.empty() && other.tensors.front().theirs == tensor.theirs && !other.head.bias;
    };
    needed.push_back(module + ".weight");
    if (matrix && row.head.bias && std::ranges::any_of(table.heads.classes, is_same_without)) {
      needed.push_back(module + ".bias");
    }
  }
  return needed;
}

void read_class(const FamilyTable& table, Config& config, Architecture& a) {
  const std::string_view key = "tie_word_embeddings";
  const bool tied = config.has(key) ? config.raw(key) == true : table.heads.tied && !config.is_null(key);
  std::vector<ModelClass> classes;
  for (const ClassRow& row : table.heads.classes) {
    classes.push_back({class_name(table, row), row.task, needed_tensors(table, row, tied)});
  }
  const std::string name = config.model_class(classes).name;
  const ClassRow& row =
      *std::ranges::find_if(table.heads.classes, [&](const ClassRow& one) { return class_name(table, one) == name; });
  a.task = row.task;
  a.head = row.head;
  // Of a bare model's pooler, that is; what stands outside of the bare model has to be there.
  for (const TensorRow& tensor : row.tensors) {
    if (a.task == Task::encoder && tensor.theirs.starts_with(table.base_prefix) &&
        !config.stores(behind_prefix(table, tensor.theirs) + ".weight", true)) {
      a.head.transform.reset();
    }
  }
}

// nullptr where the family has no such class.
const ClassRow* class_of(const FamilyTable& table, const Architecture& a) {
  const auto fits = [&](const ClassRow& row) {
    return row.task == a.task && row.head.sequence.has_value() == a.head.sequence.has_value();
  };
  const auto fits_exactly = [&](const ClassRow& row) {  // a bare model may lack the pooler that others have
    return fits(row) && row.head.transform.has_value() == a.head.transform.has_value();
  };
  const std::vector<ClassRow>& classes = table.heads.classes;
  const auto exact = std::ranges::find_if(classes, fits_exactly);
  const auto found = exact == classes.end() ? std::ranges::find_if(classes, fits) : exact;
  return found == classes.end() ? nullptr : &*found;
}

void bind_class(const FamilyTable& table, Binder& binder, const Architecture& a) {
  const ClassRow* row = class_of(table, a);
  for (const TensorRow& tensor : row ? row->tensors : std::vector<TensorRow>{}) {
    const std::string ours(tensor.ours.all.front());
    const bool tied = is_matrix(ours) && a.head.tied;
    if (is_one_tensor(ours)) {
      binder.tensor(tensor.theirs, ours);
    } else if (tied && !table.heads.tied_bias.empty()) {
      binder.tensor(std::string(table.heads.tied_bias), "head.bias");
      binder.copy(tensor.theirs + ".bias", "head.bias");
    } else {
      binder.module(tensor.theirs, {ours});
    }
    if (tied) {  // may be in the file a second time
      binder.copy(tensor.theirs + (is_one_tensor(ours) ? "" : ".weight"), "embed.token.weight");
    }
  }
}

Architecture read_table(const FamilyTable& table, Config& config) {
  Draft draft = draft_of(table.model);
  draft.a.name = table.model_type;
  draft.a.blocks.clear();
  read_class(table, config, draft.a);
  for (const std::vector<Key>* keys : {&table.heads.keys, &table.keys}) {
    for (const Key& key : *keys) {
      config.neutral(key.names.all);  // known, also where nothing depends on it
      key.field.read(config, key, draft);
    }
  }
  if (!draft.uneven.empty()) {
    config.problem(draft.uneven);
  }
  if (table.finish) {
    table.finish(config, draft);
  }
  config.neutral(table.neutral);
  draft.block.mlp->kind = draft.mlp;
  draft.a.blocks.assign(static_cast<size_t>(draft.layers), draft.block);
  for (const auto& change : draft.by_layer) {
    for (int64_t layer = 0; layer < draft.layers; ++layer) {
      change(layer, draft.a.blocks[layer]);
    }
  }
  return draft.a;
}

nlohmann::ordered_json write_table(const FamilyTable& table, const Architecture& a) {
  Draft draft = draft_of(a);
  nlohmann::ordered_json config;
  if (const ClassRow* row = class_of(table, a)) {
    config["architectures"] = {class_name(table, *row)};
  }
  for (const Key& key : table.heads.keys) {
    key.field.write(config, key, draft);
  }
  config["model_type"] = table.model_type;
  for (const Key& key : table.keys) {
    key.field.write(config, key, draft);
  }
  return config;
}

bool is_of_block(const TensorRow& row) {
  return row.theirs.find("{}") != std::string::npos;
}

}  // namespace

void write_nothing(nlohmann::ordered_json&, const Key&, Draft&) {}

std::vector<Binding> bind_table(const FamilyTable& table, const Architecture& a,
                                const std::function<std::string(int64_t)>& number) {
  const bool answers = a.task == Task::question_answering && !table.answers_prefix.empty();
  const std::string prefix(answers ? table.answers_prefix : table.base_prefix);
  Binder binder(a);
  const auto bind = [&](const TensorRow& row, const std::string& theirs, const std::string& ours, const Block& block) {
    const std::vector<std::string> names =
        mapped(row.ours.all, [&](std::string_view name) { return ours + std::string(name); });
    if (!row.where || row.where(a)) {
      binder.row(prefix + theirs, names, row.stored, block.attention);
    }
  };
  for (auto row = table.tensors.begin(); row != table.tensors.end();) {
    const auto end = std::find_if_not(row, table.tensors.end(), is_of_block);
    for (int64_t n = 0; n < (row == end ? 0 : std::ssize(a.blocks)); ++n) {
      std::for_each(row, end, [&](const TensorRow& one) {
        bind(one, fmt::format(fmt::runtime(one.theirs), number ? number(n) : std::to_string(n)),
             fmt::format("blocks.{}.", n), a.blocks[n]);
      });
    }
    row = end;
    if (row != table.tensors.end()) {
      bind(*row, row->theirs, "", a.blocks.front());
      ++row;
    }
  }
  bind_class(table, binder, a);
  return binder.take();
}

Family make_family(FamilyTable given) {
  for (const Key& key : given.keys) {  // one global that copies from another may come before it
    PARE_CHECK(key.field.read && key.field.write, fmt::format("{} has a field that is not there yet", key.name()));
  }
  const auto table = std::make_shared<const FamilyTable>(std::move(given));
  return {.model_type = table->model_type,
          .base_prefix = table->base_prefix,
          .bare_class = bare_class(*table),
          .classes = mapped(table->heads.classes, [&](const ClassRow& row) { return class_name(*table, row); }),
          .read_config = [table](Config& config) { return read_table(*table, config); },
          .write_config = [table](const Architecture& a) { return write_table(*table, a); },
          .bindings = [table](const Architecture& a) { return bind_table(*table, a); },
          .ignored = table->ignored,
          .renamed = table->renamed};
}

Norm layer_norm(NormPlace place) {
  return {.kind = NormKind::layer, .place = place, .gain = true, .bias = true};
}

Norm rms_norm(double offset) {
  return {.kind = NormKind::rms, .offset = offset};
}

}  // namespace pare
