// Cubins whose code names other addresses for its variables: cubins of nvcc where there is one, and
// the sample cubin, one field of it changed.
#include "host-daemon/execution/code/placed_cubin.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include "cubin_writer.h"
#include "host-daemon/execution/code/image_check.h"
#include "host-daemon/softgpu/image/elf_file.h"
#include "tests/unit/softgpu_driver/image_writer.h"

namespace gantry::worker {
namespace {

namespace image = softgpu::image;

using Bytes = std::span<const std::byte>;

constexpr std::uint64_t kByOne = 0x7f00'0000'0100;
constexpr std::uint64_t kByTwo = ~std::uint64_t{0x1ff};  // To a lower address.

Bytes bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string text_of(Bytes bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// "section>symbol kind addend", of each relocation in the file.
std::multiset<std::string> relocations(Bytes cubin) {
    std::multiset<std::string> found;
    const auto file = image::ElfFile::open(cubin);
    for (const Elf64_Shdr& section : file->sections()) {
        if (section.sh_type != SHT_RELA) {
            continue;
        }
        const Elf64_Shdr& symbols = *file->section(section.sh_link);
        Elf64_Rela each;
        for (std::uint64_t at = 0; image::read_record(file->content(section), at, &each);
             at += sizeof(each)) {
            Elf64_Sym symbol{};
            image::read_record(file->content(symbols), ELF64_R_SYM(each.r_info) * sizeof(symbol),
                               &symbol);
            found.insert(std::string(file->name(section)) + ">" +
                         std::string(*file->text(*file->section(symbols.sh_link), symbol.st_name)) +
                         " " + std::to_string(ELF64_R_TYPE(each.r_info)) + " " +
                         std::to_string(static_cast<std::uint64_t>(each.r_addend)));
        }
    }
    return found;
}

/// What `moved` has that `plain` has not.
std::vector<std::string> differences(Bytes plain, Bytes moved) {
    const auto before = relocations(plain);
    const auto after = relocations(moved);
    std::vector<std::string> only;
    std::set_difference(after.begin(), after.end(), before.begin(), before.end(),
                        std::back_inserter(only));
    return only;
}

std::size_t bytes_changed(Bytes a, Bytes b) {
    EXPECT_EQ(a.size(), b.size());
    std::size_t count = 0;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
        count += a[i] != b[i] ? 1 : 0;
    }
    return count;
}

std::string refusal(const Result<std::vector<std::byte>>& placed) {
    return placed.ok() ? "placed" : placed.error().reason + ": " + placed.error().text;
}

/// The sample's relocations name its counter, in code and in data.
TEST(PlacedCubin, ChangesTheAddendsOfWhatMovesAndNothingElse) {
    const SampleCubin cubin;
    const Bytes plain = bytes_of(cubin.bytes);
    const VariableShifts shifts{{"counter", kByOne}, {"table", kByTwo}, {"absent", 64}};
    const auto placed = placed_cubin(plain, shifts);
    ASSERT_TRUE(placed.ok()) << placed.error().to_string();
    const std::vector<std::string> wanted = {
        ".rela.nv.global.init>counter 2 " + std::to_string(kByOne),
        ".rela.text.step>table 56 " + std::to_string(kByTwo),
        ".rela.text.step>table 57 " + std::to_string(kByTwo)};
    EXPECT_EQ(differences(plain, *placed), wanted);
    EXPECT_LE(bytes_changed(plain, *placed), 8 * wanted.size());
    EXPECT_TRUE(check_image(*placed, 90).ok());
    const auto back = placed_cubin(*placed, {{"counter", 0 - kByOne}, {"table", 0 - kByTwo}});
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(bytes_changed(plain, *back), 0U) << "modulo 2^64";
}

template <typename Change>
std::string with_relocation(const Change& change) {
    SampleCubin cubin;
    cubin.edit<Elf64_Rela>(cubin.content(".rela.text.step"), change);
    return refusal(placed_cubin(bytes_of(cubin.bytes), {{"table", kByOne}}));
}

TEST(PlacedCubin, RefusesWhatDoesNotHoldAnAddress) {
    EXPECT_EQ(with_relocation([](Elf64_Rela&) {}), "placed");
    for (const std::uint32_t kind : {0x05U, 0x3aU, 0x64U, 0x7fU, 0xffffffffU}) {
        EXPECT_NE(with_relocation([kind](Elf64_Rela& each) {
                      each.r_info =
                          ELF64_R_INFO(std::uint64_t{SampleCubin::kTable}, std::uint64_t{kind});
                  }).find("module.globals.not_movable"),
                  std::string::npos)
            << kind;
    }
    // No variable is named there any more.
    EXPECT_EQ(with_relocation([](Elf64_Rela& each) {
                  each.r_info =
                      ELF64_R_INFO(std::uint64_t{SampleCubin::kKernel}, std::uint64_t{0x7f});
              }),
              "placed");
    // A number that is no symbol's.
    EXPECT_EQ(with_relocation([](Elf64_Rela& each) {
                  each.r_info = ELF64_R_INFO(std::uint64_t{0xffffffff}, std::uint64_t{0x38});
              }),
              "placed");
}

TEST(PlacedCubin, RefusesTwoOfAName) {
    SampleCubin cubin;
    cubin.edit_symbol(SampleCubin::kTable, [](Elf64_Sym& symbol) { symbol.st_name = 1; });
    EXPECT_NE(refusal(placed_cubin(bytes_of(cubin.bytes), {{"counter", 8}})).find("two variables"),
              std::string::npos);
}

/// By its place in a section: the variable that lies there moves, or nobody can tell.
TEST(PlacedCubin, FollowsASectionAndAnOffset) {
    const auto with_addend = [](std::int64_t addend) {
        SampleCubin cubin;
        cubin.edit_symbol(SampleCubin::kBank, [&](Elf64_Sym& symbol) {
            symbol.st_shndx = static_cast<std::uint16_t>(cubin.index(".nv.global"));
        });
        cubin.edit<Elf64_Rela>(cubin.content(".rela.text.step"), [&](Elf64_Rela& each) {
            each.r_info = ELF64_R_INFO(std::uint64_t{SampleCubin::kBank}, 0x38);
            each.r_addend = addend;
        });
        EXPECT_TRUE(cubin_variables(bytes_of(cubin.bytes))->named.contains("table"));
        return placed_cubin(bytes_of(cubin.bytes), {{"table", kByOne}});
    };
    const auto inside = with_addend(64);
    ASSERT_TRUE(inside.ok()) << inside.error().to_string();
    EXPECT_TRUE(
        relocations(*inside).contains(".rela.text.step> 56 " + std::to_string(kByOne + 64)));
    EXPECT_NE(refusal(with_addend(SampleCubin::kTableBytes)).find("where no variable lies"),
              std::string::npos);
    EXPECT_NE(refusal(with_addend(-8)).find("where no variable lies"), std::string::npos);
}

TEST(PlacedCubin, RefusesEveryDamagedFileOrReadsItSafely) {
    const std::string whole = SampleCubin().bytes;
    for (std::size_t bytes = 0; bytes < whole.size(); bytes += 3) {
        (void)placed_cubin(bytes_of(whole.substr(0, bytes)), {{"counter", kByOne}});
    }
    for (std::size_t at = 0; at < whole.size(); ++at) {
        std::string damaged = whole;
        damaged[at] = static_cast<char>(damaged[at] ^ 0xff);
        (void)placed_cubin(bytes_of(damaged), {{"counter", kByOne}, {"table", kByTwo}});
        (void)cubin_variables(bytes_of(damaged));
    }
}

/// Of a fatbin the newest that the device runs, expanded.
TEST(PlacedCubin, TakesFromAFatbinWhatTheDeviceRuns) {
    const SampleCubin cubin;
    using image::EntryKind;
    using image::Packing;
    const std::string other =
        image::fatbin_entry(cubin.bytes, 80, Packing::kZstd, EntryKind::kElf) +
        image::fatbin_entry(image::sample_ptx(90), 90, Packing::kStored);
    const std::string packed =
        image::fatbin_entry(cubin.bytes, 90, Packing::kZstd, EntryKind::kElf);
    const VariableShifts shifts{{"counter", kByOne}};
    const auto wanted = placed_cubin(bytes_of(cubin.bytes), shifts);
    const std::string one = image::fatbin_of(other + packed);
    const auto placed = placed_machine_code(bytes_of(one), 90, shifts);
    ASSERT_TRUE(placed.ok()) << placed.error().to_string();
    EXPECT_EQ(text_of(*placed), text_of(*wanted));
    EXPECT_TRUE(image_variables(bytes_of(one), 90)->named.contains("counter"));
    EXPECT_NE(refusal(placed_machine_code(bytes_of(image::fatbin_of(other)), 90, shifts))
                  .find("no machine code"),
              std::string::npos);
    // Two for it: the driver chooses, and has both.
    const std::string two = image::fatbin_of(other + packed + packed);
    const auto both = placed_machine_code(bytes_of(two), 90, shifts);
    ASSERT_TRUE(both.ok());
    EXPECT_TRUE(check_image(*both, 90).ok());
    const auto entries = image::list_entries(*both);
    ASSERT_EQ(entries->size(), 2U);
    for (const image::FatbinEntry& entry : *entries) {
        EXPECT_EQ(entry.target, 90U);
        EXPECT_EQ(image::entry_payload(entry)->substr(0, wanted->size()), text_of(*wanted));
    }
}

#ifdef GANTRY_TEST_CUBINS
std::string read_cubin(const std::string& name) {
    std::ifstream file(std::string(GANTRY_TEST_CUBINS) + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

/// What nvcc makes of tests/programs/sass_variables_kernels.cu: addresses in a table beside the
/// code, or, of relocatable code that was linked, in the instructions.
void look_at(const std::string& name) {
    const std::string cubin = read_cubin(name);
    ASSERT_FALSE(cubin.empty());
    ASSERT_TRUE(check_image(bytes_of(cubin), 90).ok());
    const auto how = cubin_variables(bytes_of(cubin));
    ASSERT_TRUE(how.ok()) << how.error().to_string();
    EXPECT_TRUE(how->named.contains("counter"));
    EXPECT_TRUE(how->named.contains("squares"));
    EXPECT_TRUE(how->named.contains("cursor"));
    EXPECT_TRUE(how->constants.empty());
    const VariableShifts shifts{{"counter", kByOne}, {"squares", kByTwo}};
    const auto placed = placed_cubin(bytes_of(cubin), shifts);
    ASSERT_TRUE(placed.ok()) << placed.error().to_string();
    EXPECT_TRUE(check_image(*placed, 90).ok());
    const auto changed = differences(bytes_of(cubin), *placed);
    std::size_t of_counter = 0;
    std::size_t of_squares = 0;
    for (const std::string& each : changed) {
        of_counter += each.find(">counter ") != std::string::npos ? 1 : 0;
        of_squares += each.find(">squares ") != std::string::npos ? 1 : 0;
    }
    EXPECT_GT(of_counter, 0U);
    EXPECT_GT(of_squares, 1U) << "in code, and in the initial value of a pointer";
    EXPECT_EQ(of_counter + of_squares, changed.size());
    // A pointer into the middle: both its own addend and the shift.
    EXPECT_TRUE(relocations(*placed).contains(".rela.nv.global.init>squares 4 " +
                                              std::to_string(kByTwo + 12)));
}

TEST(PlacedCubin, OfNvccWithItsAddressesInATable) {
    look_at("sass_variables_whole.cubin");
    const std::string fatbin = read_cubin("sass_variables_whole.fatbin");
    const auto placed = placed_machine_code(bytes_of(fatbin), 90, {{"counter", kByOne}});
    ASSERT_TRUE(placed.ok()) << placed.error().to_string();
    EXPECT_TRUE(check_image(*placed, 90).ok());
}

TEST(PlacedCubin, OfNvccWithItsAddressesInTheCode) {
    look_at("sass_variables_linked.cubin");
    const auto how = cubin_variables(bytes_of(read_cubin("sass_variables_linked.cubin")));
    EXPECT_FALSE(how->named.contains("unnamed"));
}

TEST(PlacedCubin, OfNvccWithAConstantBank) {
    const std::string cubin = read_cubin("sass_constants.cubin");
    EXPECT_TRUE(cubin_variables(bytes_of(cubin))->constants.contains("factors"));
    EXPECT_NE(refusal(placed_cubin(bytes_of(cubin), {{"factors", 8}})).find("constant bank"),
              std::string::npos);
    EXPECT_EQ(refusal(placed_cubin(bytes_of(cubin), {{"table", 8}})), "placed");
}
#endif

}  // namespace
}  // namespace gantry::worker
