#include "host-daemon/relay/admission.h"

#include <netinet/in.h>

#include <cstring>

namespace gantry::relay {
namespace {

std::string key_of(const sockaddr_storage& address) {
    constexpr std::size_t kNetworkBytes = 8;
    if (address.ss_family == AF_INET6) {
        sockaddr_in6 six{};
        std::memcpy(&six, &address, sizeof six);
        const auto* bytes = reinterpret_cast<const char*>(&six.sin6_addr);
        // An IPv4 address that came through a socket of both kinds is all of it.
        return {bytes, IN6_IS_ADDR_V4MAPPED(&six.sin6_addr) ? sizeof six.sin6_addr : kNetworkBytes};
    }
    sockaddr_in four{};
    std::memcpy(&four, &address, sizeof four);
    return {reinterpret_cast<const char*>(&four.sin_addr), sizeof four.sin_addr};
}

}  // namespace

Room Admission::admit(const sockaddr_storage& address) {
    const std::string key = key_of(address);
    {
        const MutexLock lock(counts_->mutex);
        std::size_t& own = counts_->of_address[key];
        if (own >= kOfAddressMax || counts_->all >= kAllMax) {
            if (own == 0) {
                counts_->of_address.erase(key);
            }
            return nullptr;
        }
        ++own;
        ++counts_->all;
    }
    return {static_cast<const void*>(this), [counts = counts_, key](const void*) {
                const MutexLock lock(counts->mutex);
                --counts->all;
                const auto own = counts->of_address.find(key);
                if (--own->second == 0) {
                    counts->of_address.erase(own);
                }
            }};
}

}  // namespace gantry::relay
