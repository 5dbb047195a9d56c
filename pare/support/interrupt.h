#pragma once
// Ctrl-C ends a job at a safe place: outputs are removed, the exit code says so.

namespace pare {

// SIGINT and SIGTERM set a flag; a second one kills at once.
void install_interrupt_handler();

// Throws Interrupted once the flag is set. Cheap: loops call it freely.
void check_interrupt();

// After Interrupted was caught, so that what has been done can still be saved. The next signal kills.
void forget_interrupt();

}  // namespace pare
