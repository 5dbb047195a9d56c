#include "pare/claims/own_samples.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>

#include "pare/arch/architecture_json.h"
#include "pare/arch/count.h"
#include "pare/audit/norm_recipe.h"
#include "pare/checkpoint/model_folder.h"
#include "pare/claims/finished_run.h"
#include "pare/model/executor.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/json.h"
#include "pare/train/run_folder.h"

namespace pare {

namespace {

using nlohmann::json;

// Token ids of real stories, beside the model that others trained.
constexpr const char* stories_file = "tinystories_40_token_ids.json";
constexpr uint64_t largest_stories = 10'000'000;

// Nats a token, each story cut where the context ends; null where the teacher has no stories.
nlohmann::ordered_json nats_of_stories(const std::filesystem::path& teacher, const Model& model) {
  std::error_code unknown;
  if (!std::filesystem::exists(teacher / stories_file, unknown)) {
    return nullptr;
  }
  const at::NoGradGuard no_grad;
  const Executor executor(model, at::kDouble);
  double nats = 0;
  int64_t count = 0;
  for (const json& story : parse_json(read_text_file(teacher / stories_file, largest_stories), stories_file)) {
    std::vector<int64_t> tokens = story.get<std::vector<int64_t>>();
    tokens.resize(std::min(tokens.size(), static_cast<size_t>(model.architecture.context)));
    const at::Tensor ids = at::tensor(tokens), asked = ids.narrow(0, 1, ids.size(0) - 1);
    const at::Tensor logits = executor.forward({.ids = ids.unsqueeze(0)}).logits.squeeze(0);
    nats += at::cross_entropy_loss(logits.narrow(0, 0, asked.size(0)), asked, {}, at::Reduction::Sum).item<double>();
    count += asked.size(0);
  }
  return nats / static_cast<double>(count);
}

// All that saves, in the type that the run is stored in.
nlohmann::ordered_json look_at_bytes(const std::filesystem::path& run) {
  nlohmann::ordered_json seen = rewritten_exactly(run, "auto", Dtype::f32);
  seen["stories"] = nats_of_stories(read_run_config(run).teacher, open_model(checkpoints_of(run).back().folder).model);
  return seen;
}

json with(json config, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    set_key(config, key, [](const std::string& word) -> Architecture {
      throw InputError(fmt::format("a recipe names the Architecture {}", word));
    });
  }
  return config;
}

double number_in(const nlohmann::ordered_json& seen, const char* key) {
  return seen.is_object() && seen.contains(key) && seen[key].is_number() ? seen[key].get<double>() : NAN;
}

// By how much the stories, or the text where there are none, cost more than where norms and skips are gone: over pairs
// of one seed, after as many steps.
Estimate beside_norms_and_skips(const TrainedRuns& runs, const Settled& settled, const std::string& reference) {
  const std::optional<Settled> other = runs.best(reference);
  if (!other || other->variant == settled.variant) {
    return {};
  }
  const auto observed = [](const Settled& of) {
    std::vector<Observed> all;
    for (const TrainedRun* run : of.runs) {
      const double stories = number_in(run->seen, "stories");
      all.push_back({.seed = run->seed, .data = run->data, .value = std::isnan(stories) ? run->loss : stories});
    }
    return all;
  };
  return paired_difference(observed(settled), observed(*other));
}

double mean_of(const Settled& settled, const char* key) {
  double sum = 0;
  for (const TrainedRun* run : settled.runs) {
    sum += number_in(run->seen, key);
  }
  return sum / static_cast<double>(settled.runs.size());
}

}  // namespace

OwnSamples own_samples_of_stories() {
  return {.ending = "-stories260K",
          .corpus = "stories260K",
          .architecture = json::parse(R"({"width": 64, "vocab": 512, "context": 512,
            "blocks": [{"repeat": 5,
              "attention": {"heads": 8, "kv_heads": 4, "head_width": 8, "rope": {"width": 8},
                            "norm": {"kind": "rms", "epsilon": 1e-05}},
              "mlp": {"width": 172, "activation": "silu", "gated": true, "norm": {"kind": "rms", "epsilon": 1e-05}}}],
            "final_norm": {"kind": "rms", "epsilon": 1e-05}, "head": {"tied": true}})"),
          .data = {{"samples", {{"count", recipe_samples}}}, {"validation", {"tinystories.u16"}}, {"format", "uint16"}},
          .smaller_mlp = 148,
          .short_run = {"steps=4000"}};
}

// A newline, after which anything may come.
OwnSamples own_samples_of_bytes(const json& model, const std::string& baseline) {
  return {.ending = "-bytes",
          .trained = baseline,
          .architecture = model.at("architecture"),
          .data = {{"samples", {{"count", recipe_samples}, {"prefix", {10}}}},
                   {"validation", model.at("data").at("validation")}},
          .smaller_mlp = model.at("architecture").at("width").get<int64_t>() * 7 / 2,
          .short_run = {"steps=4000", "batch=32"},
          .seeds = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}};  // of 1 and 2, and of 7 to 10, only a part was trained
}

namespace {

// A run with the recipe's training, from the model, from drawn numbers, or from what another form left of the model.
struct OwnForms {
  const OwnSamples& own;

  int64_t parameters() const { return count(architecture_from_json(own.architecture, own.ending)).total; }

  PlanForm made(const std::string& id, TrainedOff recipe, const std::vector<std::string>& keys,
                const std::string& from = "") const {
    json config = with({{"data", own.data}, {"checkpoint", {{"every", 2000}, {"keep", 1}}}},
                       keys_of_training(recipe, parameters()));
    config = with(config, keys);
    config[from.empty() ? "architecture" : "from"] = from.empty() ? own.architecture : json(from);
    if (!own.corpus.empty()) {
      config["teacher"] = own.corpus;
    }
    const double rate = config.at("optimiser").at("lr").get<double>();
    return {.id = id + own.ending,
            .make =
                [config](const json&, int64_t seed) {
                  return changed(config, {{"data.seed", seed}});
                },
            .rates = {rate},
            .teacher = own.trained,
            .look = look_at_bytes,
            .look_at_all = true};
  }

  PlanForm of_model(const std::string& id, TrainedOff recipe, const std::vector<std::string>& keys) const {
    PlanForm form = made(id, recipe, keys, own.corpus);
    form.from = own.trained;
    return form;
  }

  // What is compared, each `length` long.
  std::vector<PlanForm> compared(const std::string& prefix, const std::vector<std::string>& norms_length,
                                 const std::vector<std::string>& length) const {
    const std::string narrower = fmt::format("morph.to.mlp.width={}", own.smaller_mlp);
    return {of_model(prefix + "norms", TrainedOff::norms, joined(keys_of_removal(TrainedOff::norms), norms_length)),
            of_model(prefix + "norms-and-skips", TrainedOff::norms_and_skips,
                     joined(keys_of_removal(TrainedOff::norms_and_skips), length)),
            of_model(prefix + "smaller-mlp", TrainedOff::norms, joined({narrower}, length)),
            of_model(prefix + "no-query", TrainedOff::norms, joined({"morph.to.attention.query=identity"}, length)),
            changing(made(prefix + "drawn", TrainedOff::norms, without_morph(length)),
                     {{"architecture.blocks.*.mlp.width", own.smaller_mlp}})};
  }

  // The norms are gone: now the skips, as they are, or as neurons, which are no other function (absorb_skip).
  PlanForm after_norms(const std::string& id, const PlanForm& before, const std::string& passes,
                       const ConfigChanges& architecture, const std::vector<std::string>& keys) const {
    ConfigChanges changes = {{"architecture.final_norm", nullptr},
                             {"architecture.blocks.*.attention.norm", nullptr},
                             {"architecture.blocks.*.mlp.norm", nullptr}};
    changes.insert(changes.end(), architecture.begin(), architecture.end());
    PlanForm form = changing(made(id, TrainedOff::norms_and_skips, keys), changes);
    form.from = before.id;
    if (!own.corpus.empty()) {
      form.start_seed = 1;  // the first whose short run ended
    }
    form.start_rate = before.rates.front();
    form.passes = passes;
    return form;
  }

  static std::vector<std::string> joined(std::vector<std::string> keys, const std::vector<std::string>& more) {
    keys.insert(keys.end(), more.begin(), more.end());
    return keys;
  }

  static std::vector<std::string> without_morph(std::vector<std::string> keys) {
    std::erase_if(keys, [](const std::string& key) { return key.starts_with("morph."); });
    return keys;
  }

  static PlanForm changing(PlanForm form, const ConfigChanges& changes) {
    form.make = [make = form.make, changes](const json& config, int64_t seed) {
      return changed(make(config, seed), changes);
    };
    return form;
  }
};

constexpr size_t recipes = 5;  // how many forms `compared` has

}  // namespace

// The recipes, the short runs, both ways to lose skips, and the long run.
std::vector<PlanForm> forms_of(const OwnSamples& own) {
  const OwnForms forms{own};
  const json& mlp = own.architecture.at("blocks").at(0).at("mlp");
  const int64_t width = own.architecture.at("width").get<int64_t>(), neurons = mlp.at("width").get<int64_t>();
  const bool gated = mlp.value("gated", false);
  ConfigChanges widened = {{"architecture.blocks.*.mlp.skip", false},
                           {"architecture.blocks.*.mlp.width", neurons + (gated ? width : 2 * width)}};
  std::vector<std::string> narrowed = {fmt::format("morph.to.mlp.width={}", neurons), recipe_conditioning};
  if (gated) {  // a constant holds their gates open
    widened.emplace_back("architecture.blocks.*.mlp.bias.gate", true);
    narrowed.emplace_back("morph.to.mlp.bias.gate=false");
  }
  const std::vector<std::string> brief = OwnForms::joined(own.short_run, {"morph.steps=1500"});
  std::vector<PlanForm> all = forms.compared("own-", {}, {"morph.steps=4000"});
  const std::vector<PlanForm> compared =
      forms.compared("own-short-", OwnForms::joined(own.short_run, {"morph.steps=2000"}), brief);
  all.insert(all.end(), compared.begin(), compared.end());
  all.push_back(forms.after_norms("own-then-skips", compared.front(), "", {},
                                  OwnForms::joined({"morph.to.mlp.skip=false", recipe_conditioning}, brief)));
  all.push_back(forms.after_norms("own-then-widened", compared.front(), "absorb_skip{widen=true}", widened,
                                  OwnForms::joined(narrowed, brief)));
  if (all.back().rates.front() > 1e-3) {  // where the added neurons go astray within fifty steps
    all.back().rates.push_back(1e-3);
  }
  all.push_back(
      forms.of_model("own-long-norms", TrainedOff::norms, {"morph.to.norms=none", "morph.steps=12000", "steps=36000"}));
  return all;
}

std::vector<PlanLine> lines_of(const OwnSamples& own) {
  std::vector<std::string> names;
  for (const PlanForm& form : forms_of(own)) {
    names.push_back(form.id);
  }
  const auto recipe = names.begin(), compared = recipe + recipes, then = compared + recipes;
  std::vector<PlanLine> lines;
  for (const int64_t seed : own.seeds) {
    if (!own.trained.empty()) {
      lines.push_back({.forms = {own.trained}, .seeds = {seed}});
    }
    lines.push_back({.forms = {compared, then}, .seeds = {seed}});
  }
  const std::vector<int64_t> some(own.seeds.begin(), own.seeds.begin() + 3);
  lines.push_back({.forms = {then, names.end() - 1}, .seeds = some});
  if (!own.corpus.empty()) {
    lines.push_back({.forms = {then[1]}, .rates = {1}, .seeds = some});
  }
  lines.push_back({.forms = {recipe, compared}, .seeds = {own.seeds.front()}});
  lines.push_back({.forms = {names.back()}, .seeds = {own.seeds.front()}});
  return lines;
}

ClaimTable table_of_own_samples(const TrainedRuns& runs, const OwnSamples& own, const std::string& title) {
  ClaimTable table{.title = title,
                   .columns = {"loss", "above the model", "±", "40 stories", "above no norms, no skips", "± of that",
                               "parameters", "rewritten", "MB in float32", "seeds"},
                   .measured = "loss in nats per token",
                   .settings = {"40 stories", "parameters", "rewritten", "MB in float32", "seeds"},
                   .rows_are = "variant",
                   .notes_are = "rewritten in float32",
                   .decimals = 4,
                   .band = interval_of_pairs};
  for (const PlanForm& form : forms_of(own)) {
    const std::string& name = form.id;
    const std::optional<Settled> found = runs.best(name);
    if (!found) {
      continue;
    }
    std::vector<double> above;
    for (const TrainedRun* run : found->runs) {
      above.push_back(run->loss - run->validation.at(0));
    }
    const Estimate cost = estimate_of(above);
    const std::string length = name.starts_with("own-short-") ? "own-short-" : "own-";
    const Estimate beside = beside_norms_and_skips(runs, *found, length + "norms-and-skips" + own.ending);
    const nlohmann::ordered_json& seen = found->runs.front()->seen;
    // These are the model at step 0. The others began elsewhere.
    const bool begins_there = form.passes.empty() && !form.start_rate && name.find("drawn") == std::string::npos;
    table.names.push_back(name);
    table.rows.push_back({found->loss, begins_there ? cost.mean : NAN,
                          begins_there && cost.interval ? cost.half_width() : NAN, mean_of(*found, "stories"),
                          beside.count > 0 ? beside.mean : NAN, beside.interval ? beside.half_width() : NAN,
                          static_cast<double>(found->parameters), std::round(mean_of(*found, "after")),
                          mean_of(*found, "bytes") / 1e6, static_cast<double>(found->runs.size())});
    table.notes.push_back(seen.is_object() ? removed_in_words(seen) : "");
  }
  return table;
}

}  // namespace pare
