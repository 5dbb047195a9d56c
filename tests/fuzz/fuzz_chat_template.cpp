// A chat template, rendered with a short conversation.

#include <nlohmann/json.hpp>

#include "pare/data/chat_template.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return pare::fuzz(data, size, [](std::string_view bytes) {
    const nlohmann::ordered_json user = {{"role", "user"}, {"content", " Gr\u00fc\u00dfe "}},
                                 answer = {{"role", "assistant"}, {"content", "<think>a</think>b"}};
    const nlohmann::ordered_json variables = {
        {"messages", {user, answer, user}}, {"add_generation_prompt", true}, {"bos_token", "<s>"}, {"tools", nullptr}};
    pare::ChatTemplate(bytes, "fuzz").render(variables, {});
  });
}
