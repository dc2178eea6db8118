// Modules without PTX whose variables a driver puts elsewhere, and the bytes of those that stay
// there.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "cubin_writer.h"
#include "host-daemon/execution/loading/driver_load.h"
#include "host-daemon/execution/loading/placed_image.h"
#include "host-daemon/softgpu/image/elf_file.h"
#include "host-daemon/state/blocks/memory_image.h"
#include "tests/unit/worker/guest_fixture.h"

namespace gantry::worker {
namespace {

namespace image = softgpu::image;

constexpr std::uint64_t kWantedAt = 0x7100'0000'0000;
constexpr std::uint64_t kBlock = snapshot::kBlockBytes;

/// A worker on a driver that takes cubins, with the sample loaded as kModule.
class Placing {
public:
    explicit Placing(void (*change)(SampleCubin&) = [](SampleCubin&) {})
        : driver_(load_driver()), device_(std::move(Device::open(*driver_, 0)).value()) {
        change(cubin);
        ProcessOptions options;
        options.limits.device_memory_bytes = kQuotaBytes;
        execution_ = std::make_unique<Execution>(*device_, output_, options);
        device_->bind_thread();
        LoadedImage loaded;
        loaded.handle = kModule;
        loaded.context = kContext;
        const auto bytes = std::as_bytes(std::span(cubin.bytes));
        loaded.image = process().code.images.adopt({bytes.begin(), bytes.end()});
        hand::ImagePart part{};
        part.bytes = bytes.size();
        part.kind = hand::ImageKind::kElf;
        loaded.parts = {part};
        JitOptions none({}, 0, 0);
        Object object;
        object.handle = kModule;
        GANTRY_ASSERT(hand_to_driver(process(), *loaded.image, loaded.parts, false, none,
                                     &object.native) == CUDA_SUCCESS,
                      "the driver takes no cubin");
        GANTRY_ASSERT(process().objects.insert(object), "no object");
        process().code.modules.add(std::move(loaded));
    }

    GuestProcess& process() { return execution_->process(); }
    std::uint64_t here(const std::string& name) {
        return process().code.ask_driver(kModule, name)->address;
    }
    ModuleVariable wanted(const std::string& name, std::uint64_t address, bool asked) {
        ModuleVariable variable{name, address, process().code.ask_driver(kModule, name)->bytes};
        variable.asked = asked;
        return variable;
    }

    /// The addresses that code and data have of this symbol.
    std::vector<std::uint64_t> named(SampleCubin::Symbol symbol, const std::string& name) {
        const auto loaded = process().code.modules.get(kModule);
        const bool is_placed = loaded->placed != nullptr && !loaded->placed->image.bytes.empty();
        const auto& bytes = is_placed ? loaded->placed->image.bytes : loaded->image->bytes;
        std::vector<std::uint64_t> found;
        const auto file = image::ElfFile::open(bytes);
        for (const Elf64_Shdr& section : file->sections()) {
            Elf64_Rela each;
            for (std::uint64_t at = 0; section.sh_type == SHT_RELA &&
                                       image::read_record(file->content(section), at, &each);
                 at += sizeof(each)) {
                if (ELF64_R_SYM(each.r_info) == symbol) {
                    found.push_back(here(name) + static_cast<std::uint64_t>(each.r_addend));
                }
            }
        }
        return found;
    }

    SampleCubin cubin;

private:
    static std::unique_ptr<driver::DriverLibrary> load_driver() {
        ::setenv("GANTRY_SOFT_PROFILE", GANTRY_TEST_FOREIGN, 1);
        auto loaded = driver::DriverLibrary::load(GANTRY_TEST_PLACING_DRIVER);
        GANTRY_ASSERT(loaded.ok(), "%s", loaded.error().text.c_str());
        return std::move(loaded).value();
    }

    std::unique_ptr<driver::DriverLibrary> driver_;
    std::unique_ptr<Device> device_;
    OutputCapture output_;
    std::unique_ptr<Execution> execution_;
};

using Addresses = std::vector<std::uint64_t>;

/// The driver puts them elsewhere at each of the first loads: learnt anew.
TEST(VariablesElsewhere, AreNamedWhereTheProgramHasThem) {
    Placing placing;
    const Variables wanted{{"counter", placing.wanted("counter", kWantedAt + 0x1008, false)},
                           {"table", placing.wanted("table", kWantedAt + 0x300100, true)}};
    const auto placed = bring_back_variables(placing.process(), kModule, wanted);
    ASSERT_TRUE(placed.ok()) << placed.error().to_string();
    EXPECT_EQ(placing.named(SampleCubin::kCounter, "counter"), Addresses(1, kWantedAt + 0x1008));
    EXPECT_EQ(placing.named(SampleCubin::kTable, "table"), Addresses(2, kWantedAt + 0x300100));
    // There is memory, and questions are answered so.
    const driver::DriverApi& api = placing.process().device.api();
    EXPECT_EQ(api.cuMemcpyHtoD_v2(kWantedAt + 0x1008, "counter", 8), CUDA_SUCCESS);
    EXPECT_EQ(placing.process().code.modules.placed_variable(kModule, "table")->address,
              kWantedAt + 0x300100);
}

/// Its relocations name the kernel instead of the table.
void do_not_name_the_table(SampleCubin& cubin) {
    for (const std::uint64_t entry : {0, 1}) {
        cubin.edit<Elf64_Rela>(
            cubin.content(".rela.text.step") + entry * sizeof(Elf64_Rela), [](Elf64_Rela& each) {
                each.r_info = ELF64_R_INFO(std::uint64_t{SampleCubin::kKernel}, 0x38);
            });
    }
}

TEST(VariablesElsewhere, StayWhereTheDriverHasThemIfNobodyKnowsThem) {
    Placing placing(do_not_name_the_table);
    const std::uint64_t here = placing.here("table");
    const Variables wanted{{"table", placing.wanted("table", kWantedAt + 0x100, false)}};
    const auto placed = bring_back_variables(placing.process(), kModule, wanted);
    ASSERT_TRUE(placed.ok()) << placed.error().to_string();
    EXPECT_EQ(placing.here("table"), here) << "it was not loaded again";
    ModuleRegistry& modules = placing.process().code.modules;
    EXPECT_EQ(modules.variable(kModule, "table")->address, kWantedAt + 0x100);
    EXPECT_EQ(modules.variable(kModule, "table")->lies_at, here);
    placing.process().code.settle_variables();
    EXPECT_EQ(modules.variable(kModule, "table")->address, here);
    EXPECT_EQ(modules.variable(kModule, "table")->lies_at, 0U);
}

/// The host may have stored its address, though no code names it.
TEST(VariablesElsewhere, HaveMemoryWhereTheProgramAskedForThem) {
    Placing placing(do_not_name_the_table);
    const Variables wanted{{"table", placing.wanted("table", kWantedAt + 0x100, true)}};
    const auto placed = bring_back_variables(placing.process(), kModule, wanted);
    ASSERT_TRUE(placed.ok()) << placed.error().to_string();
    EXPECT_EQ(placing.process().code.modules.placed_variable(kModule, "table")->address,
              kWantedAt + 0x100);
    EXPECT_EQ(placing.process().device.api().cuMemcpyHtoD_v2(kWantedAt + 0x100, "table", 6),
              CUDA_SUCCESS);
}

/// Nothing names the counter, which code reaches by its offset in a bank.
void have_a_constant(SampleCubin& cubin) {
    for (const std::string before : {"", ".rela"}) {
        const std::string name = before + std::string(".nv.global.init\0", 16);
        const std::size_t at = cubin.bytes.find(std::string(1, '\0') + name) + 1;
        cubin.bytes.replace(at, name.size(), before + std::string(".nv.constant3\0\0\0", 16));
    }
    cubin.edit<Elf64_Rela>(cubin.content(".rela.nv.global.init"), [](Elf64_Rela& each) {
        each.r_info = ELF64_R_INFO(std::uint64_t{SampleCubin::kKernel}, 2);
    });
}

TEST(VariablesElsewhere, InAConstantBankStayIfNobodyAskedForThem) {
    Placing placing(have_a_constant);
    const std::uint64_t here = placing.here("counter");
    Variables wanted{{"counter", placing.wanted("counter", kWantedAt + 0x100, false)}};
    const auto placed = bring_back_variables(placing.process(), kModule, wanted);
    ASSERT_TRUE(placed.ok()) << placed.error().to_string();
    EXPECT_EQ(placing.process().code.modules.variable(kModule, "counter")->lies_at, here);
}

TEST(VariablesElsewhere, InAConstantBankAreRefusedIfTheProgramAsked) {
    Placing placing(have_a_constant);
    Variables wanted{{"counter", placing.wanted("counter", kWantedAt + 0x100, true)}};
    const auto placed = bring_back_variables(placing.process(), kModule, wanted);
    ASSERT_FALSE(placed.ok());
    EXPECT_EQ(placed.error().reason, "module.globals.not_movable");
    EXPECT_NE(placed.error().text.find("constant bank"), std::string::npos);
}

/// Something else lies there: another worker may have room.
TEST(VariablesElsewhere, AreRefusedForNowWhereTheirPlaceIsTaken) {
    Placing placing;
    CUdeviceptr taken = 0;
    const driver::DriverApi& api = placing.process().device.api();
    ASSERT_EQ(api.cuMemAddressReserve(&taken, 2 << 20, 2 << 20, kWantedAt, 0), CUDA_SUCCESS);
    ASSERT_EQ(taken, kWantedAt);
    const Variables wanted{{"counter", placing.wanted("counter", kWantedAt + 8, false)}};
    const auto placed = bring_back_variables(placing.process(), kModule, wanted);
    ASSERT_FALSE(placed.ok());
    EXPECT_EQ(placed.error().reason, "module.globals.not_now");
    // It goes as soon as the place is free.
    api.cuMemAddressFree(taken, 2 << 20);
    const auto again = bring_back_variables(placing.process(), kModule, wanted);
    EXPECT_TRUE(again.ok()) << again.error().to_string();
}

/// Blocks have a variable's old address until the guest is served, and its bytes lie elsewhere.
TEST(VariablesElsewhere, MoveUnderTheirOldAddresses) {
    Host host;
    host.device->bind_thread();
    const driver::DriverApi& api = host.device->api();
    DeviceMemory& memory = host.process->memory.device;
    CUdeviceptr here = 0;
    ASSERT_EQ(api.cuMemAlloc_v2(&here, 1 << 20), CUDA_SUCCESS);
    const std::uint64_t lies_at = here + 0x300;
    memory.add_outside(kModule, kWantedAt + 0x100, 16, lies_at);
    state::MemoryImage blocks(*host.process);
    const state::BlockAddress block{engine::MemorySpace::kDevice, kWantedAt / kBlock};
    EXPECT_TRUE(blocks.contains(block));
    EXPECT_FALSE(blocks.contains({engine::MemorySpace::kDevice, lies_at / kBlock}));
    std::vector<std::byte> content(kBlock);
    std::memcpy(content.data() + 0x100, "where it lies...", 16);
    ASSERT_TRUE(blocks.write(block, content).value());
    ASSERT_TRUE(blocks.settle().ok());
    std::array<char, 17> got{};
    ASSERT_EQ(api.cuMemcpyDtoH_v2(got.data(), lies_at, 16), CUDA_SUCCESS);
    EXPECT_STREQ(got.data(), "where it lies...");
    std::vector<std::byte> read(kBlock);
    ASSERT_TRUE(blocks.read({engine::MemorySpace::kDevice, kWantedAt / kBlock, 1}, read).value());
    EXPECT_EQ(read, content);
    host.process->code.settle_variables();
    EXPECT_FALSE(blocks.contains(block));
    EXPECT_TRUE(blocks.contains({engine::MemorySpace::kDevice, lies_at / kBlock}));
    EXPECT_TRUE(memory.owns(lies_at, 16));
}

}  // namespace
}  // namespace gantry::worker
