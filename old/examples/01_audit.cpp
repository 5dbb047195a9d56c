// Lesson 1: what a model costs, and what it could do without.
//
//   example_01_audit MODEL
//
// An audit is a value. Print it as the command does, or look at the numbers behind the tables.

#include <exception>
#include <iostream>

#include "pare/audit/audit.h"

int main(int count, char** words) {
  if (count != 2) {
    std::cerr << "usage: example_01_audit MODEL\n";
    return 1;
  }
  try {
    // Reads names, types and shapes; the weights are read when somebody asks for them.
    const pare::ModelFolder model = pare::open_model(words[1]);
    for (const std::string& warning : model.warnings) {  // the library never prints: this is for us to do
      std::cerr << "warning: " << warning << "\n";
    }

    const pare::Audit audit = pare::audit_model(model);
    std::cout << pare::text_of(audit);

    for (const pare::PassStep& step : audit.passes.alone) {
      std::cout << step.call.pass->id << ": ";
      if (step.proposal.applies) {
        std::cout << step.saved_parameters << " of " << audit.parameters << " parameters can go\n";
      } else {
        std::cout << "refuses\n";
      }
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
