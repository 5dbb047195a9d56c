// Lesson 4: what is in a model folder, and the last step of the model done by hand.
//
//   example_04_read_a_model_by_hand MODEL TOKEN...
//
// A language model of any family: its Architecture says what it is, its weights can be had one by one under our names,
// and an Executor runs it.

#include <ATen/ATen.h>

#include <exception>
#include <iostream>

#include "pare/checkpoint/model_folder.h"
#include "pare/model/executor.h"

int main(int count, char** words) try {
  if (count < 3) {
    std::cerr << "usage: example_04_read_a_model_by_hand MODEL TOKEN...\n";
    return 1;
  }
  // What the files hold, under the names that they use ...
  std::cout << pare::open_weights(words[1]).size() << " tensors in the files\n";
  // ... and what it means, under ours.
  const pare::ModelFolder folder = pare::open_model(words[1]);
  const pare::Model& model = folder.model;
  std::cout << "family " << folder.family << ", " << pare::layer_blocks(model.architecture).size() << " layers\n";
  for (const auto& [name, weight] : model.weights) {
    std::cout << name << " " << at::IntArrayRef(weight.shape()) << "\n";
  }

  std::vector<int64_t> tokens;
  for (int n = 2; n < count; ++n) {
    tokens.push_back(std::stoll(words[n]));
  }
  const at::InferenceMode inference;
  const pare::Executor executor(model, at::kDouble);
  const pare::Outputs outputs = executor.forward({.ids = at::tensor(tokens).unsqueeze(0)});
  const at::Tensor logits = outputs.logits[0][-1];
  std::cout << "next token " << logits.argmax().item<int64_t>() << " of " << logits.size(0) << ", logit "
            << logits.max().item<double>() << "\n";

  // The head alone: the last hidden state times the table, which is the token table where the two are tied.
  const char* table = model.architecture.head.tied ? "embed.token.weight" : "head.weight";
  const at::Tensor by_hand = at::mv(model.weights.at(table).load().to(at::kDouble), outputs.hidden[0][-1]);
  std::cout << "by hand " << (at::allclose(by_hand, logits, 1e-12, 1e-12) ? "the same" : "something else") << "\n";
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
