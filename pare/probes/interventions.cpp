#include "pare/probes/interventions.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "pare/support/error.h"

namespace pare {

namespace {

// What the draws are for: each has its own, so that one more intervention leaves the others as they were.
enum class DrawFor { attention_norm, attention_output_norm, mlp_norm, mlp_output_norm, final_norm, gauge, order };

uint64_t drawn_from(uint64_t seed, DrawFor purpose, int64_t block) {
  std::seed_seq mixed{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), static_cast<uint32_t>(purpose),
                      static_cast<uint32_t>(block)};
  std::array<uint32_t, 2> words{};
  mixed.generate(words.begin(), words.end());
  return (uint64_t{words[0]} << 32) | words[1];
}

void zero_some(std::optional<NormLayer>& norm, const Interventions& wanted, int64_t width, DrawFor purpose,
               int64_t block, const Arithmetic& arithmetic) {
  if (!norm || wanted.zero_gains == 0) {
    return;
  }
  const at::Generator random = at::detail::createCPUGenerator(drawn_from(wanted.seed, purpose, block));
  const int64_t zeros = std::llround(wanted.zero_gains * static_cast<double>(width));
  const at::Tensor which = at::randperm(width, random, at::kLong).narrow(0, 0, zeros).to(arithmetic.device);
  const at::Tensor gain = norm->gain.defined()
                              ? norm->gain.tensor().clone()
                              : at::ones({width}, at::TensorOptions(arithmetic.dtype).device(arithmetic.device));
  norm->gain = gain.index_fill_(0, which, 0);
}

at::Tensor orthogonal(int64_t heads, int64_t k, at::Generator& random) {
  return std::get<0>(at::linalg_qr(at::randn({heads, k, k}, random, at::TensorOptions(at::kDouble))));
}

// One matrix for each value head, singular values spread evenly on a logarithmic scale around 1.
at::Tensor gauge_matrices(const Attention& t, double scale, uint64_t seed) {
  at::Generator random = at::detail::createCPUGenerator(seed);
  const at::Tensor left = orthogonal(t.kv_heads, t.head_width, random);
  const at::Tensor right = orthogonal(t.kv_heads, t.head_width, random);
  const at::Tensor values = at::linspace(-scale / 2, scale / 2, t.head_width, at::kDouble).exp();
  return at::matmul(left * values, right);
}

// [batch, tokens, heads, k] times one matrix for each head.
at::Tensor times(const at::Tensor& x, const at::Tensor& matrices) {
  return at::matmul(x.unsqueeze(-2), matrices).squeeze(-2);
}

bool can_be_gauged(const Attention& t) {
  return t.values == Form::factored;
}

}  // namespace

bool Interventions::any() const {
  return without_attention_residual || without_mlp_residual || zero_gains > 0 || gauge || permute_heads;
}

void check_interventions(const Interventions& wanted, const Architecture& a) {
  Problems problems;
  const auto some = [&a](const auto& condition) { return std::ranges::any_of(a.blocks, condition); };
  if (wanted.without_attention_residual && !some([](const Block& b) { return b.attention.skip; })) {
    problems.add("without attention-residual: no block has a skip around its attention");
  }
  const auto has_mlp_skip = [](const Block& b) { return b.wiring == Wiring::serial && b.mlp && b.mlp->skip; };
  if (wanted.without_mlp_residual && !some(has_mlp_skip)) {
    problems.add(some([](const Block& b) { return b.wiring == Wiring::parallel; })
                     ? "without mlp-residual: a parallel block has one skip for both sublayers, attention-residual"
                     : "without mlp-residual: no block has a skip around its MLP");
  }
  const auto has_norm = [](const Block& b) {
    return b.attention.norm || b.attention.output_norm || (b.mlp && (b.mlp->norm || b.mlp->output_norm));
  };
  problems.add_if(wanted.zero_gains > 0 && !some(has_norm) && !a.final_norm, "zero-gains: the model has no norms");
  if (wanted.gauge && some([](const Block& b) { return !can_be_gauged(b.attention); })) {
    problems.add("gauge: values and output are one collapsed matrix, so there is no basis between them to change");
  }
  if (wanted.permute_heads && some([](const Block& b) { return b.attention.alibi.has_value(); })) {
    problems.add("permute-heads: ALiBi gives each head a slope by its number, so that their order means something");
  }
  if (wanted.permute_heads && !some([](const Block& b) { return b.attention.heads > 1; })) {
    problems.add("permute-heads: every block has one head, so there is no other order");
  }
  problems.throw_if_any("interventions");
}

std::vector<std::string> in_words(const Interventions& wanted) {
  std::vector<std::string> words;
  if (wanted.without_attention_residual) {
    words.emplace_back("without the residual around attention");
  }
  if (wanted.without_mlp_residual) {
    words.emplace_back("without the residual around the MLP");
  }
  if (wanted.zero_gains > 0) {
    words.push_back(fmt::format("{:g} % of the gains of every norm zeroed", 100 * wanted.zero_gains));
  }
  if (wanted.gauge) {
    words.push_back(fmt::format("heads in another basis of condition number exp({:g})", *wanted.gauge));
  }
  if (wanted.permute_heads) {
    words.emplace_back("heads permuted");
  }
  return words;
}

void intervene(BlockLayer& block, const Interventions& wanted, int64_t n, const Arithmetic& arithmetic) {
  if (wanted.without_attention_residual) {
    block.spec.attention.skip = false;
  }
  if (wanted.without_mlp_residual && block.spec.mlp) {
    block.spec.mlp->skip = false;
  }
  const int64_t width = block.attention.width;
  zero_some(block.attention_norm, wanted, width, DrawFor::attention_norm, n, arithmetic);
  zero_some(block.attention_output_norm, wanted, width, DrawFor::attention_output_norm, n, arithmetic);
  zero_some(block.mlp_norm, wanted, width, DrawFor::mlp_norm, n, arithmetic);
  zero_some(block.mlp_output_norm, wanted, width, DrawFor::mlp_output_norm, n, arithmetic);
}

void intervene(HeadLayer& head, const Interventions& wanted, int64_t width, const Arithmetic& arithmetic) {
  zero_some(head.final_norm, wanted, width, DrawFor::final_norm, 0, arithmetic);
}

std::vector<int64_t> head_order(const Attention& t, const Interventions& wanted, int64_t n) {
  std::vector<int64_t> order(static_cast<size_t>(t.heads));
  std::iota(order.begin(), order.end(), 0);
  if (!wanted.permute_heads) {
    return order;
  }
  // Heads that share a key stay together: their groups change places, and they within their group.
  std::mt19937_64 random(drawn_from(wanted.seed, DrawFor::order, n));
  const int64_t size = t.heads / t.kv_heads;
  std::vector<int64_t> groups(static_cast<size_t>(t.kv_heads)), within(static_cast<size_t>(size));
  std::iota(groups.begin(), groups.end(), 0);
  std::shuffle(groups.begin(), groups.end(), random);
  for (int64_t place = 0; place < t.kv_heads; ++place) {
    std::iota(within.begin(), within.end(), 0);
    std::shuffle(within.begin(), within.end(), random);
    for (int64_t j = 0; j < size; ++j) {
      order[place * size + j] = groups[place] * size + within[j];
    }
  }
  return order;
}

void add_symmetries(Taps& taps, const Attention& t, const Interventions& wanted, int64_t n, int64_t layer,
                    const Arithmetic& arithmetic) {
  const std::string prefix = fmt::format("blocks.{}.attention.", layer);
  if (wanted.permute_heads) {
    const std::vector<int64_t> order = head_order(t, wanted, n);
    std::vector<int64_t> groups, back(order.size());
    for (size_t place = 0; place < order.size(); ++place) {
      back[order[place]] = static_cast<int64_t>(place);
      if (static_cast<int64_t>(place) % (t.heads / t.kv_heads) == 0) {
        groups.push_back(order[place] / (t.heads / t.kv_heads));
      }
    }
    const auto index = [&arithmetic](const std::vector<int64_t>& list) {
      return at::tensor(list, at::kLong).to(arithmetic.device);
    };
    const at::Tensor heads_at = index(order), groups_at = index(groups), back_at = index(back);
    taps.replace(prefix + "query",
                 [heads_at](const std::string&, const at::Tensor& x) { return x.index_select(2, heads_at); });
    for (const char* shared : {"key", "value"}) {  // a collapsed one is the input itself, the same for all
      taps.replace(prefix + shared, [groups_at](const std::string&, const at::Tensor& x) {
        return x.size(2) == groups_at.size(0) ? x.index_select(2, groups_at) : x;
      });
    }
    for (const char* of_heads : {"gate", "shape"}) {
      taps.replace(prefix + of_heads,
                   [heads_at](const std::string&, const at::Tensor& x) { return x.index_select(2, heads_at); });
    }
    taps.replace(prefix + "heads",
                 [back_at](const std::string&, const at::Tensor& x) { return x.index_select(2, back_at); });
  }
  if (wanted.gauge) {
    const at::Tensor there =
        gauge_matrices(t, *wanted.gauge, drawn_from(wanted.seed, DrawFor::gauge, n)).to(arithmetic.device);
    // Drawn for heads where they stand after a permutation; undone after the permutation is.
    std::vector<int64_t> group_of;
    const std::vector<int64_t> order = head_order(t, wanted, n);
    group_of.resize(order.size());
    for (size_t place = 0; place < order.size(); ++place) {
      group_of[order[place]] = static_cast<int64_t>(place) / (t.heads / t.kv_heads);
    }
    const at::Tensor of_heads = there.index_select(0, at::tensor(group_of, at::kLong).to(arithmetic.device));
    taps.replace(prefix + "value",
                 [there](const std::string&, const at::Tensor& x) { return times(x, there.to(x.scalar_type())); });
    taps.replace(prefix + "heads", [of_heads](const std::string&, const at::Tensor& x) {
      // [heads, tokens of all, k]: X A⁻¹ is what solves Y A = X.
      const at::Tensor by_head = x.permute({2, 0, 1, 3}).flatten(1, 2).to(at::kDouble);
      return at::linalg_solve(of_heads, by_head, /*left=*/false)
          .view({x.size(2), x.size(0), x.size(1), x.size(3)})
          .permute({1, 2, 0, 3})
          .to(x.scalar_type());
    });
  }
}

}  // namespace pare
