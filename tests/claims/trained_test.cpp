// Runs of a claim: trained once, kept as they come, judged as far as they are there.

#include "pare/claims/judged.h"

#include <doctest/doctest.h>

#include <cmath>

#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/json.h"
#include "pare/train/train.h"
#include "tests/claims/invented_runs.h"
#include "tests/support/helpers.h"

using namespace pare;

namespace {

nlohmann::json tiny_run() {
  return changed(usual_run({}), {{"steps", 4}, {"evaluate.every", 2}, {"architecture.width", 8}});
}

std::vector<PlannedRun> tiny_plan() {
  nlohmann::json run = tiny_run();
  run["architecture"]["blocks"][0]["attention"]["head_width"] = 2;
  return {{"plain", run},
          {"plain", changed(run, {{"seed", 1}})},
          {"plain", changed(run, {{"optimiser.lr", 0.01}})},
          {"narrow", changed(run, {{"architecture.blocks.*.mlp.width", 8}})}};
}

TrainedRun invented(const std::string& variant, double rate, int64_t seed, double loss) {
  TrainedRun run{.name = variant + std::to_string(rate) + std::to_string(seed), .variant = variant, .rate = rate};
  run.seed = seed;
  run.loss = loss;
  run.validation = {{0, 9}, {100, loss}};
  return run;
}

Estimate difference(const TrainedRuns& runs, const std::string& variant, const std::string& reference) {
  const auto both = at_best_rates(runs, variant, reference);
  return both ? loss_above(both->first, both->second) : Estimate();
}

}  // namespace

TEST_CASE("a run that ends at twice the least loss that it had stopped, of whichever claim, unless it classifies") {
  TrainedRun astray = invented("a", 0.001, 0, 3.1);
  astray.validation = {{0, 9}, {100, 1.5}, {200, 3.1}};
  const auto counted = [&] { return TrainedRuns({astray}, {}).best("a").has_value(); };
  CHECK_FALSE(counted());
  CHECK(TrainedRuns({astray}, {}).stopped("a").size() == 1);
  astray.classifies = true;  // sure and wrong of a few images
  CHECK(counted());
  astray.classifies = false;
  astray.loss = astray.validation[200] = 2.9;
  CHECK(counted());
}

TEST_CASE("a plan is trained once: what was kept is not trained again, and a changed configuration is another run") {
  const TemporaryFolder folder;
  int64_t steps = 0;
  Trial trial{.folder = folder.path() / "claim"};
  trial.progress = [&](const std::string&, const TrainProgress&) { ++steps; };
  std::vector<PlannedRun> plan = tiny_plan();
  const TrainedRuns first = trained_runs("some-claim", trial, plan);
  CHECK(steps == 16);
  REQUIRE(first.all().size() == 4);
  CHECK(first.missing().empty());
  CHECK(first.all()[0].validation.count(4) == 1);
  CHECK(first.all()[0].data == first.all()[3].data);  // whatever the model is
  CHECK(first.all()[0].parameters > first.all()[3].parameters);

  const TrainedRuns again = trained_runs("some-claim", trial, plan);
  CHECK(steps == 16);
  CHECK(again.all()[2].loss == first.all()[2].loss);
  CHECK(again.all()[2].validation == first.all()[2].validation);
  CHECK_FALSE(std::filesystem::exists(trial.folder / "runs" / plan[0].name()));  // weights are not kept

  plan[3].config["batch"] = 8;
  trained_runs("some-claim", trial, plan);
  CHECK(steps == 20);
  CHECK_THROWS_AS(trained_runs("another-claim", trial, plan), InputError);
  trial.scale = ClaimScale::small;
  CHECK_THROWS_AS(trained_runs("some-claim", trial, plan), InputError);
}

TEST_CASE("a run starts from the last checkpoint of another, which is trained again where it is gone") {
  const TemporaryFolder folder;
  const Trial trial{.folder = folder.path()};
  std::vector<PlannedRun> plan = {tiny_plan()[0]};
  plan.push_back({"on", changed(plan[0].config, {{"steps", 2}}), plan[0].name()});
  plan[1].look = [&](const std::filesystem::path& run) {
    CHECK(std::filesystem::exists(run / "start.json"));
    return nlohmann::ordered_json{{"looked", true}};
  };
  const TrainedRuns runs = trained_runs("some-claim", trial, plan);
  REQUIRE(runs.all().size() == 2);
  CHECK(runs.all()[1].validation.at(0) == doctest::Approx(runs.all()[0].loss).epsilon(1e-5));
  CHECK(runs.all()[1].seen.at("looked") == true);
  CHECK_FALSE(std::filesystem::exists(folder.path() / "runs" / plan[0].name()));
  plan.push_back({"further", changed(plan[0].config, {{"steps", 3}}), plan[0].name()});
  const TrainedRuns more = trained_runs("some-claim", trial, plan);
  CHECK(more.all()[2].validation.at(0) == runs.all()[1].validation.at(0));
  // The first result stands; the repetition is kept beside it, and on a CPU it is the same.
  const TrainedRuns kept = trained_runs("some-claim", trial, plan);
  CHECK(kept.all()[0].loss == runs.all()[0].loss);
  REQUIRE(kept.all()[0].repeated.size() == 1);
  CHECK(kept.all()[0].repeated[0].loss == runs.all()[0].loss);
  CHECK(kept.spread_of_repeated("cpu") == std::pair<double, int64_t>(0.0, 1));
  plan[2].from = plan[1].name();  // another start is another run
  const TrainedRuns other = trained_runs("some-claim", trial, plan);
  CHECK(other.all()[2].validation.at(0) == doctest::Approx(runs.all()[1].loss).epsilon(1e-5));
}

TEST_CASE("kept runs that contradict themselves, or saw other data than they were to, are refused") {
  const TemporaryFolder folder;
  const Trial trial{.folder = folder.path()};
  const std::vector<PlannedRun> plan = {tiny_plan()[0],
                                        tiny_plan()[3]};  // of one seed: the same data in the same order
  trained_runs("some-claim", trial, plan);
  const std::filesystem::path file = folder.path() / kept_runs_file;
  const nlohmann::json kept = parse_json(read_text_file(file, 1'000'000), "runs.json");
  const auto refused = [&](const std::function<void(nlohmann::json&)>& edit) {
    nlohmann::json edited = kept;
    edit(edited["runs"]);
    std::filesystem::remove(file);
    write_text_file(file, edited.dump());
    try {
      trained_runs("some-claim", trial, plan);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto says = [](const std::string& message, const char* part) {
    return message.find(part) != std::string::npos;
  };
  CHECK(refused([](nlohmann::json&) {}) == "");
  CHECK(says(refused([](nlohmann::json& runs) { runs[1]["data"] = "0"; }), "were to see the same data"));
  // And what is trained beside runs on other data is not kept with them.
  CHECK(says(refused([](nlohmann::json& runs) {
               runs[1]["data"] = "0";
               runs.erase(0);
             }),
             "were to see the same data"));
  CHECK(parse_json(read_text_file(file, 1'000'000), "runs.json")["runs"].size() == 1);
  CHECK(says(refused([](nlohmann::json& runs) { runs[0]["steps"] = 3; }), "it has 3 steps, its configuration 4"));
  CHECK(says(refused([](nlohmann::json& runs) { runs[0]["parameters"] = 0; }), "it has 0 parameters"));
  CHECK(says(refused([](nlohmann::json& runs) { runs[0]["loss"] = 0.5; }), "its loss is 0.5, its last validation"));
  CHECK(says(refused([](nlohmann::json& runs) { runs[0]["validation"]["4x"] = 1; }), "'4x' is no step"));
  // Evidence that is gone, or of other steps, is no evidence.
  CHECK(says(refused([](nlohmann::json& runs) { runs[0]["validation"] = nlohmann::json::object(); }), "missing"));
  CHECK(says(refused([](nlohmann::json& runs) { runs[0]["validation"]["9"] = runs[0]["loss"]; }), "from step 0 to 9"));
  CHECK(says(refused([](nlohmann::json& runs) { runs[0]["validation"].erase("4"); }), "its last validation"));
  CHECK(
      says(refused([](nlohmann::json& runs) { runs[0]["loss"] = runs[0]["validation"]["4"] = -1; }), "its loss is -1"));
  CHECK(says(refused([](nlohmann::json& runs) { runs[0]["accuracy"] = 1.7; }), "its accuracy 1.7"));
  CHECK(says(refused([](nlohmann::json& runs) { runs[0]["seconds"] = -1; }), "its time -1 s"));
  CHECK(says(refused([](nlohmann::json& runs) { runs[0]["device"] = "abacus"; }), "it ran on 'abacus'"));
  CHECK(says(refused([](nlohmann::json& runs) {
               runs[0]["repeated"] = {{{"loss", 1.5}, {"seconds", -9}}};
             }),
             "it was repeated in -9 s"));
  CHECK(says(refused([](nlohmann::json& runs) { runs[0]["repeated"] = nlohmann::json::object(); }), "as it was kept"));
  CHECK(says(refused([](nlohmann::json& runs) { runs.push_back(runs[0]); }), "has two runs called"));
  CHECK(says(refused([](nlohmann::json& runs) { runs = nullptr; }), "not what a claim keeps"));
  const Descriptor held(lock_folder(folder.path()));
  CHECK(says(refused([](nlohmann::json&) {}), "is in use: another process trains there"));
}

TEST_CASE("beyond smoke scale nothing is trained without data, nor where the time is over") {
  const TemporaryFolder folder;
  const TrainedRuns none = trained_runs("some-claim", {.scale = ClaimScale::small}, tiny_plan());
  CHECK(none.all().empty());
  CHECK(none.missing().size() == 4);
  const TrainedRuns late = trained_runs("some-claim", {.minutes = -1}, tiny_plan());
  CHECK(late.all().empty());
  std::vector<PlannedRun> plan = {{"bytes", usual_run({.scale = ClaimScale::small})}};
  const Trial trial{.scale = ClaimScale::small, .data = folder.path()};
  CHECK_THROWS_WITH_AS(trained_runs("some-claim", trial, plan), doctest::Contains("has no 'novels-train.txt'"),
                       InputError);
}

TEST_CASE("who interrupts is told how a claim goes on, and it does") {
  const TemporaryFolder folder;
  int64_t steps = 0, last_step = 100;
  std::string said;
  const auto told = [&](const std::filesystem::path& place) {
    Trial trial{.folder = place};
    trial.note = [&](const std::string& line) { said += line + "\n"; };
    trial.progress = [&](const std::string&, const TrainProgress&) {
      if (++steps == last_step) {
        throw Interrupted();
      }
    };
    said.clear();
    return trained_runs("some-claim", trial, {tiny_plan()[0]});
  };
  last_step = 2;
  CHECK_THROWS_AS(told({}), Interrupted);
  CHECK(said.find("saved after step 2: with -o FOLDER it would be kept") != std::string::npos);
  last_step = 4;
  CHECK_THROWS_AS(told(folder.path()), Interrupted);
  CHECK(said.find("saved after step 2: the same command goes on from there") != std::string::npos);
  CHECK(told(folder.path()).all().size() == 1);
  CHECK(steps == 6);  // of four, two were left
}

TEST_CASE("a run that explodes is a result") {
  nlohmann::json run = tiny_plan()[0].config;
  run["stop_above"] = 0.01;
  const TrainedRuns runs = trained_runs("some-claim", {}, {{"plain", run}});
  REQUIRE(runs.all().size() == 1);
  CHECK(runs.all()[0].stopped.find("training stopped") != std::string::npos);
  CHECK(runs.all()[0].stopped.find("/tmp") == std::string::npos);
  CHECK_FALSE(runs.best("plain"));
  CHECK(runs.stopped("plain").size() == 1);
}

TEST_CASE("variants stand at their best rate, and differ by what pairs of one seed and data do") {
  std::vector<TrainedRun> all = {invented("a", 1e-3, 0, 1.0),  invented("a", 1e-3, 1, 1.2),
                                 invented("a", 2e-3, 0, 0.5),  invented("b", 1e-3, 0, 1.15),
                                 invented("c", 1e-3, 0, 1.11), invented("c", 1e-3, 1, 1.33),
                                 invented("c", 1e-3, 2, 7)};
  const TrainedRuns runs(all, {"d"});
  const Settled a = *runs.best("a"), b = *runs.best("b"), c = *runs.best("c");
  CHECK(a.rate == 1e-3);  // one seed at another rate says nothing
  CHECK(a.loss == doctest::Approx(1.1));
  CHECK(runs.at_rates("a").size() == 2);
  CHECK(loss_above(b, a).count == 1);
  CHECK(loss_above(b, a).mean == doctest::Approx(0.15));  // of the seed that both have
  const Estimate above = loss_above(c, a);
  CHECK(above.count == 2);
  CHECK(above.mean == doctest::Approx(0.12));
  CHECK(above.half_width() == doctest::Approx(12.7062047 * 0.02 / std::sqrt(2.0) / std::sqrt(2.0)));
  CHECK(difference(runs, "c", "a").mean == above.mean);
  CHECK(difference(runs, "d", "a").count == 0);
  all[4].data = "other";  // it saw other data: no pair
  const TrainedRuns elsewhere(all, {});
  CHECK(difference(elsewhere, "c", "a").count == 1);
  CHECK_FALSE(runs.best("d"));
  const ClaimTable table = table_of(runs, {"", beside_first({"a", "b", "c", "d"})});
  CHECK(table.names == std::vector<std::string>{"a", "b", "c"});
  CHECK(std::isnan(table.rows[0][1]));
  CHECK(table.rows[1][1] == doctest::Approx(0.15));
  CHECK(std::isnan(table.rows[1][2]));  // of one pair there is no interval
  CHECK(table.rows[2][2] == doctest::Approx(above.half_width()));
  const Figure differences = differences_of_variants("", runs, {"a", "b", "c"});
  REQUIRE(differences.series.size() == 2);
  CHECK(differences.series[0].y.back() == doctest::Approx(0.15));
  CHECK(differences.series[0].spread.empty());
  CHECK(differences.series[1].y.back() == doctest::Approx(0.12));
  CHECK(differences.series[1].spread.back() == doctest::Approx(above.half_width()));
  const Figure curves = curves_of_variants("", runs, {"a", "b"});
  REQUIRE(curves.series.size() == 2);
  CHECK(curves.series[0].y.back() == doctest::Approx(1.1));  // over the seeds
}

TEST_CASE(
    "a rate that two seeds were trained at gives way to one that three were; only rates of both may be asked for") {
  std::vector<TrainedRun> all;
  for (const int64_t seed : {0, 1, 2}) {
    all.push_back(invented("a", 1e-3, seed, 1.0 + 0.01 * static_cast<double>(seed)));
    all.push_back(invented("b", 1e-3, seed, 1.5));
  }
  for (const int64_t seed : {0, 1}) {
    all.push_back(invented("a", 2e-3, seed, 0.5));
  }
  CHECK(TrainedRuns(all, {}).best("a")->rate == 1e-3);
  all.push_back(invented("a", 2e-3, 2, 0.5));
  const TrainedRuns runs(all, {});
  CHECK(runs.best("a")->rate == 2e-3);
  CHECK(difference(runs, "a", "b").mean == doctest::Approx(-1.0));
  const auto common = at_common_rates(runs, "a", "b");
  REQUIRE(common);
  CHECK(loss_above(common->first, common->second).mean == doctest::Approx(-0.49));
  CHECK(common->first.rate == 1e-3);
  CHECK_FALSE(at_common_rates(runs, "a", "d"));
}

TEST_CASE("runs that went on from different trainings of one model are no pair") {
  const auto went_on = [](const std::string& variant, int64_t seed, double start, double loss) {
    TrainedRun run = test::invented_run(variant, seed, loss);
    run.goes_on = true;
    run.validation[0] = start;
    return run;
  };
  const TrainedRuns runs({went_on("control", 0, 1.2612, 1.10), went_on("norms", 0, 1.2613, 1.11),
                          went_on("control", 1, 1.2653, 1.10), went_on("norms", 1, 1.2586, 1.30)},
                         {});
  const Estimate above = difference(runs, "norms", "control");
  CHECK(above.count == 1);
  CHECK(above.mean == doctest::Approx(0.01));
  const TrainedRuns drawn({test::invented_run("control", 1, 1.10), test::invented_run("norms", 1, 1.30)}, {});
  CHECK(difference(drawn, "norms", "control").count == 1);  // each begins as its own Architecture does
}

TEST_CASE("what the same run differs by when it is repeated is known from kept runs alone") {
  std::vector<TrainedRun> runs = {invented("g", 1e-3, 0, 1.1), invented("h", 1e-3, 0, 1.2)};
  for (TrainedRun& run : runs) {
    run.device = "cuda";
  }
  CHECK(TrainedRuns(runs, {}).spread_of_repeated("cuda").second == 0);
  runs[0].repeated = {{1.12, 1}};
  runs[1].repeated = {{1.16, 0}};
  CHECK(TrainedRuns(runs, {}).best("g")->loss == doctest::Approx(1.11));
  CHECK(difference(TrainedRuns(runs, {}), "h", "g").mean == doctest::Approx(1.18 - 1.11));  // a seed is one number
  const auto [deviation, pairs] = TrainedRuns(runs, {}).spread_of_repeated("cuda");
  CHECK(deviation == doctest::Approx(std::sqrt((0.02 * 0.02 + 0.04 * 0.04) / 4)));
  CHECK(pairs == 2);
  CHECK(TrainedRuns(runs, {}).spread_of_repeated("cpu") == std::pair<double, int64_t>(0.0, 0));
}

TEST_CASE("a run may start from a rewritten model, and runs whose data is not there wait") {
  const TemporaryFolder folder;
  std::vector<std::string> notes;
  Trial trial{.folder = folder.path() / "claim"};
  trial.note = [&](const std::string& line) { notes.push_back(line); };
  nlohmann::json run = changed(tiny_plan()[0].config, {{"architecture.final_norm", nullptr},
                                                       {"architecture.blocks.*.attention.norm", nullptr},
                                                       {"architecture.blocks.*.mlp.norm", nullptr}});
  const int64_t neurons = run["architecture"]["blocks"][0]["mlp"]["width"].get<int64_t>();
  const nlohmann::json wide = changed(run, {{"architecture.blocks.*.mlp.skip", false},
                                            {"architecture.blocks.*.mlp.width", neurons + 16},
                                            {"evaluate.every", 1}});
  PlannedRun widened{.variant = "wide", .config = wide};
  widened.from = "plain-lr0.001-seed0";
  widened.passes = "absorb_skip{widen=true}";
  const PlannedRun elsewhere{.variant = "text", .config = changed(run, {{"data.tokenizer", "no-such-model"}})};
  const TrainedRuns runs = trained_runs("some-claim", trial, {{"plain", run}, widened, elsewhere});
  REQUIRE(runs.all().size() == 2);
  CHECK(runs.missing() == std::vector<std::string>{elsewhere.name()});
  CHECK(std::count_if(notes.begin(), notes.end(), [](const std::string& line) {
          return line.find("no 'no-such-model' in") != std::string::npos;
        }) == 1);
  // The same function in more neurons: what is measured before the first step is what the other ended with.
  CHECK(runs.all()[1].validation.at(0) == doctest::Approx(runs.all()[0].loss).epsilon(1e-5));
  CHECK(runs.all()[1].parameters > runs.all()[0].parameters);
  CHECK_FALSE(std::filesystem::exists(trial.folder / "runs" / (widened.name() + "-start")));
  trial.folder = folder.path() / "another";
  CHECK_THROWS_WITH_AS(trained_runs("some-claim", trial, {elsewhere}), doctest::Contains("has no 'no-such-model'"),
                       InputError);
}
