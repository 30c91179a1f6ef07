// Ctrl-C as a question to ask, so that what has been measured is still reported.
#pragma once

namespace packrnn::bench {

/// From now on the first SIGINT only sets interrupted(); the second ends the program.
void catch_interrupt();
bool interrupted() noexcept;

}  // namespace packrnn::bench
