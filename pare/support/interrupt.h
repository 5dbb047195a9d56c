#pragma once
// Ctrl-C ends a job at a safe place: outputs are removed, the exit code says so.

namespace pare {

enum class InterruptNotice { shown, silent };

// The first SIGINT or SIGTERM sets a flag, and says so on stderr at once, with what a second one does: it kills. So
// does a terminal that closes (SIGHUP), unless whoever started us (nohup) has that ignored; it never counts as second.
void install_interrupt_handler(InterruptNotice notice = InterruptNotice::shown);

// Throws Interrupted once the flag is set, unless interrupts wait. Cheap: loops call it freely.
void check_interrupt();

// Whether one was seen that nothing was thrown for yet: where several processes have to end at one place.
bool interrupt_seen();

// Whether what was seen is Ctrl-C, which ends less than other signals do where people talk to a model.
bool was_ctrl_c();

// After Interrupted was caught, so that what has been done can still be saved. The next signal kills.
void forget_interrupt();

// While one stands, nothing is thrown: what is being written is finished first.
class InterruptsWait {
 public:
  InterruptsWait();
  ~InterruptsWait();
  InterruptsWait(const InterruptsWait&) = delete;
  InterruptsWait& operator=(const InterruptsWait&) = delete;
};

// While one stands, the first signal says that the job is saved before it ends.
class InterruptSaves {
 public:
  InterruptSaves();
  ~InterruptSaves();
  InterruptSaves(const InterruptSaves&) = delete;
  InterruptSaves& operator=(const InterruptSaves&) = delete;
};

}  // namespace pare
