// Waiting for what other threads of the block do to shared memory.
#pragma once

namespace emulate {

// Lets others go on, until one of them has called made_progress; a block in which nobody does is
// reported as a deadlock.
void poll();
void made_progress();

}  // namespace emulate
