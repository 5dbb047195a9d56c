#include "pare/checkpoint/family_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

namespace pare {

namespace {

Draft draft_of(const Architecture& a) {
  return {.a = a, .block = a.blocks.front(), .mlp = dense_mlp(a.blocks.front()), .layers = std::ssize(a.blocks)};
}

Architecture read_table(const FamilyTable& table, Config& config) {
  Draft draft = draft_of(table.model);
  draft.a.name = table.model_type;
  draft.a.blocks.clear();
  table.heads.read(table, config, draft);
  for (const Key& key : table.keys) {
    key.field.read(config, key, draft);
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
      change(layer, draft.a.blocks[static_cast<size_t>(layer)]);
    }
  }
  return draft.a;
}

nlohmann::ordered_json write_table(const FamilyTable& table, const Architecture& a) {
  Draft draft = draft_of(a);
  nlohmann::ordered_json config;
  table.heads.write(table, config, a);
  config["model_type"] = table.model_type;
  for (const Key& key : table.keys) {
    key.field.write(config, key, draft);
  }
  return config;
}

bool is_of_block(const TensorRow& row) {
  return row.theirs.find("{}") != std::string_view::npos;
}

}  // namespace

void write_nothing(nlohmann::ordered_json&, const Key&, Draft&) {}

std::vector<Binding> bind_table(const FamilyTable& table, const Architecture& a,
                                const std::function<std::string(int64_t)>& number) {
  const bool answers = a.task == Task::question_answering && !table.answers_prefix.empty();
  const std::string prefix(answers ? table.answers_prefix : table.base_prefix);
  Binder binder(a);
  const auto bind = [&](const TensorRow& row, std::string theirs, const std::string& ours, const Block& block) {
    std::vector<std::string> names;
    for (std::string_view name : row.ours.all) {
      names.push_back(ours + std::string(name));
    }
    if (!row.where || row.where(a)) {
      binder.row(prefix + theirs, names, row.stored, block.attention.kv_heads);
    }
  };
  for (auto row = table.tensors.begin(); row != table.tensors.end();) {
    const auto end = std::find_if_not(row, table.tensors.end(), is_of_block);
    for (int64_t n = 0; n < (row == end ? 0 : std::ssize(a.blocks)); ++n) {
      std::for_each(row, end, [&](const TensorRow& one) {
        bind(one, fmt::format(fmt::runtime(one.theirs), number ? number(n) : std::to_string(n)),
             fmt::format("blocks.{}.", n), a.blocks[static_cast<size_t>(n)]);
      });
    }
    row = end;
    if (row != table.tensors.end()) {
      bind(*row, std::string(row->theirs), "", a.blocks.front());
      ++row;
    }
  }
  table.heads.bind(table, binder, a);
  return binder.take();
}

Family make_family(FamilyTable given) {
  for (const Key& key : given.keys) {  // one global that copies from another may come before it
    PARE_CHECK(key.field.read && key.field.write, fmt::format("{} has a field that is not there yet", key.name()));
  }
  const auto table = std::make_shared<const FamilyTable>(std::move(given));
  return {.model_type = table->model_type,
          .base_prefix = table->base_prefix,
          .bare_class = fmt::format("{}Model", table->classes),
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
