// Every head that a family has, under the names that transformers 5.22.2 saved, with and without a class in the
// configuration; and what is said where the head is not in the file.

#include <fmt/format.h>

#include <algorithm>

#include "tests/checkpoint/family_samples.h"

using namespace pare;
using nlohmann::json;

namespace {

struct HeadSample {
  std::string type, bare, kind;
  Task task;
  std::string tensors;  // of the head alone
  json more = json::object();
  std::string prefix = "";  // of all other tensors, where it is not the family's own
};

json small(const HeadSample& sample, const std::string& kind) {
  json config = {{"model_type", sample.type}, {"hidden_size", 16}, {"num_attention_heads", 2},
                 {"num_hidden_layers", 1},    {"num_labels", 3},   {"architectures", {kind}}};
  if (!sample.more.contains("image_size")) {
    const std::string context = sample.type == "bloom" ? "seq_length"
                                : sample.type == "mpt" ? "max_seq_len"
                                                       : "max_position_embeddings";
    config.update({{context, 8}, {"vocab_size", 11}});
  }
  const auto is = [&](std::initializer_list<const char*> types) {
    return std::ranges::find(types, sample.type) != types.end();
  };
  const std::string mlp = is({"opt", "xglm"})                  ? "ffn_dim"
                          : sample.type == "falcon"            ? "ffn_hidden_size"
                          : sample.type.starts_with("gpt_neo") ? "intermediate_size"
                          : sample.type.starts_with("gpt")     ? "n_inner"
                                                               : "intermediate_size";
  if (!is({"bloom", "mpt", "openai-gpt"})) {  // which have no key for it
    config[mlp] = 20;
  }
  if (sample.type == "gptj") {
    config["rotary_dim"] = 4;
  }
  if (is({"gemma", "gemma2", "gemma3_text", "glm", "glm4", "helium", "qwen3", "seed_oss"})) {
    config["head_dim"] = 8;
  }
  if (is({"albert", "electra"})) {
    config["embedding_size"] = 6;
  }
  if (sample.type == "gpt_neo") {
    config["attention_types"] = json::parse(R"([[["local"], 1]])");
  }
  if (is({"exaone4", "gemma", "gemma2", "gemma3_text", "helium", "ministral", "mistral", "qwen2", "qwen3", "seed_oss",
          "smollm3", "stablelm"})) {
    config["num_key_value_heads"] = 2;
  }
  config.update(sample.more);
  return config;
}

// All but the head, as the bare model would be saved, under the names of a file with a head.
Weights body_of(const HeadSample& sample) {
  const Family& family = find_family(sample.type, "config.json");
  json config = small(sample, sample.bare);
  const Architecture bare = read_architecture(family, config, "config.json", std::set<std::string>{});
  Weights canonical;
  for (const TensorSpec& spec : tensor_table(bare)) {
    canonical[spec.name] = weight_of(at::randn(spec.shape, at::kFloat));
  }
  Weights body;
  for (const auto& [name, weight] : family_weights(family, bare, canonical)) {
    body[(sample.prefix.empty() ? std::string(family.base_prefix) : sample.prefix) + name] = weight;
  }
  return body;
}

std::vector<HeadSample> samples() {
  std::vector<HeadSample> all;
  struct Decoder {
    const char *type, *classes, *tokens;
    bool answers;
    const char* answers_prefix;
  };
  for (const auto& [type, classes, tokens, answers, prefix] :
       {Decoder{"llama", "Llama", "score", true, "transformer."},
        Decoder{"mistral", "Mistral", "score", true, ""},
        Decoder{"qwen2", "Qwen2", "score", true, "transformer."},
        Decoder{"qwen3", "Qwen3", "score", true, "transformer."},
        Decoder{"gemma", "Gemma", "score", false, ""},
        Decoder{"gemma2", "Gemma2", "score", false, ""},
        Decoder{"phi", "Phi", "score", false, ""},
        Decoder{"gpt2", "GPT2", "classifier", true, ""},
        Decoder{"gpt_neox", "GPTNeoX", "classifier", true, ""},
        Decoder{"falcon", "Falcon", "classifier", true, ""},
        Decoder{"gptj", "GPTJ", "", true, ""},
        Decoder{"opt", "OPT", "", true, ""},
        Decoder{"starcoder2", "Starcoder2", "score", false, ""},
        Decoder{"biogpt", "BioGpt", "classifier", false, ""},
        Decoder{"bloom", "Bloom", "classifier", true, ""},
        Decoder{"mpt", "Mpt", "classifier", true, ""},
        Decoder{"gpt_neo", "GPTNeo", "classifier", true, ""},
        Decoder{"openai-gpt", "OpenAIGPT", "", false, ""},
        Decoder{"arcee", "Arcee", "score", true, "transformer."},
        Decoder{"exaone4", "Exaone4", "score", true, "transformer."},
        Decoder{"glm", "Glm", "score", false, ""},
        Decoder{"glm4", "Glm4", "score", false, ""},
        Decoder{"gpt_bigcode", "GPTBigCode", "classifier", false, ""},
        Decoder{"hunyuan_v1_dense", "HunYuanDenseV1", "", false, ""},
        Decoder{"helium", "Helium", "score", false, ""},
        Decoder{"ministral", "Ministral", "score", true, "transformer."},
        Decoder{"nemotron", "Nemotron", "score", true, "transformer."},
        Decoder{"olmo", "Olmo", "", false, ""},
        Decoder{"olmo2", "Olmo2", "", false, ""},
        Decoder{"olmo3", "Olmo3", "", false, ""},
        Decoder{"phi3", "Phi3", "score", false, ""},
        Decoder{"seed_oss", "SeedOss", "score", true, "transformer."},
        Decoder{"smollm3", "SmolLM3", "score", true, "transformer."},
        Decoder{"stablelm", "StableLm", "score", false, ""}}) {
    const std::string name = classes, bare = name + "Model";
    all.push_back({type, bare, name + "ForSequenceClassification", Task::classifier, "score.weight 3,16"});
    if (*tokens) {
      all.push_back({type, bare, name + "ForTokenClassification", Task::token_classifier,
                     fmt::format("{0}.bias 3\n{0}.weight 3,16", tokens)});
    }
    if (answers) {
      all.push_back({type, bare, name + "ForQuestionAnswering", Task::question_answering,
                     "qa_outputs.bias 2\nqa_outputs.weight 2,16", json::object(), prefix});
    }
  }
  const std::string language_model = "lm_head.weight 11,16";
  const std::vector<HeadSample> language_models = {
      {"cohere",
       "CohereModel",
       "CohereForCausalLM",
       Task::causal_lm,
       language_model,
       {{"tie_word_embeddings", false}, {"use_qk_norm", true}}},
      {"cohere2",
       "Cohere2Model",
       "Cohere2ForCausalLM",
       Task::causal_lm,
       language_model,
       {{"tie_word_embeddings", false}}},
      {"granite",
       "GraniteModel",
       "GraniteForCausalLM",
       Task::causal_lm,
       language_model,
       {{"residual_multiplier", 0.22}, {"logits_scaling", 3}}},
      {"stablelm", "StableLmModel", "StableLmForCausalLM", Task::causal_lm, language_model, {{"qk_layernorm", true}}},
  };
  all.insert(all.end(), language_models.begin(), language_models.end());
  const std::string bert_pooler = "bert.pooler.dense.bias 16\nbert.pooler.dense.weight 16,16\n";
  const std::string next = "cls.seq_relationship.bias 2\ncls.seq_relationship.weight 2,16\n";
  const std::string predictions =
      "cls.predictions.bias 11\ncls.predictions.transform.LayerNorm.bias 16\n"
      "cls.predictions.transform.LayerNorm.weight 16\ncls.predictions.transform.dense.bias 16\n"
      "cls.predictions.transform.dense.weight 16,16\n";
  const std::string albert_pooler = "albert.pooler.bias 16\nalbert.pooler.weight 16,16\n";
  const std::string classifier = "classifier.bias 3\nclassifier.weight 3,16\n";
  const std::string answer = "qa_outputs.bias 2\nqa_outputs.weight 2,16\n";
  const std::vector<HeadSample> others = {
      {"apertus", "ApertusModel", "ApertusForTokenClassification", Task::token_classifier,
       "score.bias 3\nscore.weight 3,16"},
      {"gemma3_text", "Gemma3TextModel", "Gemma3TextForSequenceClassification", Task::classifier, "score.weight 3,16"},
  };
  const json esm_pad = {{"pad_token_id", 1}};
  const std::vector<HeadSample> encoders = {
      {"bert", "BertModel", "BertForMaskedLM", Task::masked_lm, predictions},
      {"bert", "BertModel", "BertForPreTraining", Task::masked_lm, predictions + bert_pooler + next},
      {"bert", "BertModel", "BertForNextSentencePrediction", Task::next_sentence, bert_pooler + next},
      {"bert", "BertModel", "BertForSequenceClassification", Task::classifier, bert_pooler + classifier},
      {"bert", "BertModel", "BertForTokenClassification", Task::token_classifier, classifier},
      {"bert", "BertModel", "BertForQuestionAnswering", Task::question_answering, answer},
      {"albert", "AlbertModel", "AlbertForPreTraining", Task::masked_lm,
       albert_pooler + "predictions.LayerNorm.bias 6\npredictions.LayerNorm.weight 6\npredictions.bias 11\n"
                       "predictions.dense.bias 6\npredictions.dense.weight 6,16\n"
                       "sop_classifier.classifier.bias 3\nsop_classifier.classifier.weight 3,16"},
      {"albert", "AlbertModel", "AlbertForSequenceClassification", Task::classifier, albert_pooler + classifier},
      {"albert", "AlbertModel", "AlbertForTokenClassification", Task::token_classifier, classifier},
      {"albert", "AlbertModel", "AlbertForQuestionAnswering", Task::question_answering, answer},
      {"roberta", "RobertaModel", "RobertaForSequenceClassification", Task::classifier,
       "classifier.dense.bias 16\nclassifier.dense.weight 16,16\nclassifier.out_proj.bias 3\n"
       "classifier.out_proj.weight 3,16"},
      {"roberta", "RobertaModel", "RobertaForTokenClassification", Task::token_classifier, classifier},
      {"roberta", "RobertaModel", "RobertaForQuestionAnswering", Task::question_answering, answer},
      {"electra", "ElectraModel", "ElectraForMaskedLM", Task::masked_lm,
       "generator_predictions.LayerNorm.bias 6\ngenerator_predictions.LayerNorm.weight 6\n"
       "generator_predictions.dense.bias 6\ngenerator_predictions.dense.weight 6,16\ngenerator_lm_head.bias 11"},
      {"electra", "ElectraModel", "ElectraForSequenceClassification", Task::classifier,
       "classifier.dense.bias 16\nclassifier.dense.weight 16,16\nclassifier.out_proj.bias 3\n"
       "classifier.out_proj.weight 3,16"},
      {"electra", "ElectraModel", "ElectraForTokenClassification", Task::token_classifier, classifier},
      {"electra", "ElectraModel", "ElectraForQuestionAnswering", Task::question_answering, answer},
      {"eurobert", "EuroBertModel", "EuroBertForMaskedLM", Task::masked_lm, "lm_head.weight 11,16"},
      {"eurobert", "EuroBertModel", "EuroBertForTokenClassification", Task::token_classifier, classifier},
      {"roberta-prelayernorm", "RobertaPreLayerNormModel", "RobertaPreLayerNormForMaskedLM", Task::masked_lm,
       "lm_head.bias 11\nlm_head.dense.bias 16\nlm_head.dense.weight 16,16\nlm_head.layer_norm.bias 16\n"
       "lm_head.layer_norm.weight 16"},
      {"roberta-prelayernorm", "RobertaPreLayerNormModel", "RobertaPreLayerNormForSequenceClassification",
       Task::classifier,
       "classifier.dense.bias 16\nclassifier.dense.weight 16,16\nclassifier.out_proj.bias 3\n"
       "classifier.out_proj.weight 3,16"},
      {"roberta-prelayernorm", "RobertaPreLayerNormModel", "RobertaPreLayerNormForTokenClassification",
       Task::token_classifier, classifier},
      {"roberta-prelayernorm", "RobertaPreLayerNormModel", "RobertaPreLayerNormForQuestionAnswering",
       Task::question_answering, answer},
      {"modernbert", "ModernBertModel", "ModernBertForMaskedLM", Task::masked_lm,
       "decoder.bias 11\nhead.dense.weight 16,16\nhead.norm.weight 16"},
      {"modernbert", "ModernBertModel", "ModernBertForSequenceClassification", Task::classifier,
       classifier + "head.dense.weight 16,16\nhead.norm.weight 16"},
      {"modernbert-decoder", "ModernBertDecoderModel", "ModernBertDecoderForCausalLM", Task::causal_lm,
       "decoder.bias 11\nlm_head.dense.weight 16,16\nlm_head.norm.weight 16"},
      {"modernbert-decoder", "ModernBertDecoderModel", "ModernBertDecoderForSequenceClassification", Task::classifier,
       "classifier.weight 3,16\nhead.dense.weight 16,16\nhead.norm.weight 16"},
      {"xglm",
       "XGLMModel",
       "XGLMForCausalLM",
       Task::causal_lm,
       "lm_head.weight 11,16",
       {{"tie_word_embeddings", false}}},
      {"vit",
       "ViTModel",
       "ViTForImageClassification",
       Task::classifier,
       classifier,
       {{"image_size", 8}, {"patch_size", 4}}},
      {"deit",
       "DeiTModel",
       "DeiTForImageClassification",
       Task::classifier,
       classifier,
       {{"image_size", 8}, {"patch_size", 4}}},
      {"esm", "EsmModel", "EsmForMaskedLM", Task::masked_lm,
       "lm_head.bias 11\nlm_head.dense.bias 16\nlm_head.dense.weight 16,16\nlm_head.layer_norm.bias 16\n"
       "lm_head.layer_norm.weight 16",
       esm_pad},
      {"esm", "EsmModel", "EsmForSequenceClassification", Task::classifier,
       "classifier.dense.bias 16\nclassifier.dense.weight 16,16\nclassifier.out_proj.bias 3\n"
       "classifier.out_proj.weight 3,16",
       esm_pad},
      {"esm", "EsmModel", "EsmForTokenClassification", Task::token_classifier, classifier, esm_pad},
      {"nomic_bert", "NomicBertModel", "NomicBertForMaskedLM", Task::masked_lm,
       "cls.predictions.bias 11\ncls.predictions.transform.dense.bias 16\n"
       "cls.predictions.transform.dense.weight 16,16\ncls.predictions.transform.layer_norm.bias 16\n"
       "cls.predictions.transform.layer_norm.weight 16"},
      {"nomic_bert", "NomicBertModel", "NomicBertForSequenceClassification", Task::classifier,
       "nomic_bert.pooler.dense.bias 16\nnomic_bert.pooler.dense.weight 16,16\n" + classifier},
      {"nomic_bert", "NomicBertModel", "NomicBertForTokenClassification", Task::token_classifier, classifier},
      {"gte", "GteModel", "GteForMaskedLM", Task::masked_lm,
       "lm_head.decoder.bias 11\nlm_head.dense.bias 16\nlm_head.dense.weight 16,16\nlm_head.norm.bias 16\n"
       "lm_head.norm.weight 16"},
      {"gte", "GteModel", "GteForSequenceClassification", Task::classifier,
       "gte.pooler.dense.bias 16\ngte.pooler.dense.weight 16,16\n" + classifier},
      {"gte", "GteModel", "GteForTokenClassification", Task::token_classifier, classifier},
      {"clip_text_model",
       "CLIPTextModel",
       "CLIPTextModelWithProjection",
       Task::encoder,
       "text_projection.weight 6,16",
       {{"projection_dim", 6}, {"eos_token_id", 2}}},
      {"clip_vision_model",
       "CLIPVisionModel",
       "CLIPVisionModelWithProjection",
       Task::encoder,
       "visual_projection.weight 6,16",
       {{"projection_dim", 6}, {"image_size", 8}, {"patch_size", 4}}},
  };
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

Weights stored_of(const HeadSample& sample) {
  Weights stored = body_of(sample);
  for (const auto& [name, weight] : random_weights(sample.tensors)) {
    stored[name] = weight;
  }
  return stored;
}

json without_class(json config) {
  config.erase("architectures");
  return config;
}

}  // namespace

TEST_CASE("every head of every family: what is read and written back is what was there") {
  for (const HeadSample& sample : samples()) {
    CAPTURE(sample.kind);
    const json config = small(sample, sample.kind);
    const Weights stored = stored_of(sample);
    const Opened model = open(config, stored);
    CHECK(model.architecture.task == sample.task);
    const Weights written = family_weights(*model.family, model.architecture, model.weights);
    REQUIRE(written.size() == stored.size());
    for (const auto& [name, weight] : stored) {
      CAPTURE(name);
      REQUIRE(written.contains(name));
      CHECK(at::equal(written.at(name).load(), weight.load()));
    }
    const json again = json::parse(family_config(*model.family, model.architecture).dump());
    CHECK(again["architectures"] == json{sample.kind});
    CHECK(open(again, written).architecture == model.architecture);
  }
}

TEST_CASE("a configuration without a class: the tensors say which head there is, or that there is none") {
  for (const HeadSample& sample : samples()) {
    CAPTURE(sample.kind);
    const json config = small(sample, sample.kind);
    CHECK(open(without_class(config), stored_of(sample)).architecture == open(config, stored_of(sample)).architecture);
    // As AutoModel saves it.
    const Family& family = find_family(sample.type, "config.json");
    Weights bare;
    for (const auto& [name, weight] : body_of(sample)) {
      bare[name.substr(sample.prefix.empty() ? family.base_prefix.size() : sample.prefix.size())] = weight;
    }
    const Architecture read = open(without_class(config), bare).architecture;
    CHECK(read.task == Task::encoder);
    CHECK(read == open(small(sample, sample.bare), bare).architecture);
  }
}

TEST_CASE("a language model without a class in its configuration") {
  const HeadSample llama{"llama", "LlamaModel", "LlamaForCausalLM", Task::causal_lm, "lm_head.weight 11,16"};
  CHECK(open(without_class(small(llama, llama.kind)), stored_of(llama)).architecture.task == Task::causal_lm);
  const HeadSample gpt2{"gpt2", "GPT2Model", "GPT2LMHeadModel", Task::causal_lm, ""};
  const Opened tied = open(without_class(small(gpt2, gpt2.kind)), stored_of(gpt2));  // the prefix tells
  CHECK(tied.architecture.task == Task::causal_lm);
  CHECK(tied.architecture.head.tied);
}

TEST_CASE("a head that is not in the file is said to be missing, with the way to do without") {
  for (const HeadSample& sample : samples()) {
    CAPTURE(sample.kind);
    const std::string message = refusal(small(sample, sample.kind), body_of(sample));
    CHECK(contains(message, "missing: '"));
    CHECK(contains(message, fmt::format("the file does not hold the head that architectures in config.json asks for: "
                                        "let it name {} to read the model without a head",
                                        sample.bare)));
    if (sample.prefix.empty()) {
      CHECK(refusal(small(sample, sample.bare), body_of(sample)).empty());
    }
  }
}

TEST_CASE("what the ends are") {
  const auto read = [](const char* type, const char* kind, json more = json::object()) {
    HeadSample sample{type, "", kind, Task::encoder, ""};
    sample.more = std::move(more);
    return architecture_of(small(sample, kind));
  };
  const Architecture llama = read("llama", "LlamaForSequenceClassification", {{"num_labels", 1}});
  CHECK(llama.head == Head{.classes = 1, .pool = Pool::last});
  // num_labels is 3 there, and transformers believes it over the names; without it the names count.
  const json two = {{"0", "a"}, {"1", "b"}};
  CHECK(read("llama", "LlamaForSequenceClassification", {{"id2label", two}}).head.classes == 3);
  CHECK(read("llama", "LlamaForSequenceClassification", {{"id2label", two}, {"num_labels", nullptr}}).head.classes ==
        2);
  CHECK(read("llama", "LlamaForTokenClassification").head == Head{.bias = true, .classes = 3});
  CHECK(read("llama", "LlamaForTokenClassification", {{"token_classification_bias", false}}).head ==
        Head{.classes = 3});
  CHECK(read("gpt2", "GPT2ForTokenClassification", {{"token_classification_bias", false}}).head.bias);
  CHECK(read("gpt2", "GPT2ForQuestionAnswering", {{"num_labels", 7}}).head == Head{.bias = true, .classes = 2});
  CHECK_FALSE(read("gemma2", "Gemma2ForSequenceClassification").head.softcap);
  CHECK_FALSE(read("gemma", "GemmaForTokenClassification").head.tied);

  const HeadTransform pooler{.activation = Activation::tanh};
  CHECK(read("bert", "BertForNextSentencePrediction").head == Head{.bias = true, .classes = 2, .transform = pooler});
  CHECK(read("bert", "BertForPreTraining").head.sequence == SequenceHead{.classes = 2, .transform = pooler});
  CHECK(read("albert", "AlbertForPreTraining").head.sequence == SequenceHead{.classes = 3, .transform = pooler});
  CHECK_FALSE(read("bert", "BertForMaskedLM").head.sequence);

  // OPT's projection out stands before any head.
  const Architecture opt = read("opt", "OPTForSequenceClassification", {{"word_embed_proj_dim", 6}});
  CHECK(opt.head.transform == HeadTransform{.activation = Activation::identity, .bias = false, .width = 6});
  CHECK(opt.embedding.factor == 6);
  const Architecture bare = read("opt", "OPTModel", {{"word_embed_proj_dim", 6}});
  CHECK(bare.head.transform == opt.head.transform);
  CHECK(bare.head.pool == Pool::none);
}

TEST_CASE("classes that are not supported are refused with those that are") {
  const auto refused = [](const char* type, const char* kind) {
    return message_of<InputError>([&] { architecture_of({{"model_type", type}, {"architectures", {kind}}}); });
  };
  CHECK(contains(refused("bert", "BertForMultipleChoice"),
                 "the class 'BertForMultipleChoice', which is not supported; supported are BertModel, BertForMaskedLM, "
                 "BertForNextSentencePrediction, BertForPreTraining, BertForTokenClassification, "
                 "BertForSequenceClassification, BertForQuestionAnswering"));
  CHECK(contains(refused("gpt2", "GPT2DoubleHeadsModel"),
                 "supported are GPT2LMHeadModel, GPT2ForSequenceClassification, GPT2ForTokenClassification, "
                 "GPT2ForQuestionAnswering, GPT2Model"));
  CHECK(contains(refused("opt", "OPTForTokenClassification"), "'OPTForTokenClassification', which is not supported"));
  CHECK(contains(refused("gemma", "GemmaForQuestionAnswering"), "which is not supported"));
  CHECK(contains(refused("vit", "ViTForMaskedImageModeling"), "which is not supported"));
  CHECK(contains(refused("deit", "DeiTForImageClassificationWithTeacher"), "averages what two heads say"));
  CHECK(contains(refused("dinov2", "Dinov2ForImageClassification"), "reads two vectors at once"));
  CHECK(contains(refused("dinov2_with_registers", "Dinov2WithRegistersForImageClassification"),
                 "let architectures name Dinov2WithRegistersModel"));
}

TEST_CASE("a family without such a head says so") {
  const Family& family = find_family("opt", "config.json");
  const HeadSample sample{"opt", "OPTModel", "OPTForSequenceClassification", Task::classifier, ""};
  Architecture a = architecture_of(small(sample, sample.kind));
  a.task = Task::token_classifier;
  a.head.pool = Pool::first;
  CHECK(contains(message_of<InputError>([&] { family_config(family, a); }), "task is \"token_classifier\""));
  const Family& roberta = find_family("roberta", "config.json");
  const HeadSample masked{"roberta", "RobertaModel", "RobertaForMaskedLM", Task::masked_lm, ""};
  Architecture two = architecture_of(small(masked, masked.kind));
  two.head.sequence = SequenceHead{};
  CHECK(contains(message_of<InputError>([&] { family_config(roberta, two); }), "head.sequence"));
}
