// Writes what the fuzzers of images start from: image_seeds FOLDER fills FOLDER/fatbin_fuzzer,
// FOLDER/cubin_fuzzer and FOLDER/image_check_fuzzer.
#include <filesystem>
#include <fstream>
#include <string>

#include "host-daemon/softgpu/image/image.h"
#include "proto/base/assert.h"
#include "tests/unit/softgpu_driver/image_writer.h"
#include "tests/unit/worker/cubin_writer.h"

int main(int count, char** arguments) {
    using namespace gantry::softgpu::image;
    GANTRY_ASSERT(count == 2, "usage: image_seeds FOLDER");
    const std::filesystem::path root = arguments[1];
    const auto write = [&root](const char* folder, const char* name, const std::string& bytes) {
        std::filesystem::create_directories(root / folder);
        std::ofstream file(root / folder / name, std::ios::binary);
        file << bytes;
        GANTRY_ASSERT(file.good(), "cannot write %s/%s", folder, name);
    };
    const std::string old_cubin = sample_cubin(89, {"first", "second"}, false);
    const std::string new_cubin = sample_cubin(90, {"_Z4stepPfi"}, true);
    write("cubin_fuzzer", "old_abi", old_cubin);
    write("cubin_fuzzer", "new_abi", new_cubin);
    write("cubin_fuzzer", "no_kernels", sample_cubin(120, {}, true));

    const auto ptx = [](unsigned target, Packing packing) {
        return fatbin_entry(sample_ptx(target), target, packing);
    };
    const auto elf = [&](const std::string& cubin, Packing packing) {
        return fatbin_entry(cubin, 90, packing, EntryKind::kElf);
    };
    write("fatbin_fuzzer", "empty", fatbin_of(""));
    write("fatbin_fuzzer", "stored", fatbin_of(ptx(75, Packing::kStored)));
    write("fatbin_fuzzer", "zstd", fatbin_of(ptx(90, Packing::kZstd)));
    write("fatbin_fuzzer", "lz4", fatbin_of(ptx(90, Packing::kLz4)));
    write("fatbin_fuzzer", "three_targets",
          fatbin_of(ptx(75, Packing::kZstd) + ptx(90, Packing::kLz4) + ptx(120, Packing::kStored)));
    write("fatbin_fuzzer", "cubins_only",
          fatbin_of(elf(new_cubin, Packing::kZstd) + elf(old_cubin, Packing::kStored)));
    write("fatbin_fuzzer", "cubin_and_ptx",
          fatbin_of(elf(new_cubin, Packing::kLz4) + ptx(90, Packing::kZstd)));
    write("fatbin_fuzzer", "linked_units",
          pack_linked({{"a", sample_ptx(75), 75}, {"b", sample_ptx(90), 90}}));

    // The first byte: as what it comes, see image_check_fuzzer.cc.
    const std::string whole = gantry::worker::SampleCubin().bytes;
    const auto checked = [&write](const char* name, char how, const std::string& bytes) {
        write("image_check_fuzzer", name, how + bytes);
    };
    checked("cubin", 8, whole);
    checked("input", 0, whole);
    checked("fatbin_stored", 8, fatbin_of(elf(whole, Packing::kStored)));
    checked("fatbin_zstd", 2, fatbin_of(elf(whole, Packing::kZstd) + ptx(90, Packing::kLz4)));
    checked("text", 8, sample_ptx(90) + '\0');
    const std::string size = std::to_string(whole.size());
    std::string header = "a.o/" + std::string(44, ' ') + size + std::string(10 - size.size(), ' ');
    checked("archive", 4, "!<arch>\n" + header + "`\n" + whole);
    return 0;
}
