#pragma once
// How a model wants a conversation written: the Jinja template in its folder, rendered as transformers renders it.

#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace pare {

struct ChatMessage {
  std::string role, content;
};

class ChatTemplate {
 public:
  // InputError, with `subject` and line, where it is no template.
  ChatTemplate(std::string_view text, std::string subject);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // The text for these variables: `messages`, `add_generation_prompt`, the special tokens by their names, and whatever
  // else the template asks for. InputError where the template refuses, needs what pare does not have, or does not end.
  std::string render(const nlohmann::ordered_json& variables, const std::tm& now) const;

  const std::string& subject() const { return subject_; }

 private:
  struct Tree;
  std::string subject_;
  std::unique_ptr<Tree> tree_;
};

// A template with the special tokens of the folder that it came with.
class ChatFormat {
 public:
  // Of a folder: chat_template.jinja, else `chat_template` of tokenizer_config.json, a template or a list of named
  // ones, of which `default` is taken, else that of chat_template.json; or of a GGUF file. Where `file` is named, the
  // template is that. InputError where there is none.
  explicit ChatFormat(const std::filesystem::path& folder, const std::filesystem::path& file = {});

  // What a model reads to answer the last message.
  std::string prompt(const std::vector<ChatMessage>& messages) const;
  const std::string& subject() const { return template_.subject(); }

 private:
  ChatTemplate template_;
  std::unique_ptr<nlohmann::ordered_json> tokens_;  // bos_token and its kin
};

}  // namespace pare
