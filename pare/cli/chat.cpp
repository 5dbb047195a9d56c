// pare generate --chat: a conversation, written as the model's chat template says.

#include <fmt/format.h>
#include <poll.h>
#include <termios.h>
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
constexpr size_t longest_typed = 4095;  // Linux drops what is typed beyond it, and says nothing

// Whether the terminal hands over whole lines, as it does unless a program edits them itself.
bool reads_whole_lines() {
  termios settings = {};
  return ::tcgetattr(STDIN_FILENO, &settings) == 0 && (settings.c_lflag & ICANON) != 0;
}

constexpr const char* help = R"(/reset  begins a new conversation
/exit   ends it, as /quit and Ctrl-D do
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
    warn_of_settings(flags, stored_);
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
    } catch (const InputError& error) {
      messages_.pop_back();
      throw InputError(fmt::format("{}: {}", subject, error.what()));
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

  bool has_answered() const { return !all_.empty(); }
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
    // Until the answer is there, nobody knows what the decoder has read: it may end early, by an error too.
    const std::vector<TokenId> read = std::exchange(read_, {});
    const bool goes_on = read.size() < prompt.size() && std::equal(read.begin(), read.end(), prompt.begin());
    options_.kept = goes_on ? std::ssize(read) : 0;
    const Shown shown{.text = settings_.json ? nullptr : print_generated, .token = {}};
    all_.push_back(generate(decoder_, &tokenizer_, prompt, 0, options_, shown));
    const Generated& drawn = all_.back();
    if (drawn.finish == Finish::interrupted && drawn.tokens.empty()) {  // nothing was answered
      messages_.pop_back();
      return;
    }
    if (drawn.finish != Finish::interrupted) {  // else it stands somewhere between two layers
      read_ = prompt;
      read_.insert(read_.end(), drawn.tokens.begin(), drawn.tokens.end());
      read_.resize(static_cast<size_t>(decoder_.length()));
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
  bool first = true;
  const auto turn = [&](const std::string& text, const std::string& subject) {
    if (!std::exchange(first, false) && !terminal && !json) {
      print_generated("\n");  // an empty line between answers
    }
    hold_turn(conversation, text, subject, json, terminal);
  };
  for (const std::string& prompt : flags.prompts) {
    turn(prompt, "PROMPT");
  }
  for (int64_t number = 1; const std::optional<std::string> line = lines.next(); ++number) {
    const std::string_view command = std::string_view(*line).substr(0, line->find_last_not_of(" \t") + 1);
    if (line->empty()) {
      continue;
    }
    if (command == "/exit" || command == "/quit") {
      return;
    }
    if (command == "/help") {
      log_info(help);
    } else if (command == "/reset") {
      conversation.reset();
    } else if (terminal && line->size() >= longest_typed && reads_whole_lines()) {
      log_warning(
          fmt::format("the terminal cuts lines at {} bytes, so this message may lack its end, and is not sent: "
                      "give longer ones by a pipe",
                      with_commas(static_cast<int64_t>(longest_typed))));
    } else {
      turn(*line, terminal ? "this message" : fmt::format("line {} of stdin", number));
    }
  }
}

}  // namespace

void chat_command(const GenerateFlags& flags, const Settings& settings) {
  Conversation conversation(flags, settings);
  install_interrupt_handler(InterruptNotice::silent);  // Ctrl-C ends an answer, and that is seen
  std::exception_ptr failure;
  try {
    hold(conversation, flags, settings.json);
  } catch (const ReaderGone&) {
    return;
  } catch (...) {  // what was answered until then is handed over
    failure = std::current_exception();
    forget_interrupt();
  }
  conversation.say_what_happened_in_all();
  if (settings.json && (!failure || conversation.has_answered())) {
    nlohmann::ordered_json document = conversation.document();
    if (failure) {
      document.update(error_document(describe(failure)));
    }
    print_json(document);
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace pare
