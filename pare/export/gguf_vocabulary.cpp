#include "pare/export/gguf_vocabulary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "pare/data/gguf_tokenizer.h"
#include "pare/data/json_steps.h"
#include "pare/data/scored_merges.h"
#include "pare/export/gguf_described.h"
#include "pare/support/error.h"
#include "pare/support/json.h"
#include "pare/support/names.h"

namespace pare {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view word_space = "\u2581";  // how SentencePiece writes one

// tokenizer.ggml.token_type
enum class TokenKind : int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

// ---- tokens and their kinds

struct Listed {
  std::vector<std::string> tokens;
  std::vector<TokenKind> kinds;
};

Listed listed_tokens(const DescribedTokenizer& described, int64_t rows, const std::string& unknown) {
  std::vector<std::string> tokens = described.tokens;
  std::map<TokenId, const AddedToken*> added;
  for (const AddedToken& token : described.added) {
    added[token.id] = &token;
    tokens.resize(std::max(tokens.size(), static_cast<size_t>(token.id) + 1));
  }
  refuse_if(std::ssize(tokens) > rows,
            "{}: its tokens have ids up to {}, but the model's table has {} rows: the tokenizer of another model?",
            described.subject, std::ssize(tokens) - 1, rows);
  Listed listed;
  std::set<std::string> seen;
  for (TokenId id = 0; id < rows; ++id) {
    const auto found = added.find(id);
    const bool known = id < std::ssize(tokens) && !tokens[static_cast<size_t>(id)].empty();
    std::string token = found != added.end() ? found->second->content : known ? tokens[static_cast<size_t>(id)] : "";
    TokenKind kind = TokenKind::normal;
    if (token.empty()) {  // llama.cpp counts the rows of the table by the tokens
      kind = TokenKind::unused;
      token = fmt::format("[PAD{}]", id);
    } else if (found != added.end() && token == unknown) {
      kind = TokenKind::unknown;
    } else if (found != added.end()) {
      kind = found->second->special ? TokenKind::control : TokenKind::user_defined;
    }
    refuse_if(!seen.insert(token).second,
              "{}: token {} is {}, which another one is already: llama.cpp asks for each once", described.subject, id,
              quote(token));
    listed.tokens.push_back(std::move(token));
    listed.kinds.push_back(kind);
  }
  return listed;
}

void add_listed(const Listed& listed, std::string_view model, std::string_view splitting, GgufVocabulary& vocabulary) {
  std::vector<int32_t> kinds;
  for (const TokenKind kind : listed.kinds) {
    kinds.push_back(static_cast<int32_t>(kind));
  }
  vocabulary.entries = {{"tokenizer.ggml.model", GgufKind::string, model},
                        {"tokenizer.ggml.pre", GgufKind::string, splitting},
                        {"tokenizer.ggml.tokens", GgufKind::string, listed.tokens},
                        {"tokenizer.ggml.token_type", GgufKind::i32, kinds}};
}

// ---- byte-pair encoding of bytes

// The patterns by which words are split, one after the other.
struct Words {
  std::vector<std::string> patterns;
  bool prefix_space = false;
};

Words words_of(const DescribedTokenizer& described) {
  Words words;
  for (const json& step : described_steps(described.parts, "pre_tokenizer", "pretokenizers")) {
    const std::string type = step_text(step, "type");
    if (type == "ByteLevel") {
      words.prefix_space = step_flag(step, "add_prefix_space", true);
      if (step_flag(step, "use_regex", true)) {
        words.patterns.emplace_back(gpt2_words);
      }
    } else if (type == "Digits" && step_flag(step, "individual_digits", false)) {
      words.patterns.emplace_back(R"(\p{N})");
    } else if (type == "Split" && step_text(step, "behavior") == "Isolated" && !step_flag(step, "invert", false) &&
               step.value("pattern", json::object()).contains("Regex")) {
      words.patterns.push_back(step["pattern"]["Regex"].get<std::string>());
    } else {
      throw InputError(fmt::format("{}: its texts are split by a step that no splitting of llama.cpp has: {}",
                                   described.subject, json_shown(step)));
    }
  }
  return words;
}

const GgufSplitting& splitting_for(const DescribedTokenizer& described, const Words& words, bool composed) {
  const bool whole_words = step_flag(described.parts["model"], "ignore_merges", false);
  const GgufSplitting* nearest = nullptr;
  for (const GgufSplitting& each : gguf_splittings()) {
    // Without merges each byte is its own token, however texts are split.
    const bool same = described.merges.empty() ||
                      (std::ranges::equal(each.patterns, words.patterns) && each.whole_words_first == whole_words);
    if (same && (nearest == nullptr || each.composed == composed)) {
      nearest = &each;
    }
    if (same && each.composed == composed) {
      break;
    }
  }
  refuse_if(nearest == nullptr, "{}: it splits texts by {}{}, for which pare knows no name of tokenizer.ggml.pre",
            described.subject, escaped(fmt::format("{}", fmt::join(words.patterns, ", then "))),
            whole_words ? ", and takes whole words first" : "");
  return *nearest;
}

void take_byte_pairs(const DescribedTokenizer& described, int64_t rows, GgufVocabulary& vocabulary) {
  bool composed = false;
  for (const json& step : described_steps(described.parts, "normalizer", "normalizers")) {
    refuse_if(step_text(step, "type") != "NFC",
              "{}: its normalizer {} is none that llama.cpp has for byte-pair encoding", described.subject,
              quote(step_text(step, "type")));
    composed = true;
  }
  const Words words = words_of(described);
  const GgufSplitting& splitting = splitting_for(described, words, composed);
  if (composed) {
    vocabulary.notes.emplace_back(
        "llama.cpp does not compose characters (NFC) as this tokenizer does: texts with decomposed ones have other "
        "tokens there");
  }
  vocabulary.other_when_decomposed = splitting.composed != composed;
  add_listed(listed_tokens(described, rows, step_text(described.parts["model"], "unk_token")), "gpt2",
             splitting.names.front(), vocabulary);
  json merges = json::array();
  for (const auto& [left, right] : described.merges) {
    merges.push_back(left + " " + right);
  }
  vocabulary.entries.push_back({"tokenizer.ggml.merges", GgufKind::string, merges});
  // llama.cpp looks at add_space_prefix here only where it makes text of tokens.
  vocabulary.wants_space_first = words.prefix_space;
  if (words.prefix_space) {
    vocabulary.notes.emplace_back(
        "llama.cpp puts no space before a text, as this tokenizer does: give it texts that begin with one");
  }
}

// ---- SentencePiece's

bool is_byte_token(const std::string& token) {
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
}

// Texts as SentencePiece writes them: every space is a sign, and one may come first. Whether it does.
bool puts_space_first(const DescribedTokenizer& described, GgufVocabulary& vocabulary) {
  bool first = false, signs = false;
  for (const json& step : described_steps(described.parts, "normalizer", "normalizers")) {
    const std::string type = step_text(step, "type");
    const bool prepends = type == "Prepend" && step_text(step, "prepend") == word_space;
    const bool replaces = type == "Replace" && step.value("pattern", json()) == json{{"String", " "}} &&
                          step_text(step, "content") == word_space;
    refuse_if(!prepends && !replaces, "{}: its normalizer {} is none of SentencePiece's", described.subject,
              quote(type));
    first = first || prepends;
    signs = signs || replaces;
  }
  const auto within = [](const std::string& token) { return token.find(word_space, 1) != std::string::npos; };
  for (const json& step : described_steps(described.parts, "pre_tokenizer", "pretokenizers")) {
    const std::string type = step_text(step, "type");
    const bool nothing = type == "Split" && signs && step.value("pattern", json()) == json{{"String", " "}};
    refuse_if(!nothing && (type != "Metaspace" || step_text(step, "replacement") != word_space),
              "{}: its texts are split by {}, which SentencePiece does not do", described.subject, quote(type));
    if (type == "Metaspace") {
      refuse_if(step_flag(step, "split", true) && std::ranges::any_of(described.tokens, within),
                "{}: no token goes on behind a space there, but some have one within", described.subject);
      signs = true;
      const bool older_never = !step_flag(step, "add_prefix_space", true);
      const std::string scheme = step_text(step, "prepend_scheme", older_never ? "never" : "always");
      first = first || scheme != "never";
      vocabulary.other_before_space = scheme != "never";
      if (scheme != "never") {
        vocabulary.notes.emplace_back(
            "llama.cpp puts a space before every text, also where one stands there already, and behind special tokens; "
            "this tokenizer does not");
      }
    }
  }
  refuse_if(!signs, "{}: its tokens have no sign for a space, as SentencePiece's have", described.subject);
  return first;
}

// The order of merges as scores of what they make. InputError where it is none that scores have.
std::vector<float> scores_of_merges(const DescribedTokenizer& described, const Listed& listed) {
  std::map<std::string, TokenId> ids;
  Vocabulary vocabulary;
  for (TokenId id = 0; id < std::ssize(listed.tokens); ++id) {
    ids[listed.tokens[static_cast<size_t>(id)]] = id;
    vocabulary.add(listed.tokens[static_cast<size_t>(id)], id);
  }
  std::vector<float> scores(listed.tokens.size(), 0);
  std::set<std::pair<TokenId, TokenId>> wanted;
  std::vector<bool> ranked(listed.tokens.size());
  for (const auto& [left, right] : described.merges) {
    const auto joined = static_cast<size_t>(ids.at(left + right));
    if (!ranked[joined]) {
      ranked[joined] = true;
      scores[joined] = -static_cast<float>(wanted.size() + 1);
    }
    wanted.emplace(ids.at(left), ids.at(right));
  }
  std::vector<ScoredToken> tokens;
  for (size_t id = 0; id < listed.tokens.size(); ++id) {
    // An added token that nothing is joined to is cut out of a text before anything is joined.
    const bool joins =
        listed.kinds[id] == TokenKind::normal || (listed.kinds[id] == TokenKind::user_defined && ranked[id]);
    tokens.push_back({listed.tokens[id], scores[id], joins});
  }
  std::map<std::pair<TokenId, TokenId>, int64_t> ranks;
  for (const BpeMerge& merge : scored_merges(tokens, vocabulary)) {
    refuse_if(!wanted.contains({merge.left, merge.right}),
              "{}: {} and {} are not joined there, but would be by scores, which is what GGUF has: no tokenizer of "
              "SentencePiece's",
              described.subject, quote(tokens[static_cast<size_t>(merge.left)].text),
              quote(tokens[static_cast<size_t>(merge.right)].text));
    ranks[{merge.left, merge.right}] = merge.rank;
  }
  int64_t before = -1;
  for (const auto& [left, right] : described.merges) {
    const auto rank = ranks.find({ids.at(left), ids.at(right)});
    refuse_if(rank == ranks.end() || rank->second < before,
              "{}: {} and {} are joined later than scores can say, which is what GGUF has: no tokenizer of "
              "SentencePiece's",
              described.subject, quote(left), quote(right));
    before = rank->second;
  }
  return scores;
}

void take_pieces(const DescribedTokenizer& described, int64_t rows, GgufVocabulary& vocabulary) {
  const std::string unknown = step_text(described.parts["model"], "unk_token");
  const bool first = puts_space_first(described, vocabulary);
  Listed listed = listed_tokens(described, rows, unknown);
  for (size_t id = 0; id < listed.tokens.size(); ++id) {
    listed.kinds[id] = listed.kinds[id] == TokenKind::normal && is_byte_token(listed.tokens[id]) ? TokenKind::byte
                       : listed.kinds[id] == TokenKind::normal && listed.tokens[id] == unknown   ? TokenKind::unknown
                                                                                                 : listed.kinds[id];
  }
  const std::vector<float> scores = scores_of_merges(described, listed);
  add_listed(listed, "llama", "default", vocabulary);
  vocabulary.entries.push_back({"tokenizer.ggml.scores", GgufKind::f32, scores});
  vocabulary.entries.push_back({"tokenizer.ggml.add_space_prefix", GgufKind::boolean, first});
}

// llama2.c's tokens are those, with spaces written as they are. Its first three are never read from a text, so they
// keep the names that no text has.
void take_llama2c(const DescribedTokenizer& described, int64_t rows, GgufVocabulary& vocabulary) {
  Listed listed = listed_tokens(described, rows, "");
  std::vector<float> scores = described.scores;
  scores.resize(listed.tokens.size());
  for (size_t id = 0; id < listed.tokens.size(); ++id) {
    std::string& token = listed.tokens[id];
    for (size_t at = token.find(' '); at != std::string::npos; at = token.find(' ', at)) {
      token.replace(at, 1, word_space);
    }
    listed.kinds[id] = is_byte_token(token) ? TokenKind::byte : listed.kinds[id];
  }
  listed.kinds[0] = TokenKind::unused;
  listed.kinds[1] = listed.kinds[2] = TokenKind::control;
  add_listed(listed, "llama", "default", vocabulary);
  vocabulary.entries.push_back({"tokenizer.ggml.scores", GgufKind::f32, scores});
  vocabulary.entries.push_back({"tokenizer.ggml.add_space_prefix", GgufKind::boolean, true});
}

// ---- WordPiece

void take_word_pieces(const DescribedTokenizer& described, int64_t rows, GgufVocabulary& vocabulary) {
  const std::vector<json> normal = described_steps(described.parts, "normalizer", "normalizers"),
                          split = described_steps(described.parts, "pre_tokenizer", "pretokenizers");
  const json& model = described.parts["model"];
  refuse_if(normal.size() != 1 || step_text(normal[0], "type") != "BertNormalizer" || split.size() != 1 ||
                step_text(split[0], "type") != "BertPreTokenizer" ||
                step_text(model, "continuing_subword_prefix", "##") != "##",
            "{}: WordPiece, but not BERT's normalizer, splitting and signs, which is what GGUF has", described.subject);
  const bool lower = step_flag(normal[0], "lowercase", true);
  const json accents = normal[0].value("strip_accents", json());
  refuse_if(!step_flag(normal[0], "clean_text", true) || !step_flag(normal[0], "handle_chinese_chars", true) ||
                (accents.is_boolean() && accents != lower),
            "{}: settings of its BertNormalizer that llama.cpp does not have: {}", described.subject,
            json_shown(normal[0]));
  Listed listed = listed_tokens(described, rows, "");
  for (size_t id = 0; id < listed.tokens.size(); ++id) {
    std::string& token = listed.tokens[id];
    if (listed.kinds[id] == TokenKind::normal) {
      token = token.starts_with("##") ? token.substr(2) : std::string(word_space) + token;
    }
  }
  add_listed(listed, "bert", "default", vocabulary);
  vocabulary.entries.push_back({"tokenizer.ggml.normalizer.lowercase", GgufKind::boolean, lower});
  vocabulary.notes.push_back(fmt::format(
      "llama.cpp splits words of more than {} letters too, takes vertical tabs and form feeds for spaces, and knows "
      "other marks and signs than this tokenizer: texts with these have other tokens there",
      model.value("max_input_chars_per_word", json(100)).dump()));
}

}  // namespace

GgufVocabulary gguf_vocabulary(const Tokenizer& tokenizer, const fs::path& file, int64_t rows) {
  const DescribedTokenizer described = described_tokenizer(tokenizer, file);
  GgufVocabulary vocabulary{.added = described.added};
  if (!described.scores.empty()) {
    take_llama2c(described, rows, vocabulary);
    return vocabulary;
  }
  const json& model = described.parts["model"];
  const std::string type = step_text(model, "type", described.merges.empty() ? "WordPiece" : "BPE");
  const std::vector<json> split = described_steps(described.parts, "pre_tokenizer", "pretokenizers");
  const bool bytes =
      std::ranges::any_of(split, [](const json& each) { return step_text(each, "type") == "ByteLevel"; });
  if (type == "BPE" && bytes) {
    take_byte_pairs(described, rows, vocabulary);
  } else if (type == "BPE" && step_flag(model, "byte_fallback", false)) {
    take_pieces(described, rows, vocabulary);
  } else if (type == "WordPiece") {
    take_word_pieces(described, rows, vocabulary);
  } else {
    throw InputError(
        fmt::format("{}: {}{} is no kind that GGUF has: byte-level BPE, SentencePiece's BPE with bytes for "
                    "what is unknown, BERT's WordPiece",
                    described.subject, type, type == "BPE" ? " without bytes" : ""));
  }
  return vocabulary;
}

}  // namespace pare
