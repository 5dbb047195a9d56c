#include "pare/claims/finished_run.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "pare/arch/count.h"
#include "pare/checkpoint/model_folder.h"
#include "pare/rewrite/rewrite.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/mapped.h"
#include "pare/support/numbers.h"
#include "pare/train/batches.h"
#include "pare/train/run_folder.h"

namespace pare {

std::vector<StoredCheckpoint> checkpoints_of(const std::filesystem::path& run) {
  const RunFolder folder(run);
  return mapped(folder.checkpoints(), [&](const int64_t step) {
    return StoredCheckpoint{step, folder.checkpoint_path(step)};
  });
}

Inputs held_out(const std::filesystem::path& run, int64_t sequences, int64_t tokens) {
  TrainConfig config = RunFolder(run).config();
  if (!config.data.validation.empty()) {
    config.data.train = config.data.validation;  // what was learned from is long, and nobody asks for it
  }
  const std::shared_ptr<const Sequences> data = open_sequences(config);
  const int64_t there = data->validation(), count = std::min(sequences, there);
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < count; ++i) {
    numbers.push_back(i * there / count);
  }
  const TrainBatch batch = data->batch(/*of_validation=*/true, numbers, /*draw=*/0);
  return each_of(batch.inputs,
                 [tokens](const at::Tensor& x) { return x.narrow(1, 0, std::min(tokens, x.size(1))).contiguous(); });
}

static int64_t bytes_of_weights(const std::filesystem::path& folder) {
  int64_t bytes = 0;
  for (const TensorFile& file : open_shards(folder).files) {
    bytes += static_cast<int64_t>(std::filesystem::file_size(file.path()));
  }
  return bytes;
}

nlohmann::ordered_json rewritten_exactly(const std::filesystem::path& run, const std::string& passes, Dtype dtype) {
  const ModelFolder model = open_model(checkpoints_of(run).back().folder);
  const ScratchFolder scratch("rewritten");
  try {
    const Rewritten rewritten =
        rewrite(model, scratch.path() / "model",
                {.passes = passes == "auto" ? std::nullopt : std::optional(parse_passes(passes)), .dtype = dtype});
    return {{"before", count(model.model.architecture).total},
            {"after", count(rewritten.pipeline.after.architecture).total},
            {"verdict", word(rewritten.verification->verdict)},
            {"error", rewritten.verification->metrics.max_relative_logit_error},
            {"bytes", bytes_of_weights(scratch.path() / "model")}};
  } catch (const Refused& refused) {
    return {{"refused", refused.reasons.front().message}};
  } catch (const VerificationFailed& failed) {
    return {{"refused", failed.reasons.front().message}};
  }
}

std::string removed_in_words(const nlohmann::ordered_json& rewritten) {
  if (rewritten.contains("refused")) {
    return "refused";
  }
  const int64_t before = rewritten.at("before").get<int64_t>(), after = rewritten.at("after").get<int64_t>();
  return fmt::format("{} ({:.2f} %), {}, {:.0e}", with_commas(before - after),
                     100.0 * static_cast<double>(before - after) / static_cast<double>(before),
                     rewritten.at("verdict").get<std::string>(), rewritten.at("error").get<double>());
}

}  // namespace pare
