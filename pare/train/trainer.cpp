#include "pare/train/trainer.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "pare/model/dropout.h"
#include "pare/support/error.h"
#include "pare/support/interrupt.h"
#include "pare/support/mapped.h"
#include "pare/support/memory.h"

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

using Tensors = std::map<std::string, at::Tensor>;

at::ScalarType moved_type(TrainDtype dtype) {
  return dtype == TrainDtype::bfloat16 ? at::kFloat : arithmetic_of(dtype);
}

WeightShares::Start start_of(const Weights& weights, at::ScalarType type, at::Device device) {
  return [&weights, type, device](const std::string& name) { return weights.at(name).load().to(device, type); };
}

std::shared_ptr<WeightShares> shares_of(const TrainConfig& config, const Communicator& ranks) {
  return config.shard == Shard::nothing || ranks.alone() ? nullptr : std::make_shared<WeightShares>(ranks);
}

// In which order a backward pass comes to the leaves, which are in the order of names.
std::vector<size_t> backward_order(const Architecture& architecture, const Tensors& leaves) {
  std::vector<size_t> order;
  for (const TensorSpec& spec : tensor_table(architecture)) {
    if (const auto leaf = leaves.find(spec.name); leaf != leaves.end()) {
      order.push_back(static_cast<size_t>(std::distance(leaves.begin(), leaf)));
    }
  }
  std::ranges::reverse(order);
  return order;
}

std::vector<at::Tensor> values_of(const Tensors& tensors) {
  return mapped(tensors, &Tensors::value_type::second);
}

FlatLayout layout_of(const Architecture& architecture, const Tensors& leaves, bool narrow, int64_t bucket, int ranks) {
  const auto like = [narrow](const at::Tensor& leaf) {
    return at::empty_like(leaf, leaf.options().dtype(narrow ? at::kFloat : leaf.scalar_type()).device(at::kMeta));
  };
  return FlatLayout(mapped(values_of(leaves), like), backward_order(architecture, leaves), bucket, ranks);
}

// How often a backward pass adds to each leaf: once, but to those of a layer that is run again each time. With a
// penalty on the weights perhaps once more: a bucket that is still open at the end of the pass is sent then.
std::vector<int64_t> times_added(const Architecture& architecture, const Tensors& leaves, bool recompute,
                                 bool penalised) {
  const std::vector<int64_t> order = layer_blocks(architecture);
  const TensorTable table = tensor_table(architecture);
  std::vector<int64_t> times;
  for (const auto& [name, leaf] : leaves) {
    const std::optional<int64_t> block = table.at(name).id.module.block;
    times.push_back(recompute && block ? std::ranges::count(order, *block) + (penalised ? 1 : 0) : 1);
  }
  return times;
}

// On a CPU a piece of the logits stays near its caches; a GPU wants products as large as they come.
constexpr int64_t cpu_piece = int64_t{1} << 22, gpu_piece = int64_t{1} << 28;

// Steps that run as they come before one is recorded: tables and libraries are made ready by them.
constexpr int64_t steps_before_recording = 2;

// Copied while the CPU goes on: from memory that the device reads by itself.
at::Tensor sent(const at::Tensor& tensor, at::Device device) {
  return !tensor.defined() || device.is_cpu() ? tensor : tensor.pin_memory().to(device, tensor.scalar_type(), true);
}

StepMeasure measured(const at::Tensor& numbers) {
  const double* found = numbers.const_data_ptr<double>();
  return {found[0], found[1], found[2], found[3] > 0};
}

bool same_shape(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || (a.sizes() == b.sizes() && a.dtype() == b.dtype()));
}

}  // namespace

Trainer::Trainer(const TrainConfig& config, const Model& start, at::Device device, TrainCompany company)
    : company_(std::move(company)),
      distillation_(config.distillation),
      conditioning_weight_(config.conditioning.weight),
      evenness_(config.morph.evenness),
      architecture_(start.architecture),
      device_(device),
      narrow_(config.dtype == TrainDtype::bfloat16),
      shares_(shares_of(config, company_.ranks)),
      block_(shares_ && config.shard == Shard::everything
                 ? std::make_unique<HeldBlock>(company_.ranks, shares_, moved_type(config.dtype))
                 : nullptr),
      executor_(start, arithmetic_of(config.dtype), device, Use::training,
                company_.morph ? &company_.morph->blend() : nullptr,
                config.recompute || block_ ? Kept::layer_inputs : Kept::activations,
                block_ ? block_->watch(start_of(start.weights, moved_type(config.dtype), device)) : BlockWatch()),
      piece_(device.is_cpu() ? cpu_piece : gpu_piece),
      dropout_(config.dropout),
      seed_(config.seed),
      recordable_(config.task != TrainTask::masked_lm && dropout_ == DropoutRates{} && company_.ranks.alone() &&
                  DeviceGraph::works_on(device)) {
  const PromptlyFreed promptly;  // leaves that go into buckets leave no holes between what stays
  for (const TensorSpec& spec : tensor_table(architecture_)) {
    if (spec.index) {
      indices_[spec.name] = start.weights.at(spec.name);
    }
  }
  const std::string weight = name_of(weight_of(architecture_.head.tied ? token_table : head_matrix));
  const std::string bias = name_of(bias_of(head_matrix));
  const Tensors leaves = outside_blocks();
  const WeightShares::Start from = start_of(start.weights, moved_type(config.dtype), device);
  leaves_ = values_of(leaves);
  if (!company_.ranks.alone()) {
    share_out(config, from);
  }
  if (!shares_) {
    for (const auto& [name, leaf] : leaves) {
      masters_[name] = narrow_ ? from(name) : leaf.detach();
    }
  }
  optimiser_.emplace(config.optimiser, masters_, decayed_names(architecture_));
  for (const auto& [name, leaf] : leaves) {
    const bool is_weight = name == weight, is_bias = name == bias;
    if (buckets_) {
      gradients_.push_back(buckets_->gradients()[gradients_.size()]);
    } else {
      gradients_.push_back(narrow_ || is_weight || is_bias ? at::zeros_like(masters_.at(name)) : at::Tensor());
    }
    if (is_weight || is_bias) {
      in_head_.push_back(gradients_.size() - 1);
      (is_weight ? head_.weight : head_.bias) = leaf.detach();
      (is_weight ? head_gradients_.weight : head_gradients_.bias) = gradients_.back();
    }
  }
  head_.softcap = architecture_.head.softcap;
  head_.scale = architecture_.head.scale;
  if (conditioning_weight_ > 0) {
    conditioning_.emplace(last_architecture(config), device);
    PARE_CHECK(!conditioning_->empty(), "nothing whose condition counts");
  }
  const at::TensorOptions here = at::TensorOptions(device);
  numbers_ = at::zeros({4}, here.dtype(at::kDouble));
  limit_ = at::zeros({}, here.dtype(at::kDouble));
  stopped_ = at::zeros({}, here.dtype(at::kFloat));
}

// Leaves and gradients of several ranks lie in buckets.
void Trainer::share_out(const TrainConfig& config, const WeightShares::Start& start) {
  const Tensors leaves = outside_blocks();
  const std::vector<int64_t> times =
      times_added(architecture_, leaves, config.recompute, config.conditioning.weight > 0);
  const FlatLayout layout = layout_of(architecture_, leaves, narrow_, company_.bucket, company_.ranks.size());
  buckets_.emplace(company_.ranks, leaves_, times, layout, shares_ ? Summed::own_part : Summed::whole);
  if (shares_) {
    whole_ = shares_->add(leaves, start, layout, WeightShares::Whole::always);
    masters_ = shares_->own();
  }
}

Trainer::Tensors Trainer::outside_blocks() const {
  Tensors leaves = executor_.parameters();
  std::erase_if(leaves, [this](const auto& leaf) { return block_ && block_->has(leaf.first); });
  return leaves;
}

// Every rank is given the whole batch, so that all count its targets alike, and takes as many rows of it as the others.
Trainer::Placed Trainer::placed(const TrainBatch& batch, const Communicator& ranks) const {
  const int64_t rows = batch_size(batch.inputs) / ranks.size(), first = rows * ranks.rank();
  const Inputs own = ranks.alone() ? batch.inputs : rows_of(batch.inputs, first, rows);
  Inputs inputs = each_of(own, [this](const at::Tensor& tensor) { return sent(tensor, device_); });
  const at::Tensor targets = batch.targets.narrow(0, first, rows).flatten();
  if (batch.asks_all) {
    return {std::move(inputs), {}, sent(targets, device_), batch.targets.numel()};
  }
  const at::Tensor asked = (targets != no_target).nonzero().squeeze(1);  // on the host, as all of a batch is
  const int64_t of_all = ranks.alone() ? asked.size(0) : (batch.targets != no_target).sum().item<int64_t>();
  return {std::move(inputs), sent(asked, device_), sent(targets.index_select(0, asked), device_), of_all};
}

std::vector<Trainer::Placed> Trainer::placed(std::span<const TrainBatch> batches) const {
  std::vector<Placed> result;
  for (const TrainBatch& batch : batches) {
    check_interrupt();
    result.push_back(placed(batch, company_.ranks));
  }
  return result;
}

Trainer::Rows Trainer::asked_rows(const Placed& batch, bool taught, Dropout* dropout) const {
  const auto rows_of = [&](const at::Tensor& x) {
    const at::Tensor rows = x.dim() == 2 ? x : x.flatten(0, 1);
    return batch.asked.defined() ? rows.index_select(0, batch.asked) : rows;
  };
  return {rows_of(executor_.head_input(batch.inputs, dropout)), batch.targets,
          taught ? rows_of(company_.teacher->executor().head_input(batch.inputs)) : at::Tensor()};
}

LossParts Trainer::loss_of(const Rows& rows, double scale) {
  const at::Tensor x = rows.x.detach();
  if (!company_.teacher) {
    return cross_entropy(x, head_, rows.targets, piece_, scale, head_gradients_);
  }
  const Taught taught{rows.teacher, company_.teacher->head(), distillation_.weight, distillation_.temperature};
  return cross_entropy(x, head_, rows.targets, piece_, scale, head_gradients_, &taught);
}

// Where there is no gradient yet, autograd hands over the one that it made: nothing is set to zero, and nothing added.
// Gradients that are exchanged stay where they are.
void Trainer::clear_gradients() {
  if (block_) {
    block_->clear();
  }
  if (buckets_) {
    buckets_->clear();
    return;
  }
  for (const at::Tensor& leaf : leaves_) {
    leaf.mutable_grad().reset();
  }
  for (const size_t i : in_head_) {
    gradients_[i].zero_();
    if (!narrow_) {
      leaves_[i].mutable_grad() = gradients_[i];
    }
  }
}

void Trainer::compute_gradients(const std::vector<Placed>& batches, int64_t step) {
  const at::AutoGradMode recorded(true);  // whatever the caller looks at meanwhile
  int64_t count = 0;
  for (const Placed& batch : batches) {
    count += batch.asked_of_all;
  }
  PARE_CHECK(count > 0, "a step that asks for nothing");
  clear_gradients();
  const Communicator& ranks = company_.ranks;
  at::Tensor sum = at::zeros_like(limit_), plain = at::zeros_like(limit_);
  for (size_t i = 0; i < batches.size(); ++i) {
    std::optional<Dropout> dropout;
    if (dropout_ != DropoutRates{}) {
      dropout.emplace(dropout_,
                      dropout_seed(static_cast<uint64_t>(seed_), static_cast<uint64_t>(step),
                                   i * static_cast<size_t>(ranks.size()) + static_cast<size_t>(ranks.rank())),
                      device_);
    }
    const Rows rows = asked_rows(batches[i], company_.teacher != nullptr, dropout ? &*dropout : nullptr);
    const double scale = 1 / static_cast<double>(count);
    const LossParts parts = loss_of(rows, scale);
    sum.add_(parts.sum);
    plain.add_(parts.plain.defined() ? parts.plain : parts.sum);
    if (block_) {
      block_->begin_backward();
    } else if (buckets_ && i + 1 == batches.size()) {  // an untied head's gradients come from the loss alone
      buckets_->begin_last_pass(architecture_.head.tied ? std::vector<size_t>() : in_head_);
    }
    if (const at::Tensor other = other_parts(i == 0, batches[i].asked_of_all, count); other.defined()) {
      ((rows.x * parts.head_input).sum() + other * scale).backward();
      sum.add_(other.detach());
    } else {
      rows.x.backward(parts.head_input);
    }
    if (block_) {
      block_->end_backward();
    }
    if (narrow_ && !buckets_) {
      collect_narrow(i == 0);
    }
  }
  if (buckets_) {
    buckets_->finish();
    if (block_) {
      block_->finish();
    }
    const at::Tensor sums = at::stack({sum, plain, numbers_.select(0, 3)});
    ranks.all_reduce(sums);
    sum = sums.select(0, 0);
    plain = sums.select(0, 1);
    numbers_.select(0, 3).copy_(sums.select(0, 2));
  } else if (!narrow_) {
    for (size_t i = 0; i < leaves_.size(); ++i) {
      gradients_[i] = leaves_[i].grad().defined() ? leaves_[i].grad() : at::zeros_like(leaves_[i]).detach();
    }
  }
  const at::NoGradGuard no_grad;
  numbers_.select(0, 0).copy_(sum.div_(static_cast<double>(count)));
  numbers_.select(0, 1).copy_(optimiser_->clip(moving_gradients(), shares_ ? ranks : Communicator()));
  numbers_.select(0, 2).copy_(plain.div_(static_cast<double>(count)));
}

Trainer::Tensors Trainer::own_gradients() const {
  Tensors own = shares_->own_of(whole_, buckets_->own_parts());
  if (block_) {
    own.merge(block_->gradients());
  }
  return own;
}

std::vector<at::Tensor> Trainer::moving_gradients() const {
  return shares_ ? values_of(own_gradients()) : gradients_;
}

// What the loss asks besides answers, times the number of targets: of the tokens at hand, and once in each step of the
// weights. Undefined where it asks nothing.
at::Tensor Trainer::other_parts(bool first, int64_t targets, int64_t count) {
  const at::Tensor uneven = company_.morph ? company_.morph->take_unevenness() : at::Tensor();
  at::Tensor sum;
  if (uneven.defined() && evenness_ > 0) {
    sum = uneven * (evenness_ * static_cast<double>(targets) / company_.ranks.size());
  }
  if (first && conditioning_ && company_.ranks.is_first()) {
    const at::Tensor penalty = conditioning_->penalty(architecture_, executor_.parameters());
    const at::Tensor asked = penalty * (conditioning_weight_ * static_cast<double>(count));
    sum = sum.defined() ? sum + asked : asked;
  }
  return sum;
}

// What is added up is added in float32.
void Trainer::collect_narrow(bool first) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> set, from;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    at::Tensor& found = leaves_[i].mutable_grad();
    if (!found.defined()) {
      continue;
    }
    if (first && std::ranges::find(in_head_, i) == in_head_.end()) {
      set.push_back(gradients_[i]);
      from.push_back(found);
    } else {
      gradients_[i].add_(found);
    }
    found.reset();
  }
  if (!set.empty()) {
    at::_foreach_copy_(set, from);
  }
}

void Trainer::run_step(const std::vector<Placed>& batches, int64_t step) {
  compute_gradients(batches, step);
  const at::NoGradGuard no_grad;
  const at::Tensor good = numbers_.narrow(0, 0, 2).isfinite().all().logical_and(numbers_.select(0, 0) <= limit_);
  stopped_.copy_(at::maximum(stopped_, good.logical_not().to(stopped_.scalar_type())));
  optimiser_->step(moving_gradients(), stopped_);
  if (company_.morph) {
    company_.morph->remeasure(masters_, stopped_);
  }
  if (shares_) {
    shares_->spread();
    return;
  }
  if (!narrow_) {
    return;
  }
  std::vector<at::Tensor> rounded, wide;
  for (const auto& [name, master] : masters_) {
    rounded.push_back(leaves_[wide.size()].detach());
    wide.push_back(master);
  }
  at::_foreach_copy_(rounded, wide);
}

std::vector<at::Tensor> Trainer::tensors_of(const Placed& batch) {
  std::vector<at::Tensor> tensors = {batch.asked, batch.targets};
  each_of(batch.inputs, [&](const at::Tensor& tensor) { return tensors.emplace_back(tensor); });
  return tensors;
}

bool Trainer::fits_recorded(const std::vector<Placed>& batches) const {
  return std::ranges::equal(batches, slots_, [](const Placed& a, const Placed& b) {
    const std::vector<at::Tensor> ours = tensors_of(a), theirs = tensors_of(b);
    return std::ranges::equal(ours, theirs, same_shape);
  });
}

// A step is recorded when the one before had the same shapes: padded batches may all have others. It then reads where
// it read when it was recorded.
void Trainer::run_recorded(std::vector<Placed> batches, int64_t step) {
  if (!fits_recorded(batches)) {
    run_step(batches, step);
    if (!recorded_) {
      slots_ = std::move(batches);
    }
    return;
  }
  if (!recorded_) {
    slots_ = std::move(batches);
    recorded_.emplace(device_, [=, this] { run_step(slots_, step); });
  } else {
    for (size_t i = 0; i < slots_.size(); ++i) {
      const std::vector<at::Tensor> into = tensors_of(slots_[i]), from = tensors_of(batches[i]);
      for (size_t j = 0; j < into.size(); ++j) {
        if (into[j].defined()) {
          into[j].copy_(from[j]);
        }
      }
    }
  }
  recorded_->replay();
}

void Trainer::begin_step(std::span<const TrainBatch> batches, const StepPlan& plan) {
  optimiser_->set_rate(plan.rate);
  limit_.fill_(plan.limit);
  numbers_.select(0, 3).fill_(plan.stop);
  std::vector<Placed> here = placed(batches);
  if (recordable_ && steps_ >= steps_before_recording) {
    run_recorded(std::move(here), plan.number);
  } else {
    run_step(here, plan.number);
  }
  ++steps_;
  if (device_.is_cpu()) {
    begun_.push_back({numbers_.clone(), std::nullopt});
    return;
  }
  const at::Tensor host = at::empty(numbers_.sizes(), at::TensorOptions(at::kDouble).pinned_memory(true));
  host.copy_(numbers_, /*non_blocking=*/true);
  c10::Event arrived(device_.type());
  arrived.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  begun_.push_back({host, std::move(arrived)});
}

StepMeasure Trainer::finish_step() {
  PARE_CHECK(!begun_.empty(), "no step was begun");
  Begun step = std::move(begun_.front());
  begun_.pop_front();
  if (step.arrived) {
    step.arrived->synchronize();
  }
  return measured(step.numbers);
}

StepMeasure Trainer::measure(std::span<const TrainBatch> batches, int64_t step) {
  compute_gradients(placed(batches), step);
  return measured(numbers_.cpu());
}

Evaluation Trainer::evaluate(const Batches& batches) const {
  const at::NoGradGuard no_grad;
  at::Tensor sum = at::zeros_like(limit_), right = at::zeros_like(limit_, at::kLong);
  int64_t count = 0;
  const Communicator& ranks = company_.ranks;
  for (int64_t first = 0; first < batches.validations(); first += ranks.size()) {
    check_interrupt();
    const int64_t number = first + ranks.rank();
    if (number >= batches.validations()) {
      if (block_) {  // the others fetch its parts of the blocks
        asked_rows(placed(batches.validation(first), {}), false);
      }
      break;
    }
    const Rows rows = asked_rows(placed(batches.validation(number), {}), false);
    const LossParts parts = cross_entropy(rows.x, head_, rows.targets, piece_);
    sum.add_(parts.sum);
    right.add_(parts.right);
    count += rows.targets.size(0);
  }
  const at::Tensor all =
      at::tensor({sum.item<double>(), right.item<double>(), static_cast<double>(count)}, at::kDouble);
  ranks.all_reduce(all);
  const double* found = all.const_data_ptr<double>();
  PARE_CHECK(found[2] > 0, "nothing to measure on");
  return {found[0] / found[2], found[1] / found[2]};
}

}  // namespace pare
