#include "pare/algebra/morph_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "pare/algebra/shift.h"
#include "pare/arch/architecture_json.h"
#include "pare/arch/norms.h"
#include "pare/arch/streams.h"
#include "pare/support/error.h"

namespace pare {

namespace {

bool is_leaving(const Projection& from, const Projection& to) {
  return is<Dense>(from) && is<Identity>(to);
}

// Tells each difference that can be mixed, and makes `reached` have it: what is different then, cannot.
class MorphPlanner {
 public:
  MorphPlanner(const Architecture& source, const Architecture& to) : reached_(source) {
    plan_.from = source;
    plan_.to = to;
  }

  MorphPlan plan(const std::string& subject) {
    const Architecture& to = plan_.to;
    if (plan_.from.blocks.size() != to.blocks.size()) {
      problems_.add(fmt::format("blocks: {} and {}: no block can be mixed with none", plan_.from.blocks.size(),
                                to.blocks.size()));
      problems_.throw_if_any(subject);
    }
    if (plan_.from.first_layer == FirstLayer::table) {
      problems_.add("first_layer: a table holds what would change: start from the model before the table was made");
      problems_.throw_if_any(subject);
    }
    ends();
    for (int64_t n = 0; n < std::ssize(to.blocks); ++n) {
      attention(n);
      mlp(n);
    }
    const std::vector<ModuleId> leaving = leaving_norms();
    leftovers();
    problems_.throw_if_any(subject);
    plan_.middle = to;
    for (const ModuleId& module : leaving) {
      norm_place(plan_.middle, module) = norm_place(plan_.from, module);
    }
    const Streams streams = find_streams(plan_.middle);
    const Touched touched = touched_by_norms(streams);
    const TensorTable stored = tensor_table(plan_.middle);
    for (const ModuleId& module : leaving) {
      place(module, touched, stored);
    }
    problems_.throw_if_any(subject);
    return std::move(plan_);
  }

 private:
  void ends() {
    const Head& after = plan_.to.head;
    if (plan_.from.head.tied && !after.tied) {
      plan_.from.head.tied = reached_.head.tied = false;
    }
    if (!plan_.from.head.bias && after.bias) {
      plan_.from.head.bias = reached_.head.bias = true;
    }
    reached_.name = plan_.to.name;
  }

  // A bias that is new begins at zero; one that goes fades.
  void bias(bool& from, bool& reached, bool to, const ModuleId& module) {
    if (from && !to) {
      plan_.biases.push_back(bias_of(module));
    }
    from = from || to;
    reached = to;
  }

  void attention(int64_t n) {
    Attention &from = plan_.from.blocks[n].attention, &reached = reached_.blocks[n].attention;
    const Attention& to = plan_.to.blocks[n].attention;
    const auto at = [n](Slot slot) { return in_attention(n, slot); };
    if (from.skip && !to.skip) {
      plan_.skips.emplace_back(n, Sublayer::attention);
      reached.skip = false;
    }
    if (from.scores == Form::factored) {
      bias(from.bias.query, reached.bias.query, to.bias.query, at(Slot::query));
      bias(from.bias.key, reached.bias.key, to.bias.key, at(Slot::key));
    }
    if (from.values == Form::factored) {
      bias(from.bias.value, reached.bias.value, to.bias.value, at(Slot::value));
    }
    bias(from.bias.output, reached.bias.output, to.bias.output, at(Slot::output));
    if (from.scores == Form::factored && to.scores == Form::factored) {
      scores(n, from, reached, to);
    }
    if (from.values == Form::factored && to.values == Form::factored) {
      values(n, from, reached, to);
    }
    if (from.qk_norm && !to.qk_norm) {
      head_norms(n, from, reached, to);
    }
  }

  // The multiple of a query goes into the key, and the key's into the query. Where both are the identity, their scale
  // is all that is left of them.
  void scores(int64_t n, const Attention& from, Attention& reached, const Attention& to) {
    const bool query = is_leaving(from.query, to.query), key = is_leaving(from.key, to.key);
    if (!query && !key) {
      return;
    }
    const double rescale = scale_of(from) / scale_of(to);
    const auto leave = [&](Slot slot, Slot other, const Projection& partner, Projection& changed) {
      LeavingProjection exit{.module = in_attention(n, slot)};
      if (from.qk_norm) {  // which takes off any multiple
        exit.multiple = 1;
      } else if (is<Dense>(partner)) {
        exit.partner = in_attention(n, other);
        exit.rescale = rescale;
      } else if (is<Identity>(partner)) {
        exit.multiple = query && key ? std::sqrt(1 / rescale) : 1 / rescale;
      } else {
        refuse(exit.module,
               fmt::format("{} is stored in a form that cannot take the multiple", name_of(in_attention(n, other))));
      }
      plan_.projections.push_back(exit);
      changed = Identity{};
    };
    if (query) {
      leave(Slot::query, Slot::key, to.key, reached.query);
    }
    if (key) {
      leave(Slot::key, Slot::query, to.query, reached.key);
    }
    if (!from.qk_norm && rescale > 0) {
      reached.scale = to.scale;
    }
  }

  void values(int64_t n, const Attention& from, Attention& reached, const Attention& to) {
    const auto leave = [&](Slot slot, Slot other, const Projection& partner, Projection& changed) {
      LeavingProjection exit{.module = in_attention(n, slot)};
      if (is<Dense>(partner)) {
        exit.partner = in_attention(n, other);
      } else if (!is<Identity>(partner)) {
        refuse(exit.module,
               fmt::format("{} is stored in a form that cannot take the multiple", name_of(in_attention(n, other))));
      }
      plan_.projections.push_back(exit);
      changed = Identity{};
    };
    if (is_leaving(from.value, to.value)) {
      leave(Slot::value, Slot::output, to.output, reached.value);
    }
    if (is_leaving(from.output, to.output)) {
      leave(Slot::output, Slot::value, to.value, reached.output);
    }
  }

  void head_norms(int64_t n, const Attention& from, Attention& reached, const Attention& to) {
    const auto leave = [&](Slot slot, const Projection& before, const Projection& after, Slot norm) {
      if (from.qk_norm_over != QkNormOver::head || norms_turned(from)) {
        refuse(in_attention(n, norm), norms_turned(from) ? "it stands behind the rotation, which its gain cannot pass"
                                                         : "only one with the same gain for all heads can go");
        return;
      }
      if (from.scores != Form::factored || !is<Dense>(before) || !is<Dense>(after)) {
        refuse(in_attention(n, norm),
               fmt::format("its gain needs a dense {} to go into", slot == Slot::query ? "query" : "key"));
        return;
      }
      plan_.norms.push_back({in_attention(n, norm), NormExit::rows, from.qk_norm->bias, from.qk_norm->offset});
    };
    leave(Slot::query, from.query, to.query, Slot::query_norm);
    leave(Slot::key, from.key, to.key, Slot::key_norm);
    reached.qk_norm.reset();
    reached.qk_norm_over = QkNormOver::head;
  }

  void mlp(int64_t n) {
    std::optional<Mlp>&from = plan_.from.blocks[n].mlp, &reached = reached_.blocks[n].mlp;
    const std::optional<Mlp>& to = plan_.to.blocks[n].mlp;
    if (!from || !to) {
      return;
    }
    if (from->skip && !to->skip) {
      plan_.skips.emplace_back(n, Sublayer::mlp);
      reached->skip = false;
    }
    const auto* wanted = std::get_if<DenseMlp>(&to->kind);
    auto *own = std::get_if<DenseMlp>(&from->kind), *changed = std::get_if<DenseMlp>(&reached->kind);
    if (!wanted || !own) {
      return;
    }
    bias(own->bias.up, changed->bias.up, wanted->bias.up, in_mlp(n, Slot::up));
    bias(own->bias.down, changed->bias.down, wanted->bias.down, in_mlp(n, Slot::down));
    if (own->gated && wanted->gated) {
      bias(own->bias.gate, changed->bias.gate, wanted->bias.gate, in_mlp(n, Slot::gate));
    }
    if (wanted->width < own->width) {
      plan_.neurons[n] = wanted->width;
      changed->width = wanted->width;
    }
  }

  std::vector<ModuleId> leaving_norms() {
    std::vector<ModuleId> leaving;
    Architecture to = plan_.to;
    std::set<ModuleId> after;
    for (const PlacedNorm& site : norms_of(to)) {
      after.insert(site.module);
    }
    for (const PlacedNorm& site : norms_of(plan_.from)) {
      const bool stays = after.contains(site.module);
      const bool has_place = site.module.sublayer != Sublayer::mlp || to.blocks[*site.module.block].mlp.has_value();
      if (stays || !has_place) {
        continue;
      }
      norm_place(reached_, site.module).reset();
      if (site.norm->kind == NormKind::dyt) {
        refuse(site.module, "a DyT is no norm: its tanh has no constant that it could become");
        continue;
      }
      if (site.norm->kind == NormKind::scale) {
        refuse(site.module, "a scale is no norm: fold_constant_norm takes it away, exactly and without training");
        continue;
      }
      leaving.push_back(site.module);
    }
    return leaving;
  }

  // What is different from the target, after all that can be mixed.
  void leftovers() {
    if (reached_ == plan_.to) {
      return;
    }
    nlohmann::json found = architecture_to_json(reached_), wanted = architecture_to_json(plan_.to);
    unfold_blocks(found["blocks"]);
    unfold_blocks(wanted["blocks"]);
    for (const nlohmann::json& change : nlohmann::json::diff(found, wanted)) {
      std::string key = change.at("path").get<std::string>().substr(1);
      std::replace(key.begin(), key.end(), '/', '.');
      const nlohmann::json::json_pointer at(change.at("path").get<std::string>());
      const std::string before = found.contains(at) ? found.at(at).dump() : "nothing",
                        after = change.contains("value") ? change.at("value").dump() : "nothing";
      problems_.add(fmt::format("{}: {} cannot be turned into {}: {}", key, before, after, limits_at(key)));
    }
    problems_.add_if(problems_.empty(), "something differs that cannot be mixed");
  }

  // What can be done there, for who asked for something else.
  static std::string limits_at(const std::string& key) {
    if (key.ends_with("mlp.width")) {
      return "an MLP can lose neurons, and gain none";
    }
    if (key.ends_with(".skip")) {
      return "a skip can go, and none can come";
    }
    if (key.find("norm") != std::string::npos) {
      return "a norm can go, and not become another or come";
    }
    return "what can go are norms, skips, biases, projections (into the identity) and neurons of MLPs";
  }

  using Touched = std::map<std::pair<TouchKind, ModuleId>, const Stream*>;
  static Touched touched_by_norms(const Streams& streams) {
    Touched touched;
    for (const Stream& stream : streams.all) {
      for (const Touch& touch : stream.touches) {
        touched.try_emplace({touch.kind, touch.module}, &stream);
      }
    }
    return touched;
  }

  // The first touch that is not the norm's own.
  static const Touch* other_touch(const Stream& stream, TouchKind kind, const ModuleId& norm) {
    for (const Touch& touch : stream.touches) {
      if (touch.kind != kind || touch.module != norm) {
        return &touch;
      }
    }
    return nullptr;
  }

  static bool all_are(const Stream& stream, Role role) {
    return !stream.ports.empty() &&
           std::ranges::all_of(stream.ports, [role](const Port& port) { return port.role == role; });
  }

  bool serves_as_head(const Stream& stream) const {
    return plan_.to.head.tied && std::ranges::any_of(stream.ports, [](const Port& port) {
             return port.role == Role::reader && port.tensor == weight_of(token_table);
           });
  }

  // Where the gain of a norm goes, times its constant.
  void place(const ModuleId& module, const Touched& touched, const TensorTable& stored) {
    const auto written = touched.find({TouchKind::norm_writes, module}),
               read = touched.find({TouchKind::norm_reads, module});
    PARE_CHECK(written != touched.end() && read != touched.end(), "a norm that stands nowhere");
    const Stream *output = written->second, *input = read->second;
    const bool has_bias = norm_place(plan_.from, module)->bias;
    const double offset = norm_place(plan_.from, module)->offset;
    const Touch* beside = other_touch(*output, TouchKind::norm_writes, module);
    const bool read_alone = !beside && all_are(*output, Role::reader);
    if (read_alone && !serves_as_head(*output)) {
      const bool fades = has_bias && !readers_without_bias(plan_.middle, stored, *output).empty();
      plan_.norms.push_back({module, NormExit::readers, fades, offset});
      return;
    }
    if (read_alone && output->ports.size() == 1) {
      place_at_table(module, has_bias, offset);
      return;
    }
    const bool written_alone = !other_touch(*input, TouchKind::norm_reads, module) && all_are(*input, Role::writer);
    const bool from_table = plan_.to.head.tied && std::ranges::any_of(input->ports, [](const Port& p) {
                              return p.tensor == weight_of(token_table);
                            });
    if (written_alone && !from_table) {
      plan_.norms.push_back({module, NormExit::writers, has_bias, offset});
      return;
    }
    if (beside && beside->kind == TouchKind::identity) {
      refuse(module, fmt::format("its gain has nowhere to go, since {}: let the norm go in this run and that "
                                 "projection stay; without norms 'pare rewrite' removes projections exactly",
                                 text_of(*beside)));
    } else if (beside) {
      refuse(module, fmt::format("its gain has nowhere to go: {}", text_of(*beside)));
    } else {
      refuse(module, "its output is the stream itself, with a skip around what follows: the skip cannot take its gain");
    }
  }

  void place_at_table(const ModuleId& module, bool has_bias, double offset) {
    const Streams after = find_streams(plan_.to);
    for (const Stream& stream : after.all) {
      if (!serves_as_head(stream)) {
        continue;
      }
      if (!stream.touches.empty()) {
        refuse(module,
               fmt::format("its gain has nowhere to go: the head is tied to the token table, and the stream can "
                           "change its basis only where matrices alone touch it, but {}: untie the head "
                           "(head.tied), or let that go too",
                           text_of(stream.touches.front())));
        return;
      }
    }
    plan_.norms.push_back({module, NormExit::table, has_bias, offset});
  }

  void refuse(const ModuleId& module, const std::string& why) { problems_.add(name_of(module) + ": " + why); }

  MorphPlan plan_;
  Architecture reached_;
  Problems problems_;
};

}  // namespace

Architecture without_norms(const Architecture& architecture) {
  Architecture bare = architecture;
  for (const PlacedNorm& site : norms_of(bare)) {
    if (site.norm->kind != NormKind::scale) {  // which is none
      norm_place(bare, site.module).reset();
    }
  }
  for (Block& block : bare.blocks) {
    block.attention.qk_norm.reset();
    block.attention.qk_norm_over = QkNormOver::head;
  }
  return bare;
}

MorphPlan plan_morph(const Architecture& source, const Architecture& to, const std::string& subject) {
  return MorphPlanner(source, to).plan(subject);
}

}  // namespace pare
