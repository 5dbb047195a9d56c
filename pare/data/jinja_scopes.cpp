// Names that a block hides. jinja2 decides before it runs what a name means: one that a block assigns, and has not read
// before, is undefined from the block's beginning on for what lies within, though a variable may have it too.

#include <map>
#include <set>

#include "pare/data/jinja_syntax.h"

namespace pare::jinja {

namespace {

enum class Load { outer, resolved, undefined, parameter };

class Names {
 public:
  explicit Names(const Names* outer) : outer_(outer) {}

  void load(const std::string& name) {
    if (!known(name)) {
      loads_[name] = Load::resolved;
    }
  }
  void store(const std::string& name) {
    stores_.insert(name);
    if (!loads_.contains(name)) {
      loads_[name] = known(name) ? Load::outer : Load::undefined;
    }
  }
  void declare(const std::string& name) {
    stores_.insert(name);
    loads_[name] = Load::parameter;
  }

  // What only some of several branches assign is read from outside where it was not.
  void join(const std::vector<Names>& branches) {
    const std::set<std::string> before = stores_;
    for (const Names& branch : branches) {
      for (const auto& [name, load] : branch.loads_) {
        loads_[name] = load;
      }
      stores_.insert(branch.stores_.begin(), branch.stores_.end());
    }
    for (const std::string& name : stores_) {
      if (!before.contains(name)) {
        loads_[name] = outer_ != nullptr && outer_->known(name) ? Load::outer : Load::resolved;
      }
    }
  }

  std::vector<std::string> hidden() const {
    std::vector<std::string> names;
    for (const auto& [name, load] : loads_) {
      if (load == Load::undefined) {
        names.push_back(name);
      }
    }
    return names;
  }

 private:
  bool known(const std::string& name) const {
    return loads_.contains(name) || (outer_ != nullptr && outer_->known(name));
  }

  const Names* outer_;
  std::map<std::string, Load> loads_;
  std::set<std::string> stores_;
};

class ScopeFinder {
 public:
  // A block of its own: its names, and then those of the blocks within it.
  std::vector<std::string> frame(Statements& body, Names names) {
    std::vector<Statement*> within;
    visit(body, names, within);
    for (Statement* each : within) {
      enter(*each, names);
    }
    return names.hidden();
  }

 private:
  void enter(Statement& s, const Names& outer) {
    for (size_t n = 0; n < s.bodies.size(); ++n) {
      Names names(&outer);
      if (s.kind == StatementKind::loop && n == 0) {
        names.declare("loop");
        declare(*s.target, names);
      }
      for (const std::string& parameter : s.parameters) {
        names.declare(parameter);
      }
      if (s.kind == StatementKind::macro || s.kind == StatementKind::call) {
        for (const ExpressionPtr& each : s.defaults) {
          load(each.get(), names);
        }
      }
      s.hidden.push_back(frame(s.bodies[n], std::move(names)));
    }
  }

  void visit(Statements& body, Names& names, std::vector<Statement*>& within) {
    for (Statement& s : body) {
      visit(s, names, within);
    }
  }

  void visit(Statement& s, Names& names, std::vector<Statement*>& within) {
    switch (s.kind) {
      case StatementKind::choice:
        visit_choice(s, 0, names, within);
        return;
      case StatementKind::assign:
        load(s.value.get(), names);
        store(*s.target, names);
        return;
      case StatementKind::capture:
        store(*s.target, names);
        break;
      case StatementKind::macro:
        names.store(s.text);
        break;
      case StatementKind::with:
        for (const ExpressionPtr& each : s.defaults) {
          load(each.get(), names);
        }
        break;
      default:
        load(s.value.get(), names);
        break;
    }
    if (!s.bodies.empty()) {
      within.push_back(&s);
    }
  }

  // An elif is a choice within the branch of those that are left.
  void visit_choice(Statement& s, size_t from, Names& names, std::vector<Statement*>& within) {
    load(s.conditions[from].get(), names);
    std::vector<Names> branches(3, names);
    visit(s.bodies[from], branches[0], within);
    for (size_t n = from + 1; from == 0 && n < s.conditions.size(); ++n) {
      visit_choice(s, n, branches[1], within);
    }
    if (from == 0 && s.bodies.size() > s.conditions.size()) {
      visit(s.bodies.back(), branches[2], within);
    }
    names.join(branches);
  }

  void load(const Expression* e, Names& names) {
    if (e == nullptr) {
      return;
    }
    if (e->kind == ExpressionKind::name) {
      names.load(e->name);
    }
    for (const ExpressionPtr& part : e->parts) {
      load(part.get(), names);
    }
    for (const ExpressionPtr& each : e->arguments.positional) {
      load(each.get(), names);
    }
    for (const auto& [key, value] : e->arguments.named) {
      load(value.get(), names);
    }
  }

  void store(const Expression& target, Names& names) {
    if (target.kind == ExpressionKind::attribute) {
      names.load(target.parts[0]->name);
    } else if (target.kind == ExpressionKind::name) {
      names.store(target.name);
    } else {
      for (const ExpressionPtr& part : target.parts) {
        store(*part, names);
      }
    }
  }

  void declare(const Expression& target, Names& names) {
    if (target.kind == ExpressionKind::name) {
      names.declare(target.name);
    }
    for (const ExpressionPtr& part : target.parts) {
      declare(*part, names);
    }
  }
};

}  // namespace

std::vector<std::string> find_hidden(Statements& statements) {
  return ScopeFinder().frame(statements, Names(nullptr));
}

}  // namespace pare::jinja
