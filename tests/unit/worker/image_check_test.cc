// What keeps an image from a driver: each case is a sound image with one field changed.
#include "host-daemon/execution/code/image_check.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "cubin_writer.h"
#include "host-daemon/execution/code/elf_check.h"
#include "host-daemon/execution/code/variable_bytes.h"
#include "proto/cuda/abi.h"
#include "tests/unit/softgpu_driver/image_writer.h"

namespace gantry::worker {
namespace {

using softgpu::image::EntryKind;
using softgpu::image::fatbin_entry;
using softgpu::image::fatbin_of;
using softgpu::image::Packing;
using softgpu::image::sample_ptx;

constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();

std::span<const std::byte> bytes_of(const std::string& text) {
    return std::as_bytes(std::span(text));
}

std::string verdict(const Result<void>& result) {
    return result.ok() ? "sound" : result.error().reason;
}

std::string image_verdict(const std::string& image, unsigned capability = 90) {
    return verdict(check_image(bytes_of(image), capability));
}

std::string link_verdict(const std::string& input, CUjitInputType type) {
    return verdict(check_link_input(bytes_of(input), static_cast<std::uint32_t>(type), 90));
}

/// What becomes of the sample with one change.
template <typename Change>
std::string changed(const Change& change) {
    SampleCubin cubin;
    change(cubin);
    return image_verdict(cubin.bytes);
}

template <typename Change>
std::string header_verdict(const Change& change) {
    return changed([&](SampleCubin& cubin) { cubin.edit_header(change); });
}

template <typename Change>
std::string section_verdict(const std::string& name, const Change& change) {
    return changed([&](SampleCubin& cubin) { cubin.edit_section(name, change); });
}

template <typename Change>
std::string symbol_verdict(SampleCubin::Symbol symbol, const Change& change) {
    return changed([&](SampleCubin& cubin) { cubin.edit_symbol(symbol, change); });
}

template <typename Change>
std::string segment_verdict(const Change& change) {
    return changed([&](SampleCubin& cubin) { cubin.edit_segment(change); });
}

/// The first relocation of the code, of 16 bytes, or of the variables, of 8.
template <typename Change>
std::string relocation_verdict(const std::string& section, const Change& change) {
    return changed(
        [&](SampleCubin& cubin) { cubin.edit<Elf64_Rela>(cubin.content(section), change); });
}

/// One word of a section.
template <typename Word>
std::string word_verdict(const std::string& section, std::uint64_t at, Word value) {
    return changed([&](SampleCubin& cubin) {
        cubin.edit<Word>(cubin.content(section) + at, [&](Word& word) { word = value; });
    });
}

TEST(ImageCheck, TakesASoundCubin) {
    EXPECT_EQ(changed([](SampleCubin&) {}), "sound");
    // Old ones have no segments.
    EXPECT_EQ(header_verdict([](Elf64_Ehdr& header) { header.e_phnum = 0; }), "sound");
    // cuBLAS makes kernels while a program runs: their tables are where the bytes before them end.
    SampleCubin cubin;
    const std::string table =
        cubin.bytes.substr(cubin.header().e_shoff, cubin.header().e_shnum * sizeof(Elf64_Shdr));
    cubin.bytes += "odd";
    cubin.edit_header([&](Elf64_Ehdr& header) { header.e_shoff = cubin.bytes.size(); });
    cubin.bytes += table;
    EXPECT_EQ(image_verdict(cubin.bytes), "sound");
}

TEST(ImageCheck, RefusesEveryBeginningOfACubin) {
    const std::string whole = SampleCubin().bytes;
    for (std::size_t bytes = 4; bytes < whole.size(); ++bytes) {
        ASSERT_NE(image_verdict(whole.substr(0, bytes)), "sound") << bytes;
    }
}

TEST(ImageCheck, RefusesHeaders) {
    const auto refused = [](const auto& change) { return header_verdict(change); };
    EXPECT_EQ(refused([](auto& h) { h.e_ident[EI_CLASS] = ELFCLASS32; }), "image.format");
    EXPECT_EQ(refused([](auto& h) { h.e_ident[EI_DATA] = ELFDATA2MSB; }), "image.format");
    EXPECT_EQ(refused([](auto& h) { h.e_shentsize = 63; }), "image.format");
    EXPECT_EQ(refused([](auto& h) { h.e_phentsize = 0; }), "image.format");
    EXPECT_EQ(refused([](auto& h) { h.e_ident[EI_VERSION] = 2; }), "image.elf.header");
    EXPECT_EQ(refused([](auto& h) { h.e_ehsize = 0; }), "image.elf.header");
    EXPECT_EQ(refused([](auto& h) { h.e_machine = EM_X86_64; }), "image.elf.header");
    EXPECT_EQ(refused([](auto& h) { h.e_shnum = 0; }), "image.elf.header");
    EXPECT_EQ(refused([](auto& h) { h.e_shstrndx = h.e_shnum; }), "image.elf.header");
    EXPECT_EQ(refused([](auto& h) { h.e_shstrndx = 3; }), "image.elf.header");
    EXPECT_EQ(refused([](auto& h) { h.e_shnum = 0xfeff; }), "image.truncated");
    EXPECT_EQ(refused([](auto& h) { h.e_shoff = kHuge - 63; }), "image.truncated");
    EXPECT_EQ(refused([](auto& h) { h.e_phoff = kHuge; }), "image.truncated");
    EXPECT_EQ(refused([](auto& h) { h.e_shoff -= 4; }), "image.elf.header");
    EXPECT_EQ(refused([](auto& h) { h.e_shoff = 60; }), "image.elf.header");
    EXPECT_EQ(refused([](auto& h) { h.e_phoff = 8; }), "image.elf.header");
    EXPECT_EQ(refused([](auto& h) { h.e_phoff = 64; }), "image.elf.segment");
    EXPECT_EQ(section_verdict("", [](auto& s) { s.sh_type = SHT_PROGBITS; }), "image.elf.header");
}

/// The offsets with which NVIDIA's driver read the worker's memory, crashed, and did not come back.
TEST(ImageCheck, RefusesSectionsOutsideOfTheFile) {
    for (const std::uint64_t offset :
         {std::uint64_t{16384}, std::uint64_t{65536}, std::uint64_t{1000000},
          std::uint64_t{200000000000}, std::uint64_t{0} - 65536, kHuge}) {
        EXPECT_EQ(
            section_verdict(".nv.global.init", [&](auto& s) { s.sh_offset = offset / 8 * 8; }),
            "image.elf.section");
    }
    EXPECT_EQ(section_verdict(".nv.global.init", [](auto& s) { s.sh_size = kHuge; }),
              "image.elf.section");
    EXPECT_EQ(section_verdict(".text.step", [](auto& s) { s.sh_size = 1 << 20; }),
              "image.elf.section");
    // Without bytes in the file: as much as a device may have, and no more.
    EXPECT_EQ(section_verdict(".nv.global", [](auto& s) { s.sh_size = 1 << 30; }), "sound");
    EXPECT_EQ(section_verdict(".nv.global", [](auto& s) { s.sh_size = kHuge; }),
              "image.elf.section");
    EXPECT_EQ(section_verdict(".nv.global", [](auto& s) { s.sh_offset = kHuge; }),
              "image.elf.section");
}

TEST(ImageCheck, RefusesSectionsThatAreNotWhatTheySay) {
    const auto refused = [](const char* name, const auto& change) {
        return section_verdict(name, change);
    };
    EXPECT_EQ(refused(".text.step", [](auto& s) { s.sh_addralign = 96; }), "image.elf.section");
    EXPECT_EQ(refused(".text.step", [](auto& s) { s.sh_addralign = std::uint64_t{1} << 63; }),
              "image.elf.section");
    EXPECT_EQ(refused(".text.step", [](auto& s) { s.sh_addr = 4096; }), "image.elf.section");
    EXPECT_EQ(refused(".text.step", [](auto& s) { s.sh_link = 1000; }), "image.elf.section");
    EXPECT_EQ(refused(".nv.info.step", [](auto& s) { s.sh_info = 1000; }), "image.elf.section");
    EXPECT_EQ(refused(".symtab", [](auto& s) { s.sh_entsize = 16; }), "image.elf.section");
    EXPECT_EQ(refused(".rela.text.step", [](auto& s) { s.sh_entsize = 0; }), "image.elf.section");
    EXPECT_EQ(refused(".rela.text.step", [](auto& s) { s.sh_size -= 8; }), "image.elf.section");
    EXPECT_EQ(refused(".nv.callgraph", [](auto& s) { s.sh_size -= 4; }), "image.elf.section");
}

/// Mutants that ended a worker on NVIDIA's driver (tests/gpu/image_fuzz).
TEST(ImageCheck, RefusesNumbersOfSectionsThatNoFlagSays) {
    for (const char* name : {".nv.info", ".nv.global", ".nv.global.init", ".nv.constant0.step"}) {
        for (const std::uint32_t info : {0xffffffffU, 0xffff0000U, 0x01000000U, 1000U}) {
            EXPECT_EQ(section_verdict(name,
                                      [&](auto& s) {
                                          s.sh_flags &= ~std::uint64_t{SHF_INFO_LINK};
                                          s.sh_info = info;
                                      }),
                      "image.elf.section")
                << name << " " << info;
        }
    }
}

TEST(ImageCheck, RefusesNotesThatLeadOutside) {
    constexpr std::uint64_t kVersion = 24;
    const auto note = [](std::uint64_t at, std::uint32_t value) {
        return word_verdict(".note.nv.tkinfo", at, value);
    };
    EXPECT_EQ(note(0, 0xffffffff), "image.elf.note");  // The name's bytes.
    EXPECT_EQ(note(0, 60), "image.elf.note");
    EXPECT_EQ(note(4, 31), "image.elf.note");  // The content's.
    EXPECT_EQ(note(4, 23), "image.elf.note");
    EXPECT_EQ(note(8, 1000), "image.elf.note");  // Its type.
    for (std::uint64_t text = 1; text <= 5; ++text) {
        EXPECT_EQ(note(kVersion + 4 * text, 5), "sound");
        EXPECT_EQ(note(kVersion + 4 * text, 6), "image.elf.note");
        EXPECT_EQ(note(kVersion + 4 * text, 0xffffffff), "image.elf.note");
    }
    EXPECT_EQ(word_verdict(".note.nv.tkinfo", kVersion + 24 + 5, std::uint8_t{'x'}),
              "image.elf.note");
    EXPECT_EQ(section_verdict(".note.nv.tkinfo", [](auto& s) { s.sh_size -= 4; }),
              "image.elf.note");
}

TEST(ImageCheck, RefusesKindsOfSymbolsThatNoToolWrites) {
    const auto kind = [](unsigned binding, unsigned type) {
        return symbol_verdict(SampleCubin::kCounter, [&](auto& s) {
            s.st_info = static_cast<unsigned char>(ELF64_ST_INFO(binding, type));
        });
    };
    EXPECT_EQ(kind(STB_WEAK, 13), "sound");
    EXPECT_EQ(kind(STB_LOCAL, 12), "image.elf.symbol");
    EXPECT_EQ(kind(STB_LOCAL, 15), "image.elf.symbol");
    EXPECT_EQ(kind(5, STT_OBJECT), "image.elf.symbol");
}

TEST(ImageCheck, RefusesNamesWithoutAnEnd) {
    EXPECT_EQ(section_verdict("", [](auto& s) { s.sh_name = 0xffff; }), "image.elf.string");
    EXPECT_EQ(section_verdict(".text.step", [](auto& s) { s.sh_name = 0xffff; }),
              "image.elf.string");
    EXPECT_EQ(section_verdict(".strtab", [](auto& s) { s.sh_size -= 1; }), "image.elf.string");
    EXPECT_EQ(section_verdict(".shstrtab", [](auto& s) { s.sh_size -= 1; }), "image.elf.string");
    EXPECT_EQ(symbol_verdict(SampleCubin::kKernel, [](auto& s) { s.st_name = 20; }),
              "image.elf.string");
}

TEST(ImageCheck, RefusesSymbolsOutsideOfTheirSections) {
    const auto refused = [](SampleCubin::Symbol symbol, const auto& change) {
        return symbol_verdict(symbol, change);
    };
    EXPECT_EQ(refused(SampleCubin::kCounter, [](auto& s) { s.st_value = 16; }), "image.elf.symbol");
    EXPECT_EQ(refused(SampleCubin::kCounter, [](auto& s) { s.st_value = kHuge - 7; }),
              "image.elf.symbol");
    EXPECT_EQ(refused(SampleCubin::kCounter, [](auto& s) { s.st_size = 17; }), "image.elf.symbol");
    EXPECT_EQ(refused(SampleCubin::kKernel, [](auto& s) { s.st_size = kHuge; }),
              "image.elf.symbol");
    EXPECT_EQ(refused(SampleCubin::kTable, [](auto& s) { s.st_size = kHuge; }), "image.elf.symbol");
    EXPECT_EQ(refused(SampleCubin::kKernel, [](auto& s) { s.st_shndx = 1000; }),
              "image.elf.symbol");
    EXPECT_EQ(refused(SampleCubin::kKernel, [](auto& s) { s.st_shndx = SHN_ABS; }),
              "image.elf.symbol");
    EXPECT_EQ(section_verdict(".symtab", [](auto& s) { s.sh_info = 6; }), "image.elf.symbol");
    EXPECT_EQ(section_verdict(".symtab", [](auto& s) { s.sh_link = 0; }), "image.elf.symbol");
    EXPECT_EQ(section_verdict(".text.step", [](auto& s) { s.sh_info = 5; }), "image.elf.symbol");
    // Two tables: a driver may count in the other one.
    EXPECT_EQ(changed([](SampleCubin& cubin) {
                  const auto strings = cubin.index(".strtab");
                  cubin.edit_section(".nv.constant0.step", [&](auto& s) {
                      s.sh_type = SHT_SYMTAB;
                      s.sh_flags = 0;
                      s.sh_link = strings;
                      s.sh_info = 0;
                      s.sh_entsize = sizeof(Elf64_Sym);
                      s.sh_size = sizeof(Elf64_Sym);
                  });
              }),
              "image.elf.symbol");
}

/// The offsets with which NVIDIA's driver wrote outside of the image.
TEST(ImageCheck, RefusesRelocationsOutsideOfTheirSections) {
    for (const std::uint64_t offset :
         {std::uint64_t{17}, std::uint64_t{24}, std::uint64_t{0x1000}, std::uint64_t{0x20000},
          std::uint64_t{0x2000000000}, std::uint64_t{0x7fffffffffff0000}, kHuge, kHuge - 7}) {
        EXPECT_EQ(
            relocation_verdict(".rela.nv.global.init", [&](Elf64_Rela& r) { r.r_offset = offset; }),
            "image.elf.relocation");
    }
    EXPECT_EQ(relocation_verdict(".rela.text.step", [](Elf64_Rela& r) { r.r_offset = 256 - 15; }),
              "image.elf.relocation");
    EXPECT_EQ(
        relocation_verdict(".rela.nv.global.init",
                           [](Elf64_Rela& r) { r.r_info = ELF64_R_INFO(std::uint64_t{5}, 2); }),
        "image.elf.relocation");
}

TEST(ImageCheck, KnowsHowManyBytesARelocationChanges) {
    const auto at_end = [](std::uint32_t kind, std::uint64_t left) {
        return relocation_verdict(".rela.nv.global.init", [&](Elf64_Rela& r) {
            r.r_info = ELF64_R_INFO(std::uint64_t{SampleCubin::kCounter}, kind);
            r.r_offset = 24 - left;
        });
    };
    const std::map<std::uint32_t, std::uint64_t> widths = {
        {0x01, 4},  {0x02, 8}, {0x03, 4},  {0x04, 8},   {0x23, 8}, {0x37, 16},
        {0x43, 16}, {0x46, 4}, {0x49, 8},  {0x4c, 1},   {0x5b, 1}, {0x66, 8},
        {0x67, 4},  {0x6f, 1}, {0x72, 16}, {0xffff, 16}};
    for (const auto& [kind, width] : widths) {
        EXPECT_EQ(at_end(kind, width), "sound") << kind;
        EXPECT_EQ(at_end(kind, width - 1), "image.elf.relocation") << kind;
    }
}

TEST(ImageCheck, RefusesRelocationsThatNoToolWrites) {
    // Of another section than the table's name says: the driver looks for what is not there.
    SampleCubin cubin;
    const std::uint32_t code = cubin.index(".text.step");
    cubin.edit_section(".rela.nv.global.init", [&](auto& s) { s.sh_info = code; });
    EXPECT_EQ(image_verdict(cubin.bytes), "image.elf.relocation");
    // A variable with the address of what only the driver has.
    const auto undefined = [](const char* section, std::uint32_t kind) {
        return relocation_verdict(section, [&](Elf64_Rela& r) {
            r.r_info = ELF64_R_INFO(std::uint64_t{SampleCubin::kNone}, kind);
        });
    };
    EXPECT_EQ(undefined(".rela.nv.global.init", 2), "image.elf.relocation");
    EXPECT_EQ(undefined(".rela.text.step", 2), "sound");
}

TEST(ImageCheck, RefusesRelocationsOfWhatWasChecked) {
    for (const char* target :
         {".rela.text.step", ".symtab", ".strtab", ".nv.info", "", ".nv.callgraph"}) {
        SampleCubin cubin;
        const std::uint32_t index = cubin.index(target);
        cubin.edit_section(".rela.nv.global.init", [&](auto& s) { s.sh_info = index; });
        EXPECT_EQ(image_verdict(cubin.bytes), "image.elf.relocation") << target;
    }
}

TEST(ImageCheck, RefusesPartsThatShareBytes) {
    SampleCubin cubin;
    const std::uint64_t relocations = cubin.content(".rela.text.step");
    // A relocation of the variables would change the next relocation's offset.
    EXPECT_EQ(section_verdict(".nv.global.init", [&](auto& s) { s.sh_offset = relocations; }),
              "image.elf.overlap");
    EXPECT_EQ(section_verdict(".nv.global.init", [](auto& s) { s.sh_offset = 0; }),
              "image.elf.overlap");
    EXPECT_EQ(
        section_verdict(".nv.global.init", [&](auto& s) { s.sh_offset = cubin.header().e_shoff; }),
        "image.elf.overlap");
    EXPECT_EQ(
        section_verdict(".nv.global.init", [&](auto& s) { s.sh_offset = cubin.header().e_phoff; }),
        "image.elf.overlap");
}

TEST(ImageCheck, RefusesSegmentsOutsideOfTheFile) {
    const auto refused = [](const auto& change) { return segment_verdict(change); };
    EXPECT_EQ(refused([](auto& p) { p.p_offset = kHuge; }), "image.elf.segment");
    EXPECT_EQ(refused([](auto& p) { p.p_filesz = p.p_memsz = 1 << 20; }), "image.elf.segment");
    EXPECT_EQ(refused([](auto& p) { p.p_filesz = 257; }), "image.elf.segment");
    EXPECT_EQ(refused([](auto& p) { p.p_memsz = kHuge; }), "image.elf.segment");
    EXPECT_EQ(refused([](auto& p) { p.p_align = 3; }), "image.elf.segment");
    EXPECT_EQ(refused([](auto& p) { p.p_vaddr = 4096; }), "image.elf.segment");
}

TEST(ImageCheck, RefusesRecordsThatLeadOutside) {
    const auto info = [](std::uint64_t at, auto value) {
        return word_verdict(".nv.info", at, value);
    };
    EXPECT_EQ(info(0, std::uint8_t{0}), "image.elf.info");  // No such form.
    EXPECT_EQ(info(0, std::uint8_t{5}), "image.elf.info");
    EXPECT_EQ(info(2, std::uint16_t{0xffff}), "image.elf.info");  // Longer than the section.
    EXPECT_EQ(info(14, std::uint16_t{9}), "image.elf.info");
    EXPECT_EQ(info(2, std::uint16_t{4}), "image.elf.info");  // Half a pair.
    EXPECT_EQ(info(4, std::uint32_t{5}), "image.elf.info");  // No such symbol.
    EXPECT_EQ(section_verdict(".nv.info", [](auto& s) { s.sh_size -= 1; }), "image.elf.info");

    // As NVIDIA's libraries have them: without a link, they count in the only symbol table.
    for (const char* name : {".nv.info", ".nv.info.step"}) {
        EXPECT_EQ(section_verdict(name, [](auto& s) { s.sh_link = 0; }), "sound") << name;
        EXPECT_EQ(changed([&](SampleCubin& cubin) {
                      cubin.edit_section(name, [](auto& s) { s.sh_link = 0; });
                      const std::uint64_t symbol = name == std::string(".nv.info") ? 4 : 8;
                      cubin.edit<std::uint32_t>(cubin.content(name) + symbol,
                                                [](std::uint32_t& word) { word = 5; });
                  }),
                  "image.elf.info")
            << name;
    }

    const auto kernel = [](std::uint64_t at, auto value) {
        return word_verdict(".nv.info.step", at, value);
    };
    EXPECT_EQ(kernel(2, std::uint16_t{17}), "image.elf.info");         // Parameters in all.
    EXPECT_EQ(kernel(8, std::uint32_t{5}), "image.elf.info");          // The bank's symbol.
    EXPECT_EQ(kernel(12, std::uint16_t{0x211}), "image.elf.info");     // Where they begin in it.
    EXPECT_EQ(kernel(14, std::uint16_t{17}), "image.elf.info");        // Their size in it.
    EXPECT_EQ(kernel(14, std::uint16_t{15}), "image.elf.info");        // Smaller than they are.
    EXPECT_EQ(kernel(26, std::uint16_t{9}), "image.elf.info");         // The parameter's place.
    EXPECT_EQ(kernel(28, std::uint32_t{9U << 18}), "image.elf.info");  // The parameter's size.
    EXPECT_EQ(kernel(36, std::uint32_t{0x100}), "image.elf.info");     // Behind the code.

    EXPECT_EQ(word_verdict(".nv.callgraph", 8, std::uint32_t{5}), "image.elf.info");
    EXPECT_EQ(word_verdict(".nv.callgraph", 12, std::uint32_t{0xffffff00}), "image.elf.info");
}

std::string elf_entry(const std::string& cubin, unsigned target, Packing packing) {
    return fatbin_entry(cubin, target, packing, EntryKind::kElf);
}

TEST(ImageCheck, LooksIntoEveryEntryThatTheDeviceCouldRun) {
    SampleCubin broken;
    broken.edit_section(".nv.global.init", [](auto& s) { s.sh_offset = 65536; });
    const std::string good = SampleCubin().bytes;
    for (const Packing packing : {Packing::kStored, Packing::kLz4, Packing::kZstd}) {
        EXPECT_EQ(image_verdict(fatbin_of(elf_entry(good, 90, packing))), "sound");
        const std::string both =
            fatbin_of(elf_entry(good, 90, packing) + elf_entry(broken.bytes, 90, packing));
        EXPECT_EQ(image_verdict(both), "image.elf.section");
        EXPECT_EQ(image_verdict(both, 80), "sound");
        EXPECT_EQ(image_verdict(both, 0), "image.elf.section");
    }
    // Capsules are unfolded for a device of another major number.
    const std::string capsule = fatbin_of(elf_entry(broken.bytes, 100, Packing::kZstd));
    EXPECT_EQ(image_verdict(capsule, 120), "image.elf.section");
    EXPECT_EQ(image_verdict(capsule, 90), "sound");
}

/// One field of the only entry's header.
template <typename Word>
std::string entry_verdict(std::uint64_t at, Word value, Packing packing = Packing::kStored) {
    std::string fatbin = fatbin_of(elf_entry(SampleCubin().bytes, 90, packing));
    std::memcpy(fatbin.data() + 16 + at, &value, sizeof(value));
    return image_verdict(fatbin);
}

TEST(ImageCheck, RefusesEntriesOfFatbins) {
    // A cubin that is called PTX.
    EXPECT_EQ(image_verdict(fatbin_of(
                  fatbin_entry(SampleCubin().bytes, 90, Packing::kStored, EntryKind::kPtx))),
              "image.format");
    EXPECT_EQ(entry_verdict(0x00, std::uint16_t{3}), "image.fatbin");
    EXPECT_EQ(entry_verdict(0x02, std::uint16_t{0x102}), "image.fatbin");
    EXPECT_EQ(entry_verdict(0x04, std::uint32_t{0x20}), "image.truncated");
    EXPECT_EQ(entry_verdict(0x04, std::uint32_t{0x44}), "image.truncated");
    EXPECT_EQ(entry_verdict(0x08, kHuge), "image.truncated");
    EXPECT_EQ(entry_verdict(0x14, std::uint32_t{0x40}), "image.fatbin");
    EXPECT_EQ(entry_verdict(0x1c, std::uint32_t{0x10000 + 80}), "image.fatbin");
    EXPECT_EQ(entry_verdict(0x20, std::uint32_t{0x48}), "image.fatbin");
    EXPECT_EQ(entry_verdict(0x24, std::uint32_t{0xffffffff}), "image.fatbin");
    EXPECT_EQ(entry_verdict(0x28, std::uint64_t{0xa011}, Packing::kZstd), "image.fatbin");
    EXPECT_EQ(entry_verdict(0x28, std::uint64_t{0x10011}), "image.fatbin");
    EXPECT_EQ(entry_verdict(0x38, std::uint64_t{1} << 40, Packing::kZstd), "image.compression");
    EXPECT_EQ(entry_verdict(0x38, std::uint64_t{1} << 40, Packing::kLz4), "image.compression");
    EXPECT_EQ(entry_verdict(0x38, std::uint64_t{64}, Packing::kLz4), "image.compression");
    EXPECT_EQ(entry_verdict(0x10, std::uint32_t{0xffffffff}, Packing::kLz4), "image.truncated");
    std::string other_version = fatbin_of("");
    other_version[4] = 2;
    EXPECT_EQ(image_verdict(other_version), "image.fatbin");
    std::string too_long = fatbin_of("");
    too_long[8] = 64;
    EXPECT_EQ(image_verdict(too_long), "image.truncated");
}

TEST(ImageCheck, WantsTheEndOfText) {
    const std::string ptx = sample_ptx(90);
    EXPECT_EQ(image_verdict(ptx + '\0'), "sound");
    EXPECT_EQ(image_verdict(ptx), "image.ptx");
    EXPECT_EQ(image_verdict(fatbin_of(fatbin_entry(ptx + '\0', 90, Packing::kZstd))), "sound");
    EXPECT_EQ(image_verdict(fatbin_of(fatbin_entry(ptx, 90, Packing::kZstd))), "image.ptx");
}

/// Whatever it is called, a driver goes by the first bytes; a wrapper would be two pointers.
TEST(ImageCheck, RefusesWhatIsNoImage) {
    std::string wrapper(64, '\0');
    const std::uint32_t magic = softgpu::image::kWrapperMagic;
    std::memcpy(wrapper.data(), &magic, sizeof(magic));
    EXPECT_EQ(image_verdict(wrapper), "image.format");
    EXPECT_EQ(link_verdict(wrapper, CU_JIT_INPUT_PTX), "image.format");
    EXPECT_EQ(link_verdict(wrapper, CU_JIT_INPUT_FATBINARY), "image.format");
    EXPECT_EQ(image_verdict(std::string(64, '\0')), "image.format");
    EXPECT_EQ(image_verdict({}), "image.format");
    EXPECT_EQ(image_verdict(std::string("BC\xc0\xde") + std::string(64, '\0')), "image.format");
}

std::string member(const std::string& name, const std::string& content) {
    std::string header(60, ' ');
    header.replace(0, name.size(), name);
    const std::string size = std::to_string(content.size());
    header.replace(48, size.size(), size);
    header.replace(58, 2, "`\n");
    return header + content + std::string(content.size() % 2, '\n');
}

/// A host's object that has nothing but a section of fatbins.
std::string host_object(const std::string& fatbins) {
    SampleCubin object;
    object.edit_header([](auto& header) { header.e_machine = EM_X86_64; });
    const std::uint64_t at = object.bytes.size();
    object.edit_section(".nv.global.init", [&](auto& section) {
        section.sh_offset = at;
        section.sh_size = fatbins.size();
    });
    object.bytes += fatbins;
    // Its name: ".nv_fatbin" instead of ".nv.global".
    const std::size_t name = object.bytes.find(".nv.global.init", object.content(".shstrtab"));
    object.bytes.replace(name, 15, std::string(".nv_fatbin\0\0\0\0\0", 15));
    return object.bytes;
}

TEST(ImageCheck, LooksIntoObjectsAndArchives) {
    SampleCubin broken;
    broken.edit_section(".nv.global.init", [](auto& s) { s.sh_offset = 65536; });
    const std::string good = fatbin_of(elf_entry(SampleCubin().bytes, 90, Packing::kStored));
    const std::string bad = fatbin_of(elf_entry(broken.bytes, 90, Packing::kStored));
    EXPECT_EQ(link_verdict(host_object(good), CU_JIT_INPUT_OBJECT), "sound");
    EXPECT_EQ(link_verdict(host_object(good + std::string(16, '\0') + bad), CU_JIT_INPUT_OBJECT),
              "image.elf.section");
    EXPECT_EQ(link_verdict(host_object(std::string(64, 'x')), CU_JIT_INPUT_OBJECT), "image.fatbin");
    EXPECT_EQ(link_verdict(broken.bytes, CU_JIT_INPUT_CUBIN), "image.elf.section");
    EXPECT_EQ(link_verdict(bad, CU_JIT_INPUT_FATBINARY), "image.elf.section");
    EXPECT_EQ(link_verdict("words", CU_JIT_INPUT_OBJECT), "image.format");
    EXPECT_EQ(link_verdict(sample_ptx(90), CU_JIT_INPUT_PTX), "sound");

    const std::string index{"\0\0\0\1\0\0\0\x40name\0", 13};
    const std::string archive =
        "!<arch>\n" + member("/", index) + member("a.o/", host_object(good));
    EXPECT_EQ(link_verdict(archive, CU_JIT_INPUT_LIBRARY), "sound");
    EXPECT_EQ(link_verdict(archive + member("b.o/", host_object(bad)), CU_JIT_INPUT_LIBRARY),
              "image.elf.section");
    EXPECT_EQ(link_verdict(archive.substr(0, archive.size() - 8), CU_JIT_INPUT_LIBRARY),
              "image.archive");
    EXPECT_EQ(link_verdict("!<thin>\n", CU_JIT_INPUT_LIBRARY), "image.archive");
    std::string sizes = archive;
    sizes.replace(8 + 48, 3, "-13");
    EXPECT_EQ(link_verdict(sizes, CU_JIT_INPUT_LIBRARY), "image.archive");
    std::string counts = archive;
    counts[8 + 60] = '\x7f';
    EXPECT_EQ(link_verdict(counts, CU_JIT_INPUT_LIBRARY), "image.archive");
    std::string leads = archive;
    leads[8 + 60 + 4] = '\x7f';
    EXPECT_EQ(link_verdict(leads, CU_JIT_INPUT_LIBRARY), "image.archive");
}

// A quota counts declarations: no instruction's state space, and none in a comment.
TEST(VariableBytes, AreThoseOfDeclarationsInPtx) {
    EXPECT_EQ(ptx_variable_bytes(".global .u32 a;"), 4u);
    EXPECT_EQ(ptx_variable_bytes("x/**/.global .u32 a;"), 4u) << "a comment ends a word";
    EXPECT_EQ(ptx_variable_bytes("x//\n.global .u32 a;"), 4u);
    EXPECT_EQ(ptx_variable_bytes("ld.global.u32 %r1, [a];"), 0u);
    EXPECT_EQ(ptx_variable_bytes("st.global.u64 [a], %d1; .const .b8 b[7];"), 7u);
    EXPECT_EQ(ptx_variable_bytes("// .global .u32 a;\n/* .const .u64 b; */"), 0u);
    EXPECT_EQ(ptx_variable_bytes(".extern .global .u32 a;"), 0u);
}

}  // namespace
}  // namespace gantry::worker
