// A hostile tenant's program: loads images that were mutated, one after the other.
//   image_mutants IMAGE SEED COUNT [FIRST]
//   image_mutants --write IMAGE SEED NUMBER FILE      writes that mutant and needs no GPU
// IMAGE is a fatbin of mutant_code.cu: the shim asks its header for its size, and no ELF header, so
// the worker gets what a tenant that has no shim would send. Mutant number n of a seed is the same
// each time.
// Most mutations set a field of the ELF header, of a section header, a symbol or a relocation to a
// value at some edge; others overwrite bytes anywhere. A mutant's code is never run. What is asked
// of each that loads: its variables hold bytes of the image itself, addresses, or zeros, and no
// others: what else lies in the process that loads it is not the tenant's. After every 64 mutants,
// and at the end, the image as it was must load and its kernel must give the right answers.
// Prints `at N` before each load, so that one without an end is known, and last
// `PASS loaded L refused R words W`.
#include <elf.h>
#include <algorithm>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "tests/programs/driver_entry.h"

typedef std::vector<unsigned char> Bytes;
typedef std::mt19937_64 Random;

enum { kThreads = 64, kForeignRun = 4, kFatbinHeader = 16 };

static Bytes file_bytes(const char* path) {
    FILE* const file = fopen(path, "rb");
    EXPECT(file != NULL);
    Bytes bytes;
    for (int c; (c = fgetc(file)) != EOF;) {
        bytes.push_back((unsigned char)c);
    }
    fclose(file);
    return bytes;
}

static uint64_t below(Random& random, uint64_t bound) { return bound == 0 ? 0 : random() % bound; }

/// A value that a careless reader does not expect in a field that counts bytes of an image.
static uint64_t edge(Random& random, uint64_t bytes, uint64_t now) {
    const uint64_t values[] = {0,
                               1,
                               now + 1,
                               now - 1,
                               now + 8,
                               now ^ (1ull << below(random, 64)),
                               bytes,
                               bytes - 1,
                               bytes + 1,
                               bytes + 16384,
                               4096,
                               65536,
                               1000000,
                               200000000000ull,
                               0ull - 65536,
                               0x7fffffffull,
                               0xffffffffull,
                               0x7fffffffffff0000ull,
                               ~0ull,
                               below(random, 2 * bytes),
                               random()};
    return values[below(random, sizeof values / sizeof values[0])];
}

static void set_field(Bytes& image, size_t at, size_t width, Random& random) {
    if (at + width > image.size()) {
        return;
    }
    uint64_t value = 0;
    memcpy(&value, &image[at], width);
    value = edge(random, image.size(), value);
    memcpy(&image[at], &value, width);
}

/// One field of a table of records; `fields`: offset and width of each.
typedef std::vector<std::pair<size_t, size_t>> Fields;

static void mutate_record(Bytes& image, size_t table, size_t size, size_t count,
                          const Fields& fields, Random& random) {
    const std::pair<size_t, size_t> field = fields[below(random, fields.size())];
    set_field(image, table + below(random, count) * size + field.first, field.second, random);
}

static void mutate_anywhere(Bytes& image, Random& random) {
    for (uint64_t i = 0, most = 1 + below(random, 8); i < most; ++i) {
        image[below(random, image.size())] = (unsigned char)random();
    }
}

static const Fields kHeader = {{16, 2}, {18, 2}, {20, 4}, {24, 8}, {32, 8}, {40, 8}, {48, 4},
                               {52, 2}, {54, 2}, {56, 2}, {58, 2}, {60, 2}, {62, 2}};
static const Fields kSection = {{0, 4},  {4, 4},  {8, 8},  {16, 8}, {24, 8},
                                {32, 8}, {40, 4}, {44, 4}, {48, 8}, {56, 8}};
static const Fields kSegment = {{0, 4},  {4, 4},  {8, 8},  {16, 8},
                                {24, 8}, {32, 8}, {40, 8}, {48, 8}};
static const Fields kSymbol = {{0, 4}, {4, 1}, {5, 1}, {6, 2}, {8, 8}, {16, 8}};
static const Fields kRelocation = {{0, 8}, {8, 4}, {12, 4}, {16, 8}};

/// A field in the contents of a section, by what the sound image says it holds.
static void mutate_contents(Bytes& image, const Elf64_Shdr& section, Random& random) {
    if (section.sh_type == SHT_SYMTAB) {
        mutate_record(image, section.sh_offset, 24, section.sh_size / 24, kSymbol, random);
    } else if (section.sh_type == SHT_RELA) {
        mutate_record(image, section.sh_offset, 24, section.sh_size / 24, kRelocation, random);
    } else if (section.sh_type == SHT_REL) {
        mutate_record(image, section.sh_offset, 16, section.sh_size / 16,
                      Fields(kRelocation.begin(), kRelocation.end() - 1), random);
    } else if (section.sh_type != SHT_NOBITS && section.sh_size >= 4) {
        set_field(image, section.sh_offset + below(random, section.sh_size - 3), 4, random);
    }
}

/// Where the fields lie is asked of the sound one.
static void mutate_elf(Bytes& image, const Bytes& sound, Random& random) {
    Elf64_Ehdr header;
    memcpy(&header, sound.data(), sizeof header);
    std::vector<Elf64_Shdr> sections(header.e_shnum);
    memcpy(sections.data(), &sound[header.e_shoff], sections.size() * sizeof sections[0]);
    switch (below(random, 8)) {
        case 0: mutate_record(image, 0, sizeof header, 1, kHeader, random); break;
        case 1: mutate_record(image, header.e_phoff, 56, header.e_phnum, kSegment, random); break;
        case 2:
        case 3:
        case 4: mutate_record(image, header.e_shoff, 64, header.e_shnum, kSection, random); break;
        case 5: mutate_anywhere(image, random); break;
        default: mutate_contents(image, sections[below(random, sections.size())], random);
    }
}

/// The mutant has the size of the sound image. Of a fatbin the bytes that say its size stay: they
/// are what the shim copies, and the rest of this process is no hostile image.
static Bytes mutant(const Bytes& sound, uint64_t seed, uint64_t number) {
    Random random(seed * 1000003 + number);
    Bytes image = sound;
    const auto elf_at = std::search(image.begin(), image.end(), ELFMAG, ELFMAG + SELFMAG);
    if (elf_at == image.end() || below(random, 16) == 0) {
        mutate_anywhere(image, random);
        set_field(image, 16 + 4 * below(random, 24), 4, random);
        std::copy(sound.begin(), sound.begin() + kFatbinHeader, image.begin());
        return image;
    }
    const Bytes sound_elf(elf_at, image.end());
    Bytes elf = sound_elf;
    for (uint64_t i = 0, most = 1 + below(random, 3); i < most; ++i) {
        mutate_elf(elf, sound_elf, random);
    }
    std::copy(elf.begin(), elf.end(), elf_at);
    return image;
}

struct Driver {
    decltype(&cuModuleLoadData) load = entry<decltype(&cuModuleLoadData)>("cuModuleLoadData", 2000);
    decltype(&cuModuleUnload) unload = entry<decltype(&cuModuleUnload)>("cuModuleUnload", 2000);
    decltype(&cuModuleGetGlobal) global =
        entry<decltype(&cuModuleGetGlobal)>("cuModuleGetGlobal", 3020);
    decltype(&cuModuleGetFunction) function =
        entry<decltype(&cuModuleGetFunction)>("cuModuleGetFunction", 2000);
    decltype(&cuLaunchKernel) launch = entry<decltype(&cuLaunchKernel)>("cuLaunchKernel", 4000);
};

static void check_answers(const Driver& driver, const Bytes& sound, unsigned* out) {
    CUmodule module;
    CUfunction answer;
    OK(driver.load(&module, sound.data()));
    OK(driver.function(&answer, module, "answer"));
    for (unsigned n = 4; n < 6; ++n) {
        unsigned long long texture = 0;
        void* arguments[] = {&out, &n, &texture};
        OK(driver.launch(answer, 1, 1, 1, kThreads, 1, 1, 0, nullptr, arguments, nullptr));
        unsigned found[kThreads];
        CHECK(cudaMemcpy(found, out, sizeof found, cudaMemcpyDeviceToHost));
        for (unsigned i = 0; i < kThreads; ++i) {
            const unsigned seeds[] = {9, 11};
            EXPECT_STATUS(found[i], (n - 2) * 17 * (i % 3 + 1) + seeds[i % 2] + 1 + 0x7f4a7c15u);
        }
    }
    OK(driver.unload(module));
}

/// What the variables hold may be of the image, or zero, or an address now and then.
static long check_variables(const Driver& driver, CUmodule module, const Bytes& image,
                            uint64_t number) {
    std::unordered_set<uint64_t> known = {0};
    for (size_t at = 0; at + 8 <= image.size(); ++at) {
        uint64_t word;
        memcpy(&word, &image[at], 8);
        known.insert(word);
    }
    long looked_at = 0;
    for (const char* name : {"seeds", "zeros", "fixed", "where", "first", "functions"}) {
        CUdeviceptr place = 0;
        size_t bytes = 0;
        if (driver.global(&place, &bytes, module, name) != CUDA_SUCCESS) {
            continue;  // The mutant has none of that name any more.
        }
        std::vector<uint64_t> words(std::min<size_t>(bytes, 1 << 20) / 8);
        if (cudaMemcpy(words.data(), (void*)place, words.size() * 8, cudaMemcpyDeviceToHost) !=
            cudaSuccess) {
            cudaGetLastError();  // A size that is not there.
            continue;
        }
        int run = 0;
        for (const uint64_t word : words) {
            run = known.count(word) != 0 ? 0 : run + 1;
            if (run == kForeignRun) {
                fprintf(stderr, "mutant %llu: %s holds bytes that are not of the image\n",
                        (unsigned long long)number, name);
                exit(1);
            }
        }
        looked_at += (long)words.size();
    }
    return looked_at;
}

static int write_mutant(const char* image, uint64_t seed, uint64_t number, const char* path) {
    const Bytes bytes = mutant(file_bytes(image), seed, number);
    FILE* const file = fopen(path, "wb");
    EXPECT(file != NULL && fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size());
    EXPECT(fclose(file) == 0);
    return 0;
}

static uint64_t number_of(const char* text) { return strtoull(text, nullptr, 10); }

int main(int argc, char** argv) {
    if (argc == 6 && strcmp(argv[1], "--write") == 0) {
        return write_mutant(argv[2], number_of(argv[3]), number_of(argv[4]), argv[5]);
    }
    EXPECT(argc == 4 || argc == 5);
    const Bytes sound = file_bytes(argv[1]);
    const uint64_t seed = number_of(argv[2]), count = number_of(argv[3]);
    const uint64_t first = argc == 5 ? number_of(argv[4]) : 0;
    unsigned* out = nullptr;
    CHECK(cudaMalloc((void**)&out, kThreads * sizeof *out));
    const Driver driver;
    check_answers(driver, sound, out);
    long loaded = 0, refused = 0, words = 0;
    for (uint64_t number = first; number < count; ++number) {
        printf("at %llu\n", (unsigned long long)number);
        fflush(stdout);
        const Bytes image = mutant(sound, seed, number);
        CUmodule module;
        if (driver.load(&module, image.data()) == CUDA_SUCCESS) {
            ++loaded;
            words += check_variables(driver, module, image, number);
            OK(driver.unload(module));
        } else {
            ++refused;
            size_t free = 0, total = 0;
            CHECK(cudaMemGetInfo(&free, &total));  // Whoever refused it is still there.
        }
        if (number % 64 == 63) {
            check_answers(driver, sound, out);
        }
    }
    check_answers(driver, sound, out);
    printf("PASS loaded %ld refused %ld words %ld\n", loaded, refused, words);
    return 0;
}
