// pare generate --chat: a conversation, written as the model's chat template says.

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "pare/cli/failure.h"
#include "pare/cli/generating.h"
#include "pare/cli/output.h"
#include "pare/cli/subject.h"
#include "pare/cli/text_inputs.h"
#include "pare/data/chat_template.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/gguf.h"
#include "pare/support/interrupt.h"
#include "pare/support/log.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

constexpr size_t longest_line = 100'000'000;

constexpr const char* help = R"(/reset  begins a new conversation
/exit   ends it, as Ctrl-D does
/help   this list
Ctrl-C  ends an answer; at the prompt, or a second time, it ends the program
)";

// Messages from stdin, a line each.
class Lines {
 public:
  Lines() : terminal_(::isatty(STDIN_FILENO) == 1) {}
  bool from_terminal() const { return terminal_; }

  // None where stdin ends. Interrupted by Ctrl-C.
  std::optional<std::string> next() {
    if (terminal_) {
      put("> ");
    }
    while (true) {
      const size_t end = buffer_.find('\n');
      if (end != std::string::npos || (ended_ && !buffer_.empty())) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end == std::string::npos ? end : end + 1);
        if (line.ends_with('\r')) {
          line.pop_back();
        }
        return line;
      }
      if (ended_) {
        if (terminal_) {
          put("\n");  // behind Ctrl-D
        }
        return std::nullopt;
      }
      read_more();
    }
  }

 private:
  // stderr: stdout holds answers, or a document.
  static void put(std::string_view text) {
    if (::write(STDERR_FILENO, text.data(), text.size()) < 0) {
      return;  // nobody reads it
    }
  }

  void read_more() {
    std::array<char, 65536> bytes;
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    check_interrupt();
    if (::poll(&input, 1, -1) < 0 && errno == EINTR) {  // a read goes on after Ctrl-C, a poll does not
      if (terminal_) {
        put("\n");
      }
      check_interrupt();
      return;
    }
    const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count < 0) {
      fail_io("read", "stdin", errno);
    }
    ended_ = count == 0;
    buffer_.append(bytes.data(), static_cast<size_t>(count));
    refuse_if(buffer_.size() > longest_line, "stdin: a line of more than {}: no message is so long",
              human_bytes(longest_line));
  }

  bool terminal_, ended_ = false;
  std::string buffer_;
};

class Conversation {
 public:
  Conversation(const GenerateFlags& flags, const Settings& settings)
      : flags_(flags),
        settings_(settings),
        stored_(open_and_warn(flags.model, settings, flags.adapter)),
        tokenizer_(checked_tokenizer()),
        format_(folder_of_template(), flags.chat_template),
        options_(options_of(flags, settings, stored_)),
        decoder_(open_decoder(flags, settings, stored_)) {
    check_utf8(flags.system, "--system");
    reset();
  }

  void reset() {
    messages_.clear();
    answers_.clear();
    if (!flags_.system.empty()) {
      messages_.push_back({"system", flags_.system});
    }
  }

  // InputError, and nothing has changed, where the model cannot read it: the context is full, or the template refuses.
  void answer(const std::string& text, const std::string& subject) {
    check_utf8(text, subject);
    messages_.push_back({"user", text});
    try {
      generate_answer();
    } catch (const InputError&) {
      messages_.pop_back();
      throw;
    }
  }

  void say_how_it_ended() const {
    const Finish finish = all_.back().finish;
    if (finish == Finish::context) {
      log_warning("the context is full, so the answer ends here: /reset begins a new conversation");
    } else if (finish == Finish::max_tokens) {
      log_info("the answer ends here, by --max-tokens");
    }
  }

  bool interrupted() const { return !all_.empty() && all_.back().finish == Finish::interrupted; }
  void say_what_happened_in_all() const {
    if (!all_.empty()) {
      warn_of_missing_text(all_, tokenizer_);
      say_what_happened(all_);
    }
  }

  nlohmann::ordered_json document() const {
    nlohmann::ordered_json messages = nlohmann::ordered_json::array();
    size_t answered = 0;
    for (const ChatMessage& message : messages_) {
      nlohmann::ordered_json entry = {{"role", message.role}, {"content", message.content}};
      if (message.role == "assistant") {
        const Answer& answer = answers_[answered++];
        entry["prompt_tokens"] = answer.prompt;
        entry["kept_tokens"] = answer.kept;
        add_drawn(entry, answer.drawn);
      }
      messages.push_back(std::move(entry));
    }
    return document_around(flags_, settings_, decoder_, "messages", std::move(messages), all_);
  }

 private:
  struct Answer {
    std::vector<TokenId> prompt;
    int64_t kept = 0;
    Generated drawn;
  };

  Tokenizer checked_tokenizer() const {
    check_continues_text(stored_.model.architecture, quote(flags_.model));
    return *find_tokenizer(flags_, stored_);  // a conversation has text, so there is one
  }

  // A template comes with the tokenizer whose special tokens it writes.
  std::filesystem::path folder_of_template() const {
    return is_folder(flags_.tokenizer) || find_gguf(flags_.tokenizer) ? std::filesystem::path(flags_.tokenizer)
                                                                      : stored_.path;
  }

  void generate_answer() {
    // Special tokens in it are read as such, also those that somebody typed, and none is added: as transformers does.
    std::vector<TokenId> prompt = tokenizer_.encode(format_.prompt(messages_));
    check_ids(prompt, "the conversation", tokenizer_, stored_.model.architecture);
    refuse_if(prompt.empty(), "{}: the conversation has no tokens", format_.subject());
    refuse_if(std::ssize(prompt) > decoder_.context(),
              "the conversation has {} tokens with this message, but the model reads at most {}: nothing is dropped "
              "from it. Begin a new one (/reset), or write less",
              with_commas(std::ssize(prompt)), with_commas(decoder_.context()));
    const bool goes_on = read_.size() < prompt.size() && std::equal(read_.begin(), read_.end(), prompt.begin());
    options_.kept = goes_on ? std::ssize(read_) : 0;
    const Shown shown{.text = settings_.json ? nullptr : print_generated, .token = {}};
    all_.push_back(generate(decoder_, &tokenizer_, prompt, 0, options_, shown));
    const Generated& drawn = all_.back();
    read_ = prompt;
    read_.insert(read_.end(), drawn.tokens.begin(), drawn.tokens.end());
    read_.resize(drawn.finish == Finish::interrupted ? 0 : static_cast<size_t>(decoder_.length()));
    if (drawn.finish == Finish::interrupted) {  // somewhere between two layers
      decoder_.reset();
    }
    messages_.push_back({"assistant", drawn.text});
    answers_.push_back({std::move(prompt), options_.kept, drawn});
  }

  const GenerateFlags& flags_;
  const Settings& settings_;
  ModelFolder stored_;
  Tokenizer tokenizer_;
  ChatFormat format_;
  GenerateOptions options_;
  Decoder decoder_;
  std::vector<ChatMessage> messages_;
  std::vector<Answer> answers_;  // of the messages of the assistant
  std::vector<Generated> all_;   // also of conversations that were reset
  std::vector<TokenId> read_;    // by the decoder
};

// One message and its answer. On a terminal a conversation goes on after what went wrong.
void hold_turn(Conversation& conversation, const std::string& text, const std::string& subject, bool json,
               bool from_terminal) {
  try {
    conversation.answer(text, subject);
  } catch (const InputError& error) {
    if (!from_terminal) {
      throw;
    }
    log_warning(error.what());
    return;
  }
  if (!json) {
    print_generated("\n");
  }
  conversation.say_how_it_ended();
  if (!conversation.interrupted()) {
    return;
  }
  if (!from_terminal || !was_ctrl_c()) {
    throw Interrupted();
  }
  install_interrupt_handler(InterruptNotice::silent);
  forget_interrupt();
}

void hold(Conversation& conversation, const GenerateFlags& flags, bool json) {
  Lines lines;
  const bool terminal = lines.from_terminal();
  if (!flags.prompts.empty()) {
    hold_turn(conversation, flags.prompts.front(), "PROMPT", json, terminal);
    if (!terminal) {
      return;
    }
  }
  bool first = flags.prompts.empty();
  for (int64_t number = 1; const std::optional<std::string> line = lines.next(); ++number) {
    if (line->empty()) {
      continue;
    }
    if (*line == "/exit") {
      return;
    }
    if (*line == "/help") {
      log_info(help);
    } else if (*line == "/reset") {
      conversation.reset();
    } else {
      if (!std::exchange(first, false) && !terminal && !json) {
        print_generated("\n");  // an empty line between answers
      }
      hold_turn(conversation, *line, fmt::format("line {} of stdin", number), json, terminal);
    }
  }
}

}  // namespace

void chat_command(const GenerateFlags& flags, const Settings& settings) {
  Conversation conversation(flags, settings);
  install_interrupt_handler(InterruptNotice::silent);  // Ctrl-C ends an answer, and that is seen
  bool interrupted = false;
  try {
    hold(conversation, flags, settings.json);
  } catch (const ReaderGone&) {
    return;
  } catch (const Interrupted&) {
    interrupted = true;
    forget_interrupt();
  }
  conversation.say_what_happened_in_all();
  if (settings.json) {
    nlohmann::ordered_json document = conversation.document();
    if (interrupted) {
      document.update(error_document(describe(std::make_exception_ptr(Interrupted()))));
    }
    print_json(document);
  }
  if (interrupted) {
    throw Interrupted();
  }
}

}  // namespace pare
