#include "pare/model/recompute.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <optional>
#include <utility>
#include <vector>

#include "pare/support/error.h"

namespace pare {

namespace {

using torch::autograd::variable_list;

// All that gradients flow through between two layers; undefined where there is none.
struct Between {
  at::Tensor x, table;
  at::Tensor unevenness;  // of the norms before (blend.h): a sum that goes on from layer to layer
};

at::Tensor leaf_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach().requires_grad_(tensor.requires_grad()) : tensor;
}

at::Tensor gradient_of(const at::Tensor& leaf) {
  return leaf.defined() ? leaf.grad() : leaf;
}

// What norms see while one stands begins with what is given, and ends with it.
class SeenApart {
 public:
  SeenApart(NormsSeen& seen, NormsSeen meanwhile) : seen_(seen), before_(std::exchange(seen, std::move(meanwhile))) {}
  ~SeenApart() { seen_ = std::move(before_); }
  SeenApart(const SeenApart&) = delete;
  SeenApart& operator=(const SeenApart&) = delete;

 private:
  NormsSeen& seen_;
  NormsSeen before_;
};

struct LayerRun {
  Blocks blocks;
  int64_t block, layer;
  Step step;
  std::optional<Dropout> dropout;  // as it was before the layer
  std::shared_ptr<NormsSeen> seen;
  Between in;
};

// A graph of its own, from leaves. Recorded the first time too, though it is thrown away: some operators choose how
// they compute by whether gradients will be asked for.
Between run_apart(const Blocks& blocks, int64_t block, int64_t layer, Step& step, NormsSeen& seen, const Between& in,
                  bool again) {
  const at::AutoGradMode recorded(true);
  const SeenApart apart(seen, {in.unevenness, again});
  const at::Tensor x = run_block(blocks(block), in.x, in.table, step, layer);
  return {x, {}, seen.unevenness};
}

class RunAgain final : public torch::autograd::Node {
 public:
  RunAgain(torch::autograd::edge_list&& edges, LayerRun run)
      : torch::autograd::Node(std::move(edges)), run_(std::move(run)) {}

  std::string name() const override { return "pare::RunAgain"; }
  void release_variables() override { run_.in = {}; }

 protected:
  variable_list apply(variable_list&& gradients) override {
    PARE_CHECK(!at::GradMode::is_enabled(), "gradients of gradients, of a layer that is run again");
    PARE_CHECK(run_.in.x.defined(), "a graph that was let go");
    const Between in{leaf_of(run_.in.x), leaf_of(run_.in.table), leaf_of(run_.in.unevenness)};
    Step step = run_.step;
    std::optional<Dropout> dropout = run_.dropout;
    step.drop_with(dropout ? &*dropout : nullptr);
    const Between out = run_apart(run_.blocks, run_.block, run_.layer, step, *run_.seen, in, /*again=*/true);
    variable_list asked, given;
    for (const auto& [tensor, gradient] : {std::pair(out.x, gradients[0]), {out.unevenness, gradients[1]}}) {
      if (gradient.defined()) {
        asked.push_back(tensor);
        given.push_back(gradient);
      }
    }
    if (!asked.empty()) {
      torch::autograd::backward(asked, given);
    }
    return {gradient_of(in.x), gradient_of(in.table), gradient_of(in.unevenness)};
  }

 private:
  LayerRun run_;
};

}  // namespace

at::Tensor run_block_recomputed(const Blocks& blocks, int64_t n, const at::Tensor& x, const at::Tensor& table,
                                Step& step, int64_t layer, const std::shared_ptr<NormsSeen>& seen) {
  PARE_CHECK(at::GradMode::is_enabled() && !step.cache() && !step.tapped(), "a layer that is not only trained");
  const Between in{x, table, seen->unevenness};
  const std::optional<Dropout> dropout = step.dropout() ? std::optional(*step.dropout()) : std::nullopt;
  Between out =
      run_apart(blocks, n, layer, step, *seen, {leaf_of(x), leaf_of(table), leaf_of(in.unevenness)}, /*again=*/false);
  // Copied now: what layers derive from positions and masks is derived.
  const std::shared_ptr<RunAgain> node(new RunAgain(torch::autograd::collect_next_edges(in.x, in.table, in.unevenness),
                                                    {blocks, n, layer, step, dropout, seen, in}),
                                       torch::autograd::deleteNode);
  out.x = out.x.detach();
  out.unevenness = out.unevenness.defined() ? out.unevenness.detach() : out.unevenness;
  torch::autograd::set_history(out.x, node);
  torch::autograd::set_history(out.unevenness, node);
  seen->unevenness = out.unevenness;
  return out.x;
}

}  // namespace pare
