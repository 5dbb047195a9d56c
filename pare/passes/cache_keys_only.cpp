// Theorem (slim attention): where W_K has full row rank, W_K W_K⁺ = 1, so x is known from its key, and
//   v = x W_V + b_V = (k - b_K) (W_K⁺ W_V) + b_V.
// Before: W_V, and a cache of keys and values.   After: W_K⁺ W_V in its place, and a cache of keys alone, as they are
// before QK-norm and RoPE. Likewise the other way round (`keep=v`); or the input itself is remembered (`keep=x`).
//
// Proof: (k - b_K) W_K⁺ = x W_K W_K⁺ = x.
//
// Preconditions: P1 causal attention, which is cached, with keys and values of their own; P2 `k`, `v`: the other one is
// a matrix, this one a whole matrix or the input itself; `v`: the query is not the key; P3 `k`, `v`: kv_heads *
// head_width >= width; P4 `k`, `v`: the matrix is well conditioned in the best gauge of its heads; P5 `x`: width < 2
// kv_heads * head_width, or it would save nothing.
// Exactness: relative error about u · cond(W_K); nothing at all with `x`, and where W_K is the identity.
// Order: after what removes matrices, which leaves identities, whose inverse costs nothing.
// Reference: docs/theorems/cache_keys_only.md

#include "pare/passes/pass.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pare/algebra/amplification.h"
#include "pare/algebra/basis.h"
#include "pare/algebra/head_gauge.h"
#include "pare/algebra/matrix_survey.h"
#include "pare/algebra/operations.h"
#include "pare/arch/count.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

enum class Keep { key, value, input };

// `best` gives up k and v for x where they would lose more than this in the stored type: beyond it nothing is called
// equivalent.
constexpr double acceptable_loss = 1e-6;

struct CacheSite {
  int64_t block = 0;
  Keep keep = Keep::key;
  double stored = 1, gauged = 1;  // condition numbers of what is inverted
  bool inverts = false;
  double steps = 0;

  Target kept() const { return keep == Keep::key ? Target::key : Target::value; }
  Target dropped() const { return keep == Keep::key ? Target::value : Target::key; }
  std::string where() const { return fmt::format("blocks.{}.attention.cache", block); }
};

const char* keep_word(Keep keep) {
  return keep == Keep::key ? "k" : keep == Keep::value ? "v" : "x";
}

const Attention& attention_of(const Architecture& a, int64_t block) {
  return a.blocks[block].attention;
}

const Projection& cached_projection(const Attention& t, Target target) {
  return target == Target::key ? t.key : t.value;
}

int64_t kv_width(const Attention& t) {
  return t.kv_heads * t.head_width;
}

Precondition failing(const CacheSite& site, std::string expected, std::string found, std::string remedy) {
  return {.where = site.where(),
          .block = site.block,
          .expected = std::move(expected),
          .found = std::move(found),
          .remedy = std::move(remedy)};
}

// What refuses every kind of slim cache.
std::optional<Precondition> cache_obstacle(const Architecture& a, const CacheSite& site) {
  const Attention& t = attention_of(a, site.block);
  if (t.mask == Mask::full) {
    return failing(site, "causal attention", "every token sees every other, and nothing is cached", "");
  }
  if (is_tabled(a, site.block)) {
    return failing(site, "keys and values of their own", "they are inside the first-layer table", "");
  }
  if (t.scores == Form::collapsed || t.values == Form::collapsed) {
    return failing(site, "keys and values of their own", "collapsed heads remember their input", "");
  }
  if (is<FromKey>(t.value) || is<FromValue>(t.key) || t.remembered == Remembered::inputs) {
    return failing(site, "a cache of keys and values", "it is slim already", "");
  }
  return std::nullopt;
}

// What refuses one kind, by structure.
std::optional<Precondition> keep_obstacle(const Architecture& a, const CacheSite& site) {
  const Attention& t = attention_of(a, site.block);
  const int64_t kv = kv_width(t);
  const bool inputs_save = a.width < 2 * kv;
  if (site.keep == Keep::input) {
    return inputs_save ? std::nullopt
                       : std::optional(failing(site, "width < 2 kv_heads * head_width",
                                               fmt::format("{} and 2 * {}: inputs are not fewer", a.width, kv),
                                               "none: keys and values of few heads are small already"));
  }
  const std::string kept = name_of(module_of(site.block, site.kept()));
  const std::string dropped = name_of(module_of(site.block, site.dropped()));
  if (site.keep == Keep::value && is<SameAsKey>(t.query)) {
    return failing(site, "a separate query matrix", "the query is the key, which has to stay", "keep=k");
  }
  if (!is<Dense>(cached_projection(t, site.dropped()))) {
    return failing(site, fmt::format("a whole matrix {}", dropped), "there is none to replace",
                   site.keep == Keep::key ? "keep=v" : "keep=k");
  }
  if (!is_plain(cached_projection(t, site.kept()))) {
    return failing(site, fmt::format("a whole matrix {}", kept), "it is shrunk",
                   "cache_keys_only in place of shrink_head_pairs");
  }
  if (kv < a.width) {
    return failing(site, "kv_heads * head_width >= width", fmt::format("{} and {}", kv, a.width),
                   inputs_save ? "keep=x" : "none: so few dimensions do not determine the input");
  }
  return std::nullopt;
}

// Both numbers belong to the weight, under the names that the survey of matrices gives them.
void measure_inverse(const Model& model, CacheSite& site) {
  const Attention& t = attention_of(model.architecture, site.block);
  const Weight weight = model.weights.at(name_of(weight_of(module_of(site.block, site.kept()))));
  at::Tensor loaded;
  const auto numbers = [&] { return loaded.defined() ? loaded : loaded = load_double(weight); };
  site.stored = weight.measured("condition number", [&] { return condition_number(numbers()); });
  site.gauged = weight.measured("condition number in the gauge " + gauge_key(t, site.kept()), [&] {
    const at::Tensor gauge = gauge_of(t, site.kept(), numbers());
    return gauge.defined() ? std::min(site.stored, condition_number(gauged_target(numbers(), gauge))) : site.stored;
  });
}

Precondition inverse_conditioning(const CacheSite& site) {
  const bool well = site.gauged <= largest_condition;
  return {.where = name_of(module_of(site.block, site.kept())),
          .block = site.block,
          .expected = "well conditioned",
          .found = fmt::format("condition number {:.3g}", site.gauged),
          .holds = well,
          .remedy = well ? "" : "keep=x, which inverts nothing",
          .measured = site.gauged,
          .limit = largest_condition};
}

// W_K⁺ W_V as it is stored: M with M S_K = S_V. QR knows every row as well as the largest; what is left, once more,
// makes each as good as its own numbers.
at::Tensor through_pseudoinverse(const at::Tensor& dropped, const at::Tensor& kept) {
  const auto [q, r] = at::linalg_qr(kept);
  const auto solved = [&q = q, &r = r](const at::Tensor& rows) {
    return at::matmul(at::linalg_solve_triangular(r, rows, /*upper=*/true, /*left=*/false), q.t());
  };
  const at::Tensor found = solved(dropped);
  return found + solved(dropped - at::matmul(found, kept));
}

void replace_matrix(Model& model, const CacheSite& site, const std::shared_ptr<Shelf>& shelf) {
  if (site.inverts && site.gauged < site.stored) {
    apply_gauge(model, site.block, site.kept(), shelf);
  }
  const int64_t kv = kv_width(attention_of(model.architecture, site.block));
  const std::string old = name_of(weight_of(module_of(site.block, site.dropped())));
  const Slot slot = site.keep == Keep::key ? Slot::value_from_key : Slot::key_from_value;
  const Weight dropped = model.weights.at(old);
  Weight& made = model.weights[name_of(weight_of(in_attention(site.block, slot)))];
  made = dropped;  // of a key that is the input itself
  if (site.inverts) {
    const Weight kept = model.weights.at(name_of(weight_of(module_of(site.block, site.kept()))));
    const Formula inverse =
        kv == model.architecture.width ? kept.formula().inverse() : Formula::enclosed("pinv(", kept.formula(), ")");
    made = computed({kv, kv}, inverse * dropped.formula(), {dropped, kept},
                    [](const std::vector<at::Tensor>& in) { return through_pseudoinverse(in[0], in[1]); });
  }
  model.weights.erase(old);
}

class CachePlanner {
 public:
  CachePlanner(const Model& model, const std::string& keep, const std::optional<Budget>& budget)
      : model_(model), budget_(budget), best_(keep == "best") {
    proposal_.after = model;
    for (const Keep one : {Keep::key, Keep::value, Keep::input}) {
      if (best_ || keep == keep_word(one)) {
        asked_.push_back(one);
      }
    }
  }

  Proposal run() {
    for (int64_t n = 0; n < std::ssize(model_.architecture.blocks); ++n) {
      if (std::optional<Precondition> failed = cache_obstacle(model_.architecture, {.block = n})) {
        proposal_.preconditions.push_back(*std::move(failed));
      } else {
        survey_block(n);
      }
    }
    std::ranges::stable_sort(chosen_, {}, &CacheSite::steps);
    spend();
    add_notes();
    return std::move(proposal_);
  }

 private:
  // The kinds that this block could have; refused where there is none, and then for every reason.
  void survey_block(int64_t block) {
    std::vector<CacheSite> possible;
    std::vector<Precondition> failed;
    for (const Keep keep : asked_) {
      CacheSite site{.block = block, .keep = keep};
      if (std::optional<Precondition> obstacle = keep_obstacle(model_.architecture, site)) {
        failed.push_back(*std::move(obstacle));
        continue;
      }
      site.inverts =
          keep != Keep::input && is<Dense>(cached_projection(attention_of(model_.architecture, block), site.kept()));
      possible.push_back(site);
    }
    choose(possible, failed);
  }

  // Fewest remembered numbers first; among as many, the one that loses least, and x, which computes most, at the end.
  void choose(std::vector<CacheSite>& possible, std::vector<Precondition>& failed) {
    const int64_t width = model_.architecture.width;
    std::optional<CacheSite> chosen;
    for (CacheSite& site : possible) {
      const Attention& t = attention_of(model_.architecture, site.block);
      const bool smaller_exists = best_ && width < kv_width(t) && site.keep != Keep::input;
      if (smaller_exists || (site.keep == Keep::input && chosen)) {
        continue;
      }
      if (site.inverts && model_.has_weights()) {
        measure_inverse(model_, site);
        const Precondition condition = inverse_conditioning(site);
        proposal_.conditioning.push_back({module_of(site.block, site.kept()), site.stored, site.gauged});
        if (!condition.holds || (best_ && loses_too_much(site))) {
          failed.push_back(condition);
          failed.back().holds = false;
          continue;
        }
        proposal_.preconditions.push_back(condition);
      }
      site.steps = site.inverts ? cost(site) * static_cast<double>(runs_of(model_.architecture, site.block)) : 0;
      if (!chosen || site.steps < chosen->steps) {
        chosen = site;
      }
    }
    if (!chosen) {
      proposal_.preconditions.insert(proposal_.preconditions.end(), failed.begin(), failed.end());
      return;
    }
    chosen_.push_back(*chosen);
  }

  // K⁺ V is the same in every basis of the input, but both of them are rounded in the one that they are in. What that
  // does to the inverse of K was measured with it.
  double cost(const CacheSite& site) const {
    const double amplified = amplification(model_, weight_of(module_of(site.block, site.kept()))) *
                             amplification(model_, weight_of(module_of(site.block, site.dropped())));
    return std::max(site.gauged, std::sqrt(amplified));
  }

  bool loses_too_much(const CacheSite& site) const {
    const Weight weight = model_.weights.at(name_of(weight_of(module_of(site.block, site.kept()))));
    return predicted_error(site.gauged, weight.dtype()) > acceptable_loss;
  }

  void spend() {
    const std::shared_ptr<Shelf> shelf = make_shelf();
    RoundingWalk walk;
    std::vector<std::string> staying;
    std::string reason;
    for (const CacheSite& site : chosen_) {
      RoundingWalk longer = walk;
      longer.step(site.steps);
      if (budget_ && !budget_->allows(longer.roundings())) {
        if (staying.empty()) {
          reason = fmt::format("condition number {:.3g} gives a {}", site.gauged, budget_->excess(longer.roundings()));
        }
        staying.push_back(site.where());
        proposal_.over_budget = true;
        continue;
      }
      walk = longer;
      apply(site, shelf);
    }
    if (!staying.empty()) {
      proposal_.notes.push_back(left_over(staying, "stays whole", reason));
    }
    proposal_.roundings = walk.roundings();
  }

  void apply(const CacheSite& site, const std::shared_ptr<Shelf>& shelf) {
    if (site.keep != Keep::input && model_.has_weights()) {
      replace_matrix(proposal_.after, site, shelf);
    }
    Attention& t = proposal_.after.architecture.blocks[site.block].attention;
    switch (site.keep) {
      case Keep::key:
        t.value = FromKey{};
        break;
      case Keep::value:
        t.key = FromValue{};
        break;
      case Keep::input:
        t.remembered = Remembered::inputs;
        inputs_ = true;
        break;
    }
    proposal_.preconditions.push_back({.where = site.where(),
                                       .block = site.block,
                                       .expected = "less to remember",
                                       .found = fmt::format("keep={}", keep_word(site.keep)),
                                       .holds = true});
    for (Conditioning& c : proposal_.conditioning) {
      c.chosen = c.chosen || (site.inverts && c.matrix == module_of(site.block, site.kept()));
    }
    inverts_ = inverts_ || site.inverts;
    proposal_.applies = true;
  }

  void add_notes() {
    if (!proposal_.applies) {
      return;
    }
    const int64_t before = cache_elements_per_token(model_.architecture);
    const int64_t after = cache_elements_per_token(proposal_.after.architecture);
    std::string bytes;
    if (model_.has_weights()) {
      const Dtype dtype = model_.weights.begin()->second.dtype();
      bytes = fmt::format(" ({} to {} bytes in {})", with_commas(bytes_of(before, dtype)),
                          with_commas(bytes_of(after, dtype)), word(dtype));
    }
    proposal_.notes.push_back(fmt::format("for decoding: a token's cache goes from {} to {} numbers{}",
                                          with_commas(before), with_commas(after), bytes));
    const int64_t more = count(proposal_.after.architecture).total - count(model_.architecture).total;
    if (more > 0) {
      proposal_.notes.push_back(
          fmt::format("the matrices in place of the dropped ones are larger: {} parameters more", with_commas(more)));
    }
    if (!model_.has_weights() && best_ && inverts_) {
      proposal_.notes.push_back("rewrite chooses keys, values or inputs by their condition numbers");
    }
    if (inputs_) {
      proposal_.notes.push_back("keys and values are recomputed from cached inputs at every step");
    }
  }

  const Model& model_;
  const std::optional<Budget>& budget_;
  bool best_ = false, inputs_ = false, inverts_ = false;
  std::vector<Keep> asked_;
  std::vector<CacheSite> chosen_;
  Proposal proposal_;
};

Proposal propose(const Model& model, const Options& options, const std::optional<Budget>& budget) {
  return CachePlanner(model, options.at("keep"), budget).run();
}

}  // namespace

const Pass& pass_cache_keys_only() {
  static const Pass pass{
      .id = "cache_keys_only",
      .theorem = "xV + b_V = (k - b_K)(K⁺V) + b_V with k = xK + b_K, where K has full row rank",
      .saves = "no parameters: half of the cache in each layer",
      .reference = "Slim attention (Graef and Wasieleski 2025), which Graef 2024 cites as reference 25",
      .preconditions = {"causal attention, with keys and values of their own",
                        "k, v: the other one is a matrix, this one whole; v: the query is not the key",
                        "k, v: kv_heads * head_width >= width", "k, v: well conditioned in the best gauge of its heads",
                        "x: width < 2 kv_heads * head_width"},
      .options = {{"keep", "k|v|x|best", "best"}},
      .inverts = true,
      .propose = propose,
  };
  return pass;
}

}  // namespace pare
