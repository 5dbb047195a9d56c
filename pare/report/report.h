#pragma once
// What a command found, as one HTML file to look at: verdicts first, then figures, each with its numbers.
//
// A Report is plain data: what was measured, in words and numbers. How that is drawn is the business of to_html and the
// assets beside it. docs/report.md says how a page is read, and specifies its JSON.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace pare {

enum class Tone { good, fair, bad, neutral };  // the colour that a verdict has

struct ReportVerdict {
  std::string name;    // what was asked: "Rank collapse"
  std::string word;    // the answer: "none"
  std::string number;  // what decides it: "effective rank 31.2 of 48 after the last layer"
  std::string words;   // what that means, in a sentence; may be empty
  Tone tone = Tone::neutral;
};

struct FigureAxis {
  std::string words;  // what is measured: "attention entropy"
  std::string unit;   // "nats"; empty where there is none
  bool log = false;
  std::vector<std::string> names;     // of places that are no numbers: heads, tensors
  std::optional<double> least, most;  // what this quantity cannot be below or above: no band goes there
};

// One line, or set of bars or points. What is not a number is a gap.
struct Series {
  std::string name;
  std::vector<double> x;  // where the axis has names, their places: 0, 1, ...
  std::vector<double> y;
  std::vector<double> spread;       // the standard deviation of each y; empty: none is known
  std::vector<std::string> labels;  // shown with each point; empty: none
  std::optional<double> order;      // where series are steps of something, such as layers: which
};

// One heat map: rows go with the names of y, columns with those of x.
struct Panel {
  std::string name;
  std::vector<std::vector<double>> values;
};

// A straight line across a figure, at a value of y, to hold the data against.
struct Mark {
  std::string name;
  double value = 0;
};

// lines: with bands of their spread; they join numbers, never names. bars: lying, one row for each name of x. heat_map:
// a table of two different things, such as heads and layers; matrix: one of a thing with itself. Of several panels one
// is shown at a time.
enum class FigureKind { lines, bars, scatter, heat_map, matrix };

struct Figure {
  FigureKind kind = FigureKind::lines;
  std::string title;  // what is measured, in words
  std::string words;  // how to read it
  FigureAxis x, y;
  FigureAxis value;            // what the colours of a heat map mean; its names are not used
  std::vector<Series> series;  // of lines, bars and points
  std::string order_words;     // what the order of the series counts: "layer"
  std::vector<Panel> panels;   // of heat maps and matrices
  std::string panel_words;     // what the panels differ in: "layer"
  std::vector<Mark> marks;
};

// A table that is no figure's: words, and numbers in words.
struct ReportTable {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

struct ReportSection {
  std::string title;
  std::string words;
  std::vector<Figure> figures;
  std::vector<ReportTable> tables;
  std::string command = {};  // for a shell; may be empty
};

struct Fact {
  std::string name, value;  // "command", "pare audit gpt2"
};

struct Report {
  std::string title;
  std::string summary;            // one sentence
  std::string partial;            // why it is not whole; empty where it is
  std::vector<Fact> measured;     // with what, of what, when
  std::vector<Fact> fingerprint;  // SHA-256 of every file
  std::vector<ReportVerdict> verdicts;
  std::vector<ReportSection> sections;
};

// One file that needs no other and no network. Nothing that is said in it is trusted: names come from files. Where the
// charting library was not there when pare was built, it has the tables alone and says so. InternalError where the
// numbers of a figure do not fit each other.
std::string to_html(const Report& report);

bool reports_have_plots();

// The data of a figure, as the page has it; gaps are null.
nlohmann::ordered_json to_json(const Figure& figure);

}  // namespace pare
