// Theorem (MatShrink): for any invertible B, V O = (V B⁻¹)(B O) and Q Kᵀ = (Q Bᵀ)(K B⁻¹)ᵀ. With B k rows of V (of K),
// V B⁻¹ has the identity in their place, which need not be stored.
// Before: V, b_V, O and Q, b_Q, K, b_K.   After, for each key/value head: V B⁻¹ without k x k entries, b_V B⁻¹, B O;
// Q Bᵀ, b_Q Bᵀ, K B⁻¹ without k x k entries, b_K B⁻¹. Every query head of a group takes the B of its group.
//
// Proof: attention sees a head's values only through A V O and its keys only through Q Kᵀ, and B⁻¹ B = 1.
//
// Preconditions: P1 the value and the output (the key and the query) are matrices of their own, and nothing else reads
// the value (the key); P2 of query and key: no RoPE, no QK-norm; P3 head_width < width; P4 where there is a b_V (b_K),
// its head is well conditioned.
// Exactness: the rows are chosen so that C = V B⁻¹ has no entry above 1.01 and C B is V to one rounding, whatever the
// condition number of V (pare/algebra/head_block.h). So it costs what a product costs; only b B⁻¹ is a real inverse. B
// O mixes the bases of two streams: where an earlier pass changed them, their condition numbers multiply. Order: after
// what folds biases away and what changes a basis, since a matrix with a block cut out has no other basis. Reference:
// docs/theorems/shrink_head_pairs.md

#include "pare/passes/pass.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "pare/algebra/amplification.h"
#include "pare/algebra/head_block.h"
#include "pare/algebra/matrix_survey.h"
#include "pare/algebra/operations.h"

namespace pare {

namespace {

enum class Pair { value_output, query_key };

// One pair of one stored block: where the identity block goes, and who takes B.
struct PairSite {
  int64_t block = 0;
  Pair pair = Pair::value_output;
  double condition = 1;
  double steps = 1;

  ModuleId shrunk() const { return in_attention(block, pair == Pair::value_output ? Slot::value : Slot::key); }
  ModuleId partner() const { return in_attention(block, pair == Pair::value_output ? Slot::output : Slot::query); }
};

std::string kind_words(const Projection& projection) {
  return is<Identity>(projection)    ? "it has no matrix"
         : is<Shrunk>(projection)    ? "it is shrunk already"
         : is<FromKey>(projection)   ? "it is computed from the key"
         : is<FromValue>(projection) ? "it is computed from the value"
                                     : "it is a matrix";
}

// What only structure says against it.
std::optional<Precondition> pair_obstacle(const Architecture& a, const PairSite& site) {
  const Attention& t = a.blocks[site.block].attention;
  const bool values = site.pair == Pair::value_output;
  const auto fails = [&](std::string expected, std::string found, const char* remedy) {
    return in_the_way(site.shrunk(), std::move(expected), std::move(found), remedy);
  };
  if (is_tabled(a, site.block)) {
    return fails("a separate matrix", "it is inside the first-layer table", "");
  }
  if ((values ? t.values : t.scores) == Form::collapsed) {
    return fails("a separate matrix", values ? "it is one with the output" : "it is one with the query", "");
  }
  const Projection& own = values ? t.value : t.key;
  if (!is<Dense>(own)) {
    return fails("a separate matrix", kind_words(own), "");
  }
  if (!values && t.rope) {
    return fails("no RoPE", fmt::format("RoPE rotates {} of {} dimensions", t.rope->width, t.head_width),
                 "none: an identity block would not rotate with them");
  }
  if (!values && t.qk_norm) {
    return fails("no QK-norm", "the key is normalised in its own basis", "none: the norm stands between the two");
  }
  if (!values && is<SameAsKey>(t.query)) {
    return fails("a separate query matrix", "the query is the key", "none: its basis counts twice");
  }
  if (!is<Dense>(values ? t.output : t.query)) {
    return fails(fmt::format("{} matrix that takes the block", values ? "an output" : "a query"), "there is none",
                 "shrink_head_pairs before the pass that removed it");
  }
  if (values ? is<FromValue>(t.key) : is<FromKey>(t.value)) {
    return fails(fmt::format("{} that only attention reads", values ? "values" : "keys"),
                 fmt::format("{} are computed from them", values ? "keys" : "values"),
                 "a cache of keys and values: shrink_head_pairs instead of cache_keys_only");
  }
  if (t.head_width >= a.width) {
    return fails("head_width < width", fmt::format("{} and {}", t.head_width, a.width),
                 "collapse_heads, which saves more");
  }
  return std::nullopt;
}

at::Tensor by_head(const at::Tensor& stored, const Attention& t) {  // [kv_heads, k, inputs]
  return stored.reshape({t.kv_heads, t.head_width, -1});
}

// How much the bias grows: the one number that a decision needs. Without a bias there is nothing to ask.
double measured_condition(const Model& model, const PairSite& site) {
  const auto bias = model.weights.find(name_of(bias_of(site.shrunk())));
  if (bias == model.weights.end()) {
    return 1;
  }
  const Attention& t = model.architecture.blocks[site.block].attention;
  const at::Tensor heads = by_head(load_double(model.weights.at(name_of(weight_of(site.shrunk())))), t);
  return bias_growth(heads, load_double(bias->second).view({t.kv_heads, t.head_width}));
}

Precondition bias_conditioning(const PairSite& site) {
  const bool well = site.condition <= largest_condition;
  return {.where = name_of(site.shrunk()),
          .block = site.block,
          .expected = "a bias that its head can hold",
          .found = fmt::format("it grows {:.3g} times in the head's new basis", site.condition),
          .holds = well,
          .remedy = well                           ? ""
                    : site.pair == Pair::query_key ? "drop_key_bias first"
                                                   : "fold_value_bias first",
          .measured = site.condition,
          .limit = largest_condition};
}

// B⁻¹ b for each head. A head whose bias is zero keeps it, whatever its B.
at::Tensor solved_bias(const at::Tensor& bias, const at::Tensor& blocks) {
  const at::Tensor columns = bias.view({blocks.size(0), blocks.size(1), 1});
  const at::Tensor solved =
      std::get<0>(at::linalg_solve_ex(block_part(blocks), columns, /*left=*/true, /*check_errors=*/false));
  const at::Tensor zero = columns.abs().amax({1, 2}, /*keepdim=*/true) == 0;
  return at::where(zero, at::zeros_like(solved), solved).reshape(bias.sizes());
}

// What the query heads of a group store, [heads * k, n] by rows, with the block of their group from the left.
at::Tensor with_blocks(const at::Tensor& rows, const at::Tensor& blocks) {
  const int64_t groups = blocks.size(0), k = blocks.size(1);
  const at::Tensor heads = rows.reshape({groups, -1, k, rows.numel() / rows.size(0)});
  return at::matmul(block_part(blocks).transpose(1, 2).unsqueeze(1), heads).reshape(rows.sizes());
}

void shrink(Model& model, const PairSite& site, const std::shared_ptr<Shelf>& shelf) {
  const Attention t = model.architecture.blocks[site.block].attention;
  const int64_t width = model.architecture.width, k = t.head_width, groups = t.kv_heads;
  const std::string name = name_of(weight_of(site.shrunk()));
  const Weight source = model.weights.at(name);
  const Formula b = Formula::symbol("B", site.block, Formula::enclosed("pivot_block(", source.formula(), ")"));
  const Formula whole = source.formula() * b.inverse();
  const Weight blocks =
      held(computed({groups, k, width + 1}, Formula::enclosed("identity_blocks(", source.formula(), ")"), {source},
                    [=](const std::vector<at::Tensor>& in) { return identity_blocks(by_head(in[0], t)); }),
           shelf);
  model.weights[name] = computed({groups, k, width - k}, Formula::enclosed("shrunk(", whole, ")"), {blocks},
                                 [](const std::vector<at::Tensor>& in) { return rest_part(in[0]).contiguous(); });
  model.weights[name_of(TensorId{site.shrunk(), TensorKind::pivot})] =
      Weight::made(Formula::enclosed("pivots(", whole, ")"), Dtype::i32, {groups, k}, {blocks},
                   [](const std::vector<at::Tensor>& in) { return pivot_part(in[0]).to(at::kInt).contiguous(); });
  const auto change = [&](const TensorId& tensor, auto formula, Weight::Operation make) {
    if (const auto found = model.weights.find(name_of(tensor)); found != model.weights.end()) {
      Weight& weight = found->second;
      weight = computed(weight.shape(), formula(weight.formula()), {weight, blocks}, std::move(make));
    }
  };
  change(
      bias_of(site.shrunk()), [&](const Formula& f) { return f * b.inverse(); },
      [](const std::vector<at::Tensor>& in) { return solved_bias(in[0], in[1]); });
  const Formula wide = t.heads == groups ? b : Formula::enclosed("to_queries(", b, ")");
  if (site.pair == Pair::value_output) {  // stored [width, heads * k]; its bias is of another stream
    change(
        weight_of(site.partner()), [&](const Formula& f) { return wide * f; },
        [](const std::vector<at::Tensor>& in) { return with_blocks(in[0].t(), in[1]).t().contiguous(); });
    return;
  }
  for (const TensorId& tensor : {weight_of(site.partner()), bias_of(site.partner())}) {
    change(
        tensor, [&](const Formula& f) { return f * wide.transposed(); },
        [](const std::vector<at::Tensor>& in) { return with_blocks(in[0], in[1]); });
  }
}

std::vector<Pair> asked_pairs(const std::string& word) {
  return word == "vo"   ? std::vector{Pair::value_output}
         : word == "qk" ? std::vector{Pair::query_key}
                        : std::vector{Pair::value_output, Pair::query_key};
}

// A pair for each core, each by itself: their matrices are too small to gain from several.
void measure_conditions(const Model& model, std::vector<PairSite>& sites) {
  at::parallel_for(0, std::ssize(sites), 1, [&](int64_t begin, int64_t end) {
    for (PairSite& site : std::span(sites).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin))) {
      site.condition = measured_condition(model, site);
    }
  });
}

Proposal propose(const Model& model, const Options& options, const std::optional<Budget>& budget) {
  Proposal proposal{.after = model};
  const Architecture& a = model.architecture;
  std::vector<PairSite> sites;
  for (int64_t n = 0; n < std::ssize(a.blocks); ++n) {
    for (const Pair pair : asked_pairs(options.at("pairs"))) {
      const PairSite site{.block = n, .pair = pair};
      if (std::optional<Precondition> failed = pair_obstacle(a, site)) {
        proposal.preconditions.push_back(*std::move(failed));
      } else {
        sites.push_back(site);
      }
    }
  }
  measure_conditions(model, sites);
  for (const PairSite& site : sites) {
    proposal.preconditions.push_back(bias_conditioning(site));
  }
  std::erase_if(sites, [](const PairSite& site) { return site.condition > largest_condition; });
  for (PairSite& site : sites) {
    site.steps = site.condition * amplification(model, site.shrunk(), site.partner()) *
                 static_cast<double>(runs_of(a, site.block));
  }
  std::ranges::stable_sort(sites, {}, &PairSite::steps);
  const std::shared_ptr<Shelf> shelf = make_shelf();
  RoundingWalk walk;
  std::vector<std::string> staying;
  std::string reason;
  for (const PairSite& site : sites) {
    RoundingWalk longer = walk;
    longer.step(site.steps);
    if (budget && !budget->allows(longer.roundings())) {
      reason = staying.empty() ? budget->excess(longer.roundings()) : reason;
      staying.push_back(name_of(site.shrunk()));
      proposal.over_budget = true;
      continue;
    }
    walk = longer;
    if (model.has_weights()) {
      shrink(proposal.after, site, shelf);
    }
    Attention& t = proposal.after.architecture.blocks[site.block].attention;
    (site.pair == Pair::value_output ? t.value : t.key) = Shrunk{};
    proposal.applies = true;
  }
  if (!staying.empty()) {
    proposal.notes.push_back(left_over(staying, "stays whole", reason));
  }
  proposal.roundings = walk.roundings();
  return proposal;
}

}  // namespace

const Pass& pass_shrink_head_pairs() {
  static const Pass pass{
      .id = "shrink_head_pairs",
      .theorem = "V O = (V B⁻¹)(B O) and Q K' = (Q B')(K B⁻¹)', with the identity in V B⁻¹ and K B⁻¹",
      .saves = "kv_heads · head_width² for each pair of each layer; of query and key only without RoPE and QK-norm",
      .reference = "MatShrink (Graef 2025), which Graef 2024 cites as reference 18",
      .preconditions = {"value and output, query and key are matrices of their own",
                        "of query and key: no RoPE, no "
                        "QK-norm",
                        "head_width < width", "a value's or key's bias does not grow too large"},
      .options = {{"pairs", "all|vo|qk", "all"}},
      .propose = propose,
  };
  return pass;
}

}  // namespace pare
