#include "pare/model/blockwise.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pare/support/interrupt.h"
#include "pare/support/mapped.h"

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
  const int64_t row_bytes = std::max<int64_t>(1, bytes_of(element_count(table.shape()) / rows, table.dtype()));
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

// Every token that occurs, once, ascending.
at::Tensor tokens_in(std::span<const Inputs> inputs) {
  const std::vector<at::Tensor> all =
      mapped(inputs, [](const Inputs& input) { return input.ids.flatten().to(at::kCPU); });
  return std::get<0>(at::unique_dim(at::cat(all), 0));
}

EmbeddingLayer load_embedding_of(const Model& model, const Arithmetic& arithmetic, std::span<const Inputs> inputs) {
  const RowsInUse few = rows_in_use(model, inputs);
  Loader loader(model.architecture, few.weights, arithmetic, false);
  EmbeddingLayer layer = load_embedding(loader, model.architecture);
  layer.kept = few.kept.defined() ? few.kept.to(arithmetic.device) : few.kept;
  return layer;
}

}  // namespace

RowsInUse rows_in_use(const Model& model, std::span<const Inputs> inputs) {
  RowsInUse few{model.weights, {}};
  if (model.architecture.embedding.patch) {
    return few;
  }
  few.kept = tokens_in(inputs);
  for (const ModuleId& module : {token_table, in_embedding(Slot::table)}) {
    if (const auto found = few.weights.find(name_of(weight_of(module))); found != few.weights.end()) {
      const Weight table = found->second;
      Shape shape = table.shape();
      shape[0] = few.kept.numel();
      found->second = Weight::leaf(table.formula(), table.dtype(), shape,
                                   [table, kept = few.kept] { return chosen_rows(table, kept); });
    }
  }
  return few;
}

struct BlockwiseRun::State {
  Model model;
  Tables tables;
  Loader loader;
  OneBlock blocks;
  Forward run;

  State(const Model& of, const Arithmetic& arithmetic, std::span<const Inputs> inputs, Taps* taps)
      : model(of),
        tables(arithmetic),
        loader(model.architecture, model.weights, arithmetic, false),
        blocks(loader, model.architecture),
        run(model.architecture, tables, inputs, nullptr, taps) {}
};

BlockwiseRun::BlockwiseRun(const Model& model, const Arithmetic& arithmetic, std::span<const Inputs> inputs,
                           Taps* taps) {
  const at::NoGradGuard no_grad;
  state_ = std::make_unique<State>(model, arithmetic, inputs, taps);
  state_->run.embed(load_embedding_of(model, arithmetic, inputs));
}

BlockwiseRun::~BlockwiseRun() = default;

int64_t BlockwiseRun::layers() const {
  return state_->run.layers();
}

int64_t BlockwiseRun::done() const {
  return state_->run.done();
}

const LayerInputs& BlockwiseRun::streams() const {
  return state_->run.streams();
}

void BlockwiseRun::run_layer() {
  check_interrupt();
  const at::NoGradGuard no_grad;
  state_->run.run_layer(std::ref(state_->blocks));
}

std::vector<Features> BlockwiseRun::finish() {
  const at::NoGradGuard no_grad;
  state_->blocks.release();
  return state_->run.finish(load_head_front(state_->loader, state_->model.architecture));
}

Linear head_rows(const Model& model, const Arithmetic& arithmetic, int64_t begin, int64_t count) {
  const Architecture& a = model.architecture;
  const Weights& weights = model.weights;
  check_interrupt();
  const at::NoGradGuard no_grad;
  Linear head;
  head.weight = rows_between(weights.at(head_matrix_name(a)), begin, count).to(arithmetic.device, arithmetic.dtype);
  if (a.head.bias) {
    head.bias =
        rows_between(weights.at(name_of(bias_of(head_matrix))), begin, count).to(arithmetic.device, arithmetic.dtype);
  }
  return head;
}

std::string head_matrix_name(const Architecture& a) {
  return name_of(weight_of(a.head.tied ? token_table : head_matrix));
}

}  // namespace pare
