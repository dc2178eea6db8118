#include "host-daemon/softgpu/streams/condition.h"

#include <map>
#include <mutex>

namespace gantry::softgpu {
namespace {

/// Unlike an address, a handle or a small number.
constexpr std::uint64_t kFirstNumber = 0x0c0d'0000'0000'0001;

struct Table {
    std::mutex mutex;
    std::map<std::uint64_t, std::weak_ptr<Condition>> conditions;
};

Table& table() {
    static auto* made = new Table;  // Driver threads may outlive exit().
    return *made;
}

}  // namespace

std::shared_ptr<Condition> Condition::create(std::uint32_t default_value, bool assigns) {
    const std::shared_ptr<Condition> made(new Condition(default_value, assigns));
    const std::lock_guard lock(table().mutex);
    std::uint64_t number = kFirstNumber;
    for (const auto& [taken, condition] : table().conditions) {
        if (taken != number) {
            break;
        }
        ++number;
    }
    made->number_ = number;
    table().conditions[number] = made;
    return made;
}

std::shared_ptr<Condition> Condition::find(std::uint64_t number) {
    const std::lock_guard lock(table().mutex);
    const auto known = table().conditions.find(number);
    return known == table().conditions.end() ? nullptr : known->second.lock();
}

Condition::~Condition() {
    const std::lock_guard lock(table().mutex);
    table().conditions.erase(number_);
}

}  // namespace gantry::softgpu
