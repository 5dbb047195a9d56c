#include "pare/claims/stated.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "pare/support/error.h"

namespace pare {

namespace {

// Of each experiment, the number of the recorded run that its verdict hangs on. Undecided ones have none yet.
const std::map<std::string, std::string>& recorded_numbers() {
  static const std::map<std::string, std::string> numbers = {
      {"collapsed-single-head", "50 % at head width d, 0 % at d / 2"},
      {"shared-weights", "-589,824 for the query, +3,840,000 for the head"},
      {"score-deviation", "0.0058 against 0.0032"},
      {"semi-conjugacy", "off by 1.18e-13"},
      {"semi-conjugacy-of-others", "7.29e-17 and 4.06e-17; DyT with larger gains"},
      {"largest-singular-value", "2, and 39 % are clamped"},
      {"skip-into-relu", "5.77e-15 where J is planted, 2.83 elsewhere"},
      {"query-elimination", "+0.0110 ± 0.0014; an MLP of 3.5 d +0.0014 ± 0.0030"},
      {"mlp-basis-transfer", "6.6 to 7.4 %; a linear map 10.0 % (9.9 to 10.0)"},
      {"norm-removal", "+0.0029 ± 0.0013; stories260K +0.0529 ± 0.0050"},
      {"skipless", "shaped, 6 layers: 4 of 4 train; plain: 0 of 4"},
      {"weight-table", "16% and 15%, as printed"},
      {"parallel-blocks", "33 of 64 matrices go, 8.1%"},
      {"neuron-is-a-head", "off by 5.4e-16"},
      {"neuron-with-bias", "0.147 as printed, 6.63e-18 turned round"},
      {"norm-of-extended", "off by 0.00797"},
      {"heads-of-gpt3", "2.00:1 and 512:1"},
      {"activation-approximation", "0.02033, and 0.27846 / c"},
      {"nonlinearity-order", "3, 9, 27 for 1, 2, 3 layers"},
      {"attention-only", "off by 2.4e-10; a step costs 2.65 times"},
      {"minimum-transformer", "96.8 % and 51.5 %; MNIST 1.6667 ± 0.1368 points less"},
      {"gauge-symmetry", "1.6e-15 to 1.08e-08"},
      {"linear-recovery", "every head back to 4.26e-13"},
      {"random-addition", "full, 32, in all of 200 draws"},
      {"commuting-symmetries", "apart by 0.588, by 0.973 with shifts"},
      {"identical-tokens", "rank 4 becomes 20, identical tokens stay at 1"},
      {"affine-rank-hypotheses", "in 0 % of draws with tokens of full rank"},
      {"multi-head-rank", "8 of 32 with 8 tokens, 64 of 64 with 128"},
      {"attention-curvature", "second derivative -0.726, not 0"},
      {"recovery-ambiguity", "a kernel of 0 dimensions, not 12"},
      {"pgop-overhead", "18,444, and 3.13 % of W_O"},
      {"pgop", "r = 0.29 (0.15 to 0.41) in a model of bytes"},
      {"ffn-width", "+0.0405 ± 0.0025 nats a byte (5 pairs)"},
      {"rank-dynamics", "fell in 0 of 5 layers, and in 0 of all 12"},
      {"parametric-simulation", "31 and 31 where it should grow"},
      {"rank-neutrality", "0.00521, and 46.3 with half of the gains zero"},
      {"residual-stability", "63.4 of 64 with, 1 without"},
      {"asymmetry-vs-rank", "in 0 of 2 trained models"},
      {"asymmetry-vs-angles", "in 0 of 3 trained models"},
  };
  return numbers;
}

// What is shown without an experiment of its own, and what is not shown.
std::vector<StatedClaim> further_claims() {
  constexpr ClaimVerdict holds = ClaimVerdict::holds, corrected = ClaimVerdict::holds_corrected,
                         fails = ClaimVerdict::does_not_hold;
  const std::string eliminate = "docs/theorems/eliminate_projection.md", certificates = "docs/certificates/README.md",
                    lower = "docs/theorems/lower_mlp_to_heads.md", gauge = "docs/theorems/gauge_heads.md",
                    simulation = "experiments/parametric-simulation/README.md";
  std::vector<StatedClaim> found;
  const auto shown = [&](Paper paper, const std::string& place, const std::string& says, ClaimVerdict verdict,
                         const std::string& number, const std::string& name, const std::string& page) {
    found.push_back({name, paper, place, says, verdict, number, page,
                     fmt::format("{}: paper {}, {}", tests_of_stated, static_cast<int>(paper), place)});
  };
  const auto open = [&](Paper paper, const std::string& place, const std::string& says) {
    found.push_back({.paper = paper, .place = place, .says = says});
  };

  Paper paper = Paper::query_elimination;
  shown(paper, "Lemma 3.1", "Attention sees its input only through three products, so any basis of it will do.", holds,
        "off by 4.5e-14 at condition number 1e2", "eliminate_projection", eliminate);
  shown(paper, "Proposition 4.2", "A block diagonal matrix between queries and keys changes nothing.", holds,
        "off by 4.1e-15", "gauge_heads", gauge);
  shown(paper, "Theorem 4.1", "Without norms the query of one layer goes exactly, whatever the skips.", holds,
        "2,304 parameters; a tied head takes 4,656", "eliminate_projection", eliminate);
  shown(paper, "Theorem 4.2", "With a skip around attention alone, and no norms, the query goes in every layer.", holds,
        "-7.32 %, off by 1.0e-6 in float32", "eliminate_projection", certificates);
  shown(paper, "Section 6", "RoPE, grouped heads, QK-norm and encoders change nothing in that.", holds,
        "3.7e-14 with RoPE, 4 heads on 2", "merge_skipless", "docs/theorems/merge_skipless.md");
  shown(paper, "Remark 6", "Through LayerNorm no query goes exactly.", holds, "241 = 241: the count of gpt2 has none",
        "redundancy", "docs/redundancy.md");
  shown(paper, "Corollary 8.4.1", "A skip Z x becomes a skip Z' x iff some J has W₂[:,J] W₁[J,:] = Z' - Z.", holds, "",
        "absorb_skip", "docs/theorems/absorb_skip.md");
  shown(paper, "Section 5.1", "Weight decay below 0.1 is slightly worse for the reduced model.",
        ClaimVerdict::undecided, "+0.0345 without (one seed), +0.0117 with", "query-elimination",
        "experiments/query-elimination/README.md");
  open(paper, "Section 6", "A lowest learning rate of a tenth of the peak is worse for the reduced model than less.");

  paper = Paper::skipless;
  shown(paper, "Figure 1(b), Table 1", "Without skips and norms P and Q merge into their neighbours, exactly.", holds,
        "3.7e-14, predicted 1.8e-13", "merge_skipless", "docs/theorems/merge_skipless.md");
  shown(paper, "Figures 1(c), 1(d)", "K or V goes instead of Q where no heads share them.", holds,
        "-14.63 %, off by 5.9e-7 in float32", "merge_skipless", certificates);
  open(paper, "Section 4", "Decoding one sequence is 1.17 times as fast without Q and P.");
  open(paper, "Section 5", "All square matrices of Mistral-7B are invertible.");

  paper = Paper::attention_only;
  shown(paper, "Theorem 4", "A transformer with MLPs becomes one of attention alone.", holds, "off by 8.4e-16",
        "lower_mlp_to_heads", lower);
  shown(paper, "Theorems 6 and 7", "Linear maps and activations alone are attention heads.", holds, "",
        "lower_mlp_to_heads", lower);

  paper = Paper::minimum_transformer;
  shown(paper, "Section 3", "Collapsed matrices save half of an attention's parameters.", corrected,
        "18,432 with one head; 9,408 for 4,704 with four", "collapse_heads", "docs/theorems/collapse_heads.md");
  open(paper, "Section 6", "On ImageNet the reduced models do not converge.");

  paper = Paper::rank_and_symmetry;
  shown(paper, "Proposition 6.2 (iii)", "A directional head writes into two dimensions.", fails, "16 of 16",
        "parametric-simulation", simulation);
  shown(paper, "Proposition 6.3", "A head writes min(rank X, k) dimensions, whatever its asymmetry.", holds, "16 of 16",
        "parametric-simulation", simulation);
  shown(paper, "Corollary 6.6", "The more directional the heads, the lower the rank of multi-head attention.", fails,
        "r = -0.271 and +0.267 in trained models", "asymmetry-vs-rank", "experiments/asymmetry-vs-rank/README.md");
  shown(paper, "Proposition C.2 (ii)", "Heads are free up to their order and a matrix of GL(k) each.", holds,
        "off by 4.1e-15", "gauge_heads", gauge);
  open(paper, "Corollary 6.8", "Directional energy stands for the rank that attention lacks.");
  shown(paper, "Table 1", "The MLP is 64.8 % of the operations of BERT-base.", holds, "64.9 %", "ffn-width",
        "experiments/ffn-width/README.md");
  open(paper, "Section 12", "As maps of inputs, a model with generic weights has no symmetry.");
  return found;
}

}  // namespace

std::vector<StatedClaim> stated_claims() {
  std::vector<StatedClaim> all;
  for (const Paper paper : {Paper::query_elimination, Paper::skipless, Paper::attention_only,
                            Paper::minimum_transformer, Paper::rank_and_symmetry}) {
    for (const PaperClaim& claim : claims()) {
      if (claim.paper == paper) {
        const auto number = recorded_numbers().find(claim.id);
        all.push_back({claim.id, paper, claim.place, claim.says, claim.recorded,
                       number == recorded_numbers().end() ? "" : number->second,
                       fmt::format("experiments/{}/README.md", claim.id)});
      }
    }
    for (StatedClaim& claim : further_claims()) {
      if (claim.paper == paper) {
        all.push_back(std::move(claim));
      }
    }
  }
  return all;
}

std::string to_words(const std::optional<ClaimVerdict>& verdict) {
  return verdict ? to_words(*verdict) : "not measured";
}

std::string tally_of_claims() {
  const std::vector<StatedClaim> all = stated_claims();
  std::vector<std::string> parts;
  const auto add = [&](const std::optional<ClaimVerdict>& verdict, const char* words) {
    int64_t number = 0;
    for (const StatedClaim& claim : all) {
      number += claim.verdict == verdict;
    }
    if (number > 0) {
      parts.push_back(fmt::format("{} {}", number, words));
    }
  };
  add(ClaimVerdict::holds, "hold");
  add(ClaimVerdict::holds_corrected, "hold with a correction");
  add(ClaimVerdict::does_not_hold, "do not hold");
  add(ClaimVerdict::undecided, "undecided");
  add(std::nullopt, "not measured");
  return fmt::format("{} claims: {}", all.size(), fmt::join(parts, ", "));
}

}  // namespace pare
