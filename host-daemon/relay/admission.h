// Admission: how many connections and sessions of the relay may be unproven at a time, in all and
// of one address. Beyond that a connection is closed at once: its guest dials again.
//
// A connection is unproven until its hello names a session that there is, and a new session until
// gantryd has given it a region. Threads: any. Cost: a look-up under a lock.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "proto/base/mutex.h"

namespace gantry::relay {

/// Room for one that is unproven; given back when the last copy goes.
using Room = std::shared_ptr<const void>;

class Admission {
public:
    /// A VM has 64 channels, whose programs may all begin at once.
    static constexpr std::size_t kOfAddressMax = 64;
    static constexpr std::size_t kAllMax = 512;

    /// Null: there is none. IPv6 addresses count by their network of 64 bits, which is one host's.
    [[nodiscard]] Room admit(const sockaddr_storage& address);

private:
    struct Counts {
        Mutex mutex;
        std::size_t all GANTRY_GUARDED_BY(mutex) = 0;
        std::map<std::string, std::size_t> of_address GANTRY_GUARDED_BY(mutex);
    };
    std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
};

}  // namespace gantry::relay
