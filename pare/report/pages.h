#pragma once
// What the commands find out, each as a page.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "pare/report/origin.h"

namespace pare {

struct Audit;          // pare/audit/audit.h
struct Bench;          // pare/bench/bench.h
struct ProbeResults;   // pare/probes/probe_results.h
struct RunComparison;  // pare/train/compare.h
struct SurveyRow;      // pare/audit/survey.h
struct Verification;   // pare/verify/verify.h

// `described`, `reference` and `candidate` come from describe_files.

// Where parameters are, which are redundant, what each pass takes, and why others refuse. `described` is null where
// there is no model folder, but a preset.
Report audit_report(const std::string& name, const Audit& audit, const nlohmann::ordered_json& described,
                    const ReportOrigin& origin);

// How fast models run: against the first of them and against a plain read, round by round.
Report bench_report(const Bench& bench, const ReportOrigin& origin);

// Training runs side by side: the table of losses, and the curves with the spread of the seeds.
Report compare_report(const RunComparison& comparison, const ReportOrigin& origin);

// A verdict for each collapse, then ranks, entropy, heads, angles, spectra and widths. `inputs`: what the sequences
// were.
Report probe_report(const std::string& name, const ProbeResults& results, const nlohmann::ordered_json& described,
                    const std::string& inputs, const ReportOrigin& origin);

// Models side by side: what each can lose, and what stands in the way of more.
Report survey_report(const std::vector<SurveyRow>& rows, const ReportOrigin& origin);

// A comparison of two models: the verdict, layer by layer, row by row, tensor by tensor.
Report verify_report(const nlohmann::ordered_json& reference, const nlohmann::ordered_json& candidate,
                     const std::string& input_kind, const Verification& verification, const ReportOrigin& origin);

}  // namespace pare
