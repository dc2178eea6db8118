// Stands for proto/cuda/wire_hand.h in the golden tests.
struct LaunchCall {
    std::uint64_t kernel;
    std::uint32_t grid[3];
    std::uint32_t param_bytes;
};
