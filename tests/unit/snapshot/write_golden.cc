// Writes this version's golden file anew; run by hand when, and only when, the format's version is
// raised.
#include <cstdio>

#include "tests/unit/snapshot/sample.h"

int main(int argc, char** argv) {
    using namespace gantry::snapshot;
    if (argc != 2) {
        std::fprintf(stderr, "usage: write-golden FOLDER\n");
        return 2;
    }
    const std::string path =
        std::string(argv[1]) + "/v" + std::to_string(kContainerVersion) + "-memory.gsnap";
    auto file = AtomicFile::create(path);
    if (!file.ok() || !write_memory_sample(file->fd(), path).ok() || !file->commit().ok()) {
        std::fprintf(stderr, "cannot write %s\n", path.c_str());
        return 1;
    }
    return 0;
}
