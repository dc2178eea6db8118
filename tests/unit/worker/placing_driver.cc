// The soft GPU's driver, but that it takes cubins, as NVIDIA's does: it runs none of their code,
// and puts their variables behind one another where it likes, each time elsewhere for the first
// loads.
#include <elf.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/cuda/abi.h"

extern "C" CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes);

namespace {

struct PlacedModule {
    std::map<std::string, std::pair<CUdeviceptr, std::size_t>> variables;
};

constexpr std::size_t kSectionBytes = 1 << 16;
constexpr std::size_t kRoomBytes = 64 * kSectionBytes;
CUdeviceptr room = 0;

/// What is loaded; the worker's own modules are the soft GPU's.
std::map<CUmodule, std::unique_ptr<PlacedModule>>& placed_modules() {
    static std::map<CUmodule, std::unique_ptr<PlacedModule>> modules;
    return modules;
}

std::unique_ptr<PlacedModule> read_module(const char* image, CUdeviceptr base) {
    auto module = std::make_unique<PlacedModule>();
    Elf64_Ehdr header;
    std::memcpy(&header, image, sizeof header);
    std::vector<Elf64_Shdr> sections(header.e_shnum);
    std::memcpy(sections.data(), image + header.e_shoff, sections.size() * sizeof(Elf64_Shdr));
    const char* names = image + sections[header.e_shstrndx].sh_offset;
    for (const Elf64_Shdr& table : sections) {
        for (std::size_t at = 0; table.sh_type == SHT_SYMTAB && at < table.sh_size;
             at += sizeof(Elf64_Sym)) {
            Elf64_Sym symbol;
            std::memcpy(&symbol, image + table.sh_offset + at, sizeof symbol);
            const bool is_object = ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT;
            const char* home =
                symbol.st_shndx != SHN_UNDEF ? names + sections[symbol.st_shndx].sh_name : "";
            if (is_object && (std::strncmp(home, ".nv.global", 10) == 0 ||
                              std::strcmp(home, ".nv.constant3") == 0)) {
                module->variables.emplace(
                    image + sections[table.sh_link].sh_offset + symbol.st_name,
                    std::pair{base + symbol.st_shndx * kSectionBytes + symbol.st_value,
                              symbol.st_size});
            }
        }
    }
    return module;
}

}  // namespace

extern "C" CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int,
                                       CUjit_option*, void**) {
    static int loads = 0;
    if (std::memcmp(image, ELFMAG, SELFMAG) != 0) {
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    if (room == 0) {
        if (const CUresult result = cuMemAlloc_v2(&room, kRoomBytes); result != CUDA_SUCCESS) {
            return result;
        }
    }
    const int shift = loads < 2 ? loads : 2;
    ++loads;
    auto placed =
        read_module(static_cast<const char*>(image), room + static_cast<CUdeviceptr>(shift) * 256);
    *module = reinterpret_cast<CUmodule>(placed.get());
    placed_modules()[*module] = std::move(placed);
    return CUDA_SUCCESS;
}

extern "C" CUresult cuModuleUnload(CUmodule module) {
    placed_modules().erase(module);
    return CUDA_SUCCESS;
}

extern "C" CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, std::size_t* bytes, CUmodule module,
                                         const char* name) {
    if (placed_modules().count(module) == 0) {
        return CUDA_ERROR_NOT_FOUND;
    }
    const auto& variables = reinterpret_cast<PlacedModule*>(module)->variables;
    const auto found = variables.find(name);
    if (found == variables.end()) {
        return CUDA_ERROR_NOT_FOUND;
    }
    *address = found->second.first;
    *bytes = found->second.second;
    return CUDA_SUCCESS;
}
