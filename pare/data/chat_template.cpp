#include "pare/data/chat_template.h"

#include <nlohmann/json.hpp>

#include "pare/data/jinja_evaluator.h"
#include "pare/data/tokens_beside.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/gguf.h"
#include "pare/support/names.h"

namespace pare {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t largest_template = 4'000'000;

// A template, or a list of named ones; empty where there is none.
std::string template_in(const json& settings, const fs::path& path) {
  const json found = settings.value("chat_template", json());
  if (found.is_null() || found.is_string()) {
    return found.is_string() ? found.get<std::string>() : "";
  }
  std::vector<std::string> names;
  for (const json& each : found.is_array() ? found : json::array()) {
    const json name = each.is_object() ? each.value("name", json()) : json();
    const json text = each.is_object() ? each.value("template", json()) : json();
    refuse_if(!name.is_string() || !text.is_string(),
              "{}: an entry of chat_template has no name or no template, expected both as strings", path.string());
    if (name == "default") {
      return text.get<std::string>();
    }
    names.push_back(quote(name.get<std::string>()));
  }
  throw InputError(fmt::format(
      "{}: chat_template is {}, expected a template or a list of named ones with a 'default'", path.string(),
      found.is_array() ? fmt::format("a list of {}", fmt::join(names, ", ")) : found.type_name()));
}

ChatTemplate template_of(const fs::path& folder, const fs::path& file) {
  const fs::path plain = file.empty() ? folder / "chat_template.jinja" : file;
  if (!file.empty() || path_exists(plain)) {
    return ChatTemplate(read_text_file(plain, largest_template), plain.string());
  }
  for (const char* const name : {"tokenizer_config.json", "chat_template.json"}) {
    const fs::path path = find_gguf(folder).value_or(folder / name);
    const std::string text = template_in(settings_in(path), path);
    if (!text.empty()) {
      return ChatTemplate(text, fmt::format("{}: chat_template", path.string()));
    }
  }
  const char* const places = find_gguf(folder) ? "tokenizer.chat_template in its metadata"
                                               : "chat_template.jinja, tokenizer_config.json and chat_template.json";
  throw InputError(
      fmt::format("{} has no chat template, so nobody knows how it wants a conversation written; looked for "
                  "{}. Name one with --chat-template FILE, or let the model continue a text: pare generate {} \"...\"",
                  quote(folder.string()), places, folder.string()));
}

}  // namespace

struct ChatTemplate::Tree {
  jinja::Tree tree;
};

ChatTemplate::ChatTemplate(std::string_view text, std::string subject)
    : subject_(std::move(subject)), tree_(new Tree{jinja::parse_template(text, subject_)}) {}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::string ChatTemplate::render(const nlohmann::ordered_json& variables, const std::tm& now) const {
  try {
    return jinja::Evaluator(subject_, variables, now).render(tree_->tree);
  } catch (const jinja::Problem& problem) {  // of a variable
    throw InputError(fmt::format("{}: {}", subject_, escaped(problem.what())));
  }
}

ChatFormat::ChatFormat(const fs::path& folder, const fs::path& file)
    : template_(template_of(folder, file)), tokens_(new nlohmann::ordered_json(named_tokens(folder))) {}

std::string ChatFormat::prompt(const std::vector<ChatMessage>& messages) const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages) {
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  nlohmann::ordered_json variables = *tokens_;
  variables.update(
      {{"messages", std::move(list)}, {"tools", nullptr}, {"documents", nullptr}, {"add_generation_prompt", true}});
  const std::time_t seconds = std::time(nullptr);
  std::tm now = {};
  localtime_r(&seconds, &now);
  return template_.render(variables, now);
}

}  // namespace pare
