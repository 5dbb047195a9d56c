#include "pare/checkpoint/unread_families.h"

#include <cstddef>
#include <iterator>

namespace pare {

namespace {

constexpr std::string_view experts = "has experts: a router chooses among MLPs for each token",
                           latent = "has latent attention, and experts",
                           two_stacks = "is an encoder with a decoder, which attends to it",
                           no_attention = "has layers without attention, whose state goes from token to token",
                           two_towers = "is two towers, for text and for images; each is read where it is saved alone",
                           multipliers = "multiplies embeddings, residuals, scores or logits by numbers of its own",
                           relative = "adds what depends on two tokens and the distance between them to its scores";

constexpr UnreadFamily unread[] = {
    {"bamba", no_attention},
    {"bart", two_stacks},
    {"clip", two_towers},
    {"dbrx", experts},
    {"deberta", relative},
    {"deberta-v2", relative},
    {"deepseek_v2", latent},
    {"deepseek_v3", latent},
    {"falcon_mamba", no_attention},
    {"gpt_oss", experts},
    {"granitemoe", experts},
    {"jamba", no_attention},
    {"led", two_stacks},
    {"llama4", experts},
    {"longformer", "attends with weights of their own from chosen tokens"},
    {"m2m_100", two_stacks},
    {"mamba", no_attention},
    {"mamba2", no_attention},
    {"marian", two_stacks},
    {"mbart", two_stacks},
    {"minicpm", multipliers},
    {"mixtral", experts},
    {"mpnet", "adds what depends on the distance between two tokens to its scores"},
    {"mt5", two_stacks},
    {"olmoe", experts},
    {"pegasus", two_stacks},
    {"phimoe", experts},
    {"qwen2_moe", experts},
    {"qwen3_moe", experts},
    {"recurrent_gemma", no_attention},
    {"rwkv", no_attention},
    {"siglip", two_towers},
    {"t5", two_stacks},
    {"umt5", two_stacks},
    {"whisper", two_stacks},
    {"xlnet", relative},
    {"zamba", no_attention},
};

static_assert([] {
  for (size_t i = 1; i < std::size(unread); ++i) {
    if (unread[i - 1].model_type >= unread[i].model_type) {
      return false;
    }
  }
  return true;
}());

}  // namespace

std::span<const UnreadFamily> unread_families() {
  return unread;
}

}  // namespace pare
