#include "host-daemon/replacement/exchange.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "proto/control/channel.h"

namespace gantry::replacement {

Result<std::string> blob_of(std::vector<control::UniqueFd>& descriptors, std::uint64_t bytes) {
    if (bytes == 0) {
        return std::string();
    }
    if (descriptors.empty()) {
        return Error{Code::kInvalidArgument, "worker.protocol", "a blob is missing"};
    }
    GANTRY_ASSIGN(const control::MappedBlob blob,
                  control::MappedBlob::map(std::move(descriptors.front()), bytes));
    return std::string(reinterpret_cast<const char*>(blob.bytes().data()), blob.bytes().size());
}

Result<control::Seed> random_seed() {
    std::uint64_t random[2];
    if (getrandom(random, sizeof(random), 0) != sizeof(random)) {
        return Error{Code::kInternal, "worker.random", std::strerror(errno)};
    }
    control::Seed seed;
    seed.set_low(random[0]);
    seed.set_high(random[1]);
    return seed;
}

}  // namespace gantry::replacement
