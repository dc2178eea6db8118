// Seeded fuzzing of generated dispatch by the table's own grammar: plausible commands with wrong
// lengths, hostile values and truncated tails. Under the sanitizer presets it finds reads and
// writes out of bounds; everywhere it checks that dispatch always comes back.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "proto/cuda/gen/driver_api_table.h"
#include "proto/cuda/gen/fuzz_grammar.h"
#include "proto/cuda/gen/op_table.h"
#include "proto/cuda/gen/worker_dispatch.h"
#include "tests/conformance/cuda_table/probe.h"

namespace gantry {
namespace {

using cuda::CommandField;
using cuda::CommandGrammar;
using cuda::FieldRole;
using cuda::HandleKind;

/// Accepts every handle and every object, so that fuzzed commands get as deep as they can.
struct OpenContext : worker::CallContext {
    driver::DriverApi api;
    std::uint64_t recipe_bytes = 0;
    std::uint64_t malformed_count = 0;

    const driver::DriverApi& driver() override { return api; }
    CUresult resolve(HandleKind, std::uint64_t handle, std::uint64_t* native) override {
        *native = handle;
        return CUDA_SUCCESS;
    }
    CUresult guest_handle(HandleKind, std::uint64_t native, std::uint64_t* handle) override {
        *handle = native;
        return CUDA_SUCCESS;
    }
    CUresult device(std::int32_t guest, std::int32_t* native) override {
        *native = guest;
        return CUDA_SUCCESS;
    }
    CUresult reserve(HandleKind, std::uint64_t) override { return CUDA_SUCCESS; }
    CUresult bind(HandleKind, std::uint64_t, std::uint64_t, const worker::Recipe& recipe) override {
        keep(recipe);
        return CUDA_SUCCESS;
    }
    CUresult name(HandleKind, std::uint64_t new_handle, std::uint64_t, const worker::Recipe& recipe,
                  std::uint64_t* handle) override {
        keep(recipe);
        *handle = new_handle;
        return CUDA_SUCCESS;
    }
    void unbind(HandleKind, std::uint64_t) override {}
    void configured(HandleKind, std::uint64_t, const worker::Recipe& recipe) override {
        keep(recipe);
    }
    CUresult unsupported(cuda::Op) override { return CUDA_ERROR_NOT_SUPPORTED; }
    CUresult malformed(cuda::Op, const char*) override {
        ++malformed_count;
        return CUDA_ERROR_INVALID_VALUE;
    }

private:
    void keep(const worker::Recipe& recipe) {  // Touches every byte that a worker would keep.
        for (const std::byte byte : recipe.args) {
            recipe_bytes += static_cast<std::uint64_t>(byte);
        }
        recipe_bytes += recipe.trailing.size();
    }
};

struct Sink : worker::Reply {
    std::uint64_t bytes = 0;
    void fixed(std::span<const std::byte> part) override { bytes += part.size(); }
    void trailing(std::span<const std::byte> part) override { bytes += part.size(); }
};

/// Every entry of the driver table says yes and touches nothing: the probe library's entry points,
/// each with its own signature, told to.
driver::DriverApi obliging_driver() {
    driver::DriverApi api;
    void* const library = dlopen(GANTRY_PROBE_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr || api.load(library) != sizeof api / sizeof(void*)) {
        ADD_FAILURE() << "the probe library lacks entry points: " << GANTRY_PROBE_LIBRARY;
        return {};
    }
    int oblige = kProbeOblige;
    EXPECT_EQ(api.cuDriverGetVersion(&oblige), CUDA_SUCCESS);
    return api;
}

std::uint64_t field_value(const CommandField& field, std::mt19937_64& random) {
    static constexpr std::uint64_t kEdges[] = {0,
                                               1,
                                               2,
                                               3,
                                               7,
                                               8,
                                               63,
                                               64,
                                               255,
                                               4095,
                                               4096,
                                               4097,
                                               0x7fffffff,
                                               0x80000000,
                                               0xffffffff,
                                               0x100000000,
                                               0x1fffffffffffffff,
                                               0x2000000000000001,
                                               0x7fffffffffffffff,
                                               ~std::uint64_t{0}};
    switch (random() % 4) {
        case 0: return random();
        case 1: return field.role == FieldRole::kLength ? random() % 16 : random() % 5;
        default: return kEdges[random() % (sizeof kEdges / sizeof kEdges[0])];
    }
}

TEST(DispatchFuzz, GrammaticalCommandsNeverBreakDispatch) {
    OpenContext context;
    context.api = obliging_driver();
    std::mt19937_64 random(20240913);
    std::uint64_t accepted = 0;
    for (int round = 0; round < 400; ++round) {
        for (const CommandGrammar& command : cuda::kCommands) {
            std::vector<std::byte> args(command.call_bytes);
            for (std::size_t i = 0; i < command.field_count; ++i) {
                const CommandField& field = command.fields[i];
                const std::uint64_t value = field_value(field, random);
                for (std::size_t at = 0; at < field.bytes; at += sizeof value) {
                    std::memcpy(args.data() + field.offset + at, &value,
                                std::min(sizeof value, field.bytes - at));
                }
            }
            if (random() % 16 == 0) {
                args.resize(random() % (args.size() + 9));
            }
            std::vector<std::byte> trailing(command.has_trailing ? random() % 40 * 8 : 0);
            if (random() % 16 == 0) {
                trailing.resize(random() % 300);
            }
            Sink sink;
            const CUresult result = worker::dispatch(context, command.op, args, trailing, sink);
            accepted += result == CUDA_SUCCESS ? 1 : 0;
        }
    }
    EXPECT_GT(accepted, 1000u) << "the fuzzer no longer gets past the checks";
    EXPECT_GT(context.malformed_count, 1000u);
}

}  // namespace
}  // namespace gantry
