#pragma once
// A model that is being trained: its weights, their gradients and the optimiser. Knows nothing of files and of time.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pare/checkpoint/model.h"
#include "pare/model/device_graph.h"
#include "pare/model/executor.h"
#include "pare/train/batches.h"
#include "pare/train/conditioning.h"
#include "pare/train/config.h"
#include "pare/train/gradient_buckets.h"
#include "pare/train/held_block.h"
#include "pare/train/loss.h"
#include "pare/train/morph.h"
#include "pare/train/optimiser.h"
#include "pare/train/teacher.h"
#include "pare/train/weight_shares.h"

namespace pare {

struct StepMeasure {
  double loss = 0, gradient_norm = 0;
  double cross_entropy = 0;  // the loss without what a teacher and a morph add
  bool stop = false;         // some rank was asked to
};

struct Evaluation {
  double loss = 0, accuracy = 0;  // means over all targets
};

// Who else has a say; nobody where they are empty.
struct TrainCompany {
  std::shared_ptr<const Morph> morph;  // the start is a model of its plan.from
  std::shared_ptr<const Teacher> teacher;
  Communicator ranks;  // each is given all batches, and computes its share of their rows
  int64_t bucket = usual_bucket;
};

at::ScalarType arithmetic_of(TrainDtype dtype);

struct StepPlan {
  double rate = 0;
  int64_t number = 0;                                      // decides what dropout leaves out
  double limit = std::numeric_limits<double>::infinity();  // the largest loss after which the weights still move
  bool stop = false;                                       // this rank was asked to: all learn of it with the step
};

class Trainer {
 public:
  Trainer(const TrainConfig& config, const Model& start, at::Device device, TrainCompany company = {});

  // One step: the mean loss over all targets of the batches, its gradients, clipped, and the weights move. They do not,
  // nor in any later step, from where the loss or a gradient is no number or the loss is above the limit: what went
  // wrong can still be looked at. A GPU is handed the work and nobody waits for it.
  void begin_step(std::span<const TrainBatch> batches, const StepPlan& plan);
  // What the earliest step measured that was begun and not finished; waits for it.
  StepMeasure finish_step();

  // The same loss and gradients, of which nothing moves. `step` decides what dropout leaves out.
  StepMeasure measure(std::span<const TrainBatch> batches, int64_t step = 0);

  Evaluation evaluate(const Batches& batches) const;

  // As it is now, on the CPU: float32 where the arithmetic is narrower.
  Model model() const;
  // What the next step depends on besides the weights: the optimiser's, and the constants of a morph.
  Weights state() const;
  void restore(const Weights& state, int64_t steps);
  // Whether tensors of model(), state() and gradients() are put together from several ranks when they are loaded: all
  // ranks then load the same ones in the same order.
  bool shared() const { return shares_ != nullptr; }

  const Executor& executor() const { return executor_; }
  at::Device device() const { return device_; }
  const GradientBuckets* buckets() const { return buckets_ ? &*buckets_ : nullptr; }  // none where it is alone
  std::map<std::string, at::Tensor> gradients() const;                                // by name, of the last step

 private:
  using Tensors = std::map<std::string, at::Tensor>;
  struct Rows {
    at::Tensor x, targets, teacher;
  };
  // A batch on the device, with the numbers of the rows that are asked for: no shape of a step is the device's to know.
  struct Placed {
    Inputs inputs;
    at::Tensor asked, targets;  // asked is undefined where every row is
    int64_t asked_of_all = 0;   // targets on all ranks
  };
  struct Begun {
    at::Tensor numbers;  // what a StepMeasure has, on its way to the CPU
    std::optional<c10::Event> arrived;
  };
  void share_out(const TrainConfig& config, const WeightShares::Start& start);
  Weight stored(const std::string& name, const std::string& of, const at::Tensor& here) const;
  Placed placed(const TrainBatch& batch, const Communicator& ranks) const;
  std::vector<Placed> placed(std::span<const TrainBatch> batches) const;
  static std::vector<at::Tensor> tensors_of(const Placed& batch);
  Rows asked_rows(const Placed& batch, bool taught, Dropout* dropout = nullptr) const;
  LossParts loss_of(const Rows& rows, double scale);
  void clear_gradients();
  Tensors outside_blocks() const;  // the leaves that are held whole: all, unless blocks are held one at a time
  Tensors own_gradients() const;   // where weights are shared: of the stretches that this rank moves
  std::vector<at::Tensor> moving_gradients() const;  // in the order of the masters
  void compute_gradients(const std::vector<Placed>& batches, int64_t step);
  at::Tensor other_parts(bool first, int64_t targets, int64_t count);
  void collect_narrow(bool first);
  void run_step(const std::vector<Placed>& batches, int64_t step);
  bool fits_recorded(const std::vector<Placed>& batches) const;
  void run_recorded(std::vector<Placed> batches, int64_t step);

  TrainCompany company_;
  DistillationConfig distillation_;
  double conditioning_weight_;
  std::optional<ConditioningLoss> conditioning_;
  double evenness_;
  Architecture architecture_;
  Weights indices_;  // pivots, which no optimiser moves
  at::Device device_;
  bool narrow_;
  std::shared_ptr<WeightShares> shares_;  // of several ranks, where each moves a part of the weights
  std::unique_ptr<HeldBlock> block_;      // where they hold only parts of the blocks
  Executor executor_;
  Tensors masters_;   // what is moved: the executor's own weights, or wider ones that are rounded into it; or a share
  size_t whole_ = 0;  // in the shares: what lies on every rank
  std::vector<at::Tensor> leaves_;     // of the executor, in the order of their names; no block's where one is held
  std::vector<at::Tensor> gradients_;  // in the same order, in the type in which weights are moved
  std::vector<size_t> in_head_;        // those that the loss adds to before autograd does
  std::optional<GradientBuckets> buckets_;
  LossHead head_;
  HeadGradients head_gradients_;
  int64_t piece_;
  DropoutRates dropout_;
  int64_t seed_;
  std::optional<AdamW> optimiser_;
  at::Tensor numbers_, limit_, stopped_;  // on the device: what a step measured, what it may, whether one was bad
  std::deque<Begun> begun_;
  bool recordable_;  // whether every step has the same shapes, on a device that can repeat one as a whole
  int64_t steps_ = 0;
  std::vector<Placed> slots_;  // where the recorded step reads
  std::optional<DeviceGraph> recorded_;
};

}  // namespace pare
