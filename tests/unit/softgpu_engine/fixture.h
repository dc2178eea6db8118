// Helpers of the engine's tests: link a text, run a kernel, evaluate an instruction on one warp.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "host-daemon/softgpu/engine/engine.h"

namespace gantry::softgpu::test {

inline constexpr const char* kHeader = ".version 9.0\n.target sm_90\n.address_size 64\n";

class TestServices : public Services {
public:
    void print(std::string_view text) override {
        const std::lock_guard lock(mutex_);
        printed += text;
    }
    void assertion_failed(std::string_view text) override {
        const std::lock_guard lock(mutex_);
        asserted += text;
    }
    std::uint64_t heap_allocate(std::uint64_t size) override {
        const auto address = reinterpret_cast<std::uint64_t>(std::malloc(size));
        lent.add(address, size);
        return address;
    }
    [[nodiscard]] const Reach& reach() const override { return lent; }
    void heap_free(std::uint64_t address) override { std::free(reinterpret_cast<void*>(address)); }
    [[nodiscard]] const TextureUnit* textures() const override { return unit; }

    std::string printed;
    std::string asserted;
    const TextureUnit* unit = nullptr;
    Reach lent;  ///< What kernels may touch; launch() adds what it is given.

private:
    std::mutex mutex_;
};

/// Packs kernel parameters at their natural alignment.
class Params {
public:
    template <typename T>
    Params& add(T value) {
        const std::size_t at = (bytes_.size() + sizeof(T) - 1) / sizeof(T) * sizeof(T);
        bytes_.resize(at + sizeof(T));
        std::memcpy(&bytes_[at], &value, sizeof(T));
        return *this;
    }
    template <typename T>
    Params& pointer(std::vector<T>& data) {
        lend(data.data(), data.size() * sizeof(T));
        return add(reinterpret_cast<std::uint64_t>(data.data()));
    }
    template <typename T, std::size_t N>
    Params& pointer(T (&data)[N]) {
        lend(data, sizeof data);
        return add(reinterpret_cast<std::uint64_t>(data));
    }
    /// The kernel may touch this memory, to which nothing else need point.
    Params& lend(const void* memory, std::size_t bytes) {
        lent_.emplace_back(reinterpret_cast<std::uint64_t>(memory), bytes);
        return *this;
    }
    [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
    void lend_to(Reach& reach) const {
        for (const auto& [begin, count] : lent_) {
            reach.add(begin, count);
        }
    }

private:
    std::vector<std::byte> bytes_;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> lent_;
};

/// A linked program with memory for its globals.
struct Loaded {
    std::unique_ptr<Program> program;
    std::vector<std::vector<std::byte>> memory;

    template <typename T>
    T* global(const std::string& name) {
        const auto index = program->find_global(name);
        return index ? reinterpret_cast<T*>(aligned(*index)) : nullptr;
    }
    [[nodiscard]] std::uint64_t aligned(std::size_t index) const {
        const auto raw = reinterpret_cast<std::uint64_t>(memory[index].data());
        return (raw + 255) / 256 * 256;
    }
};

/// Links (adding the usual header to each text), places the globals and fills them.
inline Result<Loaded> load(const std::vector<std::string>& texts) {
    std::vector<std::string> whole;
    for (const std::string& text : texts) {
        whole.push_back(kHeader + text);
    }
    std::vector<PtxSource> sources;
    for (const std::string& text : whole) {
        sources.push_back({text, {}});
    }
    Loaded loaded;
    GANTRY_ASSIGN(loaded.program, Program::link(sources));
    std::vector<std::uint64_t> addresses;
    for (const GlobalInfo& global : loaded.program->globals()) {
        loaded.memory.emplace_back(global.size_bytes + 512);
        addresses.push_back(loaded.aligned(loaded.memory.size() - 1));
    }
    GANTRY_TRY(loaded.program->place(addresses));
    for (std::uint32_t i = 0; i < addresses.size(); ++i) {
        GANTRY_TRY(loaded.program->initial_bytes(i, {reinterpret_cast<std::byte*>(addresses[i]),
                                                     loaded.program->globals()[i].size_bytes}));
    }
    return loaded;
}

inline Loaded load_or_die(const std::string& text) {
    auto loaded = load({text});
    EXPECT_TRUE(loaded.ok()) << loaded.error().to_string();
    if (!loaded.ok()) {
        std::abort();
    }
    return std::move(loaded).value();
}

inline LaunchStatus launch(const Loaded& loaded, const std::string& kernel, Dim3 grid, Dim3 block,
                           const Params& params, TestServices& services,
                           std::uint32_t dynamic_shared = 0, bool cooperative = false) {
    LaunchConfig config;
    config.grid = grid;
    config.block = block;
    config.params = params.bytes();
    config.dynamic_shared_bytes = dynamic_shared;
    config.cooperative = cooperative;
    params.lend_to(services.lent);
    for (std::size_t i = 0; i < loaded.memory.size(); ++i) {
        services.lent.add(loaded.aligned(i), loaded.program->globals()[i].size_bytes);
    }
    return run(*loaded.program, loaded.program->find_kernel(kernel).value_or(~0U), config,
               DeviceProfile{}, services);
}

inline LaunchStatus launch(const Loaded& loaded, const std::string& kernel, Dim3 grid, Dim3 block,
                           const Params& params) {
    TestServices services;
    return launch(loaded, kernel, grid, block, params, services);
}

using Lanes = std::vector<std::uint64_t>;

/// Runs `body` in one thread per input element. Before it, %rd1..3, %r1..3 and %rs1..3 hold
/// element a, b and c (%r and %rs the low part); `out` names the register that is the result:
/// %rd0, %r0, %rs0 or %p0. `i` is thread's number in %r9.
inline Lanes evaluate(const std::string& body, const std::string& out, Lanes a, Lanes b = {},
                      Lanes c = {}) {
    b.resize(a.size());
    c.resize(a.size());
    std::string take;
    if (out.substr(0, 3) == "%rd") {
        take = "mov.b64 %rd10, " + out + ";\n";
    } else if (out.substr(0, 3) == "%rs") {
        take = "cvt.u64.u16 %rd10, " + out + ";\n";
    } else if (out.substr(0, 2) == "%p") {
        take = "selp.b64 %rd10, 1, 0, " + out + ";\n";
    } else {
        take = "cvt.u64.u32 %rd10, " + out + ";\n";
    }
    const std::string text =
        ".visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 po)\n{\n"
        ".reg .pred %p<10>;\n.reg .b16 %rs<20>;\n.reg .b32 %r<40>;\n.reg .b64 %rd<40>;\n"
        ".shared .align 16 .b8 scratch[4096];\n"
        "ld.param.u64 %rd11, [pa];\nld.param.u64 %rd12, [pb];\nld.param.u64 %rd13, [pc];\n"
        "ld.param.u64 %rd14, [po];\nmov.u32 %r9, %tid.x;\nmul.wide.u32 %rd15, %r9, 8;\n"
        "add.s64 %rd11, %rd11, %rd15;\nadd.s64 %rd12, %rd12, %rd15;\n"
        "add.s64 %rd13, %rd13, %rd15;\nadd.s64 %rd14, %rd14, %rd15;\n"
        "ld.global.u64 %rd1, [%rd11];\nld.global.u64 %rd2, [%rd12];\n"
        "ld.global.u64 %rd3, [%rd13];\n"
        "cvt.u32.u64 %r1, %rd1;\ncvt.u32.u64 %r2, %rd2;\ncvt.u32.u64 %r3, %rd3;\n"
        "cvt.u16.u64 %rs1, %rd1;\ncvt.u16.u64 %rs2, %rd2;\ncvt.u16.u64 %rs3, %rd3;\n"
        "mov.u64 %rd0, 0;\nmov.u32 %r0, 0;\nmov.u16 %rs0, 0;\nsetp.ne.u32 %p0, 0, 0;\n" +
        body + "\n" + take + "st.global.u64 [%rd14], %rd10;\nret;\n}\n";
    const Loaded loaded = load_or_die(text);
    Lanes results(a.size());
    Params params;
    params.pointer(a).pointer(b).pointer(c).pointer(results);
    const LaunchStatus status =
        launch(loaded, "k", {1, 1, 1}, {static_cast<std::uint32_t>(a.size()), 1, 1}, params);
    EXPECT_TRUE(status.ok()) << status.text;
    return results;
}

template <typename To, typename From>
To bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To out;
    std::memcpy(&out, &value, sizeof out);
    return out;
}
inline std::uint64_t f32(float value) { return bits_as<std::uint32_t>(value); }
inline std::uint64_t f64(double value) { return bits_as<std::uint64_t>(value); }
inline float as_f32(std::uint64_t bits) { return bits_as<float>(static_cast<std::uint32_t>(bits)); }
inline double as_f64(std::uint64_t bits) { return bits_as<double>(bits); }

/// Numbers with many edge cases, the same in every run; `shift` makes another order.
inline Lanes sample_bits(unsigned shift) {
    static const std::uint64_t kEdges[] = {0,
                                           1,
                                           2,
                                           31,
                                           32,
                                           33,
                                           63,
                                           64,
                                           127,
                                           128,
                                           255,
                                           256,
                                           0x7fff,
                                           0x8000,
                                           0xffff,
                                           0x7fffffff,
                                           0x80000000,
                                           0xffffffff,
                                           0x100000000,
                                           0x7fffffffffffffff,
                                           0x8000000000000000,
                                           0xffffffffffffffff,
                                           0xfffffffffffffffe,
                                           0x123456789abcdef0};
    Lanes out;
    std::uint64_t state = 88172645463325252ULL;
    for (unsigned i = 0; i < 96; ++i) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.push_back(i < 48 ? kEdges[(i * (shift * 2 + 1) + shift) % 24] : state >> (shift % 3));
    }
    return out;
}

inline Lanes sample_floats(unsigned shift) {
    static const float kEdges[] = {0.0F,
                                   -0.0F,
                                   1.0F,
                                   -1.0F,
                                   0.5F,
                                   1.5F,
                                   2.5F,
                                   -2.5F,
                                   3.4e38F,
                                   -3.4e38F,
                                   1e-38F,
                                   1e-40F,
                                   -1e-42F,
                                   1e38F,
                                   1e-20F,
                                   65504.0F,
                                   65520.0F,
                                   1e-7F,
                                   16777217.0F,
                                   0.1F,
                                   3.14159F,
                                   100.25F,
                                   __builtin_inff(),
                                   -__builtin_inff()};
    Lanes out;
    std::uint64_t state = 77172645463325252ULL + shift;
    for (unsigned i = 0; i < 96; ++i) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        const float random = (static_cast<float>(state >> 40) / 8388608.0F - 1.0F) *
                             std::ldexp(1.0F, static_cast<int>(state % 41) - 20);
        out.push_back(f32(i < 48 ? kEdges[(i * (shift * 2 + 1) + shift) % 24] : random));
    }
    return out;
}

}  // namespace gantry::softgpu::test
