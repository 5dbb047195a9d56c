#include "pare/model/blockwise.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "pare/model/block.h"
#include "pare/model/ends.h"
#include "pare/model/positions.h"
#include "pare/support/error.h"
#include "pare/support/interrupt.h"
#include "pare/support/memory.h"

namespace pare {

namespace {

constexpr int64_t piece_bytes = 16 << 20;

at::Tensor rows_between(const Weight& weight, int64_t begin, int64_t count) {
  return weight.can_load_rows() ? weight.load_rows(begin, count) : weight.load().narrow(0, begin, count).clone();
}

// Rows `ids` (ascending) of a table, without holding the table where it can be had in pieces.
at::Tensor chosen_rows(const Weight& table, const at::Tensor& ids) {
  if (!table.can_load_rows()) {
    return table.load().index_select(0, ids);
  }
  const int64_t rows = table.shape()[0];
  const int64_t row_bytes = std::max<int64_t>(1, element_count(table.shape()) / rows * dtype_bits(table.dtype()) / 8);
  const int64_t step = std::max<int64_t>(1, piece_bytes / row_bytes);
  std::vector<at::Tensor> chosen;
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    const at::Tensor here = ids.masked_select((ids >= begin) & (ids < begin + count)) - begin;
    if (here.numel() > 0) {
      chosen.push_back(table.load_rows(begin, count).index_select(0, here));
    }
  }
  return at::cat(chosen);
}

// The same inputs and weights, with the tables cut to the tokens that occur and the tokens renumbered.
struct FewTokens {
  Weights weights;
  std::vector<Inputs> inputs;
};

FewTokens few_tokens(const Architecture& a, const Weights& weights, std::span<const Inputs> inputs) {
  FewTokens few{weights, {inputs.begin(), inputs.end()}};
  if (a.embedding.patch) {
    return few;
  }
  std::vector<at::Tensor> all;
  for (const Inputs& input : inputs) {
    all.push_back(input.ids.flatten().to(at::kCPU));
  }
  const at::Tensor ids = std::get<0>(at::unique_dim(at::cat(all), 0));
  for (Inputs& input : few.inputs) {
    input.ids = at::searchsorted(ids.to(input.ids.device()), input.ids);
  }
  for (const char* name : {"embed.token.weight", "embed.table.weight"}) {
    if (const auto found = few.weights.find(name); found != few.weights.end()) {
      const Weight table = found->second;
      Shape shape = table.shape();
      shape[0] = ids.numel();
      found->second =
          Weight::leaf(table.formula(), table.dtype(), shape, [table, ids] { return chosen_rows(table, ids); });
    }
  }
  return few;
}

}  // namespace

struct BlockwiseRun::State {
  Model model;
  Arithmetic arithmetic;
  std::vector<Inputs> inputs;
  Taps* taps;
  std::vector<Block> blocks;
  std::vector<int64_t> order;
  std::vector<Step> steps;
  LayerInputs streams;
  int64_t layer = 0;
  std::optional<BlockLayer> held;
  int64_t held_number = -1;

  Loader loader() const { return Loader(model.weights, arithmetic.dtype, arithmetic.device, false); }

  const BlockLayer& block(int64_t number) {
    if (held_number != number) {
      held.reset();  // before the next is read: never two at once
      const PromptlyFreed promptly;
      Loader from = loader();
      held = load_block(from, model.architecture, blocks[static_cast<size_t>(number)], number);
      held_number = number;
    }
    return *held;
  }
};

BlockwiseRun::BlockwiseRun(const Model& model, const Arithmetic& arithmetic, std::span<const Inputs> inputs, Taps* taps)
    : state_(std::make_unique<State>(State{.model = model,
                                           .arithmetic = arithmetic,
                                           .inputs = {inputs.begin(), inputs.end()},
                                           .taps = taps,
                                           .blocks = expanded_blocks(model.architecture),
                                           .order = layer_blocks(model.architecture)})) {
  PARE_CHECK(!taps || inputs.size() == 1, "taps of several inputs would overwrite each other");
  State& s = *state_;
  const Architecture& architecture = model.architecture;
  const at::NoGradGuard no_grad;
  const at::TensorOptions integers = at::TensorOptions(at::kLong).device(arithmetic.device);
  const FewTokens few = few_tokens(architecture, model.weights, inputs);
  Loader loader(few.weights, arithmetic.dtype, arithmetic.device, false);
  const EmbeddingLayer embedding = load_embedding(loader, architecture);
  for (size_t i = 0; i < inputs.size(); ++i) {
    PARE_CHECK(inputs[i].ids.defined() != inputs[i].pixels.defined(), "a batch is tokens or pixels");
    const at::Tensor positions = positions_for(architecture, inputs[i], integers, nullptr);
    s.steps.emplace_back(positions, inputs[i].mask, arithmetic.dtype, nullptr, taps);
    const Embedded stream = embed(embedding, architecture, few.inputs[i], s.steps.back(), arithmetic.dtype);
    s.streams.x.push_back(stream.x);
    s.streams.table.push_back(stream.table);
  }
}

BlockwiseRun::~BlockwiseRun() = default;

int64_t BlockwiseRun::layers() const {
  return std::ssize(state_->order);
}

int64_t BlockwiseRun::done() const {
  return state_->layer;
}

const LayerInputs& BlockwiseRun::streams() const {
  return state_->streams;
}

void BlockwiseRun::run_layer() {
  check_interrupt();
  State& s = *state_;
  PARE_CHECK(s.layer < layers(), "no layer is left");
  const at::NoGradGuard no_grad;
  const BlockLayer& block = s.block(s.order[static_cast<size_t>(s.layer)]);
  for (size_t i = 0; i < s.inputs.size(); ++i) {
    s.streams.x[i] = run_block(block, s.streams.x[i], s.streams.table[i], s.steps[i], s.layer);
    s.streams.table[i] = at::Tensor();
  }
  ++s.layer;
}

std::vector<Features> BlockwiseRun::finish() {
  State& s = *state_;
  PARE_CHECK(s.layer == layers(), "layers are left");
  const at::NoGradGuard no_grad;
  s.held.reset();
  s.held_number = -1;
  Loader loader = s.loader();
  const HeadLayer head = load_head_front(loader, s.model.architecture);
  std::vector<Features> result;
  for (size_t i = 0; i < s.inputs.size(); ++i) {
    const at::Tensor x =
        s.steps[i].tapped() ? s.steps[i].tap(fmt::format("residual.{}", layers()), "", s.streams.x[i]) : s.streams.x[i];
    result.push_back(features(head, s.model.architecture, x, s.inputs[i], s.steps[i]));
  }
  return result;
}

Linear head_rows(const Model& model, const Arithmetic& arithmetic, int64_t begin, int64_t count) {
  const Architecture& a = model.architecture;
  const Weights& weights = model.weights;
  check_interrupt();
  const at::NoGradGuard no_grad;
  Linear head;
  head.weight = rows_between(weights.at(head_matrix_name(a)), begin, count).to(arithmetic.device, arithmetic.dtype);
  if (a.head.bias) {
    head.bias = rows_between(weights.at("head.bias"), begin, count).to(arithmetic.device, arithmetic.dtype);
  }
  return head;
}

std::string head_matrix_name(const Architecture& a) {
  return a.head.tied ? "embed.token.weight" : "head.weight";
}

}  // namespace pare
