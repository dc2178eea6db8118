// What a worker sends to gantryd is hostile: its guest may have taken it over.
#include "tests/fuzz/worker_packets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    gantry::supervisor::run_hostile_worker({data, size});
    return 0;
}
