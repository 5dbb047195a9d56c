#include "pare/train/trainer.h"

#include <ATen/ATen.h>

#include "pare/support/error.h"

namespace pare {

at::ScalarType arithmetic_of(TrainDtype dtype) {
  switch (dtype) {
    case TrainDtype::float32:
      return at::kFloat;
    case TrainDtype::float64:
      return at::kDouble;
    case TrainDtype::bfloat16:
      return at::kBFloat16;
  }
  PARE_UNREACHABLE("a type that nobody computes with");
}

namespace {

std::vector<std::string> decayed_names(const Architecture& architecture) {
  std::vector<std::string> names;
  for (const TensorSpec& spec : tensor_table(architecture)) {
    if (is_decayed(spec)) {
      names.push_back(spec.name);
    }
  }
  return names;
}

std::map<std::string, at::Tensor> masters_of(const Executor& executor, const Weights& start, bool narrow,
                                             at::Device device) {
  std::map<std::string, at::Tensor> masters;
  for (const auto& [name, leaf] : executor.parameters()) {
    masters[name] = narrow ? start.at(name).load().to(device, at::kFloat) : leaf.detach();
  }
  return masters;
}

// On a CPU a piece of the logits stays near its caches; a GPU wants products as large as they come.
constexpr int64_t cpu_piece = int64_t{1} << 22, gpu_piece = int64_t{1} << 27;

}  // namespace

Trainer::Trainer(const TrainConfig& config, const Model& start, at::Device device, TrainCompany company)
    : company_(std::move(company)),
      distillation_(config.distillation),
      evenness_(config.morph.evenness),
      architecture_(start.architecture),
      device_(device),
      executor_(start, arithmetic_of(config.dtype), device, Use::training,
                company_.morph ? &company_.morph->blend() : nullptr),
      masters_(masters_of(executor_, start.weights, config.dtype == TrainDtype::bfloat16, device)),
      narrow_(config.dtype == TrainDtype::bfloat16),
      piece_(device.is_cpu() ? cpu_piece : gpu_piece),
      optimiser_(config.optimiser, masters_, decayed_names(start.architecture)) {
  for (const TensorSpec& spec : tensor_table(architecture_)) {
    if (spec.index) {
      indices_[spec.name] = start.weights.at(spec.name);
    }
  }
  const std::string weight = name_of(weight_of(architecture_.head.tied ? token_table : head_matrix));
  const std::string bias = name_of(bias_of(head_matrix));
  for (const auto& [name, leaf] : executor_.parameters()) {
    leaf.mutable_grad() = at::zeros_like(leaf.detach());
    leaves_.push_back(leaf);
    gradients_.push_back(narrow_ ? at::zeros_like(masters_.at(name)) : leaf.grad());
    if (name == weight) {
      head_.weight = leaf.detach();
      head_gradients_.weight = gradients_.back();
    }
    if (name == bias) {
      head_.bias = leaf.detach();
      head_gradients_.bias = gradients_.back();
    }
  }
  head_.softcap = architecture_.head.softcap;
}

Trainer::Rows Trainer::asked_rows(const TrainBatch& batch, bool taught) const {
  const at::Tensor targets = batch.targets.flatten();
  const at::Tensor asked = (targets != no_target).nonzero().squeeze(1);
  const bool all = asked.size(0) == targets.size(0);
  const Inputs inputs = moved(batch.inputs, device_);
  const auto rows_of = [&](const at::Tensor& x) {
    const at::Tensor rows = x.dim() == 2 ? x : x.flatten(0, 1);
    PARE_CHECK(rows.size(0) == targets.size(0), "a target for every row");
    return all ? rows : rows.index_select(0, asked.to(device_));
  };
  return {rows_of(executor_.head_input(inputs)), (all ? targets : targets.index_select(0, asked)).to(device_),
          taught ? rows_of(company_.teacher->executor().head_input(inputs)) : at::Tensor()};
}

StepMeasure Trainer::measure(std::span<const TrainBatch> batches) {
  int64_t count = 0;
  for (const TrainBatch& batch : batches) {
    count += targets_in(batch);
  }
  PARE_CHECK(count > 0, "a step that asks for nothing");
  at::Tensor sum = at::zeros({}, at::TensorOptions(at::kDouble).device(device_));
  at::_foreach_zero_(gradients_);
  for (const TrainBatch& batch : batches) {
    const Rows rows = asked_rows(batch, company_.teacher != nullptr);
    const double scale = 1 / static_cast<double>(count);
    const LossParts parts =
        company_.teacher
            ? distilled_loss(rows.x.detach(), head_, rows.targets,
                             {rows.teacher, company_.teacher->head(), distillation_.weight, distillation_.temperature},
                             piece_, scale, head_gradients_)
            : cross_entropy(rows.x.detach(), head_, rows.targets, piece_, scale, head_gradients_);
    sum.add_(parts.sum);
    const at::Tensor uneven = company_.morph ? company_.morph->take_unevenness() : at::Tensor();
    if (uneven.defined() && evenness_ > 0) {
      const at::Tensor asked = uneven * (evenness_ * static_cast<double>(rows.targets.size(0)));
      ((rows.x * parts.head_input).sum() + asked * scale).backward();
      sum.add_(asked.detach());
    } else {
      rows.x.backward(parts.head_input);
    }
    if (narrow_) {  // what is added up is added in float32
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < leaves_.size(); ++i) {
        gradients_[i].add_(leaves_[i].grad());
        leaves_[i].mutable_grad().zero_();
      }
    }
  }
  const at::NoGradGuard no_grad;
  const at::Tensor norm = optimiser_.clip(gradients_).to(at::kDouble);
  return {sum.item<double>() / static_cast<double>(count), norm.item<double>()};
}

void Trainer::update(double rate) {
  optimiser_.step(gradients_, rate);
  if (company_.morph) {
    company_.morph->remeasure(masters_);
  }
  if (!narrow_) {
    return;
  }
  const at::NoGradGuard no_grad;
  size_t i = 0;
  for (const auto& [name, master] : masters_) {
    leaves_[i++].detach().copy_(master);
  }
}

Evaluation Trainer::evaluate(const Batches& batches) const {
  const at::NoGradGuard no_grad;
  double sum = 0;
  int64_t right = 0, count = 0;
  for (int64_t number = 0; number < batches.validations(); ++number) {
    const Rows rows = asked_rows(batches.validation(number), false);
    const LossParts parts = cross_entropy(rows.x, head_, rows.targets, piece_);
    sum += parts.sum.item<double>();
    right += parts.right.item<int64_t>();
    count += rows.targets.size(0);
  }
  PARE_CHECK(count > 0, "nothing to measure on");
  return {sum / static_cast<double>(count), static_cast<double>(right) / static_cast<double>(count)};
}

Model Trainer::model() const {
  Weights weights = indices_;
  for (const auto& [name, master] : masters_) {
    const at::Tensor held = master;
    weights[name] = Weight::leaf(name, dtype_of(held.scalar_type()), held.sizes().vec(),
                                 [held] { return held.to(at::kCPU, held.scalar_type(), false, /*copy=*/true); });
  }
  return {architecture_, std::move(weights)};
}

std::map<std::string, at::Tensor> Trainer::state() const {
  std::map<std::string, at::Tensor> state = optimiser_.state();
  if (company_.morph) {
    state.merge(company_.morph->state());
  }
  return state;
}

void Trainer::restore(const std::map<std::string, at::Tensor>& state, int64_t steps) {
  optimiser_.restore(state, steps);
  if (company_.morph) {
    company_.morph->restore(state);
  }
}

std::map<std::string, at::Tensor> Trainer::gradients() const {
  std::map<std::string, at::Tensor> result;
  size_t i = 0;
  for (const auto& [name, master] : masters_) {
    result[name] = gradients_[i++];
  }
  return result;
}

}  // namespace pare
